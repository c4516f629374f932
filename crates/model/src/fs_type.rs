//! The filesystems that a loop volume can carry.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A filesystem that the driver makes, mounts and grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// ext4 (e2fsprogs), the default.
    Ext4,
    /// xfs (xfsprogs).
    Xfs,
    /// btrfs (btrfs-progs).
    Btrfs,
}

/// A filesystem name that the driver does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fs_type {0:?} is not supported; use ext4, xfs or btrfs")]
pub struct UnknownFsType(pub String);

impl FsType {
    /// Every filesystem, in the order in which messages name them.
    pub const ALL: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

    /// The kernel's name, as in `/proc/filesystems` and `mount -t`.
    pub const fn as_str(self) -> &'static str {
        match self {
            FsType::Ext4 => "ext4",
            FsType::Xfs => "xfs",
            FsType::Btrfs => "btrfs",
        }
    }

    /// The smallest device in bytes on which the tools make this filesystem with their defaults: mkfs.xfs
    /// refuses less than 300 MiB since 5.19, btrfs cannot be resized below 256 MiB, and mkfs.ext4 leaves out
    /// the journal below 2 MiB, without which a crash needs a full check.
    pub const fn minimum_bytes(self) -> u64 {
        const MIB: u64 = 1 << 20;
        match self {
            FsType::Ext4 => 4 * MIB,
            FsType::Xfs => 300 * MIB,
            FsType::Btrfs => 256 * MIB,
        }
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FsType {
    type Err = UnknownFsType;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        FsType::ALL.into_iter().find(|fs| fs.as_str() == s).ok_or_else(|| UnknownFsType(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for fs in FsType::ALL {
            assert_eq!(fs.as_str().parse(), Ok(fs));
        }
        assert_eq!("ext3".parse::<FsType>(), Err(UnknownFsType("ext3".to_owned())));
    }
}
