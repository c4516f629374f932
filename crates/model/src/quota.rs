//! Limits of directories that their filesystem enforces.

use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::VolumeId;

/// The number that a directory's quota has on its filesystem: a project id on xfs and ext4, a qgroup of level 1 on btrfs
/// with simple quotas. With full qgroups nothing has it.
/// Never 0, under which everything counts that has no quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QuotaId(u32);

impl QuotaId {
    /// The number itself.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The numbers that a driver gives to new volumes. A record with another one stays valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaIds {
    first: u32,
    last: u32,
}

impl Default for QuotaIds {
    /// Others use small ones (projid(5), container runtimes) and kubelet those of `KUBELET`.
    fn default() -> Self {
        QuotaIds { first: 1 << 30, last: (1 << 31) - 1 }
    }
}

/// Those that kubelet gives to its own quotas of ephemeral storage. It begins at the first of them (FirstQuota in
/// pkg/volume/util/fsquota/common) and goes on without a limit; a million is more than a node has volumes.
const KUBELET: RangeInclusive<u32> = 1_048_577..=2_097_152;

/// The kernel takes 4294967295 for "none" (include/linux/projid.h, INVALID_PROJID).
const LAST: u32 = u32::MAX - 1;

impl QuotaIds {
    /// The numbers for a volume, in the order in which they are to be tried. The first depends on the id alone, so that drivers
    /// which share a filesystem and cannot see each other's records start at different ones.
    pub fn candidates(self, volume: &VolumeId) -> impl Iterator<Item = QuotaId> + use<> {
        let count = u64::from(self.last - self.first) + 1;
        let start = u64::from(crc32fast::hash(volume.as_str().as_bytes())) % count;
        let nth = move |n: u64| u32::try_from(u64::from(self.first) + (start + n) % count).ok();
        (0..count).filter_map(nth).map(QuotaId)
    }
}

impl FromStr for QuotaIds {
    type Err = String;

    /// Reads FIRST-LAST.
    ///
    /// # Errors
    /// What is wrong, and what to use.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let range = text.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?)));
        let Some((first, last)) = range else {
            return Err(format!(
                "{text:?} is not a range of numbers; use FIRST-LAST, such as {}",
                QuotaIds::default()
            ));
        };
        if first == 0 {
            return Err(format!(
                "{text:?} has 0, under which everything counts that has no quota; use 1 or more"
            ));
        }
        if last > LAST {
            return Err(format!("{text:?} has {last}, which the kernel takes for none; use at most {LAST}"));
        }
        if first > last {
            return Err(format!("{text:?} ends before it begins; use {last}-{first}"));
        }
        let (least, most) = (KUBELET.start(), KUBELET.end());
        if first <= *most && last >= *least {
            return Err(format!(
                "{text:?} has numbers of kubelet's own quotas ({least}-{most}); use others, such as {}",
                QuotaIds::default()
            ));
        }
        Ok(QuotaIds { first, last })
    }
}

impl std::fmt::Display for QuotaIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl std::fmt::Display for QuotaId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;

    #[test]
    fn numbers_are_those_of_the_driver_and_start_apart() {
        let volume = |name: &str| VolumeId::of_name(&NodeKey::of("node-a"), name);
        let first = |name: &str| {
            QuotaIds::default().candidates(&volume(name)).take(3).map(QuotaId::number).collect::<Vec<_>>()
        };
        let (one, other) = (first("one"), first("other"));
        assert_ne!(one[0], other[0]);
        assert_eq!(one, first("one"), "a retry starts at the same");
        assert_eq!(one[1], one[0] + 1);
        let all: std::collections::BTreeSet<u32> =
            (0..1000).flat_map(|n| first(&n.to_string()).into_iter().next()).collect();
        assert!(all.len() > 990 && all.iter().all(|number| (1 << 30..1 << 31).contains(number)));
    }

    #[test]
    fn a_range_is_gone_through_once_from_anywhere() {
        let volume = VolumeId::of_name(&NodeKey::of("node-a"), "one");
        for (range, count) in [("7-7", 1), ("100-104", 5), ("4294967290-4294967294", 5)] {
            let ids: QuotaIds = range.parse().unwrap();
            assert_eq!(ids.to_string(), range);
            let all: Vec<u32> = ids.candidates(&volume).map(QuotaId::number).collect();
            let different: std::collections::BTreeSet<u32> = all.iter().copied().collect();
            assert_eq!((all.len(), different.len()), (count, count), "{range}");
            assert_eq!(format!("{}-{}", different.first().unwrap(), different.last().unwrap()), range);
        }
    }
}
