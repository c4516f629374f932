//! Bringing an image up to date.

use std::path::Path;

use super::resume::resumed;
use super::staged::Staging;
use super::{Broken, Remote, expect_end, expect_next};
use crate::driver::copies::progress::Progress;
use crate::driver::{Driver, Pool};
use crate::error::{OsContext, Result};
use crate::model::format_two;
use crate::model::pull::{Changes, Piece, Placed, SourceHandle, Zeros};

/// Zeros that are written at a time.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// What takes the changes, in ascending order.
pub(super) trait Sink {
    fn data(&mut self, piece: &Piece) -> Result<()>;
    fn zeros(&mut self, zeros: Zeros) -> Result<()>;
}

/// An image that has the data of one cut and is given those of a later one.
pub(super) struct Image<'a> {
    pub(super) driver: &'a Driver,
    pub(super) path: &'a Path,
    /// Zeros are written, and no block is given back.
    pub(super) is_thick: bool,
}

/// A stream of changes, as far as it was taken.
struct Taken<'a> {
    by: &'a mut dyn Sink,
    size: u64,
    progress: &'a mut Progress,
    /// Everything before this was taken.
    at: u64,
    counted: Counted,
}

/// How much there was to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::driver) struct Counted {
    pub(in crate::driver) sent_bytes: u64,
    pub(in crate::driver) changed_bytes: u64,
}

impl Driver {
    /// Gives an image that has the data of `base`, or some of them and some of the opened cut's, all of those of the opened
    /// cut. It is as large as that already. Nothing is durable yet on return.
    ///
    /// # Errors
    /// As for a pull; the image has some of both.
    pub(in crate::driver) fn pull_changes_to(
        &self,
        remote: &Remote,
        base: &SourceHandle,
        (path, is_thick): (&Path, bool),
        progress: &mut Progress,
    ) -> Result<Counted> {
        take(&mut Image { driver: self, path, is_thick }, remote, base, progress)
    }

    /// The same into a file, durably, from which [`Driver::apply_staged`] applies it. Gives the file's length in bytes.
    ///
    /// # Errors
    /// As for a pull; RESOURCE_EXHAUSTED without room for the file. What it has then is of no use.
    pub(in crate::driver) fn stage_changes(
        &self,
        remote: &Remote,
        base: &SourceHandle,
        (pool, path): (&Pool, &Path),
        progress: &mut Progress,
    ) -> Result<(u64, Counted)> {
        let mut staging = Staging::begin(self, pool, path, remote.description().size_bytes)?;
        let counted = take(&mut staging, remote, base, progress)?;
        Ok((staging.end()?, counted))
    }
}

/// Takes all that differs between two cuts.
fn take(by: &mut dyn Sink, remote: &Remote, base: &SourceHandle, progress: &mut Progress) -> Result<Counted> {
    let size = remote.description().size_bytes;
    let mut taken = Taken { by, size, progress, at: 0, counted: Counted::default() };
    resumed(remote, &mut taken, |taken| taken.at, |taken| taken.stream(remote, base))?;
    Ok(taken.counted)
}

impl Taken<'_> {
    /// Reads one stream to its end.
    fn stream(&mut self, remote: &Remote, base: &SourceHandle) -> Result<(), Broken> {
        let (mut received, mut ended) = (0, false);
        remote.opened.changes(base, self.at, &mut |Placed { after, message }| {
            remote.expect_in_time()?;
            if after != self.at || ended {
                let at = self.at;
                return Err(Broken::Damaged(format!("bytes {at} to {after} were left out on the way")));
            }
            match message {
                Changes::Data(piece) => {
                    let end = expect_next(&piece, self.at, self.size, "")?;
                    self.by.data(&piece)?;
                    received += piece.data.len() as u64;
                    self.counted.sent_bytes += piece.data.len() as u64;
                    self.moved_on(end, piece.data.len() as u64);
                    Ok(())
                }
                Changes::Zeros(zeros) => self.zeros(zeros),
                Changes::Unchanged { end } if end > self.at && end <= self.size => {
                    self.at = end;
                    Ok(())
                }
                Changes::Unchanged { end } => {
                    Err(Broken::Damaged(format!("byte {end} arrived out of its place")))
                }
                Changes::End { sent_bytes } if sent_bytes == received => {
                    ended = true;
                    Ok(())
                }
                Changes::End { sent_bytes } => {
                    let [received, sent] = format_two(received, sent_bytes);
                    Err(Broken::Damaged(format!("{received} arrived of {sent} that were sent")))
                }
            }
        })?;
        expect_end(ended)
    }

    fn zeros(&mut self, zeros: Zeros) -> Result<(), Broken> {
        let (offset, end) = (zeros.offset, zeros.end());
        let is_right = zeros.is_intact() && zeros.len > 0 && offset >= self.at && end <= self.size;
        if !is_right {
            return Err(Broken::Damaged(format!("zeros from {offset} to {end} arrived out of their place")));
        }
        self.by.zeros(zeros)?;
        self.moved_on(end, zeros.len);
        Ok(())
    }

    fn moved_on(&mut self, end: u64, changed: u64) {
        self.at = end;
        self.counted.changed_bytes += changed;
        self.progress.report(self.counted.sent_bytes);
    }
}

impl Sink for Image<'_> {
    fn data(&mut self, piece: &Piece) -> Result<()> {
        let writing = || format!("write {}", self.path.display());
        self.driver.os.images.write_at(self.path, piece.offset, &piece.data).doing(writing)
    }

    fn zeros(&mut self, zeros: Zeros) -> Result<()> {
        let (images, writing) =
            (&self.driver.os.images, || format!("write zeros to {}", self.path.display()));
        if !self.is_thick {
            return images.erase_range(self.path, zeros.offset, zeros.len).doing(writing);
        }
        let (mut at, end) = (zeros.offset, zeros.end());
        while at < end {
            let len = usize::try_from(end - at).unwrap_or(ZEROS.len()).min(ZEROS.len());
            images.write_at(self.path, at, ZEROS.get(..len).unwrap_or(&ZEROS)).doing(writing)?;
            at += len as u64;
        }
        Ok(())
    }
}
