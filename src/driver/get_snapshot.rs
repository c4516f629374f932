//! CSI GetSnapshot.

use std::sync::Arc;

use super::Driver;
use crate::error::Result;
use crate::model::Snapshot;

impl Driver {
    /// One snapshot.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub fn get_snapshot(&self, snapshot_id: &str) -> Result<Arc<Snapshot>> {
        self.ready_snapshot(snapshot_id)
    }
}
