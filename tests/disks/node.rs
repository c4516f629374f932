//! A node with a disk for its state and one for each of its pools.

use std::path::{Path, PathBuf};

use crate::harness::{MIB, World, eventually, kernel, mount_loop, output, run, text};

/// Of every disk, in bytes; little of it is written.
pub const SIZE: u64 = 3 << 30;

/// A disk: what it is for, and its filesystem.
pub struct Place {
    pub name: &'static str,
    pub fs_type: &'static str,
}

/// The disks. On `managed` lies the image of a pool that the driver makes itself.
pub const PLACES: [Place; 5] = [
    Place { name: "state", fs_type: "ext4" },
    Place { name: "ext4", fs_type: "ext4" },
    Place { name: "xfs", fs_type: "xfs" },
    Place { name: "btrfs", fs_type: "btrfs" },
    Place { name: "managed", fs_type: "ext4" },
];

/// Where a disk is mounted.
fn mount_point(world: &World, place: &Place) -> PathBuf {
    if place.name == "state" { world.data.clone() } else { world.dir.join(place.name) }
}

/// The directory of a pool.
pub fn pool(world: &World, pool: &str) -> PathBuf {
    if pool == "managed" { world.data.join("pools/managed") } else { world.dir.join(pool) }
}

/// A world without a driver; its disks are to be mounted.
pub fn world() -> World {
    let mut world = World::empty(&[]);
    let at = |name: &str| text(&world.dir.join(name)).to_owned();
    let mut flags = Vec::new();
    for pool in ["ext4", "xfs", "btrfs"] {
        flags.extend(["--pool".to_owned(), format!("{pool}={}", at(pool))]);
    }
    let image = format!("managed={}/image,kind=image,size={},directories=true", at("managed"), 1 << 30);
    flags.extend(["--pool".to_owned(), image]);
    world.set_flags(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    for place in &PLACES {
        std::fs::create_dir(mount_point(&world, place)).expect("mkdir");
    }
    world
}

/// Makes the filesystems.
pub fn format(disks: &[PathBuf]) {
    for (place, disk) in PLACES.iter().zip(disks) {
        // Else the kernel goes on to write zeros for a while.
        let more: &[&str] = if place.fs_type == "ext4" { &["-E", "assume_storage_prezeroed=1"] } else { &[] };
        run(&format!("mkfs.{}", place.fs_type), &[&["-q"], more, &[text(disk)]].concat());
    }
}

/// Mounts the disks.
pub fn mount(world: &World, disks: &[PathBuf]) {
    for (place, disk) in PLACES.iter().zip(disks) {
        mount_loop(disk, &mount_point(world, place));
    }
}

/// Replays the journals, and checks the filesystems; what is wrong.
pub fn check(world: &World, disks: &[PathBuf]) -> Result<(), String> {
    mount(world, disks);
    for place in &PLACES {
        run("umount", &[text(&mount_point(world, place))]);
    }
    for (place, disk) in PLACES.iter().zip(disks) {
        let (tool, arguments): (_, &[&str]) = match place.fs_type {
            "ext4" => ("e2fsck", &["-fn"]),
            "xfs" => ("xfs_repair", &["-n", "-f"]),
            _ => ("btrfs", &["check", "--readonly", "--force"]),
        };
        let done = output(tool, &[arguments, &[text(disk)]].concat());
        if !done.status.success() {
            return Err(format!("{}: {tool}: {done:?}", place.name));
        }
    }
    Ok(())
}

/// What the loss of power leaves of mounts and devices: nothing.
pub fn take_down(world: &World) {
    for mount in kernel::mounts(&world.dir).iter().rev().filter(|mount| !is_fuse(world, &mount.target)) {
        for number in kernel::loops(&mount.target) {
            output("losetup", &["-d", &format!("/dev/loop{number}")]);
        }
        run("umount", &[text(&mount.target)]);
    }
    eventually("no device is left", || kernel::loops(&world.dir).is_empty());
}

/// Where the disks themselves are files.
pub fn disks_of(world: &World) -> PathBuf {
    world.dir.join("disks")
}

fn is_fuse(world: &World, target: &Path) -> bool {
    target == disks_of(world)
}

/// The least that a pool is to say that it has room for.
pub const ROOM: i64 = (512 * MIB) as i64;
