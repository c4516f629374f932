//! CloseSource of the protocol between nodes.

use crate::driver::Driver;
use crate::error::Result;
use crate::model::{Snapshot, SnapshotId};

impl Driver {
    /// Removes the cut that OpenSource made of a volume. A snapshot stays; fine if nothing is there.
    ///
    /// # Errors
    /// ABORTED while it is read.
    pub fn close_source(&self, id: &SnapshotId) -> Result<()> {
        let is_cut = |snapshot: &Snapshot| snapshot.pulled_for.is_some();
        if self.store.snapshot(id).is_none_or(|snapshot| !is_cut(&snapshot)) {
            return Ok(()); // a snapshot is read as it is, by others as well
        }
        let _guard = self.lock(id)?;
        let Some(cut) = self.store.snapshot(id) else { return Ok(()) };
        self.delete_known_snapshot(&cut)?;
        self.cuts.forget(id);
        Ok(())
    }
}
