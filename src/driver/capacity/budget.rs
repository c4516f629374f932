//! What a pool can give, what it has promised, and the room that leaves: the formulas of the [module](super).

use crate::model::Provisioning;
use crate::store::Totals;

/// What a pool can give and has promised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Budget {
    /// `P`
    pub(super) usable: u64,
    /// Free now, less the reserve.
    pub(super) free: u64,
    /// `T` and `N`
    pub(super) promised: Totals,
    /// `R`
    pub(super) overcommit: f64,
    /// Bytes of metadata for each byte that is promised.
    pub(super) metadata: f64,
    /// Where metadata have space of their own.
    pub(super) apart: Option<Apart>,
}

/// What two kinds of space can become, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Apart {
    pub(super) data: u64,
    pub(super) metadata: u64,
}

impl Budget {
    /// The bytes of images there can be in all.
    pub(super) fn bytes(self) -> f64 {
        // f64 is exact to 2^53 bytes (8 PiB), and errs by less than a block far beyond.
        let bytes = self.usable as f64 / (1.0 + self.metadata);
        match self.apart {
            Some(Apart { data, metadata }) => bytes.min(data as f64).min(metadata as f64 / self.metadata),
            None => bytes,
        }
    }

    /// `P − T − S`
    fn unowned(self) -> f64 {
        let Totals { thick_bytes, snapshot_bytes, .. } = self.promised;
        (self.bytes() - thick_bytes as f64 - snapshot_bytes as f64).max(0.0)
    }

    /// What is not promised to anybody: `P − T − S − N / R`.
    pub(super) fn rest(self) -> u64 {
        (self.unowned() - self.promised.thin_bytes as f64 / self.overcommit).max(0.0) as u64
    }

    /// The largest volume for which there is room, with an enforced size or without one.
    pub(super) fn room(self, sized: bool, provisioning: Provisioning) -> u64 {
        let thin_bytes = self.promised.thin_bytes as f64;
        match provisioning {
            Provisioning::Thin if !sized => self.rest().min(self.free),
            Provisioning::Thin if self.free == 0 => 0,
            Provisioning::Thin => (self.unowned() * self.overcommit - thin_bytes).max(0.0) as u64,
            Provisioning::Thick => self.rest().min(self.free),
        }
    }

    /// `T + S + N / R − P`
    pub(super) fn lacking(self) -> u64 {
        let Totals { thin_bytes, thick_bytes, snapshot_bytes } = self.promised;
        let needed = (thick_bytes as f64) + (snapshot_bytes as f64) + thin_bytes as f64 / self.overcommit;
        (needed - self.bytes()).max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn budget(usable: u64, free: u64, thin: u64, thick: u64, overcommit: f64) -> Budget {
        Budget {
            usable,
            free,
            promised: Totals { thin_bytes: thin, thick_bytes: thick, snapshot_bytes: 0 },
            overcommit,
            metadata: 0.0,
            apart: None,
        }
    }

    #[test]
    fn metadata_take_their_part() {
        let pool = Budget { metadata: 0.25, ..budget(100 * GIB, 100 * GIB, 0, 40 * GIB, 1.0) };
        assert_eq!(pool.room(true, Provisioning::Thick), 40 * GIB);
        let small = Budget { apart: Some(Apart { data: 100 * GIB, metadata: 15 * GIB }), ..pool };
        assert_eq!(small.room(true, Provisioning::Thin), 20 * GIB);
    }

    #[test]
    fn every_promise_can_be_kept_without_overcommit() {
        let pool = budget(100 * GIB, 60 * GIB, 50 * GIB, 20 * GIB, 1.0);
        assert_eq!(pool.room(true, Provisioning::Thin), 30 * GIB);
        assert_eq!(pool.room(true, Provisioning::Thick), 30 * GIB);
        assert_eq!(pool.room(false, Provisioning::Thin), 30 * GIB);
    }

    #[test]
    fn overcommit_is_for_thin_volumes() {
        let pool = budget(100 * GIB, 90 * GIB, 100 * GIB, 0, 4.0);
        assert_eq!(pool.room(true, Provisioning::Thin), 300 * GIB);
        assert_eq!(pool.room(true, Provisioning::Thick), 75 * GIB);
        assert_eq!(pool.room(false, Provisioning::Thin), 75 * GIB, "nothing is promised to directories");
    }

    #[test]
    fn a_full_disk_has_no_room_whatever_was_promised() {
        assert_eq!(budget(10 * GIB, 0, 0, 0, 10.0).room(true, Provisioning::Thin), 0);
        assert_eq!(budget(GIB, 0, 5 * GIB, 5 * GIB, 1.0).room(true, Provisioning::Thick), 0);
    }

    #[test]
    fn the_lack_is_what_is_promised_beyond_the_space() {
        let pool = |snapshot_bytes| {
            let promised = Totals { thin_bytes: 40 * GIB, thick_bytes: 70 * GIB, snapshot_bytes };
            Budget { promised, ..budget(100 * GIB, 100 * GIB, 0, 0, 4.0) }
        };
        assert_eq!(pool(15 * GIB).lacking(), 0);
        assert_eq!(pool(20 * GIB).lacking(), 0);
        assert_eq!(pool(25 * GIB).lacking(), 5 * GIB);
    }

    proptest! {
        #[test]
        fn a_thick_promise_leaves_room_for_the_thin_ones(usable in 0u64..1 << 45, free in 0u64..1 << 45, thin in 0u64..1 << 45, thick in 0u64..1 << 45, ratio in 1.0f64..100.0) {
            let before = budget(usable, free.min(usable), thin, thick, ratio);
            let room = before.room(true, Provisioning::Thick);
            prop_assert!(room <= free);
            if room > 0 {
                let kept = (usable - thick - room) as f64 * ratio;
                prop_assert!(kept + ratio * 4096.0 >= thin as f64);
            }
        }
    }
}
