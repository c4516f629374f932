//! Copies of the files of a volume or a snapshot: by sharing blocks if possible, otherwise of the data only, with holes
//! kept.

use std::path::Path;

use nix::errno::Errno;

use super::{Mark, Shape, VolumePaths, prepare_files, replace_record, sync_files};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Os, Runs, errno_error};

/// Bytes between two reports of progress.
const CHUNK: u64 = 16 << 20;

/// Gets the bytes copied so far; its error ends the copy.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// One copy to be made.
#[derive(Clone, Copy)]
pub struct Copy<'a> {
    pub os: &'a Os,
    /// Whose files.
    pub from: &'a VolumePaths,
    /// The new files; nothing is there yet.
    pub to: &'a VolumePaths,
    pub share: Share,
}

/// What a copy shares with its original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Nothing: it gets blocks of its own.
    Nothing,
    /// Blocks of each file, one file after the other.
    Files,
    /// Everything, in one step: it is of one moment, and takes no room.
    Whole,
}

impl Copy<'_> {
    /// Makes what the bytes go into. Whatever fails from here on, [`super::remove_files`] removes it all.
    pub fn prepare(&self) -> Result<()> {
        match self.is_subvolume() {
            // It comes with all that is in it.
            true => Mark::set_beside(self.os, self.to),
            false => prepare_files(self.os, self.to),
        }
    }

    /// Whether its directory is made as a snapshot of that of the original.
    pub(super) fn is_subvolume(&self) -> bool {
        self.share == Share::Whole && matches!(self.to.shape(), Shape::Tree(_))
    }

    ///
    /// # Errors
    /// The kernel's, and those of `progress`.
    pub fn run(&self, progress: OnProgress<'_>) -> Result<()> {
        self.to.bytes().copy(self, progress)
    }

    /// Writes the record of the copy, and makes both durable.
    pub fn sync(&self, new_record: &[u8]) -> Result<()> {
        match self.is_subvolume() {
            // It is durable but for its limits, which each start compares with the record.
            true => replace_record(self.os, self.to, new_record),
            false => sync_files(self.os, self.to, new_record),
        }
    }

    pub(super) fn doing(&self, verb: &str) -> String {
        format!("{verb} {} from {}", self.to.directory.display(), self.from.directory.display())
    }
}

/// Copies the data of an image into an empty file, holes kept.
pub(super) fn copy_extents(
    os: &Os,
    from: &Path,
    to: &Path,
    copying: impl Fn() -> String + std::marker::Copy,
    progress: OnProgress<'_>,
) -> Result<()> {
    let images = &os.images;
    let gone = || Error::Os { context: copying(), source: errno_error(Errno::ENOENT, from.display()) };
    let size = os.files.stat(from).doing(copying)?.ok_or_else(gone)?.size;
    images.set_size(to, size).doing(copying)?;
    let mut done = 0;
    let mut runs = Runs::new(0, |at| images.next_data(from, at).doing(copying));
    while let Some((start, end)) = runs.next_run()? {
        let mut at = start;
        while at < end {
            let len = (end - at).min(CHUNK);
            images.copy_range(from, to, at, len).doing(copying)?;
            (at, done) = (at + len, done + len);
            progress(done)?;
        }
    }
    Ok(())
}
