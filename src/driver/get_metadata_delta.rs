//! CSI GetMetadataDelta.
//!
//! What differs is found by `copies/changes.rs`.

use super::Driver;
use super::copies::block_ranges::Messages;
use super::copies::changes::Change;
use super::get_metadata_allocated::offset;
use super::locks::Mode;
use crate::error::{Error, Result};
use crate::model::answer::BlockRanges;
use crate::model::request::GetMetadataDelta;
use crate::model::{Snapshot, format_bytes};

impl Driver {
    /// Tells in which ranges the target differs from the base. `emit` gets each message and says whether the caller
    /// still listens.
    ///
    /// # Errors
    /// NOT_FOUND; INVALID_ARGUMENT for snapshots of different volumes; OUT_OF_RANGE for an offset that is negative or
    /// beyond the target's end; FAILED_PRECONDITION for snapshots of a directory, whose changes are not tracked.
    pub fn get_metadata_delta(
        &self,
        request: GetMetadataDelta,
        emit: &mut dyn FnMut(BlockRanges) -> bool,
    ) -> Result<()> {
        let find = |id: &str| self.ready_snapshot(id);
        let (base, target) = (find(&request.base_snapshot_id)?, find(&request.target_snapshot_id)?);
        let _guard = self.lock_all([&base, &target].map(|snapshot| ((&snapshot.id).into(), Mode::Shared)))?;
        let (base, target) = (find(&request.base_snapshot_id)?, find(&request.target_snapshot_id)?);
        check(&base, &target)?;
        let start = offset(request.starting_offset, &target)?;
        let mut sides = self.sides(&base, &target)?;
        let mut messages = Messages::new(target.size_bytes, start, request.max_results, emit);
        let listening = sides.each_change(start, &mut |change| match change {
            Change::Differs { range, .. } => Ok(messages.push(range)),
            Change::None { .. } => Ok(true),
        })?;
        if listening {
            messages.finish();
        }
        tracing::info!(base = %base.id, target = %target.id, read = %format_bytes(sides.bytes_read()), "delta");
        Ok(())
    }
}

fn check(base: &Snapshot, target: &Snapshot) -> Result<()> {
    if base.source != target.source {
        return Err(Error::Invalid(format!(
            "snapshots {} and {} are of different volumes: only those of one volume can be compared",
            base.id, target.id
        )));
    }
    Ok(())
}
