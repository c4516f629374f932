//! A size is rounded up, and each filesystem has a minimum: the request of a source is enough for its copy.

use hostloop::wire::csi;
use hostloop_fake_kernel::Kill;
use tonic::Code;

use crate::cuts::*;
use crate::directories::quotas::{FLAGS, LIMITED, kernel};
use crate::life::*;
use crate::support::*;
use crate::walk::part::ways;

const GB: i64 = 1_000_000_000;

fn sized(request: csi::CreateVolumeRequest, required: i64) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest { capacity_range: range(required, 0), ..request }
}

/// Checks a source that was made with the request `required`: it is enough for every copy, and says so.
#[track_caller]
fn check(rig: &Rig, request: &csi::CreateVolumeRequest, required: i64) {
    let what = format!("{} of {required}", request.name);
    let request = sized(csi::CreateVolumeRequest { name: what.clone(), ..request.clone() }, required);
    let vol = rig.made(request.clone());
    let bytes = vol.info.capacity_bytes;
    assert!(bytes > required && bytes % 4096 == 0, "{what}: {bytes}");
    assert_eq!(rig.ok(request.clone()).volume.as_ref(), Some(&vol.info), "{what}: a repeat");
    let from = |name: &str, source| csi::CreateVolumeRequest {
        name: format!("{name} {what}"),
        volume_content_source: Some(source),
        ..request.clone()
    };
    let cut = rig.cut(&format!("s {what}"), &vol);
    assert_eq!(cut.size_bytes, required, "{what}: the request of a claim");
    assert_eq!(rig.ok(get_snapshot(&cut.snapshot_id)).snapshot.as_ref(), Some(&cut));
    assert!(rig.snapshots().contains(&cut));
    let restored = rig.made(from("restored", from_snapshot(&cut.snapshot_id)));
    let cloned = rig.made(from("cloned", from_volume(&vol.id)));
    let again = rig.made(from("again", from_volume(&cloned.id)));
    // No wish is a wish for the size of the source.
    let unsized_ = csi::CreateVolumeRequest { capacity_range: None, ..from("unsized", from_volume(&vol.id)) };
    for (name, copied) in [("r", restored), ("c", cloned), ("a", again), ("u", rig.made(unsized_))] {
        assert_eq!(copied.info.capacity_bytes, bytes, "{name}: {what}");
        assert_eq!(rig.cut(&format!("{name} {what}"), &copied).size_bytes, required, "{name}: {what}");
    }
    let larger = rig.made(sized(from("larger", from_volume(&vol.id)), bytes + required));
    assert!(larger.info.capacity_bytes >= bytes + required);
    let exact = sized(from("exact", from_volume(&vol.id)), bytes);
    assert!(rig.made(exact).info.capacity_bytes == bytes, "{what}");
}

#[test]
fn the_request_of_a_source_makes_its_copies() {
    let rig = both_pools();
    for request in kinds() {
        let fs_type = request.volume_capabilities[0].access_type.clone();
        check(&rig, &request, GB);
        if format!("{fs_type:?}").contains("xfs") || format!("{fs_type:?}").contains("btrfs") {
            check(&rig, &request, 100 << 20);
        } else {
            check(&rig, &request, 5_000_001);
        }
    }
    // Below the minimum of ext4.
    check(&rig, &create("small", mount()), 1 << 20);
    check(&rig, &create("tiny", block()), 1);
}

#[test]
fn a_limited_directorys_request_makes_its_copies() {
    for fs_type in [hostloop::model::FsType::Xfs, hostloop::model::FsType::Btrfs] {
        let rig = Rig::on(kernel(fs_type), &FLAGS);
        check(&rig, &create_with("limited", &LIMITED), GB);
        check(&rig, &create_with("limited", &LIMITED), 1000);
    }
}

#[test]
fn a_copy_that_is_smaller_is_out_of_range() {
    let rig = Rig::new();
    let vol = rig.made(sized(create("v", mount()), GB));
    let cut = rig.cut("s", &vol);
    for source in [from_volume(&vol.id), from_snapshot(&cut.snapshot_id)] {
        for (required, limit) in [(GB / 4096 * 4096, 0), (GB - 4096, 0), (1, 0), (0, GB), (GB, GB)] {
            let request = copy("smaller", source.clone(), mount(), &[]);
            let request = csi::CreateVolumeRequest { capacity_range: range(required, limit), ..request };
            rig.fails(Code::OutOfRange, request);
        }
    }
}

#[test]
fn a_group_says_what_its_members_were_requested_with() {
    let rig = Rig::new();
    let vols = [GB, 1 << 20].map(|bytes| rig.made(sized(create(&bytes.to_string(), mount()), bytes)));
    let group = rig.group("g", &[&vols[0], &vols[1]]);
    let mut sizes: Vec<i64> = group.snapshots.iter().map(|member| member.size_bytes).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1 << 20, GB]);
}

#[test]
fn a_snapshot_has_the_request_of_its_time() {
    let rig = Rig::new();
    let vol = rig.made(sized(create("v", mount()), GB));
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod");
    let before = rig.cut("before", &vol);
    let bytes = rig.ok(vol.expand_request(2 * GB, 0)).capacity_bytes;
    assert!(bytes > 2 * GB);
    assert_eq!(rig.cut("after", &vol).size_bytes, 2 * GB);
    // kubelet sends what the PersistentVolume has.
    let node =
        csi::NodeExpandVolumeRequest { capacity_range: range(bytes, 0), ..vol.node_expand_request(&target) };
    assert_eq!(rig.ok(node).capacity_bytes, bytes);
    for (n, required) in [2 * GB, GB, 1, bytes].into_iter().enumerate() {
        assert_eq!(rig.ok(vol.expand_request(required, 0)).capacity_bytes, bytes, "{required}");
        assert_eq!(rig.cut(&format!("repeated {n}"), &vol).size_bytes, 2 * GB, "{required}");
    }
    let restored = |name: &str, cut: &csi::Snapshot, required| {
        sized(copy(name, from_snapshot(&cut.snapshot_id), mount(), &[]), required)
    };
    let after = rig.cut("after", &vol);
    assert_eq!((before.size_bytes, rig.cut("before", &vol).size_bytes), (GB, GB));
    assert_eq!(rig.made(restored("one", &before, GB)).info.capacity_bytes, vol.info.capacity_bytes);
    assert_eq!(rig.made(restored("two", &after, 2 * GB)).info.capacity_bytes, bytes);
    rig.fails(Code::OutOfRange, restored("three", &after, GB));
}

/// The image has grown when the driver ends, and the record has not: the next start takes the size over.
#[test]
fn an_expansion_cut_off_ends_with_its_request() {
    let steps = {
        let rig = Rig::new();
        let vol = rig.made(sized(create("v", mount()), GB));
        rig.kernel.clear_steps();
        rig.ok(vol.expand_request(2 * GB, 0));
        rig.kernel.steps().len()
    };
    for n in 1..=steps {
        for kill in ways(n, &[Kill::Before, Kill::Torn, Kill::After]) {
            let mut rig = Rig::new();
            let vol = rig.made(sized(create("v", mount()), GB));
            rig.kernel.kill_at(n, kill);
            // What comes last is the record beside the data, without which the call has ended as well.
            let _ = rig.call(vol.expand_request(2 * GB, 0));
            rig.restart();
            let cut = rig.cut("at once", &vol);
            assert!(cut.size_bytes == GB || cut.size_bytes >= 2 * GB, "{n} {kill:?}: {}", cut.size_bytes);
            rig.ok(vol.expand_request(2 * GB, 0));
            assert_eq!(rig.cut("s", &vol).size_bytes, 2 * GB, "step {n}, {kill:?}");
        }
    }
}
