//! NodeExpandVolume: a filesystem takes on the size of its volume.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::life::*;
use crate::support::*;
use crate::volumes::controller_expand_volume::total;

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
fn a_filesystem_expanded_unmounted_grows_at_staging() {
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
fn a_device_that_is_not_in_use_is_not_found() {
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
fn a_read_only_mount_cannot_grow() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mode(Mode::SingleNodeReaderOnly));
    rig.ok(vol.expand_request(2 * SIZE, 0));
    rig.fails(Code::FailedPrecondition, vol.node_expand_request(&target));
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
fn a_read_only_mount_staged_again_does_not_grow() {
    let rig = Rig::new();
    let (vol, _) = rig.published("v", mode(Mode::SingleNodeReaderOnly));
    rig.ok(vol.expand_request(2 * SIZE, 0));
    rig.kernel.clear_steps();
    rig.stage(&vol);
    let names: Vec<_> = rig.kernel.steps().iter().map(|step| step.name).collect();
    assert!(!names.contains(&"grow"), "{names:?}");
}
