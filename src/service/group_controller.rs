//! CSI GroupController.

use super::declare::{Call, Declarations, Facts, Named, Question, Request, Route, Work, declare};
use crate::driver::Driver;
use crate::error::Result;
use crate::model::{GroupSnapshotId, NodeKey};
use crate::wire::{csi, decode, encode};
use csi::group_controller_service_capability::rpc::Type as Rpc;

const RPCS: [Rpc; 1] = [Rpc::CreateDeleteGetVolumeGroupSnapshot];

declare! { each of csi;
    question GroupControllerGetCapabilitiesRequest = |_| encode::group_controller_capabilities(&RPCS);
    call CreateVolumeGroupSnapshotRequest {
        logs: "group.name" = name, "source.id" = source_volume_ids;
        makes: "group.id" = |request, node_id| GroupSnapshotId::of_name(&NodeKey::of(node_id), &request.name);
        // It is cut at one point in time, which only one node can do.
        route: |request| Route::CommonOwner(&request.source_volume_ids);
        in_turn: true;
        check: |request| decode::create_volume_group_snapshot(request);
        work: |driver, request| {
            let group = driver.create_volume_group_snapshot(request)?;
            Ok(encode::create_volume_group_snapshot(&group, driver.node_id()))
        };
    }
    call DeleteVolumeGroupSnapshotRequest {
        logs: "group.id" = group_snapshot_id, "snapshot.id" = snapshot_ids;
        route: |request| Route::LastOwner(Named::Group(&request.group_snapshot_id));
        check: |request| decode::delete_volume_group_snapshot(request);
        work: |driver, request| {
            driver.delete_volume_group_snapshot(request)?;
            Ok(csi::DeleteVolumeGroupSnapshotResponse {})
        };
    }
    call GetVolumeGroupSnapshotRequest {
        logs: "group.id" = group_snapshot_id, "snapshot.id" = snapshot_ids;
        route: |request| Route::Owner(Named::Group(&request.group_snapshot_id));
        check: |request| decode::get_volume_group_snapshot(request);
        work: |driver, request| {
            let group = driver.get_volume_group_snapshot(request)?;
            Ok(encode::get_volume_group_snapshot(&group, driver.node_id()))
        };
    }
}
