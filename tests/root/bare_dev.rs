//! A container's /dev is often a tmpfs with a few nodes: the driver makes those of its devices itself.

use std::path::{Path, PathBuf};

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::namespace::in_own_namespace;
use crate::harness::process::binary;
use crate::harness::{Kind, MIB, Vol, World, eventually};

/// Replaces /dev, then becomes the driver. Mounts of its namespace reach nobody else.
const SCRIPT: &str = "set -e; mount -t tmpfs tmpfs /dev; mknod /dev/loop-control c 10 237; mknod /dev/null c 1 3; \
                      mknod /dev/zero c 1 5; mknod /dev/urandom c 1 9; exec \"$0\" \"$@\"";

/// The path as the driver's process sees it.
fn seen_by(pid: u32, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root{}", path.display()))
}

#[test]
fn a_life_with_few_nodes_in_dev() {
    let mut world = World::empty(&[]);
    let arguments = world.arguments();
    let mut start = in_own_namespace(&world.dir, &[]);
    world.start_as(start.args(["/bin/sh", "-c", SCRIPT, binary()]).args(arguments));
    let pid = world.driver().pid();
    let nodes = || std::fs::read_dir(seen_by(pid, Path::new("/dev"))).expect("list").count();
    assert_eq!(nodes(), 4);
    for kind in [Kind::Ext4, Kind::Block] {
        let mut vol = Vol::create(&world, kind, &format!("{kind:?}"), 64 * MIB, &[]);
        let file = seen_by(pid, &vol.file("a"));
        for round in 0..2 {
            vol.up();
            if round == 0 {
                write_at(&file, 0, &pattern(1, 1 << 20)).expect("write");
            }
            assert_eq!(read_at(&file, 0, 1 << 20), pattern(1, 1 << 20));
            if crate::life::can_grow(kind) {
                let bytes = vol.bytes() + MIB;
                vol.expand(bytes).expect("ControllerExpandVolume");
                assert_eq!(vol.node_expand("a", bytes).expect("NodeExpandVolume"), bytes);
                vol.info.capacity_bytes = i64::try_from(bytes).expect("a size");
            }
            assert!(!vol.stats("a").expect("NodeGetVolumeStats").is_empty());
            vol.down();
            eventually("the device goes", || kernel::loops(&world.data).is_empty());
        }
        assert!(nodes() > 4, "the node was made");
        vol.delete().expect("DeleteVolume");
    }
    assert!(kernel::mounts_of(&pid.to_string(), &world.kubelet).is_empty());
    world.finish();
}
