//! The whole life of a volume of each kind.

use std::path::{Path, PathBuf};

use hostloop::backend::{Signature, inspect};
use hostloop::kernel::linux::{Tools, os};

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, eventually};

/// How much each expansion adds.
const STEP: u64 = 64 * MIB;
const LEN: usize = 1 << 20;

#[test]
fn ext4_lives_its_whole_life() {
    alone(Kind::Ext4);
}

#[test]
fn xfs_lives_its_whole_life() {
    alone(Kind::Xfs);
}

#[test]
fn btrfs_lives_its_whole_life() {
    alone(Kind::Btrfs);
}

#[test]
fn block_lives_its_whole_life() {
    alone(Kind::Block);
}

#[test]
fn directory_lives_its_whole_life() {
    alone(Kind::Directory);
}

fn alone(kind: Kind) {
    let world = World::for_kind(kind, &[]);
    life(&world, kind);
    world.finish();
}

/// The life of one volume in a world.
pub fn life(world: &World, kind: Kind) {
    let mut vol = Vol::create(world, kind, &format!("life of {kind:?}"), kind.size(), &[]);
    assert_eq!(vol.bytes(), kind.size());
    assert!(world.volume_directory(vol.id()).is_dir());
    vol.up();
    vol.stage().expect("NodeStageVolume again");
    vol.publish("a").expect("NodePublishVolume again");
    let file = vol.file("a");
    write_at(&file, 0, &pattern(1, LEN)).expect("write");
    check_stats(&vol);
    check_direct_io(world, &vol);

    if can_grow(kind) {
        grow_in_use(world, &mut vol);
    }
    let second = if kind == Kind::Block { vol.bytes() - LEN as u64 } else { LEN as u64 };
    write_at(&file, second, &pattern(2, LEN)).expect("write into what was added");
    check_stats(&vol);
    vol.down();
    assert_down(world, &vol);

    if can_grow(kind) {
        grow_at_rest(world, &mut vol);
        vol.down();
        assert_down(world, &vol);
    }
    check_superblock(world, &vol);
    vol.up();
    assert_eq!(read_at(&file, 0, LEN), pattern(1, LEN));
    assert_eq!(read_at(&file, second, LEN), pattern(2, LEN));
    assert_eq!(vol.delete().expect_err("it is in use").code(), tonic::Code::FailedPrecondition);
    vol.down();
    vol.unpublish("a").expect("NodeUnpublishVolume again");
    vol.unstage().expect("NodeUnstageVolume again");
    assert_down(world, &vol);
    vol.delete().expect("DeleteVolume");
    assert!(!world.volume_directory(vol.id()).exists());
    vol.delete().expect("DeleteVolume again");
}

/// Whoever may not grow an ext4 in use is told why, and keeps the use of it; it grows when it is staged again.
#[test]
fn an_ext4_that_may_not_grow_keeps_its_data() {
    let world = World::new(&[]);
    let mut vol = Vol::create(&world, Kind::Ext4, "larger image", Kind::Ext4.size(), &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
    let (before, _) = kernel::space(&vol.staging());
    let bytes = vol.bytes() + STEP;
    assert_eq!(vol.expand(bytes).expect("ControllerExpandVolume"), (bytes, true));
    match vol.node_expand("a", bytes) {
        Ok(grown) => assert!(can_grow(Kind::Ext4) && grown == bytes),
        Err(status) => {
            assert!(!can_grow(Kind::Ext4), "{status}");
            assert!(status.message().contains("CAP_SYS_RESOURCE"), "{status}");
            assert_eq!(kernel::space(&vol.staging()).0, before);
        }
    }
    assert_eq!(read_at(&vol.file("a"), 0, LEN), pattern(1, LEN));
    vol.down();
    vol.up();
    assert_eq!(vol.node_expand("a", bytes).expect("NodeExpandVolume after its staging"), bytes);
    grown_by_a_step(before, &vol.staging());
    assert_eq!(read_at(&vol.file("a"), 0, LEN), pattern(1, LEN));
    write_at(&vol.file("a"), 0, &pattern(2, LEN)).expect("write again");
    vol.info.capacity_bytes = i64::try_from(bytes).expect("a size");
    vol.remove();
    world.finish();
}

/// ext4 grows for holders of CAP_SYS_RESOURCE only (fs/ext4/resize.c, ext4_resize_begin), which even root may be
/// without: then the refusal is tested here, and the growing in tests/vm.
pub fn can_grow(kind: Kind) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities");
    let held = u64::from_str_radix(held.trim(), 16).expect("hex");
    kind != Kind::Ext4 || held & (1 << CAP_SYS_RESOURCE) != 0
}

/// Unit, total, used and available.
type Stats = Vec<(i32, [i64; 3])>;

/// Returns the answer of NodeGetVolumeStats, and the kernel's figures at that time. In the background, xfs frees the blocks that it
/// has allocated beyond the end of a file.
fn stats_of(vol: &Vol) -> (Stats, (u64, u64)) {
    let target = vol.target("a");
    let mut found = None;
    eventually("the free space stays the same during the call", || {
        let before = kernel::space(&target);
        let stats = vol.stats("a").expect("NodeGetVolumeStats");
        found = Some((stats, before));
        // Other programs use the filesystem of a directory or a device as well.
        matches!(vol.kind, Kind::Block | Kind::Directory) || kernel::space(&target) == before
    });
    found.expect("a look")
}

/// NodeGetVolumeStats gives the volume's own numbers.
fn check_stats(vol: &Vol) {
    let target = vol.target("a");
    let (stats, (of_kernel, free)) = stats_of(vol);
    let (bytes, inodes) = (stats.iter().find(|s| s.0 == 1), stats.iter().find(|s| s.0 == 2));
    let [total, used, available] = bytes.expect("bytes").1.map(|n| u64::try_from(n).expect("not negative"));
    match vol.kind {
        Kind::Block => assert_eq!((total, kernel::device_size(&target)), (vol.bytes(), vol.bytes())),
        Kind::Directory => {
            assert!(used >= LEN as u64 && used < 4 * MIB, "{used}");
            assert_eq!(inodes.expect("inodes").1[1], 2, "the directory and the file");
        }
        Kind::Ext4 | Kind::Xfs | Kind::Btrfs => {
            assert_eq!((total, available), (of_kernel, free));
            assert!(total <= vol.bytes() && total > vol.bytes() / 2, "{total} of {}", vol.bytes());
            assert!(used >= LEN as u64 / 2 && used < total);
            // btrfs has no fixed number of inodes.
            assert_eq!(inodes.is_some_and(|i| i.1[0] > 0), vol.kind != Kind::Btrfs, "{inodes:?}");
        }
    }
}

/// Direct I/O is in force wherever the filesystem of the image can do it.
fn check_direct_io(world: &World, vol: &Vol) {
    if vol.kind == Kind::Directory {
        return assert!(loops(world, vol).is_empty());
    }
    let numbers = loops(world, vol);
    let [number] = numbers[..] else { panic!("one device, not {numbers:?}") };
    let possible = os(Tools::find()).images.direct_io_alignment(&world.data).expect("probe").is_some();
    assert_eq!(kernel::loop_attribute(number, "dio"), if possible { "1" } else { "0" });
    let autoclear = if vol.kind == Kind::Block { "0" } else { "1" };
    assert_eq!(kernel::loop_attribute(number, "autoclear"), autoclear);
}

fn loops(world: &World, vol: &Vol) -> Vec<u32> {
    kernel::loops(&world.volume_directory(vol.id()))
}

fn grow_in_use(world: &World, vol: &mut Vol) {
    let (before, bytes) = (vol.bytes(), vol.bytes() + STEP);
    let filesystem = !matches!(vol.kind, Kind::Block | Kind::Directory);
    let (size_before, _) = kernel::space(&vol.staging());
    assert_eq!(vol.expand(bytes).expect("ControllerExpandVolume"), (bytes, filesystem));
    assert_eq!(vol.node_expand("a", bytes).expect("NodeExpandVolume"), bytes);
    vol.info.capacity_bytes = i64::try_from(bytes).expect("a size");
    // Again, and smaller: nothing changes.
    for size in [bytes, before] {
        assert_eq!(vol.expand(size).expect("ControllerExpandVolume again").0, bytes);
        assert_eq!(vol.node_expand("a", size).expect("NodeExpandVolume again"), bytes);
    }
    check_image(world, vol);
    for number in loops(world, vol) {
        assert_eq!(kernel::device_size(&PathBuf::from(format!("/dev/loop{number}"))), bytes);
    }
    if filesystem {
        grown_by_a_step(size_before, &vol.staging());
    }
}

/// A filesystem takes a little of what was added for itself.
fn grown_by_a_step(before: u64, path: &Path) {
    let (after, _) = kernel::space(path);
    assert!(after > before + STEP * 9 / 10 && after <= before + STEP, "{before} {after}");
}

/// Expands it while it is not staged; leaves it staged and published with its new size.
fn grow_at_rest(world: &World, vol: &mut Vol) {
    vol.stage().expect("NodeStageVolume");
    let (size_before, _) = kernel::space(&vol.staging());
    vol.unstage().expect("NodeUnstageVolume");
    let bytes = vol.bytes() + STEP;
    assert_eq!(vol.expand(bytes).expect("ControllerExpandVolume").0, bytes);
    vol.info.capacity_bytes = i64::try_from(bytes).expect("a size");
    check_image(world, vol);
    vol.up();
    match vol.kind {
        Kind::Block => assert_eq!(kernel::device_size(&vol.target("a")), bytes),
        Kind::Directory => {}
        Kind::Ext4 | Kind::Xfs | Kind::Btrfs => grown_by_a_step(size_before, &vol.staging()),
    }
    // kubelet calls it after each staging that follows an expansion.
    assert_eq!(vol.node_expand("a", bytes).expect("NodeExpandVolume"), bytes);
}

fn check_image(world: &World, vol: &Vol) {
    if vol.kind != Kind::Directory {
        assert_eq!(world.image(vol.id()).metadata().expect("stat").len(), vol.bytes());
    }
}

/// The superblock gives the filesystem exactly the volume's size.
fn check_superblock(world: &World, vol: &Vol) {
    if matches!(vol.kind, Kind::Block | Kind::Directory) {
        return;
    }
    match inspect(os(Tools::find()).images.as_ref(), &world.image(vol.id())).expect("inspect") {
        Signature::Filesystem { fs_type, bytes, errors } => {
            assert_eq!(
                (fs_type.as_str(), bytes, errors),
                (vol.kind.fs_type().unwrap_or_default(), vol.bytes(), false)
            );
        }
        other => panic!("{other:?}"),
    }
}

/// Nothing but the image is left.
fn assert_down(world: &World, vol: &Vol) {
    assert!(!vol.target("a").exists(), "kubelet expects the target to be gone");
    assert!(kernel::mounts(&world.kubelet).iter().all(|m| m.target != vol.staging()));
    eventually("the loop device goes", || loops(world, vol).is_empty());
}
