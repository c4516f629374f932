//! The bytes and blocks of images.
#![allow(clippy::disallowed_methods, reason = "implements Images")]

use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::sys::statvfs;
use nix::unistd::{Whence, lseek};

use super::super::{Extent, Images, Upkeep};
use super::open::{offset, open_file, open_to_change, uninterrupted};
use super::{at, copy, probe, upkeep};

/// The images that this mount namespace shows.
pub(super) struct LinuxImages;

impl Images for LinuxImages {
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

    fn write_at(&self, file: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        copy::write_at(file, offset, bytes)
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

    fn extents(&self, file: &Path, offset: u64, max: usize, sync: bool) -> io::Result<Vec<Extent>> {
        copy::extents(file, offset, max, sync)
    }

    fn set_size(&self, file: &Path, size: u64) -> io::Result<()> {
        // Without an errno, the standard library refuses what is no offset.
        offset(size).map_err(at("truncate", file))?;
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

    fn erase_range(&self, file: &Path, at_byte: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let handle = open_to_change(file)?;
        let number = |bytes| offset(bytes).map_err(at("erase", file));
        let (start, len) = (number(at_byte)?, number(len)?);
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        uninterrupted(|| fallocate(&handle, mode, start, len)).map_err(at("erase", file))
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

    fn copy_range(&self, source: &Path, target: &Path, offset: u64, len: u64) -> io::Result<()> {
        copy::copy_range(source, target, offset, len)
    }

    fn largest_file(&self, directory: &Path) -> io::Result<u64> {
        probe::largest_file(directory)
    }

    fn can_reflink(&self, directory: &Path) -> io::Result<bool> {
        probe::reflink_works(directory)
    }

    fn reflink(&self, source: &Path, target: &Path) -> io::Result<()> {
        copy::reflink(source, target)
    }

    fn unshare(&self, file: &Path) -> io::Result<()> {
        copy::unshare(file)
    }

    fn write_in_place(&self, file: &Path) -> io::Result<bool> {
        upkeep::write_in_place(file)
    }

    fn is_in_place(&self, file: &Path) -> io::Result<bool> {
        upkeep::is_in_place(file)
    }

    fn direct_io_alignment(&self, directory: &Path) -> io::Result<Option<u32>> {
        probe::direct_io_alignment(directory)
    }

    fn upkeep(&self, directory: &Path) -> io::Result<Upkeep> {
        upkeep::upkeep(directory)
    }
}
