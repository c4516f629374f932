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
    /// The bytes that the caller has reserved, and a little for names and for what filesystems count differently.
    beforehand: u64,
    reserved: Vec<Reservation>,
}

impl<'a> Room<'a> {
    /// Creates one without reservations, except for the bytes that the caller has reserved.
    pub(super) fn begin(driver: &'a Driver, pool: &'a Pool, beforehand: u64) -> Result<Self> {
        let shares_blocks = pool.reflink(&driver.os)?;
        // What the caller has reserved is held until the end, when it is on the disk as well. Another reservation would find no room
        // if the tree takes more than half of what was free.
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

    /// Takes room for a copy of a file of so many bytes, and returns how many of them cannot be shared.
    pub(super) fn take_copy(&mut self, bytes: u64) -> Result<u64> {
        let unshared = if self.shares_blocks { 0 } else { bytes };
        self.take(unshared).map(|()| unshared)
    }
}
