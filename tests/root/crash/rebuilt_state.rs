//! The state file is lost while pods use volumes, and is made anew by `hostloop state rebuild`.

use std::process::Output;

use hostloop::wire::csi;

use crate::harness::kernel::{mounts, pattern, read_at, write_at};
use crate::harness::process::{binary, node_of};
use crate::harness::{Kind, Vol, World, output, text};

const LEN: usize = 1 << 16;

fn state(world: &World, words: &[&str]) -> Output {
    let node = node_of(&world.data);
    let flags = ["--node-id", &node, "--data-dir", text(&world.data)];
    output(binary(), &[&["state"], &words[..1], &flags[..], &words[1..]].concat())
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What callers see: the ids and sizes of the volumes, and the snapshots.
fn listed(world: &World) -> (Vec<(String, i64)>, Vec<csi::Snapshot>) {
    let volumes = world.csi.list(0, "").expect("ListVolumes").entries.into_iter();
    let volumes = volumes.filter_map(|entry| entry.volume).map(|it| (it.volume_id, it.capacity_bytes));
    (volumes.collect(), world.csi.list_snapshots().expect("ListSnapshots"))
}

/// Of each kind two volumes, one in use and one with a snapshot; the driver is killed.
fn rebuilt(kinds: &[Kind], directories: bool) {
    let mut world = if directories { World::for_kind(Kind::Directory, &[]) } else { World::new(&[]) };
    let mut made = Vec::new();
    for kind in kinds {
        let used = Vol::create(&world, *kind, &format!("{kind:?} used"), kind.size(), &[]);
        used.up();
        write_at(&used.file("a"), 0, &pattern(1, LEN)).expect("write");
        let idle = Vol::create(&world, *kind, &format!("{kind:?} idle"), kind.size(), &[]);
        let cut = world.csi.snapshot(&format!("{kind:?}"), idle.id(), &[]).expect("CreateSnapshot");
        made.push((*kind, used.info.clone(), idle.info.clone(), cut));
    }
    let (before, mounted) = (listed(&world), mounts(&world.dir).len());
    world.take_driver().kill();
    std::fs::remove_file(world.data.join("state.jsonl")).expect("remove");
    let refused = world.refused();
    assert!(refused.contains("hostloop state rebuild"), "{refused}");
    let dry = state(&world, &["rebuild"]);
    assert_eq!(dry.status.code(), Some(1), "{}", said(&dry));
    assert!(!world.data.join("state.jsonl").exists());
    let done = state(&world, &["rebuild", "--yes"]);
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    world.start();
    let busy = state(&world, &["rebuild", "--yes"]);
    assert!(said(&busy).contains("stop the driver first"), "{}", said(&busy));
    let checked = state(&world, &["check"]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
    assert_eq!((listed(&world), mounts(&world.dir).len()), (before, mounted));
    for (kind, used, idle, cut) in made {
        let vol = Vol::of(&world, kind, used);
        assert!(read_at(&vol.file("a"), 0, LEN) == pattern(1, LEN), "{kind:?}: a pod goes on");
        vol.down();
        vol.remove();
        let bytes = u64::try_from(cut.size_bytes).expect("a size");
        Vol::restore(&world, kind, &format!("{kind:?} restored"), bytes, &cut, &[]).remove();
        world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
        let idle = Vol::of(&world, kind, idle);
        idle.up();
        idle.down();
        idle.remove();
    }
    world.finish();
}

#[test]
fn images_come_back_under_their_pods() {
    rebuilt(&[Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block], false);
}

#[test]
fn directories_come_back_under_their_pods() {
    rebuilt(&[Kind::Directory], true);
}

/// There and back again, so that the driver has the name that the test knows.
#[test]
fn volumes_in_use_follow_their_renamed_node() {
    let mut world = World::new(&[]);
    let mut made = Vec::new();
    for kind in [Kind::Ext4, Kind::Block] {
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
        made.push((kind, vol.info.clone()));
    }
    let (before, mounted) = (listed(&world), mounts(&world.dir).len());
    world.take_driver().kill();
    let node = node_of(&world.data);
    for (from, to) in [(node.as_str(), "renamed"), ("renamed", node.as_str())] {
        let words = [
            "state",
            "adopt-node",
            "--from",
            from,
            "--node-id",
            to,
            "--data-dir",
            text(&world.data),
            "--yes",
        ];
        let done = output(binary(), &words);
        assert_eq!(done.status.code(), Some(0), "{}", said(&done));
        assert_eq!(said(&done).matches(": adopted\n").count(), 2, "{}", said(&done));
        if to == "renamed" {
            let refused = world.refused();
            assert!(refused.contains("belongs to node \"renamed\""), "{refused}");
        }
    }
    world.start();
    assert_eq!((listed(&world), mounts(&world.dir).len()), (before, mounted));
    for (kind, info) in made {
        let vol = Vol::of(&world, kind, info);
        assert!(read_at(&vol.file("a"), 0, LEN) == pattern(1, LEN), "{kind:?}: a pod goes on");
        vol.down();
        vol.remove();
    }
    world.finish();
}
