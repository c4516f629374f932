//! kernel::LoopDevices

use std::collections::BTreeSet;
use std::path::Path;

use hostloop::kernel::{AttachOptions, BlockDevice, LoopDevice, Os, SPARE};
use hostloop::model::{FsType, MountFlags};
use nix::errno::Errno;

use super::{
    Cleanup, FOR_BLOCK, FOR_MOUNT, MIB, assert_gone, devices_of, directory, errno, formatted, image,
};
use crate::wait::eventually;

/// Asserts what the trait promises.
pub fn loops(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    explicit(os, &dir.join("explicit.img"));
    autoclear(os, &dir.join("autoclear.img"));
    kept(os, &dir.join("kept.img"));
    changed(os, dir);
    options(os, &dir.join("options.img"));
    changes(os, &dir.join("changes.img"));
    claimed(os, dir);
    seen(os, &directory(os, dir.join("seen")));
    unused(os, &dir.join("removed.img"));
    assert_eq!(errno(os.loops.attach(&dir.join("none"), FOR_BLOCK).map(drop)), Some(Errno::ENOENT));
    assert_eq!(errno(os.loops.attach(dir, FOR_BLOCK).map(drop)), Some(Errno::EISDIR));
}

fn explicit(os: &Os, file: &Path) {
    image(os, file, 8 * MIB);
    let open = os.loops.attach(file, FOR_BLOCK).expect("attach");
    let device = open.device.clone();
    let stat = os.files.stat(file).expect("stat").expect("there");
    assert_eq!(device.backing, Some(stat.id));
    let node = os.files.stat(&device.path()).expect("stat").expect("its node is there");
    assert_eq!(node.rdev, device.rdev);
    assert!(!device.autoclear && !device.read_only);
    drop(open);
    assert_eq!(devices_of(os, file), std::slice::from_ref(&device), "it stays without a user");
    assert_eq!(os.loops.size(&device).expect("size"), 8 * MIB);
    os.images.set_size(file, 16 * MIB).expect("grow");
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

/// A device that was detached while it was open is taken back.
fn kept(os: &Os, file: &Path) {
    image(os, file, 8 * MIB);
    let open = os.loops.attach(file, FOR_BLOCK).expect("attach");
    os.loops.detach(&open.device).expect("detach");
    let leaving = devices_of(os, file);
    assert!(leaving.len() == 1 && leaving[0].autoclear, "{leaving:?}");
    let back = os.loops.keep(&leaving[0]).expect("keep");
    assert!(!back.device.autoclear && back.device.number == open.device.number);
    drop((back, open));
    let there = devices_of(os, file);
    assert!(there.len() == 1 && !there[0].autoclear, "it stays without a user: {there:?}");
    os.loops.detach(&there[0]).expect("detach");
    assert_gone(os, file);
    assert_eq!(errno(os.loops.keep(&there[0]).map(drop)), Some(Errno::ENXIO));
}

/// What this process made and nobody uses any more goes, but for the lowest: others are given those, and may be about to
/// open them.
fn unused(os: &Os, file: &Path) {
    image(os, file, 8 * MIB);
    let number_of = |name: &String| name.strip_prefix("loop")?.parse::<u32>().ok();
    let before: BTreeSet<u32> =
        os.files.list(Path::new("/dev")).expect("list").iter().filter_map(number_of).collect();
    let attach = || os.loops.attach(file, FOR_BLOCK).expect("attach").device;
    // Those that were there and are free are given first. New ones also fill holes: a high number may be in use.
    let (mut own, mut others) = (Vec::new(), Vec::new());
    while own.len() < 2 * SPARE + 4 {
        let device = attach();
        let devices = if before.contains(&device.number) { &mut others } else { &mut own };
        devices.push(device);
        assert!(others.len() <= before.len(), "{} devices were there", before.len());
    }
    own.sort_by_key(|device| device.number);
    let in_use = own.split_off(own.len() - 2);
    let detach =
        |devices: &[LoopDevice]| devices.iter().for_each(|one| os.loops.detach(one).expect("detach"));
    os.loops.remove_unused().expect("remove what is unused");
    assert_eq!(devices_of(os, file).len(), others.len() + own.len() + 2, "all of it is in use");
    detach(&others);
    detach(&own);
    let is_there = |device: &LoopDevice| os.files.stat(&device.path()).expect("stat").is_some();
    // Others are given these numbers meanwhile, and may keep them.
    let left = || {
        let attached: BTreeSet<u32> = os.loops.list().expect("list").iter().map(|one| one.number).collect();
        own.iter().filter(|device| !attached.contains(&device.number) && is_there(device)).count()
    };
    eventually("the others are removed", || {
        let removed = os.loops.remove_unused().expect("remove what is unused");
        assert!(removed.is_sorted_by(|a, b| a > b), "the highest first: {removed:?}");
        left() <= SPARE
    });
    assert_eq!(devices_of(os, file), in_use, "higher than all of these");
    detach(&[attach()]);
    detach(&in_use);
    assert_gone(os, file);
}

/// Whoever uses a file is seen; and a device that this process knows is found without a look at all of them.
fn seen(os: &Os, dir: &Path) {
    let (own, other) = (dir.join("disk.img"), dir.join("other.img"));
    image(os, &own, 8 * MIB);
    image(os, &other, 8 * MIB);
    let id = |file: &Path| os.files.stat(file).expect("stat").map(|stat| stat.id);
    let is_closed = |file: &Path| os.files.seen_closed(file).expect("ask");
    // A program that another thread starts has the descriptors of this process for a moment.
    let closes = |file: &Path| {
        eventually(&format!("{} is closed", file.display()), || is_closed(file));
    };
    closes(&own);
    assert!(!is_closed(dir), "of a directory it cannot be seen");
    assert_eq!(errno(os.files.seen_closed(&dir.join("none"))), Some(Errno::ENOENT));
    let before = os.loops.attach(&other, FOR_BLOCK).expect("attach").device;
    let elsewhere = Path::new("not/here");
    assert_eq!(
        os.loops.seen(id(&own), elsewhere).expect("ask").iter().find(|seen| seen.backing == id(&own)),
        None
    );
    for options in [FOR_BLOCK, AttachOptions { read_only: true, ..FOR_BLOCK }] {
        let device = os.loops.attach(&own, options).expect("attach").device;
        assert!(!is_closed(&own), "a device has it");
        for found in [os.loops.seen(id(&own), elsewhere), os.loops.seen(None, Path::new("seen"))] {
            assert!(found.expect("ask").contains(&device), "{options:?}");
        }
        assert!(
            !os.loops.seen(id(&own), elsewhere).expect("ask").contains(&before),
            "another one is not asked"
        );
        os.loops.detach(&device).expect("detach");
        assert_gone(os, &own);
        assert!(!os.loops.seen(id(&own), elsewhere).expect("ask").contains(&device), "it has gone");
        closes(&own);
    }
    let device = os.loops.attach(&own, FOR_BLOCK).expect("attach").device;
    os.files.remove_file(&own).expect("unlink");
    image(os, &own, 8 * MIB);
    assert_ne!(id(&own), device.backing);
    closes(&own);
    assert!(
        os.loops.seen(id(&own), Path::new("seen")).expect("ask").contains(&device),
        "of the file before it"
    );
    os.loops.detach(&device).expect("detach");
    os.loops.detach(&before).expect("detach");
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
        LoopDevice { backing: os.files.stat(&other).expect("stat").map(|stat| stat.id), ..device.clone() };
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

/// What can be changed of a device in use.
fn changes(os: &Os, file: &Path) {
    image(os, file, 8 * MIB);
    let open = os.loops.attach(file, FOR_MOUNT).expect("attach");
    let device = open.device.clone();
    assert!(os.loops.list().expect("list").contains(&device));
    let now = || os.loops.open(&device).expect("open").device;
    let alignment = os.images.direct_io_alignment(file.parent().expect("parent")).expect("alignment");
    if alignment.is_some_and(|alignment| alignment <= FOR_MOUNT.block_size) {
        os.loops.set_direct_io(&device, true).expect("on");
        assert!(now().direct_io);
        os.loops.set_direct_io(&device, true).expect("on again");
    } else if alignment.is_none() {
        assert_eq!(errno(os.loops.set_direct_io(&device, true)), Some(Errno::EINVAL));
    }
    os.loops.set_direct_io(&device, false).expect("off");
    assert!(!now().direct_io);
    os.loops.stop_discard(&device).expect("stop");
    os.loops.stop_discard(&device).expect("stop again");
    os.loops.flush(&device).expect("flush");
    drop(open);
    assert_gone(os, file);
    assert!(os.loops.list().expect("list").iter().all(|other| other.backing != device.backing));
    assert_eq!(errno(os.loops.set_direct_io(&device, true)), Some(Errno::ENXIO));
    assert_eq!(errno(os.loops.stop_discard(&device)), Some(Errno::ENXIO));
    assert_eq!(errno(os.loops.flush(&device)), Some(Errno::ENXIO));
}

/// A block device tells whether a filesystem on it is mounted; that it is open does not count.
fn claimed(os: &Os, dir: &Path) {
    let (file, target) = (dir.join("claimed.img"), directory(os, dir.join("claimed")));
    let open = formatted(os, &file, FsType::Ext4, 8 * MIB);
    let path = open.device.path();
    let state = || os.files.block_device(&path).expect("look at the device");
    let free = BlockDevice { rdev: open.device.rdev, bytes: 8 * MIB, held: false, partitioned: false };
    assert_eq!(state(), free);
    os.mounts.mount(&path, &target, FsType::Ext4, &MountFlags::default()).expect("mount");
    assert_eq!(state(), BlockDevice { held: true, ..free });
    os.mounts.unmount(&target).expect("unmount");
    assert_eq!(state(), free);
    drop(open);
    assert_gone(os, &file);
    assert_eq!(errno(os.files.block_device(&file)), Some(Errno::ENOTBLK));
    assert_eq!(errno(os.files.block_device(&dir.join("none"))), Some(Errno::ENOENT));
}
