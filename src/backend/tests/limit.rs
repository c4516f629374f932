//! Directories whose size their filesystem enforces, while they are removed.

use nix::errno::Errno;

use super::*;
use crate::kernel::Qgroups;
use crate::model::QuotaIds;

const POOL: &str = "/limited";

/// A directory with a limit and a file of 1 MiB, in a pool with this filesystem.
fn limited(fs_type: FsType, qgroups: Option<Qgroups>) -> Machine {
    let mut machine = Machine::empty(Content::Directory);
    machine.kernel.add_disk(POOL, fs_type, 100 << 30);
    match qgroups {
        Some(qgroups) => machine.kernel.set_qgroups(POOL, qgroups),
        None => machine.kernel.set_quotas(POOL, true),
    }
    machine.kernel.create_directories(format!("{POOL}/volumes"));
    machine.volume.quota = QuotaIds::default().candidates(&machine.volume.id).next();
    machine.paths = VolumePaths::of_volume(Path::new(POOL), &machine.volume);
    machine.paths.bytes().create(machine.place(), b"").unwrap();
    machine.kernel.write_file(machine.paths.data().join("file"), &[7; 1 << 20]).unwrap();
    machine
}

fn remove(machine: &Machine) -> Result<bool> {
    remove_large_files(&machine.os, &machine.paths, &mut || true)
}

/// A program that has one of its files open cannot take more of the pool meanwhile.
#[test]
fn a_removal_that_fails_leaves_the_limit() {
    let machine = limited(FsType::Xfs, None);
    let before = machine.kernel.quotas(POOL);
    assert_eq!(before.len(), 1);
    assert_errno(machine.failing("remove_tree", Errno::EIO, || remove(&machine)), Errno::EIO);
    assert_eq!(machine.kernel.quotas(POOL), before);
    assert!(remove(&machine).unwrap());
    assert_eq!(
        (machine.kernel.tree(format!("{POOL}/volumes")), machine.kernel.quotas(POOL)),
        (vec![], vec![])
    );
}

/// A removal may need room, which a volume that is full does not have within its limit.
#[test]
fn a_removal_without_room_goes_beyond_the_limit() {
    for errno in [Errno::ENOSPC, Errno::EDQUOT] {
        let machine = limited(FsType::Xfs, None);
        machine.kernel.fail_at(1, errno);
        assert!(remove(&machine).unwrap(), "{errno}");
        assert_eq!(machine.kernel.tree(format!("{POOL}/volumes")), [""; 0], "{errno}");
        assert_eq!(machine.kernel.quotas(POOL), [], "{errno}");
    }
}

/// btrfs counts no files, so that the bytes decide whether a subvolume is large.
#[test]
fn a_filesystem_counts_files_or_a_subvolumes_bytes() {
    let known = |machine: &Machine, paths: &VolumePaths| {
        let files = counted(&machine.os, paths).map(|quota| (quota.inodes, quota.bytes >= 1 << 20));
        (files, bytes_of_subvolume(&machine.os, paths).map(|bytes| bytes >= 1 << 20))
    };
    for fs_type in [FsType::Xfs, FsType::Ext4] {
        let machine = limited(fs_type, None);
        // The directory of the volume, that of its data, and the file.
        assert_eq!(known(&machine, &machine.paths), (Some((3, true)), None), "{fs_type}");
    }
    for qgroups in [Qgroups::Full, Qgroups::Simple] {
        let machine = limited(FsType::Btrfs, Some(qgroups));
        assert_eq!(known(&machine, &machine.paths), (None, Some(true)), "{qgroups:?}");
        // The files of a snapshot, which has no number.
        let without = VolumePaths::new(Path::new(POOL), &machine.volume.id, BackendKind::Directory);
        let bytes = (qgroups == Qgroups::Full).then_some(true);
        assert_eq!(known(&machine, &without), (None, bytes), "{qgroups:?}");
    }
    let image = Machine::new(Content::Block);
    assert_eq!(known(&image, &image.paths), (None, None));
}
