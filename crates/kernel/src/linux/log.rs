//! The append-only file.
#![allow(clippy::disallowed_types, reason = "implements Files")]

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate, open};
use nix::sys::stat::Mode;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::super::{LogFile, errno_error};
use super::at;
use super::open::{offset, uninterrupted};

/// Bytes that a file may have allocated for its own map of blocks, which `st_blocks` counts in.
const UNSURE: u64 = 64 << 10;

struct Log {
    file: File,
    path: PathBuf,
}

/// Opens (or makes) the file for appending, after cutting it to `len` bytes.
///
/// # Errors
/// EINVAL where the file is shorter than `len`: the caller has read more of it than there is now, and a hole
/// would read as zeros.
pub(super) fn open_log(path: &Path, len: u64) -> io::Result<Box<dyn LogFile>> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_APPEND | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let file = File::from(open(path, flags, Mode::from_bits_truncate(0o600)).map_err(at("open", path))?);
    let size = file.metadata().map_err(at("stat", path))?.len();
    if size < len {
        let context = format!("open {}: it has {size} bytes, expected at least {len}", path.display());
        return Err(errno_error(Errno::EINVAL, context));
    }
    if size > len {
        file.set_len(len).map_err(at("truncate", path))?;
    }
    if len == 0 {
        write_in_place(&file);
    }
    Ok(Box::new(Log { file, path: path.to_owned() }))
}

/// Makes btrfs write to the blocks that the file has instead of new ones, which a full disk has not; possible for an
/// empty file only (ioctl_iflags(2), FS_NOCOW_FL). The lines of a log have checksums of their own.
fn write_in_place(file: &File) {
    if is_btrfs(file)
        && let Ok(flags) = ioctl_getflags(file)
        && let Err(error) = ioctl_setflags(file, flags | IFlags::NOCOW)
    {
        // Then no room can be set aside, and `reserve` says so.
        tracing::debug!(%error, "a log stays copy-on-write");
    }
}

fn is_btrfs(file: &File) -> bool {
    fstatfs(file).is_ok_and(|fs| fs.filesystem_type() == BTRFS_SUPER_MAGIC)
}

impl LogFile for Log {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes).map_err(at("append to", &self.path))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data().map_err(at("fdatasync", &self.path))
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let fail = |errno| at("set room aside in", &self.path)(errno);
        if bytes == 0 {
            return Ok(()); // fallocate(2) refuses it
        }
        if is_btrfs(&self.file)
            && !ioctl_getflags(&self.file).is_ok_and(|flags| flags.contains(IFlags::NOCOW))
        {
            return Err(fail(Errno::EOPNOTSUPP));
        }
        let meta = self.file.metadata().map_err(at("stat", &self.path))?;
        let (end, room) = (meta.len(), (meta.blocks() * 512).saturating_sub(meta.len()));
        // xfs wants free blocks for the whole range, also where it is allocated: only the rest is asked for.
        if bytes <= room {
            return Ok(());
        }
        // Some filesystems find out only when they have taken all there is, and keep it.
        let fs = fstatfs(&self.file).map_err(at("statfs", &self.path))?;
        let unit = u64::try_from(fs.block_size()).unwrap_or(0);
        if bytes.saturating_sub(room) > fs.blocks_free().saturating_mul(unit) {
            return Err(fail(Errno::ENOSPC));
        }
        let there = room.saturating_sub(UNSURE);
        let (end, bytes) = (offset(end + there).map_err(fail)?, offset(bytes - there).map_err(fail)?);
        uninterrupted(|| fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, end, bytes)).map_err(fail)
    }
}
