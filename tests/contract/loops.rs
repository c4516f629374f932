//! os::LoopDevices

use std::path::Path;

use hostloop::os::{AttachOptions, LoopDevice, Os};
use nix::errno::Errno;

use super::{Cleanup, FOR_BLOCK, FOR_MOUNT, MIB, assert_gone, devices_of, errno, image};

/// Asserts what the trait promises.
pub fn loops(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    explicit(os, &dir.join("explicit.img"));
    autoclear(os, &dir.join("autoclear.img"));
    changed(os, dir);
    options(os, &dir.join("options.img"));
    assert_eq!(errno(os.loops.attach(&dir.join("none"), FOR_BLOCK).map(drop)), Some(Errno::ENOENT));
    assert_eq!(errno(os.loops.attach(dir, FOR_BLOCK).map(drop)), Some(Errno::EISDIR));
}

fn explicit(os: &Os, file: &Path) {
    image(os, file, 8 * MIB);
    let open = os.loops.attach(file, FOR_BLOCK).expect("attach");
    let device = open.device.clone();
    let stat = os.disks.stat(file).expect("stat").expect("there");
    assert_eq!(device.backing, stat.id);
    let node = os.disks.stat(&device.path()).expect("stat").expect("its node is there");
    assert_eq!(node.rdev, device.rdev);
    assert!(!device.autoclear && !device.read_only);
    drop(open);
    assert_eq!(devices_of(os, file), std::slice::from_ref(&device), "it stays without a user");
    assert_eq!(os.loops.size(&device).expect("size"), 8 * MIB);
    os.disks.set_size(file, 16 * MIB).expect("grow");
    assert_eq!(os.loops.size(&device).expect("size"), 8 * MIB);
    os.loops.update_size(&device).expect("update");
    assert_eq!(os.loops.size(&device).expect("size"), 16 * MIB);
    // A second device on the same image is found as well.
    let second = os.loops.attach(file, FOR_BLOCK).expect("attach").device;
    let mut both = vec![device.clone(), second.clone()];
    both.sort_by_key(|d| d.number);
    assert_eq!(devices_of(os, file), both);
    os.loops.detach(&second).expect("detach");
    os.loops.detach(&device).expect("detach");
    os.loops.detach(&device).expect("detach again");
    assert_gone(os, file);
    assert_eq!(errno(os.loops.open(&device).map(drop)), Some(Errno::ENXIO));
}

fn autoclear(os: &Os, file: &Path) {
    image(os, file, 8 * MIB);
    let open = os.loops.attach(file, FOR_MOUNT).expect("attach");
    assert!(open.device.autoclear);
    let second = os.loops.open(&open.device).expect("open");
    assert_eq!(second.device, open.device);
    drop(open);
    assert_eq!(devices_of(os, file).len(), 1, "the second holds it");
    drop(second);
    assert_gone(os, file);
}

fn changed(os: &Os, dir: &Path) {
    let (one, other) = (dir.join("one.img"), dir.join("other.img"));
    image(os, &one, 8 * MIB);
    image(os, &other, 8 * MIB);
    let device = os.loops.attach(&one, FOR_BLOCK).expect("attach").device;
    let stale =
        LoopDevice { backing: os.disks.stat(&other).expect("stat").expect("there").id, ..device.clone() };
    assert_eq!(errno(os.loops.open(&stale).map(drop)), Some(Errno::ENXIO));
    assert_eq!(errno(os.loops.size(&stale)), Some(Errno::ENXIO));
    os.loops.detach(&stale).expect("somebody else's is left alone");
    assert_eq!(devices_of(os, &one), std::slice::from_ref(&device));
    // Detached while it is open: gone with the last user.
    let open = os.loops.open(&device).expect("open");
    os.loops.detach(&device).expect("detach");
    drop(open);
    assert_gone(os, &one);
}

fn options(os: &Os, file: &Path) {
    image(os, file, 8 * MIB);
    let options =
        AttachOptions { read_only: true, block_size: 4096, direct_io: true, discard: false, ..FOR_BLOCK };
    let device = os.loops.attach(file, options).expect("attach").device;
    assert!(device.read_only);
    os.loops.detach(&device).expect("detach");
    let bad = AttachOptions { block_size: 1000, ..FOR_BLOCK };
    assert_eq!(errno(os.loops.attach(file, bad).map(drop)), Some(Errno::EINVAL));
    assert_gone(os, file);
}
