//! ControllerExpandVolume and NodeExpandVolume.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use hostloop::wire::csi::volume_usage::Unit;
use nix::errno::Errno;
use tonic::Code;

use crate::life::*;
use crate::support::*;

fn total(rig: &Rig, vol: &Vol, path: &str) -> i64 {
    let usage = rig.ok(vol.stats_request(path)).usage;
    usage.iter().find(|row| row.unit == i32::from(Unit::Bytes)).expect("bytes").total
}

#[test]
fn what_is_missing_comes_before_what_does_not_exist() {
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
fn a_mounted_filesystem_grows_in_two_calls() {
    let rig = Rig::new();
    for fs_type in ["ext4", "xfs", "btrfs"] {
        let request =
            csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create(fs_type, fs(fs_type)) };
        let vol = rig.made(request);
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        rig.kernel.write_file(format!("{target}/file"), b"data").expect("write");
        for path in [&target, &vol.staging()] {
            let bytes = rig.image(&vol).size as i64 + GIB;
            for _ in 0..2 {
                let answer = rig.ok(vol.expand_request(bytes, bytes));
                assert_eq!(
                    (answer.capacity_bytes, answer.node_expansion_required),
                    (bytes, true),
                    "{fs_type}"
                );
            }
            assert_eq!(rig.image(&vol).size, bytes as u64);
            for _ in 0..2 {
                assert_eq!(rig.ok(vol.node_expand_request(path)).capacity_bytes, bytes, "{fs_type}");
            }
            assert_eq!(total(&rig, &vol, &target), bytes, "{fs_type}");
        }
        let get = csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() };
        assert_eq!(rig.ok(get).volume.expect("a volume").capacity_bytes, 3 * GIB);
        assert_eq!(rig.kernel.read_file(format!("{target}/file")).expect("read"), b"data");
    }
}

#[test]
fn a_filesystem_that_grew_while_it_was_not_mounted_has_its_size_after_staging() {
    let mut rig = Rig::new();
    let (vol, _) = rig.published("v", mount());
    rig.unpublish(&vol, "pod-1");
    rig.unstage(&vol);
    let answer = rig.ok(vol.expand_request(2 * SIZE, 0));
    assert!(answer.node_expansion_required);
    rig.restart();
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod-1");
    assert_eq!(total(&rig, &vol, &target), 2 * SIZE);
    assert_eq!(rig.ok(vol.node_expand_request(&target)).capacity_bytes, 2 * SIZE);
}

#[test]
fn a_volume_that_was_never_staged_grows_too() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.ok(vol.expand_request(2 * SIZE, 0));
    rig.stage(&vol);
    assert_eq!(total(&rig, &vol, &vol.staging()), 2 * SIZE);
    assert_eq!(rig.kernel.formats().len(), 1);
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

#[test]
fn a_device_that_is_not_in_use_or_not_there_is_not_expanded() {
    let rig = Rig::new();
    let vol = rig.volume("v", block());
    let request = |path: &str| csi::NodeExpandVolumeRequest {
        capacity_range: range(2 * SIZE, 0),
        ..vol.node_expand_request(path)
    };
    // The path is there, and nothing is attached.
    rig.kernel.create_directories(vol.staging());
    rig.fails(Code::NotFound, request(&vol.staging()));
    rig.stage(&vol);
    // It is attached, and the path is not there.
    rig.fails(Code::NotFound, request(&vol.target("pod-1")));
    assert_eq!(rig.image(&vol).size, SIZE as u64);
    assert_eq!(rig.ok(request(&vol.staging())).capacity_bytes, 2 * SIZE);
}

/// What a driver leaves that ends after the image has grown, and before its record and its device have.
#[test]
fn the_record_and_the_device_take_on_a_size_that_only_the_image_has() {
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
fn no_device_keeps_its_size_because_a_file_did_not_answer() {
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
fn node_expand_alone_grows_to_what_is_asked() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    let request = csi::NodeExpandVolumeRequest {
        capacity_range: range(2 * SIZE, 0),
        ..vol.node_expand_request(&target)
    };
    assert_eq!(rig.ok(request).capacity_bytes, 2 * SIZE);
    assert_eq!(total(&rig, &vol, &target), 2 * SIZE);
    let less =
        csi::NodeExpandVolumeRequest { capacity_range: range(SIZE, 0), ..vol.node_expand_request(&target) };
    assert_eq!(rig.ok(less).capacity_bytes, 2 * SIZE);
    let capped =
        csi::NodeExpandVolumeRequest { capacity_range: range(0, SIZE), ..vol.node_expand_request(&target) };
    rig.fails(Code::OutOfRange, capped);
}

#[test]
fn less_than_there_is_changes_nothing_and_what_cannot_be_is_out_of_range() {
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
fn without_room_it_is_exhausted_and_nothing_changes() {
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
fn a_read_only_mount_cannot_grow() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mode(Mode::SingleNodeReaderOnly));
    rig.ok(vol.expand_request(2 * SIZE, 0));
    rig.fails(Code::FailedPrecondition, vol.node_expand_request(&target));
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

#[test]
fn a_read_only_mount_is_refused_before_anything_grows() {
    let rig = Rig::new();
    let vol = rig.volume("v", mode(Mode::SingleNodeReaderOnly));
    rig.stage(&vol);
    let request = csi::NodeExpandVolumeRequest {
        capacity_range: range(2 * SIZE, 0),
        ..vol.node_expand_request(&vol.staging())
    };
    rig.fails(Code::FailedPrecondition, request);
    assert_eq!(rig.image(&vol).size, SIZE as u64);
    assert_eq!(rig.ok(vol.expand_request(SIZE, 0)).capacity_bytes, SIZE);
    rig.unstage(&vol);
    rig.ok(vol.delete_request());
    rig.assert_clean();
}

/// It grows when it is next staged for writing.
#[test]
fn a_read_only_mount_that_is_staged_again_stays_as_it_is() {
    let rig = Rig::new();
    let (vol, _) = rig.published("v", mode(Mode::SingleNodeReaderOnly));
    rig.ok(vol.expand_request(2 * SIZE, 0));
    rig.kernel.clear_steps();
    rig.stage(&vol);
    let names: Vec<_> = rig.kernel.steps().iter().map(|step| step.name).collect();
    assert!(!names.contains(&"grow"), "{names:?}");
}
