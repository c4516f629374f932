use std::sync::Arc;

use super::*;
use crate::model::{
    AccessMode, AccessType, Attachment, Capability, Content, NodeKey, Phase, VolumeId, VolumeParameters,
};

fn sample() -> Volume {
    let capability = Capability { access: AccessType::Block, mode: AccessMode::SingleNodeWriter };
    Volume {
        id: VolumeId::of_name(&NodeKey::of("node-a"), "pvc-1"),
        name: "pvc-1".to_owned(),
        phase: Phase::Ready,
        capacity_bytes: 4096,
        content: Content::Block,
        parameters: VolumeParameters::default(),
        capabilities: vec![capability.clone()],
        block_size: 512,
        attachments: vec![Attachment { node_id: "node-a".to_owned(), read_only: false, capability }],
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
    let got = controller_get_volume(&sample, "node-a");
    assert_eq!(got.volume, Some(want.clone()));
    assert_eq!(got.status.expect("status").published_node_ids, ["node-a"]);
    let page = ListPage { volumes: vec![Arc::new(sample)], next_token: Some("next".to_owned()) };
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
        node_get_volume_stats(&VolumeStats { bytes, inodes }).usage.iter().map(|row| row.unit).collect()
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
