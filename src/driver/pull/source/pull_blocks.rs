//! PullBlocks of the protocol between nodes.

use nix::errno::Errno;

use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Runs, errno_error};
use crate::model::pull::{Blocks, Piece, Placed, SourceHandle};

impl Driver {
    /// Reads the data of an opened source from `offset` on, piece by piece, and tells the end. `emit` gets each message
    /// and says whether the caller still listens.
    ///
    /// # Errors
    /// NOT_FOUND where the source is gone; INVALID_ARGUMENT for one of a directory.
    pub fn pull_blocks(
        &self,
        handle: &SourceHandle,
        offset: u64,
        emit: &mut dyn FnMut(Placed<u64, Blocks>) -> bool,
    ) -> Result<()> {
        let (guard, snapshot) = self.opened(handle)?;
        let no_blocks = || Error::Invalid(format!("source {} is a directory: it has no blocks", handle.id));
        let image = self.snapshot_paths(&snapshot)?.image().ok_or_else(no_blocks)?;
        let reading = || format!("read {}", image.display());
        let urgency = self.urgency_of(&snapshot);
        let (mut sent_bytes, mut after) = (0, offset);
        let mut runs = Runs::new(offset, |at| self.os.images.next_data(&image, at).doing(reading));
        while let Some((start, end)) = runs.next_run()? {
            let mut at = start;
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(Piece::MOST).min(Piece::MOST);
                let data = self.os.images.read_at(&image, at, want).doing(reading)?;
                if data.len() < want {
                    return Err(errno_error(Errno::EIO, "it ends too early")).doing(reading);
                }
                (at, sent_bytes) = (at + want as u64, sent_bytes + want as u64);
                self.stream_rate.spend(want as u64, urgency);
                self.cuts.touch(&handle.id);
                let message = Blocks::Data(Piece::new(at - want as u64, data));
                if !emit(Placed { after, message }) {
                    return Ok(());
                }
                after = at;
            }
        }
        // Whoever has read the end may close the source.
        drop(guard);
        emit(Placed { after, message: Blocks::End { sent_bytes } });
        Ok(())
    }
}
