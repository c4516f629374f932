//! Group snapshots: what is written in order across volumes is found in order, however often groups are cut.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Kind, Vol, World};

const GIB: u64 = 1 << 30;
const CUTS: usize = 6;

/// Writes 1, 2, 3, … to each of the files in turn; each number is on disk everywhere before the next is written anywhere.
fn write_in_order(files: &[File], stop: &AtomicBool) -> u64 {
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        for file in files {
            file.write_all_at(&number.to_le_bytes(), 0).and_then(|()| file.sync_data()).expect("write");
        }
    }
    number
}

fn number_in(path: &Path) -> u64 {
    let mut bytes = [0; 8];
    File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0)).expect("read");
    u64::from_le_bytes(bytes)
}

fn cut_while_writing(world: &World, kinds: &[Kind]) {
    let name = |kind: &Kind, index: usize| format!("{kind:?} {index}");
    let sources: Vec<Vol<'_>> = kinds
        .iter()
        .enumerate()
        .map(|(index, kind)| Vol::create(world, *kind, &name(kind, index), kind.size(), &[]))
        .collect();
    let mut files = Vec::new();
    for source in &sources {
        source.up();
        let open = OpenOptions::new().create(source.kind != Kind::Block).write(true).open(source.file("a"));
        let file = open.expect("open");
        file.write_all_at(&[0; 4096], 0).and_then(|()| file.sync_all()).expect("write");
        files.push(file);
    }
    let ids: Vec<&str> = sources.iter().map(Vol::id).collect();
    let stop = AtomicBool::new(false);
    let groups = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_in_order(&files, &stop));
        let groups: Vec<_> =
            (0..CUTS).map(|cut| world.csi.group(&format!("group {cut}"), &ids).expect("a group")).collect();
        stop.store(true, Ordering::Relaxed);
        let last = writer.join().expect("the writer");
        assert!(last > 0, "nothing was written meanwhile");
        groups
    });
    for group in &groups {
        assert!(group.ready_to_use);
        let mut numbers = Vec::new();
        for source in &sources {
            let member = group.snapshots.iter().find(|member| member.source_volume_id == source.id());
            let member = member.expect("a member for each volume");
            assert_eq!(member.group_snapshot_id, group.group_snapshot_id);
            let restored = Vol::restore(world, source.kind, &member.snapshot_id, source.bytes(), member, &[]);
            restored.up();
            numbers.push(number_in(&restored.file("a")));
            restored.remove();
        }
        // The first volume is at most one ahead, and none is behind a later one.
        assert!(numbers.windows(2).all(|pair| pair[0] >= pair[1]), "{numbers:?}");
        assert!(numbers[0] - numbers[numbers.len() - 1] <= 1, "{numbers:?}");
        eprintln!("{numbers:?}");
        world.csi.delete_group(&group.group_snapshot_id).expect("DeleteVolumeGroupSnapshot");
    }
    drop(files);
    for source in sources {
        source.remove();
    }
}

#[test]
fn filesystems_on_a_pool_that_shares_blocks() {
    let world = World::on("xfs", 6 * GIB, &["--overcommit", "4"]);
    cut_while_writing(&world, &[Kind::Ext4, Kind::Xfs, Kind::Ext4]);
    world.finish();
}

#[test]
fn filesystems_on_a_pool_that_copies() {
    let world = World::new(&[]);
    cut_while_writing(&world, &[Kind::Ext4, Kind::Btrfs]);
    world.finish();
}

#[test]
fn one_raw_device_is_cut_with_filesystems() {
    let world = World::on("xfs", 6 * GIB, &["--overcommit", "4"]);
    cut_while_writing(&world, &[Kind::Ext4, Kind::Block]);
    cut_while_writing(&world, &[Kind::Block, Kind::Ext4]);
    world.finish();
}

/// Nothing holds the writes to two raw devices back: no group rather than one that is torn.
#[test]
fn two_raw_devices_in_use_are_refused() {
    let world = World::on("xfs", 2 * GIB, &[]);
    let sources = ["a", "b"].map(|name| Vol::create(&world, Kind::Block, name, Kind::Block.size(), &[]));
    sources.iter().for_each(Vol::up);
    let ids: Vec<&str> = sources.iter().map(Vol::id).collect();
    let refused = world.csi.group("group", &ids).expect_err("both are written to");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused:?}");
    sources[1].down();
    let group = world.csi.group("group", &ids).expect("one of them rests");
    world.csi.delete_group(&group.group_snapshot_id).expect("DeleteVolumeGroupSnapshot");
    sources[0].down();
    sources.iter().for_each(|source| source.delete().expect("DeleteVolume"));
    world.finish();
}
