//! ControllerExpandVolume, and what both expansions of a volume share.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_usage::Unit;
use nix::errno::Errno;
use tonic::Code;

use crate::life::*;
use crate::support::*;

pub fn total(rig: &Rig, vol: &Vol, path: &str) -> i64 {
    let usage = rig.ok(vol.stats_request(path)).usage;
    usage.iter().find(|row| row.unit == i32::from(Unit::Bytes)).expect("bytes").total
}

#[test]
fn missing_fields_come_before_an_unknown_volume() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    let unknown = vol.with_id("fake-vol-id");
    for request in [
        csi::ControllerExpandVolumeRequest { volume_id: String::new(), ..vol.expand_request(SIZE, 0) },
        csi::ControllerExpandVolumeRequest { capacity_range: None, ..unknown.expand_request(SIZE, 0) },
        unknown.expand_request(0, 0),
        unknown.expand_request(-1, 0),
        unknown.expand_request(SIZE, -1),
        csi::ControllerExpandVolumeRequest {
            volume_capability: Some(block()),
            ..vol.expand_request(2 * SIZE, 0)
        },
    ] {
        rig.fails(Code::InvalidArgument, request);
    }
    rig.fails(Code::NotFound, unknown.expand_request(SIZE, 0));
    for request in [
        csi::NodeExpandVolumeRequest { volume_id: String::new(), ..vol.node_expand_request(&target) },
        unknown.node_expand_request(""),
        csi::NodeExpandVolumeRequest { volume_capability: Some(block()), ..vol.node_expand_request(&target) },
        csi::NodeExpandVolumeRequest { capacity_range: range(-1, 0), ..vol.node_expand_request(&target) },
    ] {
        rig.fails(Code::InvalidArgument, request);
    }
    rig.fails(Code::NotFound, unknown.node_expand_request(&target));
    for path in ["some/path", "/no/such/path", "/tmp", "../x"] {
        rig.fails(Code::NotFound, vol.node_expand_request(path));
    }
    assert_eq!(rig.image(&vol).size, SIZE as u64);
}

#[test]
fn a_device_grows_in_one_call_in_use_or_not() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", block());
    rig.kernel.write(&target, SIZE as u64 - 4, b"last").expect("write");
    let answer = rig.ok(vol.expand_request(2 * SIZE, 0));
    assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (2 * SIZE, false));
    rig.kernel.write(&target, 2 * SIZE as u64 - 4, b"more").expect("the device has grown");
    assert_eq!(rig.kernel.read(&target, SIZE as u64 - 4, 4).expect("read"), b"last");
    assert_eq!(total(&rig, &vol, &target), 2 * SIZE);
    for path in [&target, &vol.staging()] {
        assert_eq!(rig.ok(vol.node_expand_request(path)).capacity_bytes, 2 * SIZE);
    }
    rig.unpublish(&vol, "pod-1");
    rig.unstage(&vol);
    rig.ok(vol.expand_request(3 * SIZE, 0));
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod-1");
    assert_eq!(total(&rig, &vol, &target), 3 * SIZE);
}

/// What a driver leaves that ends after the image has grown, and before its record and its device have.
#[test]
fn a_size_that_only_the_image_has_is_taken_on() {
    let mut rig = Rig::new();
    let vol = rig.volume("v", block());
    rig.stage(&vol);
    rig.kernel.os().images.set_size(vol.image().as_ref(), 2 * SIZE as u64).unwrap();
    rig.restart();
    let get = csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() };
    assert_eq!(rig.ok(get).volume.expect("a volume").capacity_bytes, 2 * SIZE);
    rig.stage(&vol);
    let device = rig.kernel.loops().pop().expect("a device");
    assert_eq!(rig.kernel.os().loops.size(&device).expect("size"), 2 * SIZE as u64);
}

/// A file that does not answer once never hides a device in use from the growth that the answer promises.
#[test]
fn a_failed_look_keeps_no_device_at_its_old_size() {
    for n in 1..=40 {
        let rig = Rig::new();
        let (vol, target) = rig.published("v", block());
        rig.kernel.fail_look_at(n, Errno::EIO);
        let grown = rig.call(vol.expand_request(2 * SIZE, 0)).is_ok();
        rig.kernel.clear_plans();
        assert!(!grown || total(&rig, &vol, &target) == 2 * SIZE, "look {n}");
        rig.ok(vol.expand_request(2 * SIZE, 0));
        assert_eq!(total(&rig, &vol, &target), 2 * SIZE, "look {n}");
    }
}

#[test]
fn less_changes_nothing_and_too_much_is_out_of_range() {
    let rig = Rig::with(&["--max-volume-size", "1Gi"]);
    let vol = rig.volume("v", mount());
    for (required, limit) in [(1, 0), (SIZE, 0), (SIZE, SIZE), (0, SIZE), (0, GIB), (1, SIZE + 1)] {
        assert_eq!(rig.ok(vol.expand_request(required, limit)).capacity_bytes, SIZE, "{required} to {limit}");
    }
    for (required, limit) in [
        (0, SIZE - 1),
        (1, SIZE - 1),
        (GIB + 1, 0),
        (i64::MAX, 0),
        (3 * SIZE, 2 * SIZE),
        (SIZE + 1, SIZE + 2),
    ] {
        rig.fails(Code::OutOfRange, vol.expand_request(required, limit));
    }
    assert_eq!(rig.image(&vol).size, SIZE as u64);
    assert_eq!(rig.ok(vol.expand_request(SIZE + 1, 0)).capacity_bytes, SIZE + 4096, "whole blocks");
}

#[test]
fn growth_without_room_is_exhausted_changes_nothing() {
    let kernel = hostloop_fake_kernel::FakeKernel::new();
    kernel.set_space(GIB as u64, 512 << 20);
    let rig = Rig::on(kernel, &[]);
    for provisioning in ["thin", "thick"] {
        let vol = rig.made(create_with(provisioning, &[("provisioning", provisioning)]));
        rig.fails(Code::ResourceExhausted, vol.expand_request(GIB, 0));
        assert_eq!(rig.image(&vol).size, SIZE as u64);
        assert_eq!(rig.ok(vol.expand_request(2 * SIZE, 0)).capacity_bytes, 2 * SIZE);
    }
}

/// Disk and promises have room for what is added, and not for the volume once more.
#[test]
fn an_expansion_needs_room_for_what_it_adds() {
    let kernel = hostloop_fake_kernel::FakeKernel::new();
    kernel.set_space(GIB as u64, GIB as u64);
    let rig = Rig::on(kernel, &[]);
    let request = csi::CreateVolumeRequest { capacity_range: range(400 * MIB, 0), ..create("v", block()) };
    let vol = rig.made(request);
    assert_eq!(rig.ok(vol.expand_request(700 * MIB, 0)).capacity_bytes, 700 * MIB);
}

#[test]
fn a_thick_volume_stays_allocated() {
    let rig = Rig::new();
    let vol = rig.made(create_with("v", &[("provisioning", "thick")]));
    assert_eq!(rig.image(&vol).allocated, SIZE as u64);
    rig.ok(vol.expand_request(2 * SIZE, 0));
    assert_eq!(rig.image(&vol).allocated, 2 * SIZE as u64);
}

#[test]
fn a_directory_volume_has_the_size_that_is_asked() {
    let rig = Rig::new();
    let vol = rig.made(create_with("v", &[("backend", "directory"), ("pool", "directories")]));
    rig.stage(&vol);
    let answer = rig.ok(vol.expand_request(2 * SIZE, 0));
    assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (2 * SIZE, false));
    assert_eq!(rig.ok(vol.node_expand_request(&vol.staging())).capacity_bytes, 2 * SIZE);
}
