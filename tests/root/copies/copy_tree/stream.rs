//! The same trees as a stream of entries, as another node gets them.

use super::*;
use crate::contract::{copy_stream, tree_changes, tree_stream};

#[test]
fn tree_streams_keep_their_contract() {
    let (os, _temp, dir) = setup();
    tree_stream(&os, &dir);
    on_every_filesystem(2 << 30, |os, _, pool| {
        tree_stream(os, pool);
        let changes = pool.join("changes");
        std::fs::create_dir(&changes).unwrap();
        tree_changes(os, &changes);
    });
}

/// Everything that a copy keeps, also where the stream is taken up again after every few items.
#[test]
fn everything_arrives_by_a_stream() {
    on_every_filesystem(2 << 30, |os, fs_type, pool| {
        let source = pool.join("source");
        everything(&source);
        // A directory that would give what is made in it its own attributes.
        let parent = directory(os, pool.join("parent"));
        set_extended(&parent, c"system.posix_acl_default", &acl(7));
        set_mode(&parent, 0o2777);
        for most in [3, usize::MAX] {
            let before = metas(&source);
            let target = parent.join(format!("{most}"));
            copy_stream(os, &source, &target, most);
            assert_equal(&before, &source, &target);
            let in_place = contents(&target.join("in place")).flags.expect("flags").contains(IFlags::NOCOW);
            assert_eq!(in_place, fs_type == FsType::Btrfs);
            os.trees.remove(&target).expect("remove");
        }
    });
}

/// Another node may have another filesystem.
#[test]
fn a_tree_moves_to_another_filesystem() {
    let (os, _temp, dir) = setup();
    let source = dir.join("source");
    everything(&source);
    on_every_filesystem(2 << 30, |os, _, pool| {
        let (before, target) = (metas(&source), pool.join("target"));
        copy_stream(os, &source, &target, 100);
        assert_equal(&before, &source, &target);
    });
    os.trees.remove(&source).expect("remove");
}
