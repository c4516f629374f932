//! Files and directories.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "implements os::Disks")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, OFlag, fallocate, open};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::statvfs;
use nix::unistd::{UnlinkatFlags, Whence, lseek, mkdir, unlinkat};

use super::super::{
    BlockDevice, Disks, Extent, FileId, FileKind, FileStat, LogFile, Space, TreeWriter, Upkeep, Usage,
};
use super::{at, block, btrfs, copy, lock, log, probe, tree, upkeep};
use crate::model::tree::{Item, Position};

/// The files of this machine.
pub(super) struct LinuxDisks;

/// Opens an existing file. Where it is going to be changed a link is not followed: the driver makes none, so one
/// that is there is somebody's trick.
pub(super) fn open_file(path: &Path, flags: OFlag) -> io::Result<File> {
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    Ok(File::from(open(path, flags, Mode::empty()).map_err(at("open", path))?))
}

/// Aligned as direct I/O needs it of any disk.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// Opens an existing file to change it.
pub(super) fn open_to_change(path: &Path) -> io::Result<File> {
    open_file(path, OFlag::O_RDWR | OFlag::O_NOFOLLOW)
}

/// A size or offset as the system calls take it.
pub(super) fn offset(value: u64) -> Result<i64, Errno> {
    i64::try_from(value).map_err(|_| Errno::EFBIG)
}

/// Calls again what a signal interrupted.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

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

impl Disks for LinuxDisks {
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
        }))
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

    fn read_at(&self, file: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let handle = open_file(file, OFlag::O_RDONLY)?;
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match handle.read_at(rest, offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(at("read", file)(e)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
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

    fn next_data(&self, file: &Path, from: u64) -> io::Result<Option<(u64, u64)>> {
        let handle = open_file(file, OFlag::O_RDONLY)?;
        let seek = |position: u64, whence| -> nix::Result<u64> {
            let found = lseek(&handle, offset(position)?, whence)?;
            u64::try_from(found).map_err(|_| Errno::EOVERFLOW)
        };
        let start = match seek(from, Whence::SeekData) {
            // ENXIO: beyond the end, or only a hole up to it.
            Err(Errno::ENXIO) => return Ok(None),
            result => result.map_err(at("seek in", file))?,
        };
        match seek(start, Whence::SeekHole) {
            // A writer cut the file between the two.
            Err(Errno::ENXIO) => Ok(None),
            result => Ok(Some((start, result.map_err(at("seek in", file))?))),
        }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let vfs = statvfs::statvfs(path).map_err(at("statvfs", path))?;
        let unit = vfs.fragment_size();
        Ok(Space {
            total: vfs.blocks() * unit,
            available: vfs.blocks_available() * unit,
            used: vfs.blocks().saturating_sub(vfs.blocks_free()) * unit,
            inodes: vfs.files(),
            inodes_free: vfs.files_free(),
        })
    }

    fn upkeep(&self, directory: &Path) -> io::Result<Upkeep> {
        upkeep::upkeep(directory)
    }

    fn write_in_place(&self, file: &Path) -> io::Result<bool> {
        upkeep::write_in_place(file)
    }

    fn is_in_place(&self, file: &Path) -> io::Result<bool> {
        upkeep::is_in_place(file)
    }

    fn usage(&self, directory: &Path) -> io::Result<Usage> {
        tree::usage(directory).map_err(at("usage of", directory))
    }

    fn direct_io_alignment(&self, directory: &Path) -> io::Result<Option<u32>> {
        probe::direct_io_alignment(directory)
    }

    fn extents(&self, file: &Path, offset: u64, max: usize, sync: bool) -> io::Result<Vec<Extent>> {
        copy::extents(file, offset, max, sync)
    }

    fn can_reflink(&self, directory: &Path) -> io::Result<bool> {
        probe::reflink_works(directory)
    }

    fn reflink(&self, source: &Path, target: &Path) -> io::Result<()> {
        copy::reflink(source, target)
    }

    fn copy_range(&self, source: &Path, target: &Path, offset: u64, len: u64) -> io::Result<()> {
        copy::copy_range(source, target, offset, len)
    }

    fn unshare(&self, file: &Path) -> io::Result<()> {
        copy::unshare(file)
    }

    fn block_device(&self, device: &Path) -> io::Result<BlockDevice> {
        block::block_device(device)
    }

    fn create_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let mode = Mode::from_bits_truncate(mode);
        mkdir(path, mode).map_err(at("mkdir", path))?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // The umask took bits away in mkdir(2), and a setgid parent may have added one.
        let set = open(path, flags, Mode::empty()).and_then(|fd| fchmod(fd, mode));
        set.map_err(|errno| {
            // Half a directory is worse than none; the first error is the one to report.
            let _ = unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir);
            at("chmod", path)(errno)
        })
    }

    fn create_file(&self, path: &Path) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        open(path, flags, Mode::from_bits_truncate(0o600)).map(drop).map_err(at("create", path))
    }

    fn read_tree(
        &self,
        source: &Path,
        from: Position,
        emit: &mut dyn FnMut(Item) -> bool,
    ) -> io::Result<u64> {
        super::copy_tree::read_tree(source, from, emit)
    }

    fn write_tree(&self, target: &Path) -> io::Result<Box<dyn TreeWriter>> {
        Ok(Box::new(super::copy_tree::Writer::new(target)?))
    }

    fn write_at(&self, file: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        copy::write_at(file, offset, bytes)
    }

    fn set_size(&self, file: &Path, size: u64) -> io::Result<()> {
        open_to_change(file)?.set_len(size).map_err(at("truncate", file))
    }

    fn allocate(&self, file: &Path, size: u64) -> io::Result<()> {
        let handle = open_to_change(file)?;
        let meta = handle.metadata().map_err(at("stat", file))?;
        let before = meta.len();
        if size == 0 {
            return Ok(()); // fallocate(2) refuses it
        }
        // Some filesystems find out only when they have taken all there is, and others' writes fail meanwhile.
        let vfs = statvfs::fstatvfs(&handle).map_err(at("statvfs", file))?;
        let available = vfs.blocks_available().saturating_mul(vfs.fragment_size());
        if size.saturating_sub(meta.blocks() * 512) > available {
            return Err(at("allocate", file)(Errno::ENOSPC));
        }
        let size = offset(size).map_err(at("allocate", file))?;
        // nix calls fallocate(2), not posix_fallocate(3), which would write every block where the filesystem
        // cannot allocate.
        let done = uninterrupted(|| fallocate(&handle, FallocateFlags::empty(), 0, size));
        done.map_err(|errno| {
            // ext4 allocates piece by piece and keeps what it got (fs/ext4/extents.c, ext4_alloc_file_blocks):
            // what lies beyond the old end goes back. Nobody has been told of it, so no data is in there.
            let _ = handle.set_len(before);
            at("allocate", file)(errno)
        })
    }

    fn erase(&self, file: &Path) -> io::Result<()> {
        let handle = open_to_change(file)?;
        let size = offset(handle.metadata().map_err(at("stat", file))?.len()).map_err(at("erase", file))?;
        if size == 0 {
            return Ok(());
        }
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        uninterrupted(|| fallocate(&handle, mode, 0, size)).map_err(at("erase", file))
    }

    fn zero(&self, file: &Path) -> io::Result<()> {
        let handle = open_to_change(file)?;
        let zeros = vec![0; 1 << 20];
        // FALLOC_FL_ZERO_RANGE would make new extents of old ones: that takes room, and xfs gives the blocks back first.
        let mut offset = 0;
        while let Some((mut start, end)) = self.next_data(file, offset)? {
            while start < end {
                let len = zeros.len().min(usize::try_from(end - start).unwrap_or(usize::MAX));
                let piece = zeros.get(..len).unwrap_or(&zeros);
                handle.write_all_at(piece, start).map_err(at("write zeros to", file))?;
                start += len as u64;
            }
            offset = end;
        }
        Ok(())
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

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        tree::remove(path).map_err(at("remove", path))
    }

    fn copy_tree(
        &self,
        source: &Path,
        target: &Path,
        share: bool,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> io::Result<()> {
        super::copy_tree::copy_tree(source, target, share, progress)
    }

    fn open_log(&self, file: &Path, len: u64) -> io::Result<Box<dyn LogFile>> {
        log::open_log(file, len)
    }

    fn random_id(&self) -> io::Result<String> {
        btrfs::random_uuid().map(|id| id.to_string())
    }

    fn lock(&self, file: &Path) -> io::Result<Box<dyn Send + Sync>> {
        lock::lock(file)
    }
}
