//! kernel::Mounts::mount_apart, and the trees in images: compared by the places of their blocks, changed in place, and lifted.

use std::ops::Range;
use std::path::{Path, PathBuf};

use hostloop::kernel::{Base, Disks, MountEntry, Os, Runs};
use hostloop::model::FsType;
use hostloop::model::tree::{Basis, Entry, Item, Kind, Position};
use nix::errno::Errno;

use super::copies::bytes;
use super::tree_stream::{copy, put, read, write};
use super::{Cleanup, FOR_MOUNT, MIB, assert_gone, devices_of, directory, errno, formatted, image};

const BLOCK: u64 = 4096;

/// Asserts what the traits promise.
pub fn apart(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    for fs_type in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
        let dir = directory(os, dir.join(fs_type.as_str()));
        alone(os, &dir, fs_type);
        two_images(os, &dir, fs_type);
        preallocated(os, &dir, fs_type);
    }
    lifted(os, &directory(os, dir.join("lifted")));
}

fn is_there(os: &Os, path: &Path) -> bool {
    os.files.stat(path).expect("stat").is_some()
}

/// No other process sees the mount, and it ends with its value.
fn alone(os: &Os, dir: &Path, fs_type: FsType) {
    let image = dir.join("alone.img");
    let open = formatted(os, &image, fs_type, fs_type.minimum_bytes().max(16 * MIB));
    let device = open.device.path();
    let pinned = os.mounts.mount_apart(&device, fs_type, false).expect("mount");
    drop(open);
    let of_device = |mount: &&MountEntry| Path::new(&mount.source) == device;
    assert_eq!(os.mounts.list().expect("list").iter().find(of_device), None, "{fs_type}");
    assert_eq!(devices_of(os, &image).len(), 1, "the mount keeps its device");
    let file = pinned.path().join("file");
    write(os, &file, b"content");
    drop(pinned);
    assert_gone(os, &image);
    let open = os.loops.attach(&image, FOR_MOUNT).expect("attach");
    let pinned = os.mounts.mount_apart(&open.device.path(), fs_type, true).expect("mount");
    drop(open);
    assert_eq!(os.files.read(&pinned.path().join("file")).expect("read"), b"content");
    assert_eq!(errno(os.files.create_file(&pinned.path().join("other"))), Some(Errno::EROFS));
    drop(pinned);
    assert_gone(os, &image);
}

/// Where the bytes of two images of one size differ, in blocks.
fn differing(os: &Os, one: &Path, other: &Path, size: u64) -> Vec<Range<u64>> {
    let mut changed: Vec<Range<u64>> = Vec::new();
    let piece = |file: &Path, at| os.images.read_at(file, at, MIB as usize).expect("read");
    for at in (0..size).step_by(MIB as usize) {
        let (one, other) = (piece(one, at), piece(other, at));
        let blocks = one.chunks(BLOCK as usize).zip(other.chunks(BLOCK as usize)).enumerate();
        for (n, _) in blocks.filter(|(_, (one, other))| one != other) {
            let start = at + n as u64 * BLOCK;
            changed.push(start..start + BLOCK);
        }
    }
    changed
}

/// A file of another image has the same places and other bytes if it was written to in place.
fn two_images(os: &Os, dir: &Path, fs_type: FsType) {
    let size = fs_type.minimum_bytes().max(32 * MIB);
    let [earlier, later] = ["earlier.img", "later.img"].map(|name| dir.join(name));
    let mount = |image: &Path, read_only| {
        let open = os.loops.attach(image, FOR_MOUNT).expect("attach");
        os.filesystems.renew_identity(fs_type, &open.device.path()).expect("renew");
        os.mounts.mount_apart(&open.device.path(), fs_type, read_only).expect("mount")
    };
    drop(formatted(os, &earlier, fs_type, size));
    let pinned = mount(&earlier, false);
    let top = directory(os, pinned.path().join("top"));
    for (name, seed) in [("changed", 1), ("same", 2)] {
        write(os, &top.join(name), &bytes(MIB, seed));
    }
    drop(pinned);
    assert_gone(os, &earlier);
    image(os, &later, size);
    os.images.copy_range(&earlier, &later, 0, size).expect("copy");
    let pinned = mount(&later, false);
    let changed = pinned.path().join("top/changed");
    os.images.write_at(&changed, 2 * BLOCK, &bytes(BLOCK, 3)).expect("write");
    os.files.sync_file(&changed).expect("sync");
    drop(pinned);
    assert_gone(os, &later);
    let (base, target) = (mount(&earlier, true), mount(&later, true));
    let changed = differing(os, &earlier, &later, size);
    let places = if fs_type == FsType::Btrfs { Disks::Unrelated } else { Disks::Images(&changed) };
    for disks in [places, Disks::Unrelated] {
        let (base, target) = (base.path().join("top"), target.path().join("top"));
        let mut items = Vec::new();
        let take = &mut |item: Item| {
            if item != Item::Alive {
                items.push(item);
            }
            true
        };
        let base = Base { path: &base, disks };
        os.trees.read(&target, Some(base), Position::default(), take).expect("read");
        let basis = |item: &Item| match item {
            Item::Entry(Entry { name, basis, kind: Kind::File { .. }, .. }) => {
                Some((String::from_utf8_lossy(name).into_owned(), *basis))
            }
            _ => None,
        };
        let bases: Vec<_> = items.iter().filter_map(basis).collect();
        // The fake has no times: it compares the content alone.
        let expected = [("changed".to_owned(), Basis::Content), ("same".to_owned(), Basis::Everything)];
        assert_eq!(bases, expected, "{fs_type} {disks:?}");
        // In pieces that end where blocks of the images do.
        let mut sent: Vec<Range<u64>> = Vec::new();
        for item in &items {
            let Item::Data(piece) = item else { continue };
            match sent.last_mut().filter(|last| last.end == piece.offset) {
                Some(last) => last.end = piece.end(),
                None => sent.push(piece.offset..piece.end()),
            }
        }
        let ends: Vec<_> = sent.iter().map(|range| (range.start, range.end)).collect();
        assert_eq!(ends, [(2 * BLOCK, 3 * BLOCK)], "{fs_type}: what was written in place is sent");
    }
    drop((base, target));
    [&earlier, &later].into_iter().for_each(|image| assert_gone(os, image));
}

/// Blocks that are allocated and were never written to are holes, also while the file is read: the kernel reads ahead, and what it has
/// read counts as data.
fn preallocated(os: &Os, dir: &Path, fs_type: FsType) {
    let image = dir.join("preallocated.img");
    let mount = |read_only| {
        let open = os.loops.attach(&image, FOR_MOUNT).expect("attach");
        os.mounts.mount_apart(&open.device.path(), fs_type, read_only).expect("mount")
    };
    drop(formatted(os, &image, fs_type, fs_type.minimum_bytes().max(32 * MIB)));
    let pinned = mount(false);
    let file = pinned.path().join("file");
    os.files.create_file(&file).expect("create");
    os.images.allocate(&file, 8 * MIB).expect("allocate");
    for at in [0, 4 * MIB] {
        os.images.write_at(&file, at, &[1; BLOCK as usize]).expect("write");
    }
    os.files.sync_file(&file).expect("sync");
    drop(pinned);
    assert_gone(os, &image);
    // Nothing of the file is in memory.
    let pinned = mount(true);
    let file = pinned.path().join("file");
    let mut runs = Runs::new(0, |at| os.images.next_data(&file, at));
    let mut found = Vec::new();
    while let Some((start, end)) = runs.next_run().expect("seek") {
        assert_eq!(
            os.images.read_at(&file, start, (end - start) as usize).expect("read").len() as u64,
            end - start
        );
        found.push((start, end));
    }
    assert_eq!(found, [(0, BLOCK), (4 * MIB, 4 * MIB + BLOCK)], "{fs_type}");
    drop(pinned);
    assert_gone(os, &image);
}

/// Everything in a directory moves up, and its attributes with it. A call that was cut off is repeated.
fn lifted(os: &Os, dir: &Path) {
    let tree = directory(os, dir.join("tree"));
    for (name, seed) in [("file", 1), ("other", 2)] {
        write(os, &tree.join(name), &bytes(5000, seed));
    }
    write(os, &directory(os, tree.join("directory")).join("below"), &bytes(10, 3));
    let top = directory(os, dir.join("top"));
    let inner = top.join("inner");
    // The top of the tree has a mode of its own.
    let mut writer = os.trees.write(&inner, None).expect("make the top");
    let (items, _) = read(os, &tree, Position::default());
    for item in &items {
        let item = match item {
            Item::Entry(entry) if entry.number == 0 => {
                let mut entry = entry.clone();
                entry.attributes.mode = 0o2750;
                Item::Entry(entry)
            }
            item => item.clone(),
        };
        put(&mut *writer, &item).expect("write");
    }
    writer.finish().expect("finish");
    let (wanted, _) = read(os, &inner, Position::default());
    // As a call that was cut off leaves it.
    os.files.rename(&inner.join("file"), &top.join("file")).expect("rename");
    os.trees.lift(&inner).expect("lift");
    assert!(!is_there(os, &inner));
    // The times of the directory were changed by the call that was cut off.
    let without_times = |items: Vec<Item>| -> Vec<Item> {
        let plain = |item: Item| match item {
            Item::Entry(mut entry) if entry.number == 0 => {
                (entry.attributes.atime, entry.attributes.mtime) = Default::default();
                Item::Entry(entry)
            }
            item => item,
        };
        items.into_iter().map(plain).collect()
    };
    let (found, _) = read(os, &top, Position::default());
    assert_eq!(without_times(found), without_times(wanted));
    let inner = directory(os, top.join("inner"));
    write(os, &inner.join("file"), b"another");
    assert_eq!(errno(os.trees.lift(&inner)), Some(Errno::EEXIST));
    assert_eq!(os.files.read(&inner.join("file")).expect("read"), b"another");
    whole(os, dir);
}

/// Nothing of a tree that is lifted at once is another.
fn whole(os: &Os, dir: &Path) {
    let tree = directory(os, dir.join("whole"));
    write(os, &tree.join("file"), &bytes(5000, 1));
    let place: PathBuf = directory(os, dir.join("place"));
    copy(os, &tree, &place.join("inner"), usize::MAX);
    let (wanted, _) = read(os, &place.join("inner"), Position::default());
    os.trees.lift(&place.join("inner")).expect("lift");
    assert_eq!(read(os, &place, Position::default()).0, wanted);
}
