//! Names, small files and directories.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "implements Files")]

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::statvfs;
use nix::unistd::{UnlinkatFlags, mkdir, unlinkat};

use super::super::{BlockDevice, FileId, FileKind, FileStat, Files, LogFile, Pinned, Space};
use super::open::{self, open_file};
use super::{at, block, btrfs, ioctl, lock, log, space};

/// The files that this mount namespace shows.
pub(super) struct LinuxFiles;

/// Aligned as direct I/O needs it of any disk.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// Turns "nothing is there" into success.
fn or_gone(result: nix::Result<()>) -> nix::Result<()> {
    match result {
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
        other => other,
    }
}

fn kind(file_type: fs::FileType) -> FileKind {
    match () {
        () if file_type.is_file() => FileKind::File,
        () if file_type.is_dir() => FileKind::Directory,
        () if file_type.is_symlink() => FileKind::Symlink,
        () if file_type.is_block_device() => FileKind::BlockDevice,
        () => FileKind::Other,
    }
}

impl Files for LinuxFiles {
    fn stat(&self, path: &Path) -> io::Result<Option<FileStat>> {
        let meta = match fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => return Ok(None),
            Err(e) => return Err(at("stat", path)(e)),
        };
        Ok(Some(FileStat {
            kind: kind(meta.file_type()),
            id: FileId { dev: meta.dev(), ino: meta.ino() },
            size: meta.size(),
            allocated: meta.blocks() * 512,
            rdev: meta.rdev(),
            links: meta.nlink(),
        }))
    }

    fn changed(&self, path: &Path) -> io::Result<Option<SystemTime>> {
        let meta = match fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => return Ok(None),
            Err(e) => return Err(at("stat", path)(e)),
        };
        let seconds = Duration::from_secs(u64::try_from(meta.ctime()).unwrap_or(0));
        let nanos = Duration::from_nanos(u64::try_from(meta.ctime_nsec()).unwrap_or(0));
        Ok(UNIX_EPOCH.checked_add(seconds.saturating_add(nanos)))
    }

    fn open_below(&self, directory: &Path, below: &Path) -> io::Result<Pinned> {
        open::open_beneath(directory, below)
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path).map_err(at("resolve", path))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory).map_err(at("list", directory))? {
            let name = entry.map_err(at("list", directory))?.file_name();
            names.push(name.to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        fs::read(file).map_err(at("read", file))
    }

    fn read_through(&self, file: &Path) -> io::Result<()> {
        let handle = open_file(file, OFlag::O_RDONLY | OFlag::O_DIRECT)?;
        let mut block = Box::new(Block([0; 4096]));
        loop {
            match handle.read_at(&mut block.0, 0) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop).map_err(at("read", file)),
            }
        }
    }

    fn seen_closed(&self, file: &Path) -> io::Result<bool> {
        let handle = open_file(file, OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK)?;
        match ioctl::is_only_open_here(&handle) {
            // Not a regular file, no leases on this filesystem (overlayfs of some kernels, FUSE, NFS), or no right to one.
            Err(Errno::EINVAL | Errno::EACCES | Errno::ENOLCK | Errno::EOPNOTSUPP) => Ok(false),
            only => only.map_err(at("take a lease on", file)),
        }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let vfs = statvfs::statvfs(path).map_err(at("statvfs", path))?;
        let unit = vfs.fragment_size();
        Ok(Space {
            total: vfs.blocks() * unit,
            available: vfs.blocks_available() * unit,
            given: space::given(path),
            used: vfs.blocks().saturating_sub(vfs.blocks_free()) * unit,
            inodes: vfs.files(),
            inodes_free: vfs.files_free(),
        })
    }

    fn block_device(&self, device: &Path) -> io::Result<BlockDevice> {
        block::block_device(device)
    }

    fn create_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let mode = Mode::from_bits_truncate(mode);
        mkdir(path, mode).map_err(at("mkdir", path))?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // The umask took bits away in mkdir(2), and a setgid parent may have added one.
        let set = nix::fcntl::open(path, flags, Mode::empty()).and_then(|fd| fchmod(fd, mode));
        set.map_err(|errno| {
            // Half a directory is worse than none; the first error is the one to report.
            let _ = unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir);
            at("chmod", path)(errno)
        })
    }

    fn create_file(&self, path: &Path) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        nix::fcntl::open(path, flags, Mode::from_bits_truncate(0o600)).map(drop).map_err(at("create", path))
    }

    fn sync_file(&self, file: &Path) -> io::Result<()> {
        open_file(file, OFlag::O_RDONLY)?.sync_all().map_err(at("fsync", file))
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let handle = open_file(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        handle.sync_all().map_err(at("fsync", directory))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to).map_err(at(&format!("rename {} to", from.display()), to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        or_gone(unlinkat(AT_FDCWD, path, UnlinkatFlags::NoRemoveDir)).map_err(at("unlink", path))
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        match unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir) {
            // ENOTDIR also says that a file is there, which is not nothing.
            Err(Errno::ENOTDIR) if self.stat(path)?.is_some() => Err(at("rmdir", path)(Errno::ENOTDIR)),
            result => or_gone(result).map_err(at("rmdir", path)),
        }
    }

    fn open_log(&self, file: &Path, len: u64) -> io::Result<Box<dyn LogFile>> {
        log::open_log(file, len)
    }

    fn lock(&self, file: &Path) -> io::Result<Box<dyn Send + Sync>> {
        lock::lock(file)
    }

    fn random_id(&self) -> io::Result<String> {
        btrfs::random_uuid().map(|id| id.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_also_of_a_set_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert_eq!(LinuxFiles.changed(&file).unwrap(), None);
        fs::write(&file, b"x").unwrap();
        fs::File::open(&file).unwrap().set_modified(UNIX_EPOCH).unwrap();
        let age = LinuxFiles.changed(&file).unwrap().unwrap().elapsed().unwrap_or_default();
        assert!(age < Duration::from_secs(60), "{age:?}");
        assert!(LinuxFiles.changed(&dir.path().join("file/below")).unwrap().is_none());
    }

    #[test]
    fn kinds_are_told_apart_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), b"five!").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let kind = |path: &Path| LinuxFiles.stat(path).unwrap().map(|stat| stat.kind);
        assert_eq!(kind(&at("file")), Some(FileKind::File));
        assert_eq!(kind(dir.path()), Some(FileKind::Directory));
        assert_eq!(kind(&at("link")), Some(FileKind::Symlink));
        assert_eq!(kind(&at("socket")), Some(FileKind::Other));
        assert_eq!(kind(Path::new("/dev/null")), Some(FileKind::Other));
        assert_eq!([kind(&at("none")), kind(&at("file/none"))], [None, None]);
    }
}
