//! Snapshots, groups of them, and what they hold.

use super::{bytes, topology};
use crate::model::answer::{BlockRanges, Group, SnapshotPage};
use crate::model::{Snapshot, Timestamp};
use crate::wire::csi;
use csi::group_controller_service_capability::rpc::Type as GroupRpc;

/// CSI `Snapshot`, which is cut and whole: the driver answers no other. `node_id` is the node that it is on.
pub fn snapshot(snapshot: &Snapshot, node_id: &str) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: bytes(snapshot.requested()),
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: snapshot.source.to_string(),
        creation_time: Some(timestamp(snapshot.created)),
        ready_to_use: true,
        group_snapshot_id: snapshot.group.as_ref().map(ToString::to_string).unwrap_or_default(),
        accessible_topology: vec![topology(node_id)],
    }
}

fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: time.seconds(), nanos: time.nanos() }
}

pub fn create_snapshot(made: &Snapshot, node_id: &str) -> csi::CreateSnapshotResponse {
    csi::CreateSnapshotResponse { snapshot: Some(snapshot(made, node_id)) }
}

pub fn get_snapshot(found: &Snapshot, node_id: &str) -> csi::GetSnapshotResponse {
    csi::GetSnapshotResponse { snapshot: Some(snapshot(found, node_id)) }
}

pub fn list_snapshots(page: &SnapshotPage, node_id: &str) -> csi::ListSnapshotsResponse {
    use csi::list_snapshots_response::Entry;
    let entry = |listed: &Snapshot| Entry { snapshot: Some(snapshot(listed, node_id)) };
    csi::ListSnapshotsResponse {
        entries: page.snapshots.iter().map(|snapshot| entry(snapshot)).collect(),
        next_token: page.next_token.clone().unwrap_or_default(),
    }
}

fn group(group: &Group, node_id: &str) -> csi::VolumeGroupSnapshot {
    csi::VolumeGroupSnapshot {
        group_snapshot_id: group.group.id.to_string(),
        snapshots: group.members.iter().map(|member| snapshot(member, node_id)).collect(),
        creation_time: Some(timestamp(group.group.created)),
        ready_to_use: true,
    }
}

pub fn create_volume_group_snapshot(made: &Group, node_id: &str) -> csi::CreateVolumeGroupSnapshotResponse {
    csi::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group(made, node_id)) }
}

pub fn get_volume_group_snapshot(found: &Group, node_id: &str) -> csi::GetVolumeGroupSnapshotResponse {
    csi::GetVolumeGroupSnapshotResponse { group_snapshot: Some(group(found, node_id)) }
}

pub fn group_controller_capabilities(rpcs: &[GroupRpc]) -> csi::GroupControllerGetCapabilitiesResponse {
    use csi::group_controller_service_capability as group;
    let capability = |rpc: &GroupRpc| csi::GroupControllerServiceCapability {
        r#type: Some(group::Type::Rpc(group::Rpc { r#type: (*rpc).into() })),
    };
    csi::GroupControllerGetCapabilitiesResponse { capabilities: rpcs.iter().map(capability).collect() }
}

/// The kind of every range that the driver sends, the same in all messages of a stream (csi.proto,
/// GetMetadataAllocatedResponse): they are as the filesystem below keeps them, of any length.
const METADATA_TYPE: csi::BlockMetadataType = csi::BlockMetadataType::VariableLength;

/// One message of CSI GetMetadataAllocated's answer.
pub fn get_metadata_allocated(ranges: BlockRanges) -> csi::GetMetadataAllocatedResponse {
    csi::GetMetadataAllocatedResponse {
        block_metadata_type: METADATA_TYPE.into(),
        volume_capacity_bytes: bytes(ranges.capacity_bytes),
        block_metadata: metadata(ranges),
    }
}

/// One message of CSI GetMetadataDelta's answer.
pub fn get_metadata_delta(ranges: BlockRanges) -> csi::GetMetadataDeltaResponse {
    csi::GetMetadataDeltaResponse {
        block_metadata_type: METADATA_TYPE.into(),
        volume_capacity_bytes: bytes(ranges.capacity_bytes),
        block_metadata: metadata(ranges),
    }
}

fn metadata(ranges: BlockRanges) -> Vec<csi::BlockMetadata> {
    let range = |range: std::ops::Range<u64>| csi::BlockMetadata {
        byte_offset: bytes(range.start),
        size_bytes: bytes(range.end.saturating_sub(range.start)),
    };
    ranges.ranges.into_iter().map(range).collect()
}
