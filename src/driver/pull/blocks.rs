//! Pulling an image.

use std::path::Path;

use super::resume::resumed;
use super::room::Room;
use super::{Broken, Remote, expect_end, expect_next};
use crate::driver::copies::progress::Progress;
use crate::driver::{Driver, Pool};
use crate::error::{OsContext, Result};
use crate::model::format_two;
use crate::model::pull::{Blocks, Piece, Placed};

/// An image on its way.
struct Image<'a> {
    driver: &'a Driver,
    path: &'a Path,
    size: u64,
    progress: &'a mut Progress,
    /// Everything before this is there, data and holes.
    at: u64,
    /// Bytes of data so far.
    done: u64,
    /// Room for more than the node of the source has said; `None` if its whole size is reserved.
    room: Option<Room<'a>>,
}

impl Driver {
    /// Fills a new image. It has the size of the source then.
    pub(super) fn pull_image(&self, remote: &Remote, path: &Path, progress: &mut Progress) -> Result<()> {
        self.fill_image(remote, path, None, progress)
    }

    /// Fills a new image, for which the data are reserved that the node of the source has described.
    ///
    /// # Errors
    /// As for a pull; RESOURCE_EXHAUSTED if that node sends more, and there is no room.
    pub(in crate::driver) fn pull_image_within(
        &self,
        remote: &Remote,
        path: &Path,
        pool: &Pool,
        progress: &mut Progress,
    ) -> Result<()> {
        let room = Room::begin(self, pool, remote.description().data_bytes)?;
        self.fill_image(remote, path, Some(room), progress)
    }

    fn fill_image(
        &self,
        remote: &Remote,
        path: &Path,
        room: Option<Room<'_>>,
        progress: &mut Progress,
    ) -> Result<()> {
        let size = remote.description().size_bytes;
        self.os.images.set_size(path, size).doing(|| format!("give {} its size", path.display()))?;
        let mut image = Image { driver: self, path, size, progress, at: 0, done: 0, room };
        resumed(remote, &mut image, |image| image.at, |image| image.stream(remote))
    }
}

impl Image<'_> {
    /// Reads one stream to its end.
    fn stream(&mut self, remote: &Remote) -> Result<(), Broken> {
        let (mut received, mut ended) = (0, false);
        remote.opened.blocks(self.at, &mut |Placed { after, message }| {
            remote.expect_in_time()?;
            if after != self.at {
                let at = self.at;
                return Err(Broken::Damaged(format!("bytes {at} to {after} were left out on the way")));
            }
            match message {
                Blocks::Data(piece) => {
                    self.take(&piece)?;
                    received += piece.data.len() as u64;
                    Ok(())
                }
                Blocks::End { sent_bytes } if sent_bytes == received => {
                    ended = true;
                    Ok(())
                }
                Blocks::End { sent_bytes } => {
                    let [received, sent] = format_two(received, sent_bytes);
                    Err(Broken::Damaged(format!("{received} arrived of {sent} that were sent")))
                }
            }
        })?;
        expect_end(ended)
    }

    fn take(&mut self, piece: &Piece) -> Result<(), Broken> {
        let end = expect_next(piece, self.at, self.size, "")?;
        if let Some(room) = &mut self.room {
            room.take(piece.data.len() as u64)?;
        }
        let writing = || format!("write {}", self.path.display());
        self.driver.os.images.write_at(self.path, piece.offset, &piece.data).doing(writing)?;
        (self.at, self.done) = (end, self.done + piece.data.len() as u64);
        self.progress.report(self.done);
        Ok(())
    }
}
