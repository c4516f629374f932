//! Deep trees and wide ones.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::linkat;

use super::build::set_times;
use super::entries::{assert_equal, metas};
use super::on;
use crate::contract::directory;
use hostloop::kernel::Os;
use hostloop::model::FsType;

/// Down by this many levels.
fn below(top: &Path, levels: usize) -> OwnedFd {
    let mut here: OwnedFd = std::fs::File::open(top).expect("open").into();
    for _ in 0..levels {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        here = openat(&here, "directory", flags, Mode::empty()).expect("open");
    }
    here
}

/// 4000 levels, with files at the bottom: "one" and "two" with names at the top, and "three" with two names there.
fn make_deep(os: &Os, dir: &Path) -> PathBuf {
    let tree = directory(os, dir.join("tree"));
    for name in ["one", "two"] {
        std::fs::write(tree.join(name), name).expect("write");
    }
    // Chunks, each moved below the next: no path is ever too long.
    let mut whole = None;
    for chunk in 0..40 {
        let top = directory(os, dir.join(format!("chunk{chunk}")));
        let mut path = top.clone();
        for _ in 0..99 {
            path = directory(os, path.join("directory"));
        }
        if let Some(below) = whole.replace(top) {
            std::fs::rename(below, path.join("directory")).expect("rename");
            continue;
        }
        for name in ["one", "two"] {
            std::fs::hard_link(tree.join(name), path.join(name)).expect("link");
        }
        std::fs::write(path.join("three"), "three").expect("write");
        std::fs::hard_link(path.join("three"), path.join("four")).expect("link");
        set_times(&path, (1, 2), (3, 4));
    }
    std::fs::rename(whole.expect("chunks"), tree.join("directory")).expect("rename");
    tree
}

/// Far deeper than PATH_MAX and than descriptors would do, with files that have a name at either end.
#[test]
fn a_deep_tree_is_copied_whole() {
    on(FsType::Ext4, 1 << 30, |os, dir| {
        let (tree, copy) = (make_deep(os, dir), dir.join("copy"));
        // A third name, from where the way to the others leads over the root.
        let levels = "directory/".repeat(50);
        let side = tree.join("beside").join(&levels);
        std::fs::create_dir_all(&side).expect("mkdir");
        linkat(below(&tree, 4000), "three", AT_FDCWD, &side.join("three"), AtFlags::empty()).expect("link");

        let mut open = 0;
        let mut count = |_| {
            open = open.max(std::fs::read_dir("/proc/self/fd").expect("list").count());
            Ok(())
        };
        os.trees.copy(&tree, &copy, false, &mut count).expect("copy");

        assert!((1..1000).contains(&open), "{open} descriptors");
        let bottom = below(&copy, 4000);
        let stat = fstat(&bottom).expect("stat");
        assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (3, 4));
        let inode = |name: &str| fstatat(&bottom, name, AtFlags::empty()).expect("stat").st_ino;
        for name in ["one", "two"] {
            let top = std::fs::metadata(copy.join(name)).expect("stat");
            assert_eq!((top.ino(), top.nlink()), (inode(name), 2));
        }
        let beside = std::fs::metadata(copy.join("beside").join(levels).join("three")).expect("stat");
        assert_eq!((inode("three"), inode("four"), beside.nlink()), (beside.ino(), beside.ino(), 3));
        let inodes = |path| os.trees.usage(path).expect("usage").inodes;
        assert_eq!(inodes(&tree), inodes(&copy));
        for tree in [tree, copy] {
            os.trees.remove(&tree).expect("remove");
        }
    });
}

#[test]
fn many_small_files_are_copied() {
    on(FsType::Ext4, 1 << 30, |os, dir| {
        let source = directory(os, dir.join("source"));
        for i in 0..100 {
            let sub = directory(os, source.join(format!("{i}")));
            for j in 0..200 {
                std::fs::write(sub.join(format!("file {j}")), format!("{i}/{j}")).expect("write");
            }
        }
        let before = metas(&source);
        let mut calls = 0;
        let mut count = |_| {
            calls += 1;
            Ok(())
        };
        os.trees.copy(&source, &dir.join("target"), true, &mut count).expect("copy");
        assert!(calls >= 20, "{calls}");
        assert_equal(&before, &source, &dir.join("target"));
    });
}
