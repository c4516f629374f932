//! ReleaseCuts of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::error::Result;
use crate::model::{SnapshotId, VolumeId};

impl Driver {
    /// Removes the cuts of a volume that are kept for a copy; fine where there are none, or no such volume.
    ///
    /// # Errors
    /// ABORTED while one is read.
    pub fn release_cuts(&self, volume: &VolumeId, copy: &VolumeId) -> Result<()> {
        SnapshotId::of_copy(&self.node_key, volume, copy).iter().try_for_each(|cut| self.close_source(cut))
    }
}
