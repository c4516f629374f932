//! CSI Controller.

use super::declare::{Call, Declarations, Facts, Named, Question, Request, Route, Work, declare};
use super::object;
use crate::driver::{Driver, token};
use crate::error::{Error, Result};
use crate::model::pull::Way;
use crate::model::request::CreateVolume;
use crate::model::{NodeKey, Permit, SnapshotId, VolumeId};
use crate::wire::encode::Listed;
use crate::wire::{csi, decode, encode};
use csi::controller_service_capability::rpc::Type as Rpc;
use tonic::metadata::MetadataMap;

/// Announced always.
#[allow(deprecated, reason = "CSI 1.12 has conditions: docs/decisions/0010")]
const RPCS: [Rpc; 14] = [
    Rpc::CreateDeleteVolume,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::CloneVolume,
    Rpc::ExpandVolume,
    Rpc::GetVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::ModifyVolume,
    Rpc::GetSnapshot,
    Rpc::VolumeCondition,
    Rpc::GetVolumeHealth,
    Rpc::ListVolumeHealth,
];
/// Announced where attaching is switched on.
const ATTACH_RPCS: [Rpc; 3] =
    [Rpc::PublishUnpublishVolume, Rpc::PublishReadonly, Rpc::ListVolumesPublishedNodes];

/// Metadata of a CreateVolume that a controller forwards: where the node listens that has the source.
pub const SOURCE_ADDRESS: &str = "hostloop-source-address";

/// Metadata of a CreateVolume that a controller forwards: the CSI node id of the node that has the source.
pub const SOURCE_NODE: &str = "hostloop-source-node";

/// Metadata of a CreateVolume that a controller forwards, binary: what lets its node read the source there, a
/// `SignedPermit` (`proto/hostloop/v1/peer.proto`).
pub const PERMIT: &str = "hostloop-permit-bin";

/// Metadata of a CreateVolume that a controller forwards: the token of the reservation with which it has looked
/// whether another node has the volume.
pub const RESERVATION: &str = "hostloop-reservation";

/// Metadata of a CreateVolume that a controller forwards: the volume is to be brought up to date with its source until it is
/// completed (docs/decisions/0019).
pub const COPY: &str = "hostloop-copy";

/// Metadata of such a CreateVolume: how often the source has moved. A node makes no copy of another generation.
pub const GENERATION: &str = "hostloop-generation";

/// Metadata of such a CreateVolume: the copy gets the backend and the filesystem that its parameters ask for, whatever its source has
/// (docs/decisions/0029).
pub const CONVERT: &str = "hostloop-convert";

fn header(metadata: &MetadataMap, name: &str) -> Option<String> {
    let value = metadata.get(name)?.to_str().ok()?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// The way to the source of a volume, if a controller tells it.
fn way(metadata: &MetadataMap) -> Option<Way> {
    let address = header(metadata, SOURCE_ADDRESS)?;
    let node_key = NodeKey::of(&header(metadata, SOURCE_NODE)?);
    // Without one, the node that has the source says so.
    let permit = metadata.get_bin(PERMIT).and_then(|value| value.to_bytes().ok());
    let permit = permit.and_then(|bytes| Permit::new(bytes.to_vec())).unwrap_or_default();
    Some(Way { node_key, address, permit })
}

/// Returns the generation that the source of a copy is to have.
///
/// # Errors
/// INVALID_ARGUMENT for text that is no number.
fn generation(metadata: &MetadataMap) -> Result<Option<u64>> {
    let parsed = |text: String| {
        text.parse().map_err(|_| Error::Invalid(format!("{GENERATION} {text:?} is not a number of moves")))
    };
    header(metadata, GENERATION).map(parsed).transpose()
}

/// The RPCs that are announced.
fn capabilities(attach: bool) -> Vec<Rpc> {
    let attach_rpcs: &[Rpc] = if attach { &ATTACH_RPCS } else { &[] };
    [&RPCS, attach_rpcs].concat()
}

/// Leaves to the next page what is too large for this one.
fn limit<E: Listed>(entries: &mut Vec<E>, next_token: &mut String) {
    let count = encode::fitting(entries);
    if count < entries.len() {
        entries.truncate(count);
        *next_token = entries.last().map(|entry| token::make(entry.id())).unwrap_or_default();
    }
}

declare! { each of csi;
    question ControllerGetCapabilitiesRequest =
        |facts| encode::controller_capabilities(&capabilities(facts.attach));
    call CreateVolumeRequest {
        logs: "volume.name" = name, "source.id" = volume_content_source;
        also: |request| object::of_create_volume(request);
        makes: "volume.id" = |request, node_id| VolumeId::of_name(&NodeKey::of(node_id), &request.name);
        route: |_| Route::Controller;
        in_turn: true;
        check: |request, metadata| Ok(CreateVolume {
            way: way(metadata),
            reservation: header(metadata, RESERVATION),
            as_copy: header(metadata, COPY).is_some(),
            convert: header(metadata, CONVERT).is_some(),
            generation: generation(metadata)?,
            ..decode::create_volume(request)?
        });
        work: |driver, request| {
            let volume = driver.create_volume(request)?;
            Ok(encode::create_volume(&volume, driver.node_id()))
        };
    }
    call DeleteVolumeRequest {
        logs: "volume.id" = volume_id;
        route: |request| Route::Deletion(&request.volume_id);
        check: |request| decode::volume_of(request.volume_id, &request.secrets);
        work: |driver, id| driver.delete_volume(&id).map(|()| csi::DeleteVolumeResponse {});
    }
    call ControllerPublishVolumeRequest {
        logs: "volume.id" = volume_id, "node.id" = node_id;
        route: |request| Route::Owner(Named::Volume(&request.volume_id));
        attach: true;
        check: |request| decode::controller_publish_volume(request);
        work: |driver, request| {
            driver.controller_publish_volume(request)?;
            Ok(csi::ControllerPublishVolumeResponse::default())
        };
    }
    call ControllerUnpublishVolumeRequest {
        logs: "volume.id" = volume_id, "node.id" = node_id;
        route: |request| Route::LastOwner(Named::Volume(&request.volume_id));
        attach: true;
        check: |request| decode::controller_unpublish_volume(request);
        work: |driver, request| {
            driver.controller_unpublish_volume(request)?;
            Ok(csi::ControllerUnpublishVolumeResponse {})
        };
    }
    call ValidateVolumeCapabilitiesRequest {
        logs: "volume.id" = volume_id;
        route: |request| Route::Owner(Named::Volume(&request.volume_id));
        check: |request| {
            let asked = encode::asked(&request);
            decode::validate_volume_capabilities(request).map(|request| (request, asked))
        };
        work: |driver, (request, asked)| {
            let validation = driver.validate_volume_capabilities(request)?;
            Ok(encode::validate_volume_capabilities(validation, asked))
        };
    }
    call ListVolumesRequest {
        logs: ;
        route: |_| Route::Controller;
        check: |request| decode::page(request.max_entries, request.starting_token);
        work: |driver, request| {
            let mut answer = encode::list_volumes(&driver.list_volumes(request)?, driver.node_id());
            limit(&mut answer.entries, &mut answer.next_token);
            Ok(answer)
        };
    }
    call ControllerGetVolumeRequest {
        logs: "volume.id" = volume_id;
        route: |request| Route::Owner(Named::Volume(&request.volume_id));
        check: |request| decode::volume_id(request.volume_id);
        work: |driver, id| {
            let volume = driver.controller_get_volume(&id)?;
            Ok(encode::controller_get_volume(&volume, driver.node_id()))
        };
    }
    call ControllerGetVolumeHealthRequest {
        logs: "volume.id" = volume_id;
        route: |request| Route::Owner(Named::Volume(&request.volume_id));
        check: |request| decode::volume_of(request.volume_id, &request.secrets);
        work: |driver, id| {
            let health = driver.controller_get_volume_health(&id)?;
            Ok(csi::ControllerGetVolumeHealthResponse { volume_health: Some(encode::volume_health(&health)) })
        };
    }
    call ControllerListVolumeHealthRequest {
        logs: ;
        route: |_| Route::Controller;
        check: |request| {
            decode::check_secrets(&request.secrets)?;
            decode::page(request.max_entries, request.starting_token)
        };
        work: |driver, request| {
            let mut answer = encode::controller_list_volume_health(&driver.controller_list_volume_health(request)?);
            limit(&mut answer.entries, &mut answer.next_token);
            Ok(answer)
        };
    }
    call GetCapacityRequest {
        logs: ;
        route: |_| Route::Controller;
        check: |request| decode::get_capacity(request);
        work: |driver, request| driver.get_capacity(request).map(|capacity| encode::get_capacity(&capacity));
    }
    call ControllerExpandVolumeRequest {
        logs: "volume.id" = volume_id;
        also: |request| object::size_of(request.capacity_range.as_ref());
        route: |request| Route::Owner(Named::Volume(&request.volume_id));
        check: |request| decode::controller_expand_volume(request);
        work: |driver, request| driver.controller_expand_volume(request).map(encode::controller_expand_volume);
    }
    call ControllerModifyVolumeRequest {
        logs: "volume.id" = volume_id;
        route: |request| Route::Owner(Named::Volume(&request.volume_id));
        check: |request| decode::controller_modify_volume(request);
        work: |driver, request| {
            driver.controller_modify_volume(request)?;
            Ok(csi::ControllerModifyVolumeResponse {})
        };
    }
    call CreateSnapshotRequest {
        logs: "snapshot.name" = name, "source.id" = source_volume_id;
        also: |request| object::of_create_snapshot(&request.parameters);
        makes: "snapshot.id" = |request, node_id| SnapshotId::of_name(&NodeKey::of(node_id), &request.name);
        route: |request| Route::Owner(Named::Volume(&request.source_volume_id));
        in_turn: true;
        check: |request| decode::create_snapshot(request);
        work: |driver, request| {
            let snapshot = driver.create_snapshot(request)?;
            Ok(encode::create_snapshot(&snapshot, driver.node_id()))
        };
    }
    call DeleteSnapshotRequest {
        logs: "snapshot.id" = snapshot_id;
        route: |request| Route::LastOwner(Named::Snapshot(&request.snapshot_id));
        check: |request| decode::snapshot_of(request.snapshot_id, &request.secrets);
        work: |driver, id| driver.delete_snapshot(&id).map(|()| csi::DeleteSnapshotResponse {});
    }
    call ListSnapshotsRequest {
        logs: "snapshot.id" = snapshot_id, "source.id" = source_volume_id;
        route: |_| Route::Controller;
        check: |request| decode::list_snapshots(request);
        work: |driver, request| {
            let mut answer = encode::list_snapshots(&driver.list_snapshots(request)?, driver.node_id());
            limit(&mut answer.entries, &mut answer.next_token);
            Ok(answer)
        };
    }
    call GetSnapshotRequest {
        logs: "snapshot.id" = snapshot_id;
        route: |request| Route::Owner(Named::Snapshot(&request.snapshot_id));
        check: |request| decode::snapshot_of(request.snapshot_id, &request.secrets);
        work: |driver, id| {
            let snapshot = driver.get_snapshot(&id)?;
            Ok(encode::get_snapshot(&snapshot, driver.node_id()))
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attaching_is_announced_only_where_it_is_served() {
        let numbers = |attach| -> Vec<i32> {
            let answer = encode::controller_capabilities(&capabilities(attach));
            let rpc = |capability: &csi::ControllerServiceCapability| match capability.r#type {
                Some(csi::controller_service_capability::Type::Rpc(rpc)) => rpc.r#type,
                None => 0,
            };
            answer.capabilities.iter().map(rpc).collect()
        };
        assert_eq!(numbers(false), [1, 3, 4, 5, 6, 7, 9, 12, 13, 14, 15, 11, 16, 17]);
        assert_eq!(numbers(true), [1, 3, 4, 5, 6, 7, 9, 12, 13, 14, 15, 11, 16, 17, 2, 8, 10]);
    }
}
