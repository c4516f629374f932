//! Directory trees.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hostloop_model::tree::{Entry, Item, Position};

/// What a directory tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Allocated bytes, each hard-linked file once.
    pub bytes: u64,
    /// Files and directories, each hard-linked file once.
    pub inodes: u64,
}

/// An earlier tree beside one that is read.
#[derive(Debug, Clone, Copy)]
pub struct Base<'a> {
    /// Its directory.
    pub path: &'a Path,
    /// Which disks have the blocks of the two trees.
    pub disks: Disks<'a>,
}

/// Which disks have the blocks of two trees. This decides whether two blocks at one place are the same block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disks<'a> {
    /// One filesystem: blocks at the same place are the same.
    One,
    /// Two filesystems, each in an image, of which one is a later state of the other. Blocks at the same place are the same outside of these
    /// ranges of bytes, in which the images differ. The ranges are in ascending order.
    Images(&'a [Range<u64>]),
    /// Two filesystems whose places cannot be compared.
    Unrelated,
}

impl<'a> Base<'a> {
    /// An earlier tree on the same filesystem.
    pub fn beside(path: &'a Path) -> Self {
        Base { path, disks: Disks::One }
    }
}

/// What becomes of the files of an earlier tree if a later one is made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// The earlier tree keeps its content: a file that changes is a copy, which shares blocks if the filesystem can.
    Share,
    /// A file that changes is changed in place, so the earlier tree becomes a mixture of both. If the same entries are written again beside
    /// the mixture, the result is the later tree.
    InPlace,
}

/// Directory trees, each as a whole.
pub trait Trees: Send + Sync {
    /// Copies the directory `source` with everything below it to `target`, which does not exist: owners, modes, times,
    /// hard links within the tree, extended attributes, ACLs, sparseness, symbolic links, FIFOs, sockets and device
    /// nodes. Of the flags of ioctl_iflags(2) those that a copy can have and still be removed: not immutable and
    /// append-only. Not project quotas, and not case folding of ext4. A file's blocks are shared where `share` and the
    /// filesystem allow it. Never follows a link, never leaves the filesystem of `source`, and calls `progress` with
    /// the bytes copied so far at least every 16 MiB or 1000 entries and once at the end, which can stop it with an
    /// error. All of it is durable on return (fsync of every file and directory, or syncfs(2)), but for the entry in
    /// the directory of `target`. What changes meanwhile is copied as it is met; what vanishes is left out.
    ///
    /// # Errors
    /// EXDEV where something is mounted inside, EEXIST where `target` is there, EINVAL where it lies inside `source`.
    /// After an error what was copied stays: [`remove`](Trees::remove) takes it away.
    fn copy(
        &self,
        source: &Path,
        target: &Path,
        share: bool,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> io::Result<()>;
    /// Reads the directory `source` with everything below it from `from` on: every entry as
    /// [`copy`](Trees::copy) would copy it, each file followed by its data. `emit` says whether to go on. The
    /// order and the pieces depend on the trees alone, which nobody changes. Never follows a link. Returns how many
    /// entries there are, if `emit` took all.
    ///
    /// With `base`, an earlier tree, the entry of a regular file tells what it has of the file with the same path there
    /// ([`Basis`](hostloop_model::tree::Basis)), and of its content only what differs follows. Files are the same only
    /// where that is seen: by where their blocks are, or by reading both. [`Item::Alive`] comes while that goes on.
    ///
    /// # Errors
    /// EXDEV where something is mounted inside.
    fn read(
        &self,
        source: &Path,
        base: Option<Base<'_>>,
        from: Position,
        emit: &mut dyn FnMut(Item) -> bool,
    ) -> io::Result<u64>;
    /// Makes the directory `target`, which does not exist, to be filled with the entries that
    /// [`read`](Trees::read) gave elsewhere. After an error [`remove`](Trees::remove) takes away
    /// what was made.
    ///
    /// With `base`, which has all of the earlier tree of that call and is of the same filesystem and limit: a file that
    /// has everything of one there becomes another name of it, and one that has its content a copy, or the file itself, as
    /// [`Reuse`] says. So `base` is to be removed before anything is written to `target`.
    fn write(&self, target: &Path, base: Option<(&Path, Reuse)>) -> io::Result<Box<dyn TreeWriter>>;
    /// Moves everything in a directory to the directory that it is in, gives this one its attributes, and removes it. Durable on
    /// return. A call that was cut off is repeated; only the times of the directory may be lost by that.
    ///
    /// # Errors
    /// EEXIST if the name of an entry is in use there.
    fn lift(&self, directory: &Path) -> io::Result<()>;
    /// What a tree takes, never leaving its filesystem.
    fn usage(&self, directory: &Path) -> io::Result<Usage>;
    /// Returns the path in a directory of the first entry in it or below that has one of these names, of any kind; only the name, if the
    /// kernel does not say where the entry is; `None` if there is none. Reads the tree once. Never follows a link, never leaves the mount
    /// of the directory.
    fn find(&self, directory: &Path, names: &[&str]) -> io::Result<Option<PathBuf>>;
    /// Returns a number for a file, or for a directory with everything below it: another one after each change of a name, an inode
    /// number, a size, a mode, an owner, or the time of the last change of a content or an inode (ctime, which no program can
    /// set). Of the top itself, its name and its ctime do not count, so that a rename of it changes nothing. It is the same in each
    /// release. Never follows a link.
    ///
    /// # Errors
    /// EXDEV if something is mounted inside.
    fn fingerprint(&self, path: &Path) -> io::Result<u64>;
    /// Removes a tree without following a link and without entering a mount (openat2(2), RESOLVE_NO_XDEV):
    /// a mount inside stops it with EBUSY or EXDEV. The attributes immutable and append-only (chattr(1)) of what is in the tree
    /// do not stop it, nor does a btrfs subvolume in it that is read-only. The error names the entry that it stopped at. Fine if
    /// nothing is there.
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.remove_while(path, &mut || true).map(drop)
    }
    /// The same in parts: `go_on` says before each entry whether to go on. Whether nothing is left; what is left is removed by
    /// the next call.
    fn remove_while(&self, path: &Path, go_on: &mut dyn FnMut() -> bool) -> io::Result<bool>;
}

/// A tree that is being made, entry by entry.
pub trait TreeWriter {
    /// Makes the next entry; the first is the top. EINVAL for one that has no place in the tree so far; EBADMSG where the
    /// earlier tree has not the file that it is to be made from.
    fn entry(&mut self, entry: Entry) -> io::Result<()>;
    /// Returns the bytes of earlier files that were copied so far because their blocks could not be shared, including bytes
    /// that were cut off again.
    fn copied_bytes(&self) -> u64;
    /// Writes to the file that is the last entry, within its size.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes bytes of the file that is the last entry read as zeros, within its size.
    fn zeros(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Gives directories their attributes and makes everything durable, but for the entry in the directory of the top.
    fn finish(self: Box<Self>) -> io::Result<()>;
}
