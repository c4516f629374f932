//! The kernel boundary: four narrow traits, named by intent, that everything else uses to read or change the
//! machine. `linux` is the real one, `fake` a stateful model of it on which every step can fail or be the last.
//!
//! Errors are `std::io::Error` with the kernel's errno and a message that names the operation and the path;
//! callers decide by errno ([`is_errno`]), never by text.

#[cfg(feature = "fake-os")]
pub mod fake;
pub mod host;
pub mod linux;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::model::tree::{Entry, Item, Position};
use crate::model::{FsType, MountFlags, VfsFlag};

/// The machine, as handed to everything above: cheap to clone.
#[derive(Clone)]
pub struct Os {
    /// Mounting, and what is mounted.
    pub mounts: Arc<dyn Mounts>,
    /// Loop devices.
    pub loops: Arc<dyn LoopDevices>,
    /// Making and growing filesystems.
    pub filesystems: Arc<dyn Filesystems>,
    /// Files and directories.
    pub disks: Arc<dyn Disks>,
}

/// What identifies a file whatever its name: device and inode number (stat(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`, as the kernel's userspace encoding (makedev(3)).
    pub dev: u64,
    /// `st_ino`
    pub ino: u64,
}

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, not followed.
    Symlink,
    /// A block device.
    BlockDevice,
    /// Anything else.
    Other,
}

/// lstat(2), as far as the driver needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Its kind.
    pub kind: FileKind,
    /// Its identity.
    pub id: FileId,
    /// Apparent size in bytes.
    pub size: u64,
    /// Bytes allocated on the filesystem (`st_blocks` × 512).
    pub allocated: u64,
    /// The device number of a device node (`st_rdev`), 0 otherwise.
    pub rdev: u64,
}

/// A process, as the kernel accounts for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessFigures {
    /// Processor time, its own and that of the kernel for it.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Its threads.
    pub threads: u64,
    /// Its open file descriptors.
    pub open_files: u64,
    /// How many it may have open.
    pub max_files: u64,
}

/// statvfs(3) of the filesystem that holds a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Size in bytes.
    pub total: u64,
    /// Bytes that an unprivileged writer can still use (`f_bavail`).
    pub available: u64,
    /// Bytes in use (`f_blocks - f_bfree`).
    pub used: u64,
    /// Inodes in all; 0 where the filesystem has no fixed number (btrfs).
    pub inodes: u64,
    /// Inodes free.
    pub inodes_free: u64,
}

/// What a filesystem takes for itself of the space that [`Space::available`] promises, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Upkeep {
    /// Metadata of each block of 4096 bytes of an image, at most: an extent of its own.
    pub per_block: u64,
    /// What files cannot have although it is available.
    pub unusable: u64,
    /// Where metadata have space of their own.
    pub metadata: Option<MetadataSpace>,
    /// An extent is kept whole until no file has any block of it (btrfs).
    pub whole_extents: bool,
}

/// Space for metadata that does not count as available (the block groups of btrfs), all copies of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetadataSpace {
    /// What is set aside for them.
    pub total: u64,
    /// What they take of it, and what the filesystem keeps of it for itself.
    pub used: u64,
    /// What each extent of a file takes.
    pub per_extent: u64,
    /// By how much `total` can grow, as long as no data are in its place.
    pub growth: u64,
    /// What data can have in all, `growth` among it.
    pub data: u64,
    /// What of `growth` can be lost to either, since it is given out in large pieces.
    pub rounding: u64,
}

/// What a directory tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Allocated bytes, each hard-linked file once.
    pub bytes: u64,
    /// Files and directories, each hard-linked file once.
    pub inodes: u64,
}

/// A run of a file's bytes and where it lies on the disk, as FIEMAP tells it (fiemap.rst of the kernel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file in bytes.
    pub logical: u64,
    /// Where it starts on the disk, in bytes; means something only with `located`.
    pub physical: u64,
    /// Its length in bytes.
    pub length: u64,
    /// `physical` is where exactly these bytes lie, and stays so as long as the file is not changed: not so for an
    /// extent that is not written yet, compressed, or kept in the inode.
    pub located: bool,
    /// Other files may have it too (FIEMAP_EXTENT_SHARED).
    pub shared: bool,
    /// It is allocated and reads as zeros (FIEMAP_EXTENT_UNWRITTEN).
    pub unwritten: bool,
}

/// A block device of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its device number.
    pub rdev: u64,
    /// Its size in bytes (BLKGETSIZE64).
    pub bytes: u64,
    /// Somebody has claimed it, in whatever mount namespace: a filesystem that is mounted, device mapper, RAID,
    /// swap, or a user of one of its partitions (open(2), O_EXCL). That it is merely open does not count.
    pub held: bool,
    /// The kernel knows partitions on it.
    pub partitioned: bool,
}

/// Files and directories.
pub trait Disks: Send + Sync {
    /// lstat(2): `None` where nothing is there (ENOENT, ENOTDIR); a symbolic link is not followed.
    fn stat(&self, path: &Path) -> io::Result<Option<FileStat>>;
    /// The path with every link resolved (realpath(3)).
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf>;
    /// The names in a directory, sorted; what is not UTF-8 in one is replaced (U+FFFD), so that a stray file shows
    /// but cannot be taken for one of the driver's.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// A whole file; for the state file and small ones.
    fn read(&self, file: &Path) -> io::Result<Vec<u8>>;
    /// Up to `len` bytes at `offset` of a file or device, less at its end.
    fn read_at(&self, file: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Reads the first block of a block device or a file from the disk itself, past what the kernel has in memory of it
    /// (open(2), O_DIRECT). Waits for as long as the disk does not answer.
    fn read_through(&self, file: &Path) -> io::Result<()>;
    /// The first data extent at or after `offset` as start and end (lseek(2), SEEK_DATA and SEEK_HOLE);
    /// `None` when only a hole follows.
    fn next_data(&self, file: &Path, offset: u64) -> io::Result<Option<(u64, u64)>>;
    /// statvfs(3).
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// What the filesystem of this directory takes for itself.
    fn upkeep(&self, directory: &Path) -> io::Result<Upkeep> {
        let _ = directory;
        Ok(Upkeep::default())
    }

    /// What a tree takes, never leaving its filesystem.
    fn usage(&self, directory: &Path) -> io::Result<Usage>;
    /// The alignment in bytes that direct I/O on files of this directory's filesystem needs (statx(2),
    /// STATX_DIOALIGN), `None` where direct I/O is not possible. May make and remove a temporary file.
    fn direct_io_alignment(&self, directory: &Path) -> io::Result<Option<u32>>;

    /// What the kernel knows of the block device at a path, links followed; ENOTBLK where something else is there.
    fn block_device(&self, device: &Path) -> io::Result<BlockDevice> {
        let _ = device;
        Err(errno_error(nix::errno::Errno::EOPNOTSUPP, "block_device"))
    }

    /// The extents of a file from `offset` on, in order, at most `max` of them (FS_IOC_FIEMAP); none means that
    /// nothing but a hole follows. With `sync` what is written is placed on the disk first. Where the filesystem has
    /// no FIEMAP: EOPNOTSUPP.
    fn extents(&self, file: &Path, offset: u64, max: usize, sync: bool) -> io::Result<Vec<Extent>>;
    /// Whether files in this directory can share their blocks ([`reflink`](Disks::reflink)). May make and remove
    /// temporary files.
    fn can_reflink(&self, directory: &Path) -> io::Result<bool>;

    /// Prepares a file to be written to at random without more than its blocks: those that no other file has are
    /// written in place, and of those that others have too, only what is written to gets a new place. On btrfs that is
    /// FS_NOCOW_FL, which it can get as long as it is empty, and which ends the checksums of its data (ioctl_iflags(2));
    /// on xfs a copy-on-write extent size of one block (FS_XFLAG_COWEXTSIZE, ioctl_xfs_fssetxattr(2)), since 128 KiB
    /// are taken for each write otherwise. Can be repeated. Whether the file is as it should be: not so is a file of
    /// btrfs that has a content already.
    fn write_in_place(&self, file: &Path) -> io::Result<bool> {
        let _ = file;
        Ok(true)
    }

    /// Whether blocks of this file that no other file has are written in place: not so on btrfs without
    /// FS_NOCOW_FL.
    fn is_in_place(&self, file: &Path) -> io::Result<bool> {
        let _ = file;
        Ok(true)
    }

    /// FICLONE: `target`, an empty regular file on the same filesystem, gets the content of `source` as it is at one
    /// point in time, by sharing its blocks, and is written to as `source` is
    /// ([`write_in_place`](Disks::write_in_place)), without which btrfs refuses. EOPNOTSUPP, EINVAL or EXDEV where that cannot be, EEXIST where `target` has
    /// a content already. Durable with the next [`sync_file`](Disks::sync_file) of `target`.
    fn reflink(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// Copies `len` bytes at `offset` of `source` to the same place of `target`, which is long enough, into blocks
    /// of its own. Writing back starts at once, so that a later sync has little left to do. EIO where `source` ends
    /// before that.
    fn copy_range(&self, source: &Path, target: &Path, offset: u64, len: u64) -> io::Result<()>;
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
    /// After an error what was copied stays: [`remove_tree`](Disks::remove_tree) takes it away.
    fn copy_tree(
        &self,
        source: &Path,
        target: &Path,
        share: bool,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> io::Result<()>;
    /// Reads the directory `source` with everything below it from `from` on: every entry as
    /// [`copy_tree`](Disks::copy_tree) would copy it, each file followed by its data. `emit` says whether to go on. The
    /// order and the pieces depend on the tree alone, which nobody changes. Never follows a link. Returns how many
    /// entries there are, if `emit` took all.
    ///
    /// # Errors
    /// EXDEV where something is mounted inside.
    fn read_tree(&self, source: &Path, from: Position, emit: &mut dyn FnMut(Item) -> bool)
    -> io::Result<u64>;
    /// Makes the directory `target`, which does not exist, to be filled with the entries that
    /// [`read_tree`](Disks::read_tree) gave elsewhere. After an error [`remove_tree`](Disks::remove_tree) takes away
    /// what was made.
    fn write_tree(&self, target: &Path) -> io::Result<Box<dyn TreeWriter>>;
    /// Writes all of `bytes` at `offset` of a file that is long enough. Writing back starts at once, as with
    /// [`copy_range`](Disks::copy_range).
    fn write_at(&self, file: &Path, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// FALLOC_FL_UNSHARE_RANGE over the whole file: every block that other files share is copied, so that writing
    /// to it needs no new one. EOPNOTSUPP where the filesystem cannot (btrfs).
    fn unshare(&self, file: &Path) -> io::Result<()>;

    /// mkdir(2) with this mode, whatever the umask. EEXIST where anything is there already.
    fn create_directory(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes an empty regular file (mode 0600) that must not exist (O_EXCL).
    fn create_file(&self, path: &Path) -> io::Result<()>;
    /// ftruncate(2): a longer file gets a hole at its end. Never used to shorten an image that holds data.
    fn set_size(&self, file: &Path, size: u64) -> io::Result<()>;
    /// fallocate(2), mode 0: allocates the whole of `0..size` and makes the file that long. ENOSPC comes before
    /// anything is taken where the space available is known to be too little, and leaves what was there: the
    /// size and the data, though holes within the old size may have been filled. EOPNOTSUPP where the
    /// filesystem cannot: nothing is written in its stead.
    fn allocate(&self, file: &Path, size: u64) -> io::Result<()>;
    /// Gives every block of the file back, its size unchanged: it reads as zeros (FALLOC_FL_PUNCH_HOLE).
    fn erase(&self, file: &Path) -> io::Result<()>;
    /// Writes zeros over all that was written to the file, which keeps its blocks and its size.
    fn zero(&self, file: &Path) -> io::Result<()>;
    /// fsync(2) of a file.
    fn sync_file(&self, file: &Path) -> io::Result<()>;
    /// fsync(2) of a directory: its entries are durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// rename(2).
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// unlink(2); fine if nothing is there.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// rmdir(2); fine if nothing is there, ENOTEMPTY if anything is inside, EBUSY on a mount point.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    /// Removes a tree without following a link and without entering a mount (openat2(2), RESOLVE_NO_XDEV):
    /// a mount inside stops it with EBUSY or EXDEV. Fine if nothing is there.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;
    /// Opens (or makes, mode 0600) a file for appending at its end, after cutting it to `len` bytes.
    /// EINVAL where it is shorter.
    fn open_log(&self, file: &Path, len: u64) -> io::Result<Box<dyn LogFile>>;
    /// 36 characters that no other call ever gets, on whatever machine (random(4), `/proc/sys/kernel/random/uuid`).
    fn random_id(&self) -> io::Result<String> {
        Err(errno_error(nix::errno::Errno::EOPNOTSUPP, "random_id"))
    }

    /// Takes an exclusive lock (flock(2)) on a file, made if need be, for as long as the value lives. The
    /// holder's process id is written into it.
    ///
    /// # Errors
    /// EWOULDBLOCK, with the holder in the message, where another process has it.
    fn lock(&self, file: &Path) -> io::Result<Box<dyn Send + Sync>>;
}

/// A tree that is being made, entry by entry.
pub trait TreeWriter {
    /// Makes the next entry; the first is the top. EINVAL for one that has no place in the tree so far.
    fn entry(&mut self, entry: &Entry) -> io::Result<()>;
    /// Writes to the file that is the last entry, within its size.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Gives directories their attributes and makes everything durable, but for the entry in the directory of the top.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// An append-only file.
pub trait LogFile: Send {
    /// Appends all of it. After an error the end of the file is unknown.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// fdatasync(2): what was appended is durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Sets aside room behind the end, so that appending `bytes` more needs none of a full disk (fallocate(2),
    /// FALLOC_FL_KEEP_SIZE). It is durable with the next [`sync`](LogFile::sync), and goes with a cut of the file.
    ///
    /// # Errors
    /// ENOSPC or EDQUOT where there is not so much: what was set aside before stays so. EOPNOTSUPP where the
    /// filesystem cannot, or where this file was made in a way that it would have to be copied on write.
    fn reserve(&mut self, bytes: u64) -> io::Result<()>;
}

/// One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Its id, which no other mount has while it is there.
    pub id: u64,
    /// The id of the mount that it is mounted on.
    pub parent: u64,
    /// Device number of the files of the mount, as `makedev` encodes it.
    pub dev: u64,
    /// Path within the filesystem that is mounted here.
    pub root: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
    /// Filesystem type.
    pub fs_type: String,
    /// The source, such as `/dev/loop3`.
    pub source: String,
    /// This mount is read-only, whatever its superblock is.
    pub read_only: bool,
    /// The per-mount flags that are on.
    pub flags: Vec<VfsFlag>,
    /// The superblock itself is read-only.
    pub superblock_read_only: bool,
    /// Whether mounts made below it reach other mount namespaces (`shared:N`).
    pub shared: bool,
}

/// A mount that is held by its root, whatever is mounted on top of it.
pub struct Pinned {
    path: PathBuf,
    _hold: Box<dyn Send + Sync>,
}

impl Pinned {
    /// The root of a mount at a path that is good as long as `hold` lives.
    pub fn new(path: PathBuf, hold: Box<dyn Send + Sync>) -> Self {
        Pinned { path, _hold: hold }
    }

    /// A path that leads to the root of the mount and nowhere else, in this process only.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Mounting.
pub trait Mounts: Send + Sync {
    /// What is mounted in this mount namespace, in mount order (a later entry at the same target lies on top).
    fn list(&self) -> io::Result<Vec<MountEntry>>;
    /// The id of the mount that whoever opens this path gets to, links on the way followed and not at the end. Asks no
    /// filesystem more than the way to it, so that it also tells of one that has shut down.
    fn mount_at(&self, path: &Path) -> io::Result<u64>;
    /// Holds the root directory of exactly this mount, which keeps it busy.
    ///
    /// # Errors
    /// ESTALE where something else is at its path: it has gone, or another mount hides it.
    fn pin(&self, mount: &MountEntry) -> io::Result<Pinned>;
    /// Mounts the filesystem on `device` at the directory `target`, which is not followed if it is a link.
    fn mount(&self, device: &Path, target: &Path, fs_type: FsType, flags: &MountFlags) -> io::Result<()>;
    /// Binds `source` (a directory or a file) at `target`, with the per-mount flags of `flags`; with
    /// `read_only` nothing can be written through it. It appears with its flags at once, here and wherever it propagates
    /// to (Linux 5.12); on an older kernel a process that is killed can leave it without them, which
    /// [`tighten`](Mounts::tighten) mends.
    fn bind(&self, source: &Path, target: &Path, flags: &MountFlags) -> io::Result<()>;
    /// Gives exactly this mount more of the per-mount flags, and makes it read-only with `read_only`. It keeps what it
    /// has.
    ///
    /// # Errors
    /// EBUSY where it would become read-only and somebody writes through it; ESTALE where another mount hides it.
    fn tighten(&self, mount: &MountEntry, flags: &MountFlags) -> io::Result<()>;
    /// Unmounts the topmost mount at `target` (umount2(2), UMOUNT_NOFOLLOW, never lazy, never forced). Waits a moment
    /// where it is busy, since a use may be about to end; then EBUSY.
    fn unmount(&self, target: &Path) -> io::Result<()>;
    /// Unmounts exactly this mount, as [`unmount`](Mounts::unmount) does it; fine if it is gone. Another one that is
    /// mounted over it meanwhile stays.
    ///
    /// # Errors
    /// ESTALE where another mount hides it; EBUSY.
    fn unmount_exactly(&self, mount: &MountEntry) -> io::Result<()>;
    /// Takes exactly this mount out of the tree, with all that is mounted below it, also while it is busy: it ends with
    /// its last user (umount2(2), MNT_DETACH).
    ///
    /// # Errors
    /// ESTALE where another mount hides it.
    fn detach(&self, mount: &MountEntry) -> io::Result<()>;
    /// Freezes the filesystem that is mounted at `mount_point` (FIFREEZE, after a syncfs(2) without the freeze): it is
    /// on its device in a consistent state, and whoever writes to it waits, through whichever mount. It thaws when the
    /// value is dropped, when `limit` has passed, and when this process ends, however it ends: a helper process sees to
    /// that. Only what ends both at once leaves it frozen: the end of a container, and any death of this process where
    /// it is the first of its PID namespace (pid_namespaces(7)). See [`thaw`](Mounts::thaw). While it is frozen, the
    /// mount is busy. The filesystem must not be one that this process writes to.
    ///
    /// # Errors
    /// EBUSY where it is frozen already: it stays so. EOPNOTSUPP where the filesystem cannot be frozen, EINVAL where
    /// nothing is mounted at `mount_point`, ETIMEDOUT where freezing takes longer than `limit`, EOWNERDEAD where the
    /// helper was killed. After an error the filesystem is as it was, or, after ETIMEDOUT, as soon as the kernel is
    /// done with it.
    fn freeze(&self, mount_point: &Path, limit: Duration) -> io::Result<Box<dyn Frozen>>;
    /// FITHAW: thaws the filesystem that is mounted at `mount_point`, which a process that is gone has left frozen;
    /// whether it was. A filesystem that was unmounted while it was frozen still is when it is mounted again.
    ///
    /// # Errors
    /// EINVAL where nothing is mounted at `mount_point`.
    fn thaw(&self, mount_point: &Path) -> io::Result<bool>;
}

/// A frozen filesystem; dropping it thaws.
pub trait Frozen: Send {
    /// Thaws now. What was read since the freeze is of one point in time only if this is `Ok`.
    ///
    /// # Errors
    /// ETIMEDOUT where its limit had passed before. EINVAL where somebody else has thawed it. EOWNERDEAD where the
    /// helper was killed, and the filesystem thawed then. Any other error: it may be frozen still, and
    /// [`Mounts::thaw`] may help.
    fn thaw(self: Box<Self>) -> io::Result<()>;
}

/// An attached loop device, as LOOP_GET_STATUS64 tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// N of /dev/loopN.
    pub number: u32,
    /// The backing file; `None` where the kernel does not tell, since the filesystem of the file has shut down.
    pub backing: Option<FileId>,
    /// Where the kernel does not tell which file it is: its name, as [`LoopDevices::backing_path`] gives it.
    pub known_as: Option<PathBuf>,
    /// Its device number (`st_rdev` of its node).
    pub rdev: u64,
    /// Attached read-only.
    pub read_only: bool,
    /// Goes away with its last user.
    pub autoclear: bool,
    /// Whether direct I/O is in force.
    pub direct_io: bool,
}

impl LoopDevice {
    /// Its node.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }
}

/// How to attach a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachOptions {
    /// Nothing can be written through the device.
    pub read_only: bool,
    /// The device goes away with its last user: its mount.
    pub autoclear: bool,
    /// Bypass the page cache of the filesystem that holds the image, where that is possible.
    pub direct_io: bool,
    /// Logical block size in bytes: 512 to 4096.
    pub block_size: u32,
    /// Whether the device may give blocks of the image back.
    pub discard: bool,
}

/// A loop device with an open descriptor on it, so that it outlives the moment even with autoclear.
pub struct OpenLoop {
    /// The device.
    pub device: LoopDevice,
    /// Keeps it open; dropped with the value.
    pub hold: Box<dyn Send + Sync>,
}

/// Loop devices.
pub trait LoopDevices: Send + Sync {
    /// Attaches a free device to the image with one LOOP_CONFIGURE; makes the device's node where /dev lacks
    /// it; takes the next device where another process was faster (EBUSY). With `discard` off it also sets
    /// the queue's `discard_max_bytes` to 0.
    fn attach(&self, image: &Path, options: AttachOptions) -> io::Result<OpenLoop>;
    /// Every device whose backing file is this one, by LOOP_GET_STATUS64, lowest number first. A device whose last
    /// user has gone may show for a moment longer while anybody (this method for another file, udev) looks at it.
    fn find(&self, backing: FileId) -> io::Result<Vec<LoopDevice>>;
    /// The name of the backing file, as the kernel shows it to this process: followed by ` (deleted)` where it has none
    /// any more, and counted from the root of its mount where that is in no mount namespace, or in another one. `None`
    /// where nothing is attached any more. That the device still is the one that was found is made sure of by whatever is
    /// done to it.
    fn backing_path(&self, device: &LoopDevice) -> io::Result<Option<PathBuf>>;
    /// Opens a device that [`find`](LoopDevices::find) gave, made sure it still has the same backing file;
    /// makes its node where /dev lacks it. ENXIO where it has gone or changed.
    fn open(&self, device: &LoopDevice) -> io::Result<OpenLoop>;
    /// LOOP_CLR_FD, made sure that the device still has this backing file; fine if it is gone already. The
    /// kernel detaches a device that is still open when its last user closes it.
    fn detach(&self, device: &LoopDevice) -> io::Result<()>;
    /// LOOP_SET_CAPACITY: the device takes on its image's size.
    fn update_size(&self, device: &LoopDevice) -> io::Result<()>;
    /// The device's size in bytes (BLKGETSIZE64).
    fn size(&self, device: &LoopDevice) -> io::Result<u64>;
    /// Every attached device, lowest number first.
    fn list(&self) -> io::Result<Vec<LoopDevice>>;
    /// LOOP_SET_DIRECT_IO on a device in use. EINVAL where the disk below cannot.
    fn set_direct_io(&self, device: &LoopDevice, on: bool) -> io::Result<()>;
    /// Stops a device in use from giving blocks of its image back (`discard_max_bytes` = 0). There is no way back
    /// but a new attachment.
    fn stop_discard(&self, device: &LoopDevice) -> io::Result<()>;
    /// LOOP_SET_BLOCK_SIZE on a device that nobody uses, not mounted and not open elsewhere; nothing where it has that
    /// logical block size.
    fn set_block_size(&self, device: &LoopDevice, bytes: u32) -> io::Result<()>;
    /// Gives the number of a device that was detached back as it was: where [`stop_discard`](LoopDevices::stop_discard)
    /// outlives the attachment (since Linux 6.9), the device is removed and made anew (LOOP_CTL_REMOVE, LOOP_CTL_ADD).
    /// Waits a moment for one that is about to go; nothing while it is attached to this or anything else.
    ///
    /// # Errors
    /// EBUSY where somebody keeps it open.
    fn give_back(&self, device: &LoopDevice) -> io::Result<()>;
    /// The same for every number that is not attached, whoever left it so; those that were given back.
    fn give_back_all(&self) -> io::Result<Vec<u32>>;
    /// fsync(2) of the device: what its users have written is in the image.
    fn flush(&self, device: &LoopDevice) -> io::Result<()>;
}

/// How to make a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeOptions {
    /// Words of `mkfsOptions`.
    pub extra: Vec<String>,
    /// The device reads as zeros, so that nothing needs to be zeroed again.
    pub zeroed: bool,
}

/// Making and growing filesystems with the tools of e2fsprogs, xfsprogs and btrfs-progs.
pub trait Filesystems: Send + Sync {
    /// Makes a filesystem on the device; durable when it returns. Never discards. The caller has made sure
    /// that the device holds nothing. EINVAL for extra words that name a file (any with `/`).
    fn make(&self, device: &Path, fs_type: FsType, options: &MakeOptions) -> io::Result<()>;
    /// Grows a mounted filesystem to the size of its device. A filesystem that has the size already stays as it is.
    /// btrfs cannot be grown to less than 256 MiB.
    ///
    /// # Errors
    /// EPERM where ext4 would have to grow and this process lacks CAP_SYS_RESOURCE; the filesystem stays as it is.
    fn grow(&self, fs_type: FsType, device: &Path, mount_point: &Path) -> io::Result<()>;
    /// Grows ext4 that is not mounted to the size of its device, after the check and the replay of its journal that
    /// this needs. Durable when it returns. Where it is cut off the filesystem may be lost: the device holds a copy.
    ///
    /// # Errors
    /// EBUSY where it is mounted; EOPNOTSUPP for another filesystem, which grows only while it is mounted.
    fn grow_unmounted(&self, fs_type: FsType, device: &Path) -> io::Result<()>;
    /// Repairs what can be repaired without a question before mounting (e2fsck -p); for ext4 that its
    /// superblock marks as having errors.
    fn repair(&self, fs_type: FsType, device: &Path) -> io::Result<()>;
    /// Gives a copied filesystem an identity of its own, so that it can be mounted beside its source: a new fsid for
    /// btrfs, which keeps the old one as metadata_uuid, and its log; nothing for ext4, which does not mind, and for xfs,
    /// which is mounted with `nouuid`. Can be repeated after a crash in the middle. Durable when it returns.
    ///
    /// # Errors
    /// EBUSY where the device is mounted, EUCLEAN where it holds no btrfs, EOPNOTSUPP where the id cannot be changed: a
    /// seed, several devices, or a copy of a filesystem in use that mkfsOptions gave other checksums than crc32c.
    fn renew_identity(&self, fs_type: FsType, device: &Path) -> io::Result<()>;
    /// Checks a whole filesystem that is not mounted and whose journal has been replayed, without changing it
    /// (xfs_repair -n, btrfs check --readonly, e2fsck -fn).
    ///
    /// # Errors
    /// EUCLEAN with what the tool said, where something is wrong; EBUSY where it is mounted.
    fn check(&self, fs_type: FsType, device: &Path) -> io::Result<()>;
    /// What there is to say about the tool of this process that works on a device, such as `/usr/sbin/e2fsck works for
    /// 90 s, 2 Gi read, 0 written`; `None` in its first second.
    fn working_on(&self, device: &Path) -> Option<String>;
    /// Whether the tools for this filesystem are there.
    ///
    /// # Errors
    /// ENOENT naming the missing tool and the package that has it.
    fn check_tools(&self, fs_type: FsType) -> io::Result<()>;
}

/// Writes a small file, whole and durable when this returns; after a crash before that it is as it was. What is
/// written first has the name `<file>.new`.
///
/// # Errors
/// The kernel's; the file is as it was.
pub fn write_whole(disks: &dyn Disks, file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let (new, parent) = (PathBuf::from(name), file.parent().unwrap_or(file));
    disks.remove_file(&new)?;
    let written = disks.open_log(&new, 0).and_then(|mut log| {
        log.append(bytes)?;
        log.sync()
    });
    if let Err(error) = written.and_then(|()| disks.rename(&new, file)) {
        // It would be removed the next time as well.
        let _ = disks.remove_file(&new);
        return Err(error);
    }
    disks.sync_directory(parent)
}

/// The mount that holds a path, links resolved.
pub fn holder<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    // The longest target covers the path; of several at one target the last lies on top.
    let covering = mounts.iter().filter(|mount| path.starts_with(&mount.target));
    covering.max_by_key(|mount| mount.target.components().count())
}

/// Whether the error carries this errno.
pub fn is_errno(error: &io::Error, errno: nix::errno::Errno) -> bool {
    errno_of(error) == Some(errno)
}

/// Whether a disk or a quota is full: there is no room for what was to be done.
pub fn is_full(error: &io::Error) -> bool {
    matches!(errno_of(error), Some(nix::errno::Errno::ENOSPC | nix::errno::Errno::EDQUOT))
}

/// The errno that an error carries, directly or wrapped by [`with_context`].
pub fn errno_of(error: &io::Error) -> Option<nix::errno::Errno> {
    if let Some(raw) = error.raw_os_error() {
        return Some(nix::errno::Errno::from_raw(raw));
    }
    error.get_ref()?.downcast_ref::<Contextual>().map(|c| c.errno)
}

/// An errno with the operation and path that met it.
#[derive(Debug, thiserror::Error)]
#[error("{context}: {errno}")]
struct Contextual {
    context: String,
    #[source]
    errno: nix::errno::Errno,
}

/// Wraps an error with what was being done (`"mkdir /x"`), keeping its errno for [`errno_of`].
pub fn with_context(error: io::Error, context: impl std::fmt::Display) -> io::Error {
    match errno_of(&error) {
        // A second wrapping keeps the innermost operation, which is the one that failed.
        Some(errno) if error.raw_os_error().is_some() => {
            let context = context.to_string();
            io::Error::new(error.kind(), Contextual { context, errno })
        }
        Some(_) => error,
        None => io::Error::new(error.kind(), format!("{context}: {error}")),
    }
}

/// An error with an errno of our choosing and the operation that met it.
pub fn errno_error(errno: nix::errno::Errno, context: impl std::fmt::Display) -> io::Error {
    with_context(io::Error::from_raw_os_error(errno as i32), context)
}
