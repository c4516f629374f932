//! Bringing an image up to date.

use std::path::Path;

use super::resume::resumed;
use super::{Broken, Remote, expect_end, expect_next};
use crate::driver::Driver;
use crate::driver::copies::progress::Progress;
use crate::error::{OsContext, Result};
use crate::model::pull::{Changes, Piece, Placed, SourceHandle, Zeros};

/// Zeros that are written at a time.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// An image that has the data of one cut and is given those of a later one.
struct Image<'a> {
    driver: &'a Driver,
    path: &'a Path,
    size: u64,
    /// Zeros are written, and no block is given back.
    is_thick: bool,
    progress: &'a mut Progress,
    /// Everything before this is of the later cut.
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
        let size = remote.description().size_bytes;
        let counted = Counted::default();
        let mut image = Image { driver: self, path, size, is_thick, progress, at: 0, counted };
        resumed(remote, &mut image, |image| image.at, |image| image.stream(remote, base))?;
        Ok(image.counted)
    }
}

impl Image<'_> {
    /// Reads one stream to its end.
    fn stream(&mut self, remote: &Remote, base: &SourceHandle) -> Result<(), Broken> {
        let (mut received, mut ended) = (0, false);
        remote.opened.changes(base, self.at, &mut |Placed { after, message }| {
            if after != self.at || ended {
                let at = self.at;
                return Err(Broken::Damaged(format!("bytes {at} to {after} were left out on the way")));
            }
            match message {
                Changes::Data(piece) => {
                    self.take(&piece)?;
                    received += piece.data.len() as u64;
                    Ok(())
                }
                Changes::Zeros(zeros) => self.zero(zeros),
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
                    Err(Broken::Damaged(format!("{received} bytes arrived of {sent_bytes} that were sent")))
                }
            }
        })?;
        expect_end(ended)
    }

    fn take(&mut self, piece: &Piece) -> Result<(), Broken> {
        let end = expect_next(piece, self.at, self.size, "")?;
        let writing = || format!("write {}", self.path.display());
        self.driver.os.images.write_at(self.path, piece.offset, &piece.data).doing(writing)?;
        self.counted.sent_bytes += piece.data.len() as u64;
        self.moved_on(end, piece.data.len() as u64);
        Ok(())
    }

    fn zero(&mut self, zeros: Zeros) -> Result<(), Broken> {
        let (offset, end) = (zeros.offset, zeros.end());
        let is_right = zeros.is_intact() && zeros.len > 0 && offset >= self.at && end <= self.size;
        if !is_right {
            return Err(Broken::Damaged(format!("zeros from {offset} to {end} arrived out of their place")));
        }
        let (images, writing) =
            (&self.driver.os.images, || format!("write zeros to {}", self.path.display()));
        if self.is_thick {
            let mut at = offset;
            while at < end {
                let len = usize::try_from(end - at).unwrap_or(ZEROS.len()).min(ZEROS.len());
                images.write_at(self.path, at, ZEROS.get(..len).unwrap_or(&ZEROS)).doing(writing)?;
                at += len as u64;
            }
        } else {
            images.erase_range(self.path, offset, zeros.len).doing(writing)?;
        }
        self.moved_on(end, zeros.len);
        Ok(())
    }

    fn moved_on(&mut self, end: u64, changed: u64) {
        self.at = end;
        self.counted.changed_bytes += changed;
        self.progress.report(self.counted.sent_bytes);
    }
}
