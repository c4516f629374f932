//! Copying trees on the real kernel: what the contract says, read back from the filesystems.

mod build;
mod busy;
mod entries;
mod large;
mod property;
mod stream;

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use rustix::fs::IFlags;

pub use build::{everything, set_extended};
pub use entries::{assert_equal, metas};

use build::{acl, add_flag, remove_flag, set_mode, sparse};
use entries::contents;

use crate::contract::{Cleanup, MIB, directory, errno, flags, formatted};
use crate::harness::eventually;
use hostloop::kernel::Os;
use hostloop::kernel::linux::{Tools, os};
use hostloop::model::FsType;

/// A directory of its own, whose path has no link in it.
fn setup() -> (Os, tempfile::TempDir, PathBuf) {
    let (temp, path) = crate::harness::new_directory("hostloop copy ");
    (os(Tools::find()), temp, path)
}

/// A directory on a new filesystem.
fn on(fs_type: FsType, size: u64, test: impl FnOnce(&Os, &Path)) {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let pool = directory(&os, dir.join("pool"));
    let open = formatted(&os, &dir.join("pool.img"), fs_type, size);
    os.mounts.mount(&open.device.path(), &pool, fs_type, &flags(&[])).expect("mount");
    drop(open);
    eprintln!("on {fs_type}");
    test(&os, &pool);
    // If another test starts a program, the new process holds the files of this one until exec(2).
    eventually("unmounted", || os.mounts.unmount(&pool).is_ok());
}

/// A directory on each of the filesystems that a pool can be on.
fn on_every_filesystem(size: u64, test: impl Fn(&Os, FsType, &Path)) {
    for fs_type in FsType::ALL {
        on(fs_type, size, |os, pool| test(os, fs_type, pool));
    }
}

fn copy(os: &Os, source: &Path, target: &Path, share: bool) {
    os.trees.copy(source, target, share, &mut |_| Ok(())).expect("copy");
}

#[test]
fn copied_trees_keep_their_contract() {
    let (os, _temp, dir) = setup();
    crate::contract::copy_tree(&os, &dir);
    on_every_filesystem(2 << 30, |os, _, pool| crate::contract::copy_tree(os, pool));
}

#[test]
fn everything_is_kept() {
    on_every_filesystem(2 << 30, |os, fs_type, pool| {
        let source = pool.join("source");
        everything(&source);
        // It keeps its source from being removed, and must not do so with the copy.
        assert!(add_flag(&source.join("appended"), IFlags::APPEND));
        // A directory that would give what is made in it its own attributes.
        let parent = directory(os, pool.join("parent"));
        set_extended(&parent, c"system.posix_acl_default", &acl(7));
        set_mode(&parent, 0o2777);
        assert!(add_flag(&parent, IFlags::NODUMP));
        add_flag(&parent, IFlags::NOCOW);
        for share in [false, true] {
            let before = metas(&source);
            let target = parent.join(format!("{share}"));
            copy(os, &source, &target, share);
            assert_equal(&before, &source, &target);
            let in_place = contents(&target.join("in place")).flags.expect("flags").contains(IFlags::NOCOW);
            assert_eq!(in_place, fs_type == FsType::Btrfs);
            os.trees.remove(&target).expect("remove");
            // Not even the times of reading have changed, but for links, where nothing can be done about it.
            for (path, meta) in metas(&source) {
                if meta.mode & libc::S_IFMT != libc::S_IFLNK {
                    assert_eq!(meta, before[&path], "{}", path.display());
                }
            }
        }
        remove_flag(&source.join("appended"), IFlags::APPEND);
    });
}

/// The attributes of one filesystem on another, and no blocks to share.
#[test]
fn a_tree_is_copied_to_another_filesystem() {
    let (os, _temp, dir) = setup();
    let source = dir.join("source");
    everything(&source);
    on_every_filesystem(2 << 30, |os, _, pool| {
        let (before, target) = (metas(&source), pool.join("target"));
        copy(os, &source, &target, true);
        assert_equal(&before, &source, &target);
    });
    os.trees.remove(&source).expect("remove");
}

#[test]
fn blocks_are_shared_where_that_is_asked_for() {
    on_every_filesystem(2 << 30, |os, fs_type, pool| {
        let source = directory(os, pool.join("source"));
        sparse(&source.join("large"), 0, &[(0, 64 << 20)]);
        os.files.sync_file(&source.join("large")).expect("sync");
        let mut used = os.files.space(pool).expect("space").used;
        for share in [false, true] {
            let target = pool.join(format!("{share}"));
            copy(os, &source, &target, share);
            let now = os.files.space(pool).expect("space").used;
            let taken = now.saturating_sub(used);
            let shared = share && fs_type != FsType::Ext4;
            assert_eq!(taken < 32 * MIB, shared, "{fs_type}: {taken}");
            assert!(contents(&target.join("large")).bytes == contents(&source.join("large")).bytes);
            used = now;
        }
    });
}

/// A subvolume is on the same mount: its files come along.
#[test]
fn a_subvolume_inside_comes_along() {
    on(FsType::Btrfs, 1 << 30, |os, pool| {
        let source = directory(os, pool.join("source"));
        let subvolume = source.join("sub");
        let made = Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(&subvolume).status();
        assert!(made.expect("btrfs").success());
        // Inode numbers start again in there.
        for (directory, text) in [(&source, "outside"), (&subvolume, "inside")] {
            for n in 0..20 {
                std::fs::write(directory.join(format!("file {n}")), text).expect("write");
                let (file, again) = (format!("file {n}"), format!("again {n}"));
                std::fs::hard_link(directory.join(file), directory.join(again)).expect("link");
            }
        }
        let before = metas(&source);
        for share in [false, true] {
            let target = pool.join(format!("{share}"));
            copy(os, &source, &target, share);
            assert_equal(&before, &source, &target);
        }
    });
}

#[test]
fn another_filesystem_inside_is_left_out() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let source = directory(&os, dir.join("source"));
    let inside = directory(&os, directory(&os, source.join("sub")).join("inside"));
    let open = formatted(&os, &dir.join("m.img"), FsType::Ext4, 32 * MIB);
    os.mounts.mount(&open.device.path(), &inside, FsType::Ext4, &flags(&[])).expect("mount");
    drop(open);
    let result = os.trees.copy(&source, &dir.join("target"), false, &mut |_| Ok(()));
    let error = result.expect_err("a mount inside");
    assert!(error.to_string().contains(&inside.display().to_string()), "{error}");
    assert_eq!(errno(Err::<(), _>(error)), Some(Errno::EXDEV));
    os.mounts.unmount(&inside).expect("unmount");
}
