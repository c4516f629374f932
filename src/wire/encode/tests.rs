use std::sync::Arc;

use super::*;
use crate::model::answer::{BlockRanges, Group, SnapshotPage};
use crate::model::{
    AccessMode, AccessType, Attachment, Capability, Consistency, Content, GroupSnapshot, GroupSnapshotId,
    NodeKey, Phase, PoolName, Snapshot, SnapshotId, Timestamp, VolumeId, VolumeParameters,
};

fn sample() -> Volume {
    let capability = Capability { access: AccessType::Block, mode: AccessMode::SingleNodeWriter };
    Volume {
        name: "pvc-1".to_owned(),
        capacity_bytes: 4096,
        capabilities: vec![capability.clone()],
        block_size: 512,
        attachments: vec![Attachment { node_id: "node-a".to_owned(), read_only: false, capability }],
        ..Volume::new(
            VolumeId::of_name(&NodeKey::of("node-a"), "pvc-1"),
            Phase::Ready,
            Content::Block,
            VolumeParameters::default(),
        )
    }
}

#[test]
fn a_volume_is_the_same_in_every_answer() {
    let sample = sample();
    let want = csi::Volume {
        capacity_bytes: 4096,
        volume_id: sample.id.to_string(),
        volume_context: sample.context().into_iter().collect(),
        content_source: None,
        accessible_topology: vec![csi::Topology {
            segments: HashMap::from([(Settings::TOPOLOGY_KEY.to_owned(), "node-a".to_owned())]),
        }],
    };
    assert_eq!(create_volume(&sample, "node-a").volume, Some(want.clone()));
    let sample = Found { volume: Arc::new(sample), troubles: Arc::default() };
    let got = controller_get_volume(&sample, "node-a");
    assert_eq!(got.volume, Some(want.clone()));
    assert_eq!(got.status.expect("status").published_node_ids, ["node-a"]);
    let page = ListPage { volumes: vec![sample], next_token: Some("next".to_owned()) };
    let listed = list_volumes(&page, "node-a");
    assert_eq!(listed.next_token, "next");
    assert_eq!(listed.entries[0].volume, Some(want));
    assert_eq!(listed.entries[0].status.as_ref().expect("status").published_node_ids, ["node-a"]);
}

#[test]
fn counts_never_become_negative() {
    let capacity = Capacity { available: u64::MAX, maximum_volume: 1 << 63, minimum_volume: 0 };
    let answer = get_capacity(&capacity);
    assert_eq!((answer.available_capacity, answer.maximum_volume_size), (i64::MAX, Some(i64::MAX)));
    assert_eq!(answer.minimum_volume_size, Some(0));
    assert_eq!(node_expand_volume(5).capacity_bytes, 5);
}

#[test]
fn usage_has_a_row_for_each_known_unit() {
    let total = StatsRow { total: 9, used: 0, available: 0 };
    let units = |bytes, inodes| -> Vec<i32> {
        node_get_volume_stats(&VolumeStats { bytes, inodes, troubles: Arc::default() })
            .usage
            .iter()
            .map(|row| row.unit)
            .collect()
    };
    assert_eq!(units(Some(total), Some(total)), [1, 2]);
    assert_eq!(units(Some(total), None), [1]);
    assert!(units(None, None).is_empty());
}

#[test]
fn a_validation_echoes_only_what_it_confirms() {
    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_context: HashMap::from([("a".to_owned(), "b".to_owned())]),
        secrets: HashMap::from([("key".to_owned(), "CANARY".to_owned())]),
        ..Default::default()
    };
    let answer = |confirmed: bool, message: &str| {
        validate_volume_capabilities(Validation { confirmed, message: message.to_owned() }, asked(&request))
    };
    let confirmed = answer(true, "").confirmed.expect("confirmed");
    assert_eq!(confirmed.volume_context, request.volume_context);
    assert!(!format!("{confirmed:?}").contains("CANARY"));
    let refused = answer(false, "no");
    assert_eq!((refused.confirmed, refused.message.as_str()), (None, "no"));
}

#[test]
fn a_volume_tells_what_it_was_made_from() {
    use csi::volume_content_source::Type;
    let node = NodeKey::of("node-a");
    let source = |source| {
        let volume = volume(&Volume { source: Some(source), ..sample() }, "node-a");
        volume.content_source.and_then(|source| source.r#type)
    };
    let (snapshot_id, volume_id) = (SnapshotId::of_name(&node, "s"), VolumeId::of_name(&node, "v"));
    match source(VolumeSource::Snapshot(snapshot_id.clone())) {
        Some(Type::Snapshot(source)) => assert_eq!(source.snapshot_id, snapshot_id.as_str()),
        other => panic!("{other:?}"),
    }
    match source(VolumeSource::Volume(volume_id.clone())) {
        Some(Type::Volume(source)) => assert_eq!(source.volume_id, volume_id.as_str()),
        other => panic!("{other:?}"),
    }
}

fn sample_snapshot(group: Option<GroupSnapshotId>) -> Snapshot {
    let node = NodeKey::of("node-a");
    Snapshot {
        id: SnapshotId::of_name(&node, "snapshot-1"),
        name: "snapshot-1".to_owned(),
        phase: Phase::Ready,
        source: VolumeId::of_name(&node, "pvc-1"),
        created: Timestamp::now(),
        size_bytes: 8192,
        requested_bytes: None,
        allocated_bytes: 4096,
        content: Content::Block,
        pool: PoolName::default(),
        block_size: 512,
        group,
        pulled_for: None,
        kept: false,
        sealed: false,
        generation: 0,
        object: None,
        handover: None,
    }
}

#[test]
fn a_snapshot_is_the_same_in_every_answer() {
    let sample = sample_snapshot(None);
    let want = csi::Snapshot {
        size_bytes: 8192,
        snapshot_id: sample.id.to_string(),
        source_volume_id: sample.source.to_string(),
        creation_time: Some(prost_types::Timestamp {
            seconds: sample.created.seconds(),
            nanos: sample.created.nanos(),
        }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
        accessible_topology: vec![topology("node-a")],
    };
    assert!(sample.created.seconds() > 1_700_000_000, "seconds, not another unit");
    assert_eq!(create_snapshot(&sample, "node-a").snapshot, Some(want.clone()));
    assert_eq!(get_snapshot(&sample, "node-a").snapshot, Some(want.clone()));
    let page = SnapshotPage { snapshots: vec![Arc::new(sample)], next_token: Some("next".to_owned()) };
    let listed = list_snapshots(&page, "node-a");
    assert_eq!((listed.next_token.as_str(), listed.entries.len()), ("next", 1));
    assert_eq!(listed.entries[0].snapshot, Some(want));
    let last = list_snapshots(&SnapshotPage { snapshots: Vec::new(), next_token: None }, "node-a");
    assert!(last.next_token.is_empty());
}

#[test]
fn a_group_has_its_members() {
    let id = GroupSnapshotId::of_name(&NodeKey::of("node-a"), "group-1");
    let member = sample_snapshot(Some(id.clone()));
    let group = GroupSnapshot {
        id: id.clone(),
        name: "group-1".to_owned(),
        phase: Phase::Ready,
        created: member.created,
        sources: vec![member.source.clone()],
        snapshots: vec![member.id.clone()],
        consistency: Consistency::default(),
        handover: None,
    };
    let group = Group { group: Arc::new(group), members: vec![Arc::new(member)] };
    let made = create_volume_group_snapshot(&group, "node-a").group_snapshot.expect("group");
    assert_eq!((made.group_snapshot_id.as_str(), made.ready_to_use), (id.as_str(), true));
    assert_eq!(made.snapshots[0].group_snapshot_id, id.as_str());
    assert_eq!(made.creation_time, made.snapshots[0].creation_time);
    assert_eq!(get_volume_group_snapshot(&group, "node-a").group_snapshot, Some(made));
}

#[test]
fn ranges_are_offsets_and_sizes() {
    let ranges = BlockRanges { capacity_bytes: 1 << 20, ranges: vec![0..4096, 8192..1 << 20] };
    let allocated = get_metadata_allocated(ranges.clone());
    assert_eq!(allocated.block_metadata_type(), csi::BlockMetadataType::VariableLength);
    assert_eq!(allocated.volume_capacity_bytes, 1 << 20);
    let pairs = |metadata: &[csi::BlockMetadata]| -> Vec<(i64, i64)> {
        metadata.iter().map(|m| (m.byte_offset, m.size_bytes)).collect()
    };
    assert_eq!(pairs(&allocated.block_metadata), [(0, 4096), (8192, (1 << 20) - 8192)]);
    let delta = get_metadata_delta(ranges);
    assert_eq!(delta.block_metadata_type(), csi::BlockMetadataType::VariableLength);
    assert_eq!((delta.volume_capacity_bytes, &delta.block_metadata), (1 << 20, &allocated.block_metadata));
    // A message without ranges has the rest all the same.
    let empty = get_metadata_delta(BlockRanges { capacity_bytes: 5, ranges: Vec::new() });
    assert_eq!((empty.volume_capacity_bytes, empty.block_metadata_type), (5, 2));
}
