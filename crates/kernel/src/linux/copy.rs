//! Copies of files: by sharing blocks, and by reading and writing.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "implements Images")]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, PosixFadviseAdvice, fallocate, posix_fadvise};

use super::super::{Extent, errno_error};
use super::ioctl::{self, RawExtent};
use super::open::{offset as signed, open_file, open_to_change, uninterrupted};
use super::{at, errno, upkeep};

/// Bytes read and written at once.
const BUFFER: usize = 4 << 20;

/// Flags of an extent (linux/fiemap.h, `FIEMAP_EXTENT_*`): UNKNOWN, DELALLOC, ENCODED, DATA_ENCRYPTED, NOT_ALIGNED,
/// DATA_INLINE, DATA_TAIL, of which each says that its bytes do not lie as they are where it starts; UNWRITTEN, of
/// which none lie anywhere; SHARED.
const ELSEWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;

/// The extents of a file; see [`Images::extents`](super::super::Images::extents).
pub(super) fn extents(path: &Path, offset: u64, max: usize, sync: bool) -> io::Result<Vec<Extent>> {
    let file = open_file(path, OFlag::O_RDONLY)?;
    extents_of(&file, offset, max, sync).map_err(at("map", path))
}

/// The same of an open file.
pub(super) fn extents_of(file: impl AsFd, offset: u64, max: usize, sync: bool) -> nix::Result<Vec<Extent>> {
    let found = uninterrupted(|| ioctl::extents(&file, offset, max, sync))?;
    Ok(found.into_iter().filter_map(|extent| from(extent, offset)).collect())
}

/// The part of an extent from `offset` on: some filesystems tell the whole of the one that lies around it.
fn from(extent: RawExtent, offset: u64) -> Option<Extent> {
    let before = offset.saturating_sub(extent.logical);
    let length = extent.length.checked_sub(before).filter(|length| *length > 0)?;
    let is = |flags: u32| extent.flags & flags != 0;
    Some(Extent {
        logical: extent.logical + before,
        physical: extent.physical.saturating_add(before),
        length,
        located: !is(ELSEWHERE | UNWRITTEN),
        shared: is(SHARED),
        unwritten: is(UNWRITTEN),
    })
}

/// Lets `to` share the blocks of `from` (FICLONE).
pub(super) fn clone_file(to: impl AsFd, from: impl AsFd) -> nix::Result<()> {
    rustix::fs::ioctl_ficlone(to, from).map_err(errno)
}

/// FICLONE; see [`Images::reflink`](super::super::Images::reflink).
pub(super) fn reflink(source: &Path, target: &Path) -> io::Result<()> {
    let context = format!("clone {} to", source.display());
    let from = open_file(source, OFlag::O_RDONLY | OFlag::O_NOFOLLOW)?;
    let to = open_to_change(target)?;
    if to.metadata().map_err(at("stat", target))?.len() != 0 {
        // The ioctl would keep what lies beyond the end of the source.
        return Err(at(&context, target)(Errno::EEXIST));
    }
    upkeep::match_flags(&from, &to, target)?;
    match clone_file(&to, &from) {
        // What a filesystem that knows no such ioctl answers.
        Err(Errno::ENOTTY) => Err(Errno::EOPNOTSUPP),
        result => result,
    }
    .map_err(at(&context, target))?;
    upkeep::finish_clone(&to, target)
}

/// Copies a range by reading and writing; see [`Images::copy_range`](super::super::Images::copy_range).
/// copy_file_range(2) would share the blocks on xfs and btrfs.
pub(super) fn copy_range(source: &Path, target: &Path, offset: u64, len: u64) -> io::Result<()> {
    let from = open_file(source, OFlag::O_RDONLY | OFlag::O_NOFOLLOW)?;
    let to = open_to_change(target)?;
    let end = offset.checked_add(len).ok_or(Errno::EFBIG).map_err(at("copy", source))?;
    // More is read ahead; that it is refused matters to nobody.
    let _ = posix_fadvise(&from, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
    let mut buffer = vec![0; BUFFER.min(usize::try_from(len).unwrap_or(BUFFER))];
    let mut position = offset;
    while position < end {
        let want = usize::try_from(end - position).unwrap_or(BUFFER).min(BUFFER);
        let chunk = buffer.get_mut(..want).unwrap_or_default();
        read_whole(&from, chunk, position).map_err(at("read", source))?;
        to.write_all_at(chunk, position).map_err(at("write", target))?;
        written(&from, &to, position, chunk.len()).map_err(at("write back", target))?;
        position += chunk.len() as u64;
    }
    Ok(())
}

/// Fills the buffer; EIO where the file ends before that.
fn read_whole(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => errno_error(Errno::EIO, "the file ends there"),
        _ => error,
    })
}

/// Writes into an existing file; see [`Images::write_at`](super::super::Images::write_at).
pub(super) fn write_at(path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let file = open_to_change(path)?;
    file.write_all_at(bytes, offset).map_err(at("write", path))?;
    let (position, len) = signed(offset)
        .and_then(|offset| Ok((offset, signed(bytes.len() as u64)?)))
        .map_err(at("write back", path))?;
    write_back(&file, position, len).map_err(at("write back", path))
}

/// Bytes that are in the page cache begin their way to the disk now, so that the sync at the end has little to do.
fn write_back(to: &File, position: i64, len: i64) -> nix::Result<()> {
    match ioctl::start_writing(to, position, len) {
        // Not every filesystem can, and the sync at the end does it all the same.
        Err(Errno::ESPIPE | Errno::EINVAL | Errno::ENOSYS) => Ok(()),
        result => result,
    }
}

/// After a piece is in the page cache. A copy is read once, so that its source need not stay in memory.
fn written(from: &File, to: &File, position: u64, len: usize) -> nix::Result<()> {
    let (position, len) = (signed(position)?, signed(len as u64)?);
    write_back(to, position, len)?;
    // As above.
    let _ = posix_fadvise(from, position, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(())
}

/// FALLOC_FL_UNSHARE_RANGE; see [`Images::unshare`](super::super::Images::unshare). xfs allocates the holes as well.
pub(super) fn unshare(path: &Path) -> io::Result<()> {
    let file = open_to_change(path)?;
    let size = signed(file.metadata().map_err(at("stat", path))?.len()).map_err(at("unshare", path))?;
    if size == 0 {
        return Ok(()); // fallocate(2) refuses it
    }
    uninterrupted(|| fallocate(&file, FallocateFlags::FALLOC_FL_UNSHARE_RANGE, 0, size))
        .map_err(at("unshare", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_errno;

    fn raw(logical: u64, length: u64, flags: u32) -> RawExtent {
        RawExtent { logical, physical: 1 << 20, length, flags }
    }

    #[test]
    fn an_extent_begins_where_it_was_asked_for() {
        let whole = from(raw(8192, 8192, 0), 0).expect("extent");
        assert_eq!((whole.logical, whole.physical, whole.length), (8192, 1 << 20, 8192));
        let part = from(raw(8192, 8192, 0), 12288).expect("extent");
        assert_eq!((part.logical, part.physical, part.length), (12288, (1 << 20) + 4096, 4096));
        assert_eq!(from(raw(8192, 8192, 0), 16384), None);
    }

    #[test]
    fn bytes_are_located_if_they_lie_there() {
        let seen = |flags| from(raw(0, 4096, flags), 0).map(|e| (e.located, e.shared, e.unwritten));
        assert_eq!(seen(0), Some((true, false, false)));
        assert_eq!(seen(1 | 0x1000 | SHARED), Some((true, true, false)), "the last one, and one of several");
        assert_eq!(seen(UNWRITTEN), Some((false, false, true)));
        for flag in [0x2, 0x4, 0x8, 0x80, 0x100, 0x200, 0x400] {
            assert_eq!(seen(flag), Some((false, false, false)), "{flag:#x}");
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let temp = tempfile::tempdir().expect("tempdir");
        let [file, link] = ["file", "link"].map(|name| temp.path().join(name));
        std::fs::write(&file, b"content").expect("write");
        std::os::unix::fs::symlink(&file, &link).expect("link");
        let refused = reflink(&link, &file).expect_err("the source is a link");
        assert!(is_errno(&refused, Errno::ELOOP), "{refused}");
        let refused = reflink(&file, &link).expect_err("the target is a link");
        assert!(is_errno(&refused, Errno::ELOOP), "{refused}");
        assert_eq!(std::fs::read(&file).expect("read"), b"content");
    }
}
