//! Files and directories by their names: what a record, a lock or a mount point is made of.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::Pinned;

/// What identifies a file whatever its name: device and inode number (stat(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`, as the kernel's userspace encoding (makedev(3)).
    pub dev: u64,
    /// `st_ino`
    pub ino: u64,
}

/// What lies under a name, by the type bits of `st_mode` (inode(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// S_IFREG
    File,
    /// S_IFDIR
    Directory,
    /// S_IFLNK: the link itself, not what it leads to.
    Symlink,
    /// S_IFBLK
    BlockDevice,
    /// A character device, FIFO or socket.
    Other,
}

/// lstat(2), as far as the driver needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Of the name itself, links not followed.
    pub kind: FileKind,
    /// The same for every hard link to the file.
    pub id: FileId,
    /// Apparent size in bytes.
    pub size: u64,
    /// Bytes allocated on the filesystem (`st_blocks` × 512).
    pub allocated: u64,
    /// The device number of a device node (`st_rdev`), 0 otherwise.
    pub rdev: u64,
    /// The number of its names (`st_nlink`).
    pub links: u64,
}

/// statvfs(3) of the filesystem that holds a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Size in bytes.
    pub total: u64,
    /// Bytes that an unprivileged writer can still use (`f_bavail`), as df(1) shows them.
    pub available: u64,
    /// Bytes that files were given since the last commit of a btrfs. `available` has them until then.
    pub given: u64,
    /// Bytes in use (`f_blocks - f_bfree`).
    pub used: u64,
    /// Inodes in all; 0 where the filesystem has no fixed number (btrfs).
    pub inodes: u64,
    /// Inodes that a new file can have; 0 where the filesystem has no fixed number.
    pub inodes_free: u64,
}

impl Space {
    /// Returns the bytes that new files can have.
    pub fn left(&self) -> u64 {
        self.available.saturating_sub(self.given)
    }
}

/// A block device of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockDevice {
    /// `st_rdev` of its node.
    pub rdev: u64,
    /// Its size in bytes (BLKGETSIZE64).
    pub bytes: u64,
    /// Somebody has claimed it, in whatever mount namespace: a filesystem that is mounted, device mapper, RAID,
    /// swap, or a user of one of its partitions (open(2), O_EXCL). That it is merely open does not count.
    pub held: bool,
    /// The kernel has found partitions on it, whether or not any is in use.
    pub partitioned: bool,
}

/// Names and what lies under them: directories, small files, and what the kernel tells of any file.
pub trait Files: Send + Sync {
    /// lstat(2): `None` where nothing is there (ENOENT, ENOTDIR); a symbolic link is not followed.
    fn stat(&self, path: &Path) -> io::Result<Option<FileStat>>;
    /// When a name's own inode last changed (lstat(2), `st_ctime`), which no program can set; `None` if nothing has this name.
    fn changed(&self, path: &Path) -> io::Result<Option<SystemTime>>;
    /// Opens what lies below a directory, by a relative path of plain names, or the directory itself for an empty path. Links in
    /// the directory's own path are followed, those below it are not (openat2(2), RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS).
    /// Mounts are crossed. The path of what is opened stays good if the names change.
    ///
    /// # Errors
    /// ELOOP for a symbolic link on the way or at the end, EXDEV for a path that leads out of the directory.
    fn open_below(&self, directory: &Path, below: &Path) -> io::Result<Pinned>;
    /// The path with every link resolved (realpath(3)).
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf>;
    /// The names in a directory, sorted; what is not UTF-8 in one is replaced (U+FFFD), so that a stray file shows
    /// but cannot be taken for one of the driver's.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// A whole file; for the state file and small ones.
    fn read(&self, file: &Path) -> io::Result<Vec<u8>>;
    /// Reads the first block of a block device or a file from the disk itself, past what the kernel has in memory of it
    /// (open(2), O_DIRECT). Waits for as long as the disk does not answer.
    fn read_through(&self, file: &Path) -> io::Result<()>;
    /// Whether nobody has a regular file open, the loop devices of the machine among them: seen by a lease on it that is
    /// given back at once (fcntl(2), F_SETLEASE). `false` also where that cannot be seen: some filesystems have no leases.
    fn seen_closed(&self, file: &Path) -> io::Result<bool>;
    /// statvfs(3), and on btrfs its sysfs.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// What the kernel knows of the block device at a path, links followed; ENOTBLK where something else is there.
    fn block_device(&self, device: &Path) -> io::Result<BlockDevice>;
    /// mkdir(2) with this mode, whatever the umask. EEXIST where anything is there already.
    fn create_directory(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes an empty regular file (mode 0600) that must not exist (O_EXCL).
    fn create_file(&self, path: &Path) -> io::Result<()>;
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
    /// Opens (or makes, mode 0600) a file for appending at its end, after cutting it to `len` bytes.
    /// EINVAL where it is shorter.
    fn open_log(&self, file: &Path, len: u64) -> io::Result<Box<dyn LogFile>>;
    /// Takes an exclusive lock (flock(2)) on a file, made if need be, for as long as the value lives. The
    /// holder's process id is written into it.
    ///
    /// # Errors
    /// EWOULDBLOCK, with the holder in the message, where another process has it.
    fn lock(&self, file: &Path) -> io::Result<Box<dyn Send + Sync>>;
    /// 36 characters that no other call ever gets, on whatever machine (random(4), `/proc/sys/kernel/random/uuid`).
    fn random_id(&self) -> io::Result<String>;
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

/// Writes a small file, whole and durable when this returns; after a crash before that it is as it was. What is
/// written first has the name `<file>.new`.
///
/// # Errors
/// The kernel's; the file is as it was.
pub fn write_whole(files: &dyn Files, file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let (new, parent) = (PathBuf::from(name), file.parent().unwrap_or(file));
    files.remove_file(&new)?;
    let written = files.open_log(&new, 0).and_then(|mut log| {
        log.append(bytes)?;
        log.sync()
    });
    if let Err(error) = written.and_then(|()| files.rename(&new, file)) {
        // It would be removed the next time as well.
        let _ = files.remove_file(&new);
        return Err(error);
    }
    files.sync_directory(parent)
}
