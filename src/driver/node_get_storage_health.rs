//! CSI NodeGetStorageHealth.

use super::Driver;
use crate::error::Result;
use crate::model::health::Trouble;

impl Driver {
    /// What is wrong with the pools now.
    ///
    /// # Errors
    /// What the kernel says where it shows no mounts.
    pub fn node_get_storage_health(&self) -> Result<Vec<Trouble>> {
        self.pool_troubles()
    }
}
