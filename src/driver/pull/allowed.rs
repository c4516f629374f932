//! What a tree that is made may take of its filesystem: the size of its volume and 5 %.
//!
//! The volume is counted exactly at the beginning and at the end, and every 5 % in between where that costs nothing. On btrfs it
//! takes a sync of the filesystem. So there the most that entries can take is added up, and the volume is counted in between only
//! if that could be more than what is left.

use crate::backend::{Allowance, Place};
use crate::error::Result;
use crate::kernel::QuotaLimits;

/// The most bytes that are taken beyond what is left before the volume is counted again, if the size of the volume is large.
const STEP: u64 = 16 << 20;
/// The bytes of such a step for each file or directory.
const INODE: u64 = 4096;

pub(super) struct Allowed<'a> {
    place: Place<'a>,
    /// `None` if nothing enforces the size of the volume.
    allowance: Option<Allowance>,
    /// What can be taken before the volume is counted again.
    left: QuotaLimits,
    /// The least bytes between two counts.
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

    /// Sets what can be taken before the volume is counted again.
    fn have(&mut self, left: QuotaLimits) {
        let step = QuotaLimits { bytes: self.step, inodes: self.step / INODE };
        // What was added up may be less than what is taken, so the volume is counted often where that costs nothing.
        self.left = match self.allowance {
            None => left,
            Some(Allowance { is_cheap: true, .. }) => step,
            Some(_) => {
                QuotaLimits { bytes: left.bytes.max(step.bytes), inodes: left.inodes.max(step.inodes) }
            }
        };
    }

    /// Takes so many bytes at most.
    ///
    /// # Errors
    /// OUT_OF_RANGE if the volume takes more than it may.
    pub(super) fn bytes(&mut self, bytes: u64) -> Result<()> {
        self.take(bytes, 0)
    }

    /// Takes a file or directory, and so many bytes at most. See [`bytes`](Self::bytes).
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

    /// Checks that the finished tree takes no more than it may, exactly.
    ///
    /// # Errors
    /// OUT_OF_RANGE if it does.
    pub(super) fn expect_kept(&self) -> Result<()> {
        self.allowance.map_or(Ok(()), |allowance| allowance.expect_left(self.place).map(drop))
    }
}
