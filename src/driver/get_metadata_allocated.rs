//! CSI GetMetadataAllocated.

use super::Driver;
use super::copies::block_ranges::Messages;
use crate::error::{Error, OsContext, Result};
use crate::model::Snapshot;
use crate::model::answer::BlockRanges;
use crate::model::request::GetMetadataAllocated;

impl Driver {
    /// Tells which ranges of a snapshot hold data, from the extent map of its image (lseek(2), SEEK_DATA). `emit` gets
    /// each message and says whether the caller still listens.
    ///
    /// # Errors
    /// NOT_FOUND; OUT_OF_RANGE for an offset that is negative or beyond the end; INVALID_ARGUMENT for a snapshot of a
    /// directory, which has no blocks.
    pub fn get_metadata_allocated(
        &self,
        request: GetMetadataAllocated,
        emit: &mut dyn FnMut(BlockRanges) -> bool,
    ) -> Result<()> {
        let snapshot = self.ready_snapshot(&request.snapshot_id)?;
        let _guard = self.share(&snapshot.id)?;
        let snapshot = self.ready_snapshot(&request.snapshot_id)?;
        let no_blocks =
            || Error::Invalid(format!("snapshot {} is of a directory: it has no blocks", snapshot.id));
        let image = self.snapshot_paths(&snapshot)?.image().ok_or_else(no_blocks)?;
        let start = offset(request.starting_offset, &snapshot)?;
        let mut messages = Messages::new(snapshot.size_bytes, start, request.max_results, emit);
        let mut at = start;
        let reading = || format!("read the extents of {}", image.display());
        while let Some((from, to)) = self.os.images.next_data(&image, at).doing(reading)? {
            if !messages.push(from..to) {
                return Ok(());
            }
            at = to;
        }
        messages.finish();
        Ok(())
    }
}

/// The starting offset, if it lies within the snapshot.
///
/// # Errors
/// OUT_OF_RANGE.
pub(super) fn offset(starting_offset: i64, snapshot: &Snapshot) -> Result<u64> {
    let offset = u64::try_from(starting_offset).ok().filter(|offset| *offset <= snapshot.size_bytes);
    offset.ok_or_else(|| {
        let bytes = snapshot.size_bytes;
        Error::OutOfRange(format!(
            "starting_offset is {starting_offset}; send 0 to {bytes}, the size of the volume"
        ))
    })
}
