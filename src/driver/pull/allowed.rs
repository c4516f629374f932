//! The limit for the tree of a copy: the size of its volume and 5 %.
//!
//! The node counts the volume exactly when a pass begins and when it ends. xfs and ext4 count at no cost, so there the node also
//! counts every 5 %. btrfs needs a sync to count. There the node adds up the most that each entry can take, and counts again only
//! if the sum is more than the rest of the limit.

use crate::backend::{Allowance, Place};
use crate::error::Result;
use crate::kernel::QuotaLimits;

/// The most bytes between two counts if little of the limit is left, or if a count costs nothing.
const STEP: u64 = 16 << 20;
/// The bytes of a step for which one file or directory is allowed.
const INODE: u64 = 4096;

pub(super) struct Allowed<'a> {
    place: Place<'a>,
    /// `None` if nothing enforces the size of the volume.
    allowance: Option<Allowance>,
    /// The rest that can be used before the next count.
    left: QuotaLimits,
    /// The bytes between two counts in this volume: 5 % of its size, and at most [`STEP`].
    step: u64,
}

impl<'a> Allowed<'a> {
    pub(super) fn begin(place: Place<'a>, has_earlier: bool) -> Result<Self> {
        let step = place.paths.enforced_bytes().map_or(0, |bytes| (bytes / 20).min(STEP));
        let unlimited = QuotaLimits { bytes: u64::MAX, inodes: u64::MAX };
        let (allowance, left) = match Allowance::begin(place, has_earlier)? {
            Some((allowance, left)) => (Some(allowance), left),
            None => (None, unlimited),
        };
        let mut allowed = Allowed { place, allowance, left: unlimited, step };
        allowed.have(left);
        Ok(allowed)
    }

    /// Sets the rest that can be used before the next count.
    fn have(&mut self, left: QuotaLimits) {
        let step = QuotaLimits { bytes: self.step, inodes: self.step / INODE };
        // A filesystem can use more than the sum. So count often if it costs nothing.
        self.left = match self.allowance {
            None => left,
            Some(Allowance { is_cheap: true, .. }) => step,
            Some(_) => {
                QuotaLimits { bytes: left.bytes.max(step.bytes), inodes: left.inodes.max(step.inodes) }
            }
        };
    }

    /// Uses up to this number of bytes.
    ///
    /// # Errors
    /// OUT_OF_RANGE if the volume uses more than its limit.
    pub(super) fn bytes(&mut self, bytes: u64) -> Result<()> {
        self.take(bytes, 0)
    }

    /// Uses one file or directory, and up to this number of bytes. See [`bytes`](Self::bytes).
    pub(super) fn entry(&mut self, bytes: u64) -> Result<()> {
        self.take(bytes, 1)
    }

    fn take(&mut self, bytes: u64, inodes: u64) -> Result<()> {
        let Some(allowance) = self.allowance else { return Ok(()) };
        if bytes > self.left.bytes || inodes > self.left.inodes {
            let left = allowance.expect_left(self.place)?;
            self.have(left);
        }
        self.left.bytes = self.left.bytes.saturating_sub(bytes);
        self.left.inodes = self.left.inodes.saturating_sub(inodes);
        Ok(())
    }

    /// Counts the volume with the finished tree, and checks the limit.
    ///
    /// # Errors
    /// OUT_OF_RANGE if the volume uses more than its limit.
    pub(super) fn expect_kept(&self) -> Result<()> {
        self.allowance.map_or(Ok(()), |allowance| allowance.expect_left(self.place).map(drop))
    }
}
