//! Room for what a round brings, of which nobody knows before how much it will be.

use crate::driver::capacity::{Reservation, Want};
use crate::driver::{Driver, Pool};
use crate::error::Result;
use crate::model::with_margin;

/// It is reserved in steps of so many bytes.
const STEP: u64 = 16 << 20;

/// Held until all is written. What is written shows as less free space then.
pub(super) struct Room<'a> {
    driver: &'a Driver,
    pool: &'a Pool,
    shares_blocks: bool,
    bytes: u64,
    /// The bytes that the caller has reserved, with a margin for names and metadata.
    beforehand: u64,
    reserved: Vec<Reservation>,
}

impl<'a> Room<'a> {
    /// Creates one without reservations, except for the bytes that the caller has reserved.
    pub(super) fn begin(driver: &'a Driver, pool: &'a Pool, beforehand: u64) -> Result<Self> {
        let shares_blocks = pool.reflink(&driver.os)?;
        // The caller holds its reservation until the end, when the data are on the disk as well. So a tree of more than half of the
        // free space would find no room for another reservation.
        let beforehand = if beforehand == 0 { 0 } else { with_margin(beforehand).saturating_add(STEP) };
        Ok(Room { driver, pool, shares_blocks, bytes: 0, beforehand, reserved: Vec::new() })
    }

    /// So many bytes more.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub(super) fn take(&mut self, bytes: u64) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        while self.bytes > self.beforehand.saturating_add(self.reserved.len() as u64 * STEP) {
            self.reserved.push(self.driver.reserve(self.pool, Want::Changes(STEP), STEP)?);
        }
        Ok(())
    }

    /// Reserves room for a copy of a file of this size, and returns the bytes that cannot be shared.
    pub(super) fn take_copy(&mut self, bytes: u64) -> Result<u64> {
        let unshared = if self.shares_blocks { 0 } else { bytes };
        self.take(unshared).map(|()| unshared)
    }
}
