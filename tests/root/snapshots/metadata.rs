//! Changed blocks: base and delta together are the target, byte for byte.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World};

const GIB: u64 = 1 << 30;

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Writes of any place and length to a device or a file.
fn scribble(path: &Path, bytes: u64, count: u64, numbers: &mut Numbers) {
    for _ in 0..count {
        let len = 1 + numbers.next(200_000);
        let at = numbers.next(bytes - len);
        write_at(path, at, &pattern(numbers.next(1 << 30), len as usize)).expect("write");
    }
    OpenOptions::new().write(true).open(path).and_then(|file| file.sync_all()).expect("fsync");
}

/// Puts what `ranges` of the target hold over the base.
fn apply(base: &mut [u8], target: &[u8], ranges: &[(u64, u64)]) {
    for (offset, len) in ranges {
        let range = *offset as usize..(*offset + *len) as usize;
        base[range.clone()].copy_from_slice(&target[range]);
    }
}

fn image(world: &World, snapshot_id: &str, bytes: u64) -> Vec<u8> {
    read_at(&world.data.join("snapshots").join(snapshot_id).join("disk.img"), 0, bytes as usize)
}

fn ascending(ranges: &[(u64, u64)]) -> bool {
    ranges.iter().all(|(_, len)| *len > 0) && ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
}

fn base_and_delta_are_the_target(world: &World, kind: Kind, shares: bool) {
    let source = Vol::create(world, kind, "source", kind.size(), &[]);
    let mut numbers = Numbers(kind.size() + u64::from(shares));
    let mut last: Option<(String, Vec<u8>)> = None;
    for round in 0..4 {
        source.up();
        let reach = if kind == Kind::Block { source.bytes() } else { 16 * MIB };
        scribble(&source.file("a"), reach, 1 + numbers.next(12), &mut numbers);
        if round == 2 {
            discard(&source);
        }
        source.down();
        let snapshot = world.csi.snapshot(&format!("{round}"), source.id(), &[]).expect("CreateSnapshot");
        let target = image(world, &snapshot.snapshot_id, source.bytes());

        let allocated = world.csi.allocated(&snapshot.snapshot_id).expect("GetMetadataAllocated");
        assert!(ascending(&allocated));
        let mut rebuilt = vec![0; target.len()];
        apply(&mut rebuilt, &target, &allocated);
        assert!(rebuilt == target, "round {round}: allocated blocks are all data");

        if let Some((base_id, mut base)) = last.take() {
            let delta = world.csi.delta(&base_id, &snapshot.snapshot_id).expect("GetMetadataDelta");
            assert!(ascending(&delta));
            let told: u64 = delta.iter().map(|(_, len)| len).sum();
            assert!(delta.iter().any(|_| true) && told < source.bytes() / 2, "{told} bytes");
            apply(&mut base, &target, &delta);
            assert!(base == target, "round {round}: base and delta are the target");
            let back = world.csi.delta(&snapshot.snapshot_id, &snapshot.snapshot_id).expect("of itself");
            assert!(back.is_empty(), "{back:?}");
            world.csi.delete_snapshot(&base_id).expect("DeleteSnapshot");
        }
        last = Some((snapshot.snapshot_id, target));
    }
    world.csi.delete_snapshot(&last.expect("a snapshot").0).expect("DeleteSnapshot");
    source.delete().expect("DeleteVolume");
}

/// Data that become a hole are a change too.
fn discard(source: &Vol<'_>) {
    if source.kind == Kind::Block {
        let device = source.file("a");
        crate::harness::run("blkdiscard", &["-o", "1048576", "-l", "1048576", crate::harness::text(&device)]);
    } else {
        std::fs::remove_file(source.file("a")).expect("unlink");
        crate::harness::run("fstrim", &[crate::harness::text(&source.target("a"))]);
    }
}

#[test]
fn allocated_metadata_in_a_pool_on_xfs() {
    let world = World::on("xfs", 2 * GIB, &["--overcommit", "4"]);
    base_and_delta_are_the_target(&world, Kind::Block, true);
    base_and_delta_are_the_target(&world, Kind::Ext4, true);
    world.finish();
}

#[test]
fn allocated_metadata_in_a_pool_on_btrfs() {
    let world = World::on("btrfs", 2 * GIB, &["--overcommit", "4"]);
    base_and_delta_are_the_target(&world, Kind::Block, true);
    base_and_delta_are_the_target(&world, Kind::Ext4, true);
    world.finish();
}

#[test]
fn allocated_metadata_in_a_pool_on_ext4() {
    let world = World::new(&[]);
    base_and_delta_are_the_target(&world, Kind::Block, false);
    base_and_delta_are_the_target(&world, Kind::Xfs, false);
    world.finish();
}

/// Where blocks are shared, a delta reads only what has changed.
#[test]
fn equal_extents_are_not_read() {
    let mut world = World::on("xfs", 2 * GIB, &["--overcommit", "4"]);
    let pid = world.driver().pid();
    let read = || {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("io");
        io.lines()
            .find_map(|line| line.strip_prefix("rchar: "))
            .expect("rchar")
            .parse::<u64>()
            .expect("a number")
    };
    let source = Vol::create(&world, Kind::Block, "source", 256 * MIB, &[]);
    source.up();
    for at in (0..256 * MIB).step_by(1 << 20) {
        write_at(&source.file("a"), at, &pattern(at, 1 << 20)).expect("write");
    }
    let device = OpenOptions::new().write(true).open(source.file("a")).expect("open");
    device.sync_all().expect("fsync");
    let base = world.csi.snapshot("base", source.id(), &[]).expect("CreateSnapshot");
    device.write_all_at(&[9; 4096], 100 * MIB).and_then(|()| device.sync_all()).expect("write");
    drop(device);
    let target = world.csi.snapshot("target", source.id(), &[]).expect("CreateSnapshot");
    let before = read();
    let delta = world.csi.delta(&base.snapshot_id, &target.snapshot_id).expect("GetMetadataDelta");
    assert_eq!(delta, [(100 * MIB, 4096)]);
    let read = read() - before;
    assert!(read < MIB, "{read} bytes were read for a change of 4096");
    for id in [base.snapshot_id, target.snapshot_id] {
        world.csi.delete_snapshot(&id).expect("DeleteSnapshot");
    }
    assert!(kernel::loops(&world.data).len() == 1);
    source.remove();
    world.finish();
}
