//! Each RPC of CSI on the real kernel, by the metrics of the driver.

use std::collections::BTreeSet;

use hostloop::wire::csi;

use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World};
use crate::metrics::process::{metrics_address, scrape};

const PROTOCOL: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/csi/v1/csi.proto"));

#[test]
fn every_rpc_of_csi_answers_ok() {
    let address = metrics_address();
    let world = World::new(&["--attach", "--metrics-listen", &address]);
    without_a_volume(&world);
    life(&world);
    let metrics = scrape(&address);
    assert_eq!(rpcs().count(), PROTOCOL.matches("\n  rpc ").count());
    assert!(rpcs().count() > 30, "the protocol has more RPCs");
    let never: BTreeSet<String> = rpcs().filter(|rpc| !metrics.contains(&answered_ok(rpc))).collect();
    assert!(never.is_empty(), "{never:?} never answered OK: call them here\n{metrics}");
    world.finish();
}

/// Returns each RPC of the protocol as metrics name it, such as `Node/NodeStageVolume`.
fn rpcs() -> impl Iterator<Item = String> {
    let mut service = "";
    PROTOCOL.lines().filter_map(move |line| {
        let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
        match (words.next()?, words.next()?) {
            ("service", name) => {
                service = name;
                None
            }
            ("rpc", name) => Some(format!("{service}/{name}")),
            _ => None,
        }
    })
}

fn answered_ok(rpc: &str) -> String {
    format!("hostloop_rpc_duration_seconds_count{{method=\"{rpc}\",code=\"OK\"}}")
}

fn without_a_volume(world: &World) {
    let csi = &world.csi;
    csi.probe().expect("Probe");
    assert!(!csi.call(csi::GetPluginInfoRequest {}).expect("GetPluginInfo").name.is_empty());
    let of_plugin = csi.call(csi::GetPluginCapabilitiesRequest {}).expect("GetPluginCapabilities");
    let of_controller =
        csi.call(csi::ControllerGetCapabilitiesRequest {}).expect("ControllerGetCapabilities");
    let of_groups = csi.call(csi::GroupControllerGetCapabilitiesRequest {});
    let of_node = csi.call(csi::NodeGetCapabilitiesRequest {}).expect("NodeGetCapabilities");
    assert!(!of_plugin.capabilities.is_empty() && !of_controller.capabilities.is_empty());
    assert!(!of_groups.expect("GroupControllerGetCapabilities").capabilities.is_empty());
    assert!(!of_node.capabilities.is_empty());
    assert!(csi.capacity(&[]).expect("GetCapacity") > 0);
    assert_eq!(csi.storage_health().expect("NodeGetStorageHealth"), Vec::<String>::new());
}

fn life(world: &World) {
    let (csi, len) = (&world.csi, MIB as usize);
    let node = csi.call(csi::NodeGetInfoRequest {}).expect("NodeGetInfo").node_id;
    let mut vol = Vol::create(world, Kind::Xfs, "every", Kind::Xfs.size(), &[]);
    let asked = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: vol.id().to_owned(),
        volume_capabilities: vec![vol.capability.clone()],
        ..Default::default()
    };
    let answer = csi.call(asked).expect("ValidateVolumeCapabilities");
    assert!(answer.confirmed.is_some(), "{}", answer.message);
    let published = csi.call(vol.attach_request(&node, false)).expect("ControllerPublishVolume");
    vol.publish_context = published.publish_context;
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, len)).expect("write");
    assert!(!vol.stats("a").expect("NodeGetVolumeStats").is_empty());
    csi.node_health(vol.id(), &vol.target("a"), &vol.staging()).expect("NodeGetVolumeHealth");
    csi.health(vol.id()).expect("ControllerGetVolumeHealth");
    assert_eq!(csi.unhealthy().expect("ControllerListVolumeHealth"), Vec::<String>::new());
    let asked = csi::ControllerGetVolumeRequest { volume_id: vol.id().to_owned() };
    let found = csi.call(asked).expect("ControllerGetVolume");
    assert_eq!(found.status.expect("a status").published_node_ids, std::slice::from_ref(&node));
    assert_eq!(csi.list(0, "").expect("ListVolumes").entries.len(), 1);
    csi.modify(vol.id(), &[("provisioning", "thick")]).expect("ControllerModifyVolume");
    let bytes = vol.bytes() + 64 * MIB;
    assert_eq!(vol.expand(bytes).expect("ControllerExpandVolume"), (bytes, true));
    assert_eq!(vol.node_expand("a", bytes).expect("NodeExpandVolume"), bytes);
    snapshots(world, &vol);
    assert_eq!(read_at(&vol.file("a"), 0, len), pattern(2, len));
    vol.down();
    csi.call(vol.detach_request(&node)).expect("ControllerUnpublishVolume");
    vol.delete().expect("DeleteVolume");
}

fn snapshots(world: &World, vol: &Vol<'_>) {
    let (csi, len) = (&world.csi, MIB as usize);
    let first = csi.snapshot("first", vol.id(), &[]).expect("CreateSnapshot").snapshot_id;
    write_at(&vol.file("a"), 0, &pattern(2, len)).expect("write");
    let second = csi.snapshot("second", vol.id(), &[]).expect("CreateSnapshot").snapshot_id;
    assert!(!csi.allocated(&second).expect("GetMetadataAllocated").is_empty());
    let changed = csi.delta(&first, &second).expect("GetMetadataDelta");
    assert!(changed.iter().map(|(_, len)| len).sum::<u64>() >= MIB, "{changed:?}");
    let asked = csi::GetSnapshotRequest { snapshot_id: first.clone(), ..Default::default() };
    assert_eq!(csi.call(asked).expect("GetSnapshot").snapshot.expect("it").source_volume_id, vol.id());
    assert_eq!(csi.list_snapshots().expect("ListSnapshots").len(), 2);
    for id in [first, second] {
        csi.delete_snapshot(&id).expect("DeleteSnapshot");
    }
    let group = csi.group("group", &[vol.id()]).expect("CreateVolumeGroupSnapshot");
    let asked = csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: group.snapshots.iter().map(|member| member.snapshot_id.clone()).collect(),
        ..Default::default()
    };
    let found = csi.call(asked).expect("GetVolumeGroupSnapshot").group_snapshot.expect("it");
    assert_eq!(found.snapshots.len(), 1);
    csi.delete_group(&group.group_snapshot_id).expect("DeleteVolumeGroupSnapshot");
}
