//! NodeGetVolumeStats.

use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop::wire::csi;
use hostloop::wire::csi::volume_usage::Unit;
use tonic::Code;

use crate::life::*;
use crate::support::*;

fn usage(rig: &Rig, vol: &Vol, path: &str, unit: Unit) -> Option<csi::VolumeUsage> {
    let reply = rig.ok(vol.stats_request(path));
    for row in &reply.usage {
        assert!(row.total >= 0 && row.used >= 0 && row.available >= 0, "{row:?}");
    }
    reply.usage.into_iter().find(|row| row.unit == i32::from(unit))
}

#[test]
fn what_is_missing_or_not_there() {
    let rig = Rig::new();
    for (vol, target) in [rig.published("fs", mount()), rig.published("block", block())] {
        let unknown = vol.with_id("fake-vol-id");
        rig.fails(
            Code::InvalidArgument,
            csi::NodeGetVolumeStatsRequest { volume_id: String::new(), ..vol.stats_request("/x") },
        );
        rig.fails(Code::InvalidArgument, unknown.stats_request(""));
        rig.fails(Code::NotFound, unknown.stats_request(&target));
        let parent = target.rsplit_once('/').expect("a path").0;
        for path in ["some/path", "../x", "/no/such/path", "/", "/tmp", parent, "/var/lib/kubelet"] {
            rig.fails(Code::NotFound, vol.stats_request(path));
        }
        rig.unpublish(&vol, "pod-1");
        rig.fails(Code::NotFound, vol.stats_request(&target));
    }
}

/// It takes no lock, so that a volume may go while it looks: that is not a mount of somebody else, and no fault of the driver.
#[test]
fn a_volume_that_goes_meanwhile_is_not_there() {
    for (open, with_its_directory) in [1, 2, 3].into_iter().flat_map(|open| [(open, false), (open, true)]) {
        let rig = Rig::new();
        let (vol, target) = rig.published("fs", mount());
        let (kernel, path, opened) = (rig.kernel.clone(), target.clone(), AtomicUsize::new(0));
        rig.kernel.set_pace(move |name, subject| {
            if name == "open" && subject == path && opened.fetch_add(1, Ordering::SeqCst) + 1 == open {
                kernel.unmount_foreign(&path).expect("umount");
                if with_its_directory {
                    kernel.os().files.remove_directory(path.as_ref()).expect("rmdir");
                }
            }
        });
        rig.fails(Code::NotFound, vol.stats_request(&target));
    }
}

#[test]
fn a_filesystem_is_measured_by_itself() {
    let rig = Rig::new();
    for fs_type in ["ext4", "xfs", "btrfs"] {
        let vol = rig
            .made(csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create(fs_type, fs(fs_type)) });
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        let empty = usage(&rig, &vol, &target, Unit::Bytes).expect("bytes");
        assert!(empty.total > 0 && empty.total <= GIB, "{fs_type}: not the node's disk");
        rig.kernel.write_file(format!("{target}/file"), &vec![1; 1 << 20]).expect("write");
        let full = usage(&rig, &vol, &target, Unit::Bytes).expect("bytes");
        assert!(full.used >= empty.used + MIB && full.available <= empty.available - MIB, "{fs_type}");
        let inodes = usage(&rig, &vol, &target, Unit::Inodes);
        assert_eq!(inodes.is_some(), fs_type != "btrfs", "btrfs counts no inodes");
        if let Some(inodes) = inodes {
            assert!(inodes.total > 0 && inodes.used > 0);
        }
        rig.ok(vol.stats_request(vol.staging()));
    }
}

#[test]
fn of_a_device_the_size_is_known() {
    let rig = Rig::new();
    let (vol, target) = rig.published("block", block());
    assert_eq!(usage(&rig, &vol, &target, Unit::Bytes).expect("bytes").total, SIZE);
    assert_eq!(usage(&rig, &vol, &target, Unit::Inodes), None);
    let other = rig.published("other", block()).1;
    rig.fails(Code::NotFound, vol.stats_request(&other));
}

#[test]
fn a_directory_volume_is_measured_by_what_is_in_it() {
    let rig = Rig::new();
    let vol = rig.made(create_with("v", &[("backend", "directory"), ("pool", "directories")]));
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod");
    rig.kernel.write_file("/var/lib/other", &vec![1; 8 << 20]).expect("write");
    rig.kernel.write_file(format!("{target}/file"), &vec![1; 1 << 20]).expect("write");
    let bytes = usage(&rig, &vol, &target, Unit::Bytes).expect("bytes");
    assert!((MIB..2 * MIB).contains(&bytes.used), "its own files only: {bytes:?}");
    let inodes = usage(&rig, &vol, &target, Unit::Inodes).expect("inodes");
    assert!((1..=3).contains(&inodes.used), "{inodes:?}");
}

#[test]
fn a_volume_that_fills_up_hurts_nobody_else() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    let (_, other) = rig.published("other", mount());
    let full = rig.kernel.write_file(format!("{target}/file"), &vec![1; SIZE as usize + 1]);
    full.expect_err("no more than the volume has");
    rig.kernel.write_file(format!("{other}/file"), &vec![1; 1 << 20]).expect("room");
    let bytes = usage(&rig, &vol, &target, Unit::Bytes).expect("bytes");
    assert!(bytes.used <= SIZE);
}
