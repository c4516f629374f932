//! A disk with no byte left stops only what needs one: everything that gives room back works, and the start.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use hostloop::wire::csi;
use tonic::{Code, Status};

use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::volume::create_request;
use crate::harness::{Kind, MIB, Vol, World, eventually, run, text};

const POOL: u64 = 512 * MIB;

/// Writes until nothing more fits in, in ever smaller pieces, and makes empty files until there is no place for one
/// more; as an administrator's other programs may do it.
fn fill(directory: &Path) {
    let stop = |written: io::Result<()>| match written {
        Ok(()) => false,
        Err(error) if error.kind() == ErrorKind::StorageFull => true,
        Err(error) => panic!("{error}"),
    };
    // What a filesystem has in hand for the moment, it may give back after a sync.
    for round in 0..3 {
        let name = directory.join(format!("fill-{round}"));
        if let Ok(mut file) = File::create(name) {
            for size in [1 << 20, 4096, 512] {
                let piece = vec![0x5a; size];
                while !stop(file.write_all(&piece).and_then(|()| file.sync_data())) {}
            }
        }
        run("sync", &["-f", text(directory)]);
    }
    for number in 0..200_000 {
        if stop(File::create(directory.join(format!("{}-{number}", "empty".repeat(40)))).map(drop)) {
            break;
        }
    }
    run("sync", &["-f", text(directory)]);
}

/// Fills the metadata of a btrfs: files that are kept among them.
fn fill_metadata(directory: &Path) {
    let mut full = 0;
    for number in 0.. {
        let name = directory.join(format!("{}-{number}", "tiny".repeat(40)));
        match fs::write(name, [0x5a; 1800]) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                full += 1;
                run("sync", &["-f", text(directory)]);
                if full == 4 {
                    return;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Empty files until there is no inode left.
fn fill_inodes(directory: &Path) {
    for number in 0.. {
        match File::create(directory.join(format!("inode-{number}"))) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[track_caller]
fn no_room<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let status = answer.expect_err("there is no room");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
}

const THICK: [(&str, &str); 1] = [("provisioning", "thick")];

/// What there is when the disk gets full.
struct Before {
    /// Thick and in use, a raw device in use, idle with data, thick and never staged, a directory in use.
    volumes: Vec<(Kind, csi::Volume)>,
    many: Vec<csi::Volume>,
    snapshot: csi::Snapshot,
}

fn prepare(world: &mut World) -> Before {
    // Beside promises it can be only where other flags made it before them.
    world.serve(Kind::Directory);
    let directory = Vol::create(world, Kind::Directory, "directory", 16 * MIB, &[]).info.clone();
    world.serve(Kind::Ext4);
    let world = &*world;
    let used = Vol::create(world, Kind::Ext4, "used", 32 * MIB, &THICK);
    used.up();
    write_at(&used.file("a"), 0, &pattern(7, 4096)).expect("write");
    let block = Vol::create(world, Kind::Block, "block", 16 * MIB, &[]);
    block.up();
    write_at(&block.file("a"), 0, &pattern(8, 4096)).expect("write");
    let idle = Vol::create(world, Kind::Ext4, "idle", 32 * MIB, &[]);
    idle.up();
    write_at(&idle.file("a"), 0, &pattern(9, 1 << 20)).expect("write");
    idle.down();
    let fresh = Vol::create(world, Kind::Ext4, "fresh", 16 * MIB, &THICK);
    let directory = Vol::of(world, Kind::Directory, directory);
    directory.up();
    let snapshot = world.csi.snapshot("cut", idle.id(), &[]).expect("CreateSnapshot");
    let one_of_many = |n| Vol::create(world, Kind::Block, &format!("many {n}"), MIB, &[]).info.clone();
    let many = (0..20).map(one_of_many).collect();
    let volumes = [used, block, idle, fresh, directory].map(|vol| (vol.kind, vol.info.clone()));
    Before { volumes: volumes.into(), many, snapshot }
}

/// What needs room says so, however often it is asked for, and leaves nothing; not so in another pool.
fn refuses(world: &World, before: &Before) {
    for round in 0..50 {
        let name = format!("more {round}");
        no_room(world.csi.create(create_request(Kind::Ext4, &name, 64 * MIB, &THICK)));
        // A few bytes may be there all the same.
        if let Ok(made) = world.csi.create(create_request(Kind::Block, &name, MIB, &[])) {
            world.csi.delete(&made.volume_id).expect("DeleteVolume");
        }
    }
    let (_, used) = &before.volumes[0];
    if let Ok(made) = world.csi.snapshot("more", &used.volume_id, &[]) {
        world.csi.delete_snapshot(&made.snapshot_id).expect("DeleteSnapshot");
    }
    let frozen = world.data.join("frozen");
    assert_eq!(fs::read_dir(frozen).expect("list").count(), 0, "the marker of a freeze is left");
    let kept: Vec<_> = world.csi.list(0, "").expect("ListVolumes").entries;
    assert_eq!(kept.len(), before.volumes.len() + before.many.len());
    assert_eq!(world.csi.list_snapshots().expect("ListSnapshots").len(), 1);
    let other = Vol::create(world, Kind::Ext4, "in the other pool", 32 * MIB, &[("pool", "other")]);
    other.up();
    write_at(&other.file("a"), 0, &pattern(5, 4096)).expect("write");
    other.remove();
}

/// What needs no room works: the volumes that there are can be used, given back and used again. Then all of it goes,
/// on a disk that stays full until it has. Mounting writes to an image, which takes room where that is copied on write.
fn serves(world: &World, before: &Before, copied_on_write: bool) {
    let of = |index: usize| {
        let (kind, volume) = &before.volumes[index];
        Vol::of(world, *kind, volume.clone())
    };
    let [used, block, idle, fresh, directory] = [0, 1, 2, 3, 4].map(of);
    assert!(read_at(&used.file("a"), 0, 4096) == pattern(7, 4096));
    block.down();
    block.up();
    assert!(read_at(&block.file("a"), 0, 4096) == pattern(8, 4096));
    world.csi.delete_snapshot(&before.snapshot.snapshot_id).expect("DeleteSnapshot");
    used.down();
    if !copied_on_write {
        used.up();
        assert!(read_at(&used.file("a"), 0, 4096) == pattern(7, 4096));
        used.down();
        idle.up();
        assert!(read_at(&idle.file("a"), 0, 1 << 20) == pattern(9, 1 << 20));
        idle.down();
        fresh.up();
        fresh.down();
    }
    directory.down();

    for volume in &before.many {
        world.csi.delete(&volume.volume_id).expect("DeleteVolume of one of many");
    }
    directory.delete().expect("DeleteVolume of a directory");
    used.delete().expect("DeleteVolume");
    block.remove();
    idle.delete().expect("DeleteVolume");
    fresh.delete().expect("DeleteVolume");
}

/// Lives through a full disk.
fn heals(fs_type: &str, size: u64, fill: fn(&Path)) {
    let mut world = World::on(fs_type, size, &[]);
    let pool = world.data.parent().expect("the pool").to_owned();
    let other = format!("other={}", text(&world.directory("other")));
    world.set_flags(&["--reserve", "0", "--overcommit", "8", "--pool", &other]);
    world.restart_after_kill();
    let before = prepare(&mut world);
    let filling = pool.join("fill");
    fs::create_dir(&filling).expect("mkdir");
    fill(&filling);
    // Killed, so that nothing could be put in order; then again on what that start has left.
    for _ in 0..2 {
        world.restart_after_kill();
    }
    refuses(&world, &before);
    serves(&world, &before, fs_type == "btrfs");
    fs::remove_dir_all(&filling).expect("the administrator makes room");
    run("sync", &["-f", text(&pool)]);
    world.restart_after_kill();
    assert!(world.csi.list(0, "").expect("ListVolumes").entries.is_empty(), "what was deleted is back");
    // btrfs frees the blocks of removed files with its next transactions.
    let has_room = || world.csi.capacity(&THICK).expect("GetCapacity") > 64 * MIB as i64;
    eventually("the pool has the room that was made", has_room);
    {
        let again = Vol::create(&world, Kind::Ext4, "again", 64 * MIB, &THICK);
        again.up();
        write_at(&again.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
        let snapshot = world.csi.snapshot("again", again.id(), &[]).expect("CreateSnapshot");
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
        again.remove();
    }
    world.finish();
}

#[test]
fn a_full_ext4_stops_only_what_needs_room() {
    heals("ext4", POOL, fill);
}

#[test]
fn a_full_xfs_stops_only_what_needs_room() {
    heals("xfs", POOL, fill);
}

#[test]
fn a_full_btrfs_stops_only_what_needs_room() {
    heals("btrfs", POOL, fill);
}

#[test]
fn full_metadata_of_btrfs_stop_only_what_needs_room() {
    heals("btrfs", 384 * MIB, fill_metadata);
}

#[test]
fn an_ext4_without_inodes_stops_only_what_needs_one() {
    heals("ext4", POOL, fill_inodes);
}
