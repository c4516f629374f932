//! Limits of directories that their filesystem enforces.

use serde::{Deserialize, Serialize};

use super::VolumeId;

/// The number that a directory's quota has on its filesystem: a project id on xfs and ext4, a qgroup of level 1 on btrfs
/// with simple quotas. With full qgroups nothing has it.
/// Never 0, under which everything counts that has no quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QuotaId(u32);

impl QuotaId {
    /// Numbers of the driver: others use small ones (projid(5), container runtimes) and those from 1,048,577 on (kubelet's
    /// own quotas of ephemeral storage).
    const FIRST: u32 = 1 << 30;
    const COUNT: u32 = 1 << 30;

    /// The number itself.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The numbers for a volume, in the order in which they are to be tried. The first is one of 2^30 that depends on the id
    /// alone, so that drivers which share a filesystem and cannot see each other's records start at different ones.
    pub fn candidates(volume: &VolumeId) -> impl Iterator<Item = QuotaId> + use<> {
        let first = crc32fast::hash(volume.as_str().as_bytes()) % Self::COUNT;
        (0..Self::COUNT).map(move |n| QuotaId(Self::FIRST + (first + n) % Self::COUNT))
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
    use crate::model::NodeKey;

    #[test]
    fn numbers_are_those_of_the_driver_and_start_apart() {
        let volume = |name: &str| VolumeId::of_name(&NodeKey::of("node-a"), name);
        let first =
            |name: &str| QuotaId::candidates(&volume(name)).take(3).map(QuotaId::number).collect::<Vec<_>>();
        let (one, other) = (first("one"), first("other"));
        assert_ne!(one[0], other[0]);
        assert_eq!(one, first("one"), "a retry starts at the same");
        assert_eq!(one[1], one[0] + 1);
        let all: std::collections::BTreeSet<u32> =
            (0..1000).flat_map(|n| first(&n.to_string()).into_iter().next()).collect();
        assert!(all.len() > 990 && all.iter().all(|number| (1 << 30..1 << 31).contains(number)));
    }
}
