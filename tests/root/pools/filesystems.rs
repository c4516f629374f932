//! The data directory on other filesystems than the machine's.

use crate::harness::{Kind, MIB, World, kernel};
use crate::volumes::life::life;

fn on(fs_type: &str) {
    let mut world = World::on(fs_type, 1024 * MIB, &[]);
    for kind in [Kind::Ext4, Kind::Block, Kind::Directory] {
        world.serve(kind);
        life(&world, kind);
    }
    assert_eq!(kernel::mounts(&world.dir).len(), 1, "the pool's own");
    world.finish();
}

#[test]
fn a_pool_on_ext4_serves_volumes() {
    on("ext4");
}

#[test]
fn a_pool_on_xfs_serves_volumes() {
    on("xfs");
}

/// There stat(2), mountinfo and the loop driver name a file's device differently.
#[test]
fn a_pool_on_btrfs_serves_volumes() {
    on("btrfs");
}
