//! A copy that gets another backend or another filesystem than its volume, on the real kernel: everything that a file has arrives, and
//! a round brings only what has changed.

use std::path::{Path, PathBuf};

use hostloop::model::request::{NodeUnpublishVolume, NodeUnstageVolume};
use hostloop::service::{CONVERT, COPY};

use super::updates::{Copied, change};
use crate::copies::copy_tree::{assert_equal, everything, metas};
use crate::copies::pull::{Nodes, together};
use crate::harness::kernel::pattern;
use crate::harness::volume::clone_request;
use crate::harness::{Kind, MIB, Vol, World, run, text};

/// Large enough for every filesystem.
const BYTES: u64 = 512 * MIB;

/// A node whose default pool is on this filesystem. Images on xfs share blocks, images on ext4 do not.
fn node(fs_type: &str, kind: Kind) -> World {
    let mut world = World::on(fs_type, 3 << 30, &[]);
    if kind == Kind::Directory {
        world.serve(Kind::Directory);
    }
    world
}

fn sync(top: &Path) {
    run("sync", &["--file-system", text(top)]);
}

/// The files of an unmounted volume, mounted for the test.
struct Seen {
    top: PathBuf,
    is_mounted: bool,
}

impl Seen {
    fn of(world: &World, id: &str, kind: Kind) -> Seen {
        if kind == Kind::Directory {
            return Seen { top: world.volume_directory(id).join("data"), is_mounted: false };
        }
        let top = world.directory("seen");
        std::fs::create_dir_all(&top).expect("mkdir");
        let options = if kind == Kind::Xfs { "loop,ro,nouuid" } else { "loop,ro" };
        run("mount", &["-o", options, text(&world.image(id)), text(&top)]);
        Seen { top, is_mounted: true }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if self.is_mounted {
            run("umount", &[text(&self.top)]);
        }
    }
}

/// The pod leaves the volume.
fn leave(nodes: &Nodes, id: &str, (target, staging): (PathBuf, PathBuf)) {
    let volume_id = id.to_owned();
    let unpublish = NodeUnpublishVolume { volume_id: volume_id.clone(), target_path: target };
    nodes.source.node_unpublish_volume(unpublish).expect("unpublished");
    let unstage = NodeUnstageVolume { volume_id, staging_path: staging };
    nodes.source.node_unstage_volume(unstage).expect("unstaged");
}

fn is_converted((disk, from): (&str, Kind), (other, to): (&str, Kind)) {
    let which = format!("{from:?} on {disk} to {to:?} on {other}");
    let (mut source, mut target) = (node(disk, from), node(other, to));
    let vol = Vol::create(&source, from, "source", BYTES, &[]);
    let id = vol.id().to_owned();
    vol.up();
    let (top, paths) = (vol.target("a"), (vol.target("a"), vol.staging()));
    everything(&top.join("tree"));
    std::fs::write(top.join("large"), pattern(9, 40 << 20)).expect("write");
    for name in ["small", "mode", "attribute"] {
        std::fs::write(top.join(name), name).expect("write");
    }
    sync(&top);
    source.take_driver().stop();
    target.take_driver().stop();
    let request = clone_request(to, "copy", BYTES, &id, &[]);
    let info = together(&source, &target, |nodes| {
        let mut order = nodes.order(request.clone());
        for header in [COPY, CONVERT] {
            order.metadata_mut().insert(header, "1".parse().expect("a header"));
        }
        let info = nodes.create(order);
        let mut copied = Copied::new(nodes, request, info.volume_id.clone());
        for round in 1..=3 {
            change(&top, round);
            sync(&top);
            // Two names of one file are one file more to send, which is in blocks that have not changed.
            let updated = copied.update();
            assert!(updated.sent_bytes < 8 * MIB, "{which}, round {round}: {}", updated.sent_bytes);
        }
        assert_eq!(copied.update().sent_bytes, 0, "{which}");
        std::fs::write(top.join("small"), "the last").expect("write");
        leave(nodes, &id, paths);
        nodes.source.seal_volume(&id, (0, 0), Some("node".to_owned())).expect("it is sealed");
        assert!(copied.update().sealed);
        copied.complete();
        let copy = info.volume_id.parse().expect("an id");
        nodes.source.release_cuts(&id.parse().expect("an id"), &copy).expect("released");
        nodes.source.seal_volume(&id, (0, 0), None).expect("taken back");
        info
    });
    let copy = info.volume_id.clone();
    target.start();
    {
        // Its PersistentVolume says what the volume was.
        let vol = Vol::of(&target, from, info);
        vol.up();
        let seen = Seen::of(&source, &id, from);
        assert_equal(&metas(&seen.top), &seen.top, &vol.target("a"));
        vol.down();
    }
    source.start();
    for (world, id) in [(target, copy), (source, id)] {
        world.csi.delete(&id).expect("DeleteVolume");
        world.finish();
    }
}

#[test]
fn an_image_becomes_a_directory() {
    is_converted(("xfs", Kind::Ext4), ("ext4", Kind::Directory));
    is_converted(("ext4", Kind::Btrfs), ("btrfs", Kind::Directory));
}

#[test]
fn a_directory_becomes_an_image() {
    is_converted(("ext4", Kind::Directory), ("xfs", Kind::Ext4));
    is_converted(("btrfs", Kind::Directory), ("ext4", Kind::Btrfs));
}

#[test]
fn a_volume_gets_another_filesystem() {
    is_converted(("ext4", Kind::Ext4), ("xfs", Kind::Xfs));
    is_converted(("xfs", Kind::Xfs), ("ext4", Kind::Ext4));
}
