//! The bytes of a file.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::sendfile::sendfile;
use nix::sys::stat::{FileStat, fstat};
use nix::sys::uio::pread;
use nix::unistd::{Whence, ftruncate, lseek, write};

use super::super::super::Runs;
use super::super::copy::clone_file;
use super::super::open::{offset as signed, uninterrupted};
use super::report::{Fault, Report, call};

/// Bytes copied at once.
const PIECE: usize = 1 << 20;

/// So many bytes are written before the kernel is told to put it on the disk.
const WRITE_BACK: u64 = 8 << 20;

/// Copies contents, with what it has learnt from the files before.
pub(super) struct Content {
    /// Whether blocks may be shared, as far as is known.
    share: bool,
    /// Empty as long as the kernel copies by itself.
    buffer: Vec<u8>,
    copied_bytes: u64,
}

/// A length or an offset of the kernel's.
pub(super) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

impl Content {
    pub(super) fn new(share: bool) -> Self {
        Content { share, buffer: Vec::new(), copied_bytes: 0 }
    }

    /// Returns the bytes that were copied because their blocks could not be shared.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Fills the new file `to`. `stat` is how `from` was when it was opened: what is appended to it meanwhile is left
    /// out, so that a file that always grows comes to an end.
    pub(super) fn copy(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        stat: &FileStat,
        report: &mut Report<'_>,
    ) -> Result<(), Fault> {
        let size = unsigned(stat.st_size);
        if size == 0 {
            return Ok(());
        }
        if self.share && self.clone(from, to)? {
            return report.bytes(size.min(unsigned(stat.st_blocks).saturating_mul(512)));
        }
        // First: where the end moves with the data, xfs allocates beyond it in advance, into what is to be a hole.
        set_size(to, size)?;
        let mut runs = Runs::new(0, |at| if at < size { next_data(from, at, size) } else { Ok(None) });
        while let Some((start, end)) = runs.next_run()? {
            self.range(from, to, start, end, report)?;
        }
        let now = unsigned(fstat(from).map_err(call("stat"))?.st_size);
        if now < size { set_size(to, now) } else { Ok(()) }
    }

    /// FICLONE; whether it did.
    fn clone(&mut self, from: &OwnedFd, to: &OwnedFd) -> Result<bool, Fault> {
        match clone_file(to, from) {
            Ok(()) => Ok(true),
            // The filesystem cannot (ioctl_ficlone(2)): no need to ask for every file.
            Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EXDEV) => {
                self.share = false;
                Ok(false)
            }
            // This file cannot be: it is swapped to, or of another sort than its copy.
            Err(Errno::EINVAL | Errno::ETXTBSY) => Ok(false),
            Err(errno) => Err(Fault::Call("share the blocks of", errno)),
        }
    }

    fn range(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        start: u64,
        end: u64,
        report: &mut Report<'_>,
    ) -> Result<(), Fault> {
        let (mut at, mut flushed) = (start, start);
        signed(start).and_then(|at| lseek(to, at, Whence::SeekSet)).map_err(call("seek in the copy of"))?;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            let count = match self.piece(from, to, at, want)? {
                0 => return Ok(()), // it was cut off meanwhile
                count => count as u64,
            };
            at += count;
            self.copied_bytes += count;
            report.bytes(count)?;
            if at - flushed >= WRITE_BACK {
                write_back(to, flushed, at - flushed);
                flushed = at;
            }
        }
        Ok(())
    }

    /// Copies a part at `at` to the position of `to`, which it moves on; how much.
    fn piece(&mut self, from: &OwnedFd, to: &OwnedFd, at: u64, want: usize) -> Result<usize, Fault> {
        if self.buffer.is_empty() {
            // Within the kernel, a quarter faster. copy_file_range(2) would share blocks.
            match uninterrupted(|| sendfile(to, from, Some(&mut signed(at)?), want)) {
                // A filesystem that cannot (sendfile(2)).
                Err(Errno::EINVAL | Errno::ENOSYS) => self.buffer = vec![0; PIECE],
                result => return result.map_err(call("copy the data of")),
            }
        }
        let room = self.buffer.get_mut(..want).unwrap_or_default();
        let count = uninterrupted(|| pread(from, room, signed(at)?)).map_err(call("read"))?;
        let mut left = room.get(..count).unwrap_or_default();
        while !left.is_empty() {
            match uninterrupted(|| write(to, left)).map_err(call("write the copy of"))? {
                0 => return Err(Fault::Call("write the copy of", Errno::EIO)),
                written => left = left.get(written..).unwrap_or_default(),
            }
        }
        Ok(count)
    }
}

/// The first data at or after `at` and before `size`.
pub(super) fn next_data(file: &OwnedFd, at: u64, size: u64) -> Result<Option<(u64, u64)>, Fault> {
    let seek = |at: u64, whence| signed(at).and_then(|at| lseek(file, at, whence)).map(unsigned);
    // ENXIO: only a hole follows, or the file was cut off between the two calls.
    let start = match seek(at, Whence::SeekData) {
        Err(Errno::ENXIO) => return Ok(None),
        result => result.map_err(call("seek in"))?,
    };
    let end = match seek(start, Whence::SeekHole) {
        Err(Errno::ENXIO) => return Ok(None),
        result => result.map_err(call("seek in"))?.min(size),
    };
    Ok((start < end).then_some((start, end)))
}

pub(super) fn set_size(to: &OwnedFd, size: u64) -> Result<(), Fault> {
    signed(size).and_then(|size| ftruncate(to, size)).map_err(call("set the size of the copy of"))
}

/// Starts to write a part of a file to the disk, so that little is left to do at the end and a large copy does not
/// push everything else out of memory (posix_fadvise(2), POSIX_FADV_DONTNEED). It is advice: an error means nothing.
pub(super) fn write_back(file: impl AsFd, start: u64, len: u64) {
    if let (Ok(start), Ok(len)) = (signed(start), signed(len)) {
        let _ = posix_fadvise(file, start, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    /// A file with data at its start, in its middle and up to its end.
    fn source() -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        let data = |len: usize| (0..len).map(|n| (n % 253) as u8).collect::<Vec<_>>();
        for (offset, len) in [(0, 3), (8 << 20, (3 << 20) + 5), (20 << 20, 70_000)] {
            std::os::unix::fs::FileExt::write_all_at(&file, &data(len), offset).unwrap();
        }
        file.into()
    }

    fn copied(from: &OwnedFd, buffer: Vec<u8>) -> (Vec<u8>, i64, u64) {
        let (target, mut bytes) = (tempfile::tempfile().unwrap(), 0);
        let to = OwnedFd::from(target.try_clone().unwrap());
        let mut progress = |count| {
            bytes = count;
            Ok(())
        };
        let mut report = Report::new(&mut progress);
        let mut content = Content { buffer, ..Content::new(false) };
        assert!(content.copy(from, &to, &fstat(from).unwrap(), &mut report).is_ok());
        assert!(report.now().is_ok());
        let (mut all, mut target) = (Vec::new(), target);
        target.rewind().unwrap();
        target.read_to_end(&mut all).unwrap();
        (all, fstat(&to).unwrap().st_blocks, bytes)
    }

    #[test]
    fn content_is_copied_without_the_kernels_help_too() {
        let from = source();
        let mut whole = vec![0; usize::try_from(fstat(&from).unwrap().st_size).unwrap()];
        assert_eq!(pread(&from, whole.as_mut_slice(), 0).unwrap(), whole.len());
        for buffer in [Vec::new(), vec![0; PIECE]] {
            let (copy, blocks, bytes) = copied(&from, buffer);
            assert!(copy == whole);
            assert!(blocks * 512 < 6 << 20, "{blocks}");
            assert!((3 << 20..6 << 20).contains(&bytes), "{bytes}");
        }
    }
}
