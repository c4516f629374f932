//! CSI Node.

use super::declare::{Call, Declarations, Facts, Question, Request, Route, Work, declare};
use super::pod;
use crate::driver::Driver;
use crate::error::Result;
use crate::wire::{csi, decode, encode};
use csi::node_service_capability::rpc::Type as Rpc;

#[allow(deprecated, reason = "CSI 1.12 has conditions: docs/decisions/0010")]
const RPCS: [Rpc; 7] = [
    Rpc::StageUnstageVolume,
    Rpc::GetVolumeStats,
    Rpc::ExpandVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::VolumeCondition,
    Rpc::GetVolumeHealth,
    Rpc::GetStorageHealth,
];

declare! { each of csi;
    question NodeGetCapabilitiesRequest = |_| encode::node_capabilities(&RPCS);
    question NodeGetInfoRequest = |facts| facts.node.map(encode::node_get_info).unwrap_or_default(), tells_limits: true;
    call NodeStageVolumeRequest {
        logs: "volume.id" = volume_id, "path" = staging_target_path;
        route: |_| Route::Node;
        check: |request| decode::node_stage_volume(request);
        work: |driver, request| driver.node_stage_volume(request).map(|()| csi::NodeStageVolumeResponse {});
    }
    call NodeUnstageVolumeRequest {
        logs: "volume.id" = volume_id, "path" = staging_target_path;
        route: |_| Route::Node;
        check: |request| decode::node_unstage_volume(request);
        work: |driver, request| driver.node_unstage_volume(request).map(|()| csi::NodeUnstageVolumeResponse {});
    }
    call NodePublishVolumeRequest {
        logs: "volume.id" = volume_id, "path" = target_path;
        also: |request| pod::of_publish(&request.volume_context, &request.target_path);
        route: |_| Route::Node;
        check: |request| decode::node_publish_volume(request);
        work: |driver, request| driver.node_publish_volume(request).map(|()| csi::NodePublishVolumeResponse {});
    }
    call NodeUnpublishVolumeRequest {
        logs: "volume.id" = volume_id, "path" = target_path;
        also: |request| pod::of_path(&request.target_path);
        route: |_| Route::Node;
        check: |request| decode::node_unpublish_volume(request);
        work: |driver, request| driver.node_unpublish_volume(request).map(|()| csi::NodeUnpublishVolumeResponse {});
    }
    call NodeGetVolumeStatsRequest {
        logs: "volume.id" = volume_id, "path" = volume_path;
        also: |request| pod::of_path(&request.volume_path);
        route: |_| Route::Node;
        check: |request| decode::node_get_volume_stats(request);
        work: |driver, request| driver.node_get_volume_stats(request).map(|stats| encode::node_get_volume_stats(&stats));
    }
    call NodeGetVolumeHealthRequest {
        logs: "volume.id" = volume_id, "path" = volume_publish_path;
        also: |request| pod::of_path(&request.volume_publish_path);
        route: |_| Route::Node;
        check: |request| decode::node_get_volume_health(request);
        work: |driver, request| {
            let health = driver.node_get_volume_health(request)?;
            Ok(csi::NodeGetVolumeHealthResponse { volume_health: Some(encode::volume_health(&health)) })
        };
    }
    call NodeGetStorageHealthRequest {
        logs: ;
        route: |_| Route::Node;
        check: |request| decode::check_secrets(&request.secrets);
        work: |driver, ()| driver.node_get_storage_health().map(|troubles| encode::node_get_storage_health(&troubles));
    }
    call NodeExpandVolumeRequest {
        logs: "volume.id" = volume_id, "path" = volume_path;
        also: |request| pod::of_path(&request.volume_path);
        route: |_| Route::Node;
        check: |request| decode::node_expand_volume(request);
        work: |driver, request| driver.node_expand_volume(request).map(encode::node_expand_volume);
    }
}
