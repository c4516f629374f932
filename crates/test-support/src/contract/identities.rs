//! Copies of images with a filesystem: each is a filesystem of its own, mounted beside its source.

use std::path::{Path, PathBuf};

use hostloop::kernel::{OpenLoop, Os};
use hostloop::model::FsType;
use nix::errno::Errno;

use super::copies::{bytes, write};
use super::{Cleanup, FOR_MOUNT, MIB, assert_gone, directory, errno, flags, formatted, image};

/// Asserts what the traits promise, for a filesystem that was not in use when it was copied and for one that was.
pub fn identities(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    let reflink = os.images.can_reflink(dir).expect("ask");
    for fs_type in FsType::ALL {
        let dir = directory(os, dir.join(fs_type.as_str()));
        beside(os, &directory(os, dir.join("copied")), fs_type, copy);
        if reflink {
            beside(os, &directory(os, dir.join("cloned")), fs_type, clone);
            in_use(os, &directory(os, dir.join("in-use")), fs_type);
        }
    }
}

fn clone(os: &Os, source: &Path, target: &Path) {
    os.files.create_file(target).expect("create");
    os.images.reflink(source, target).expect("reflink");
    os.files.sync_file(target).expect("sync");
}

fn copy(os: &Os, source: &Path, target: &Path) {
    let size = os.files.stat(source).expect("stat").expect("there").size;
    image(os, target, size);
    let mut at = 0;
    while let Some((start, end)) = os.images.next_data(source, at).expect("next data") {
        os.images.copy_range(source, target, start, end - start).expect("copy");
        at = end;
    }
    os.files.sync_file(target).expect("sync");
}

fn mount(os: &Os, open: &OpenLoop, target: &Path, fs_type: FsType) {
    let words: &[&str] = if fs_type == FsType::Xfs { &["nouuid"] } else { &[] };
    os.mounts.mount(&open.device.path(), target, fs_type, &flags(words)).expect("mount");
}

fn attach(os: &Os, file: &Path) -> OpenLoop {
    os.loops.attach(file, FOR_MOUNT).expect("attach")
}

/// A new file of a mounted filesystem, durable.
fn put(os: &Os, file: PathBuf, seed: u64) {
    image(os, &file, 0);
    write(os, &file, 0, &bytes(300_000, seed));
    os.files.sync_directory(file.parent().expect("parent")).expect("sync");
}

fn holds(os: &Os, file: PathBuf, seed: u64) {
    let read = os.files.read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert!(read == bytes(300_000, seed), "{} has other bytes", file.display());
}

/// The images and mount points of a source and its copy.
struct Pair<'a> {
    os: &'a Os,
    fs_type: FsType,
    source: PathBuf,
    target: PathBuf,
    at_source: PathBuf,
    at_target: PathBuf,
}

impl<'a> Pair<'a> {
    fn new(os: &'a Os, dir: &Path, fs_type: FsType) -> Self {
        Pair {
            os,
            fs_type,
            source: dir.join("source.img"),
            target: dir.join("target.img"),
            at_source: directory(os, dir.join("s")),
            at_target: directory(os, dir.join("t")),
        }
    }

    fn size(&self) -> u64 {
        self.fs_type.minimum_bytes().max(64 * MIB)
    }

    /// Both are mounted: each has what the source had, and its own after that.
    fn are_two(&self) {
        holds(self.os, self.at_target.join("both"), 1);
        put(self.os, self.at_target.join("of-target"), 2);
        put(self.os, self.at_source.join("of-source"), 3);
        holds(self.os, self.at_source.join("both"), 1);
        let has = |at: &Path, name| self.os.files.stat(&at.join(name)).expect("stat").is_some();
        assert!(!has(&self.at_source, "of-target") && !has(&self.at_target, "of-source"));
        self.os.mounts.unmount(&self.at_source).expect("unmount");
        self.os.mounts.unmount(&self.at_target).expect("unmount");
        assert_gone(self.os, &self.source);
        assert_gone(self.os, &self.target);
        for (file, at, name, seed) in
            [(&self.source, &self.at_source, "of-source", 3), (&self.target, &self.at_target, "of-target", 2)]
        {
            let open = attach(self.os, file);
            self.os.filesystems.check(self.fs_type, &open.device.path()).expect("nothing is wrong");
            mount(self.os, &open, at, self.fs_type);
            holds(self.os, at.join(name), seed);
            let busy = self.os.filesystems.check(self.fs_type, &open.device.path());
            assert_eq!(errno(busy), Some(Errno::EBUSY), "a mounted one is not checked");
        }
        self.os.mounts.unmount(&self.at_source).expect("unmount");
        self.os.mounts.unmount(&self.at_target).expect("unmount");
    }
}

/// A copy of a filesystem that is not mounted, larger than its source in the end, mounted while the source is.
fn beside(os: &Os, dir: &Path, fs_type: FsType, make: fn(&Os, &Path, &Path)) {
    let pair = Pair::new(os, dir, fs_type);
    let open = formatted(os, &pair.source, fs_type, pair.size());
    mount(os, &open, &pair.at_source, fs_type);
    put(os, pair.at_source.join("both"), 1);
    os.mounts.unmount(&pair.at_source).expect("unmount");
    drop(open);
    assert_gone(os, &pair.source);
    make(os, &pair.source, &pair.target);
    os.images.set_size(&pair.target, pair.size() * 2).expect("grow");
    let (source, target) = (attach(os, &pair.source), attach(os, &pair.target));
    mount(os, &source, &pair.at_source, fs_type);
    // Whatever interrupted the first time.
    os.filesystems.renew_identity(fs_type, &target.device.path()).expect("renew");
    os.filesystems.renew_identity(fs_type, &target.device.path()).expect("renew again");
    mount(os, &target, &pair.at_target, fs_type);
    if fs_type == FsType::Btrfs {
        let busy = os.filesystems.renew_identity(fs_type, &target.device.path());
        assert_eq!(errno(busy), Some(Errno::EBUSY), "not while it is mounted");
    }
    drop((source, target));
    pair.are_two();
}

/// A clone of a mounted filesystem has what was synced, and so has a clone of that clone.
fn in_use(os: &Os, dir: &Path, fs_type: FsType) {
    let pair = Pair::new(os, dir, fs_type);
    let source = formatted(os, &pair.source, fs_type, pair.size());
    mount(os, &source, &pair.at_source, fs_type);
    // After this a sync of a file goes to the log of btrfs and not to its trees.
    put(os, pair.at_source.join("early"), 7);
    put(os, pair.at_source.join("both"), 1);
    let between = dir.join("between.img");
    clone(os, &pair.source, &between);
    let device = attach(os, &between);
    os.filesystems.renew_identity(fs_type, &device.device.path()).expect("renew");
    drop(device);
    assert_gone(os, &between);
    clone(os, &between, &pair.target);
    let target = attach(os, &pair.target);
    os.filesystems.renew_identity(fs_type, &target.device.path()).expect("renew");
    mount(os, &target, &pair.at_target, fs_type);
    drop((source, target));
    holds(os, pair.at_target.join("early"), 7);
    pair.are_two();
}
