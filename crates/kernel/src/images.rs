//! Images: large files whose blocks matter, and what their filesystem can do with them.

use std::io;
use std::path::Path;

/// A run of a file's bytes and where it lies on the disk, as FIEMAP tells it (fiemap.rst of the kernel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file in bytes.
    pub logical: u64,
    /// Where it starts on the disk, in bytes; means something only with `located`.
    pub physical: u64,
    /// Bytes, at least 1.
    pub length: u64,
    /// `physical` is where exactly these bytes lie, and stays so as long as the file is not changed: not so for an
    /// extent that is not written yet, compressed, or kept in the inode.
    pub located: bool,
    /// Other files may have it too (FIEMAP_EXTENT_SHARED).
    pub shared: bool,
    /// It is allocated and reads as zeros (FIEMAP_EXTENT_UNWRITTEN).
    pub unwritten: bool,
}

/// What a filesystem takes for itself of the space that [`Space::available`](super::Space::available) promises, in bytes.
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

/// The bytes and blocks of images. Each method names a file, and where it says so a block device.
pub trait Images: Send + Sync {
    /// Up to `len` bytes at `offset` of a file or device, less at its end.
    fn read_at(&self, file: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Writes all of `bytes` at `offset` of a file that is long enough. Writing back starts at once, as with
    /// [`copy_range`](Images::copy_range).
    fn write_at(&self, file: &Path, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// The first data extent at or after `offset` as start and end (lseek(2), SEEK_DATA and SEEK_HOLE);
    /// `None` when only a hole follows.
    fn next_data(&self, file: &Path, offset: u64) -> io::Result<Option<(u64, u64)>>;
    /// The extents of a file from `offset` on, in order, at most `max` of them (FS_IOC_FIEMAP); none means that
    /// nothing but a hole follows. With `sync` what is written is placed on the disk first. Where the filesystem has
    /// no FIEMAP: EOPNOTSUPP.
    fn extents(&self, file: &Path, offset: u64, max: usize, sync: bool) -> io::Result<Vec<Extent>>;
    /// ftruncate(2): a longer file gets a hole at its end. Never used to shorten an image that holds data.
    fn set_size(&self, file: &Path, size: u64) -> io::Result<()>;
    /// fallocate(2), mode 0: allocates the whole of `0..size` and makes the file that long. ENOSPC comes before
    /// anything is taken where the space available is known to be too little, and leaves what was there: the
    /// size and the data, though holes within the old size may have been filled. EOPNOTSUPP where the
    /// filesystem cannot: nothing is written in its stead.
    fn allocate(&self, file: &Path, size: u64) -> io::Result<()>;
    /// Gives every block of the file back, its size unchanged: it reads as zeros (FALLOC_FL_PUNCH_HOLE).
    fn erase(&self, file: &Path) -> io::Result<()>;
    /// Makes `len` bytes at `offset` read as zeros, within the file's size, and gives every whole block of them back
    /// (FALLOC_FL_PUNCH_HOLE).
    fn erase_range(&self, file: &Path, offset: u64, len: u64) -> io::Result<()>;
    /// Writes zeros over all that was written to the file, which keeps its blocks and its size.
    fn zero(&self, file: &Path) -> io::Result<()>;
    /// Copies `len` bytes at `offset` of `source` to the same place of `target`, which is long enough, into blocks
    /// of its own. Writing back starts at once, so that a later sync has little left to do. EIO where `source` ends
    /// before that.
    fn copy_range(&self, source: &Path, target: &Path, offset: u64, len: u64) -> io::Result<()>;
    /// Returns the most bytes that a file in this directory can have: 16 TiB on ext4 with blocks of 4 KiB, less with
    /// smaller ones. Leaves nothing there.
    ///
    /// # Errors
    /// If no file can be made, such as on a full disk.
    fn largest_file(&self, directory: &Path) -> io::Result<u64>;
    /// Whether files in this directory can share their blocks ([`reflink`](Images::reflink)). May make and remove
    /// temporary files.
    fn can_reflink(&self, directory: &Path) -> io::Result<bool>;
    /// FICLONE: `target`, an empty regular file on the same filesystem, gets the content of `source` as it is at one
    /// point in time, by sharing its blocks, and is written to as `source` is
    /// ([`write_in_place`](Images::write_in_place)), without which btrfs refuses. EOPNOTSUPP, EINVAL or EXDEV where
    /// that cannot be, EEXIST where `target` has a content already. Durable with the next
    /// [`sync_file`](super::Files::sync_file) of `target`.
    fn reflink(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// FALLOC_FL_UNSHARE_RANGE over the whole file: every block that other files share is copied, so that writing
    /// to it needs no new one. EOPNOTSUPP where the filesystem cannot (btrfs).
    fn unshare(&self, file: &Path) -> io::Result<()>;
    /// Prepares a file to be written to at random without more than its blocks: those that no other file has are
    /// written in place, and of those that others have too, only what is written to gets a new place. On btrfs that is
    /// FS_NOCOW_FL, which it can get as long as it is empty, and which ends the checksums of its data (ioctl_iflags(2));
    /// on xfs a copy-on-write extent size of one block (FS_XFLAG_COWEXTSIZE, ioctl_xfs_fssetxattr(2)), since 128 KiB
    /// are taken for each write otherwise. Can be repeated. Whether the file is as it should be: not so is a file of
    /// btrfs that has a content already.
    fn write_in_place(&self, file: &Path) -> io::Result<bool>;
    /// Whether blocks of this file that no other file has are written in place: not so on btrfs without
    /// FS_NOCOW_FL.
    fn is_in_place(&self, file: &Path) -> io::Result<bool>;
    /// The alignment in bytes that direct I/O on files of this directory's filesystem needs (statx(2),
    /// STATX_DIOALIGN), `None` where direct I/O is not possible. May make and remove a temporary file.
    fn direct_io_alignment(&self, directory: &Path) -> io::Result<Option<u32>>;
    /// What the filesystem of this directory takes for itself.
    fn upkeep(&self, directory: &Path) -> io::Result<Upkeep>;
}
