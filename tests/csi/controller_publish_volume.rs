//! ControllerPublishVolume and ControllerUnpublishVolume.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::life::*;
use crate::support::*;

fn published_nodes(rig: &Rig, vol: &Vol) -> Vec<String> {
    let get = csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() };
    let got = rig.ok(get).status.expect("a status").published_node_ids;
    let listed = rig.ok(csi::ListVolumesRequest::default()).entries;
    let listed =
        listed.into_iter().find(|entry| entry.volume.as_ref().is_some_and(|v| v.volume_id == vol.id));
    assert_eq!(listed.and_then(|entry| entry.status).expect("a status").published_node_ids, got);
    got
}

#[test]
fn without_attach_it_is_unimplemented_whatever_is_asked() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.fails(Code::Unimplemented, vol.attach_request(NODE, false));
    rig.fails(Code::Unimplemented, vol.detach_request(NODE));
    rig.fails(Code::Unimplemented, csi::ControllerPublishVolumeRequest::default());
    rig.fails(Code::Unimplemented, csi::ControllerUnpublishVolumeRequest::default());
}

#[test]
fn what_is_missing_comes_before_what_does_not_exist() {
    let rig = Rig::with(&["--attach"]);
    let vol = rig.volume("v", mount());
    let base = || vol.attach_request(NODE, false);
    let node = "n".repeat(257);
    for request in [
        csi::ControllerPublishVolumeRequest { volume_id: String::new(), ..base() },
        csi::ControllerPublishVolumeRequest { node_id: String::new(), ..base() },
        csi::ControllerPublishVolumeRequest { node_id: node.clone(), ..base() },
        csi::ControllerPublishVolumeRequest { volume_capability: None, volume_id: "x".to_owned(), ..base() },
        csi::ControllerPublishVolumeRequest {
            volume_capability: Some(mode(Mode::MultiNodeMultiWriter)),
            ..base()
        },
        csi::ControllerPublishVolumeRequest { volume_capability: Some(block()), ..base() },
        csi::ControllerPublishVolumeRequest { volume_capability: Some(fs("xfs")), ..base() },
        csi::ControllerPublishVolumeRequest {
            volume_context: map(&[("backend", "directory"), ("pool", "directories")]),
            ..base()
        },
    ] {
        rig.fails(Code::InvalidArgument, request);
    }
    rig.fails(Code::NotFound, csi::ControllerPublishVolumeRequest { volume_id: "x".to_owned(), ..base() });
    let other = csi::ControllerPublishVolumeRequest { node_id: "node-z".to_owned(), ..base() };
    assert!(rig.fails(Code::NotFound, other).contains("node-z"));
    rig.fails(Code::NotFound, csi::ControllerPublishVolumeRequest { node_id: "n".repeat(256), ..base() });
    rig.fails(Code::InvalidArgument, csi::ControllerUnpublishVolumeRequest::default());
    rig.fails(Code::InvalidArgument, vol.detach_request(&node));
    assert!(published_nodes(&rig, &vol).is_empty());
}

#[test]
fn publishing_again_must_be_the_same() {
    let mut rig = Rig::with(&["--attach"]);
    let vol = rig.volume("v", mount());
    for _ in 0..2 {
        rig.ok(vol.attach_request(NODE, false));
        assert_eq!(published_nodes(&rig, &vol), [NODE]);
        rig.restart();
    }
    rig.fails(Code::AlreadyExists, vol.attach_request(NODE, true));
    rig.fails(Code::AlreadyExists, vol.used(mode(Mode::SingleNodeReaderOnly)).attach_request(NODE, false));
    for _ in 0..2 {
        rig.ok(vol.detach_request(NODE));
        assert!(published_nodes(&rig, &vol).is_empty());
    }
    rig.ok(vol.attach_request(NODE, true));
}

#[test]
fn unpublishing_what_is_not_published_is_fine() {
    let rig = Rig::with(&["--attach"]);
    let vol = rig.volume("v", mount());
    rig.ok(vol.detach_request(NODE));
    rig.ok(vol.attach_request(NODE, false));
    rig.ok(vol.detach_request("node-z"));
    assert_eq!(published_nodes(&rig, &vol), [NODE]);
    rig.ok(vol.detach_request(""));
    assert!(published_nodes(&rig, &vol).is_empty(), "an empty node id means every node");
    let unknown = vol.with_id("fake-vol-id");
    rig.ok(unknown.detach_request(NODE));
    rig.ok(unknown.detach_request(""));
}

#[test]
fn the_limit_of_the_node_is_exact() {
    let rig = Rig::with(&["--attach", "--max-volumes-per-node", "2"]);
    assert_eq!(rig.ok(csi::NodeGetInfoRequest {}).max_volumes_per_node, 2);
    let vols: Vec<Vol> = (0..3).map(|n| rig.volume(&format!("v{n}"), mount())).collect();
    for vol in [&vols[0], &vols[0], &vols[1], &vols[0]] {
        rig.ok(vol.attach_request(NODE, false));
    }
    rig.fails(Code::ResourceExhausted, vols[2].attach_request(NODE, false));
    assert!(published_nodes(&rig, &vols[2]).is_empty());
    rig.ok(vols[0].detach_request(NODE));
    rig.ok(vols[2].attach_request(NODE, false));
    let many: Vec<Vol> = (0..8).map(|n| rig.volume(&format!("m{n}"), mount())).collect();
    rig.ok(vols[1].detach_request(""));
    let answers = rig.at_once(many.iter().map(|vol| vol.attach_request(NODE, false)).collect());
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "one place was left");
    for status in answers.into_iter().filter_map(Result::err) {
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}

#[test]
fn staging_needs_the_publish_to_this_node() {
    let rig = Rig::with(&["--attach"]);
    let vol = rig.volume("v", mount());
    let message = rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
    assert!(message.contains("ControllerPublishVolume"), "{message}");
    rig.ok(vol.attach_request(NODE, false));
    rig.stage(&vol);
    rig.publish(&vol, "pod-1");
    rig.ok(vol.detach_request(NODE));
    rig.fails(Code::FailedPrecondition, rig.publish_request(&vol, "pod-2"));
    rig.unpublish(&vol, "pod-1");
    rig.unstage(&vol);
}

#[test]
fn a_volume_granted_for_reading_cannot_be_written() {
    let rig = Rig::with(&["--attach"]);
    for (name, capability) in [("fs", mount()), ("block", block())] {
        let vol = rig.volume(name, capability);
        rig.ok(vol.attach_request(NODE, false));
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod-1");
        let file = if vol.is_block() { target } else { format!("{target}/file") };
        rig.kernel.write_file(&file, b"data").expect("write");
        rig.unpublish(&vol, "pod-1");
        rig.unstage(&vol);
        rig.ok(vol.detach_request(NODE));
        rig.ok(vol.attach_request(NODE, true));
        rig.stage(&vol);
        rig.stage(&vol);
        assert!(rig.kernel.loops().iter().all(|device| !vol.is_block() || device.read_only));
        rig.publish(&vol, "pod-1");
        rig.publish(&vol, "pod-1");
        assert_eq!(rig.kernel.read(&file, 0, 4).expect("read"), b"data", "{name}");
        rig.kernel.write(&file, 0, b"DATA").expect_err("read-only");
        rig.unpublish(&vol, "pod-1");
        rig.unstage(&vol);
    }
}
