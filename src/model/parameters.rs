//! What a StorageClass (or the attributes of an inline volume) can choose.

use serde::{Deserialize, Serialize};

use super::PoolName;

/// Where a volume's bytes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// An image file behind a loop device; the size is a hard limit.
    #[default]
    Loop,
    /// A directory, bind-mounted; no size limit of its own.
    Directory,
}

impl BackendKind {
    /// The value of the parameter `backend`.
    pub const fn as_str(self) -> &'static str {
        match self {
            BackendKind::Loop => "loop",
            BackendKind::Directory => "directory",
        }
    }
}

/// Whether space is taken when the volume is made or when it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provisioning {
    /// A sparse image: blocks are allocated when written and given back by discard.
    #[default]
    Thin,
    /// An allocated image that stays allocated: no discard by mkfs or at run time.
    Thick,
}

impl Provisioning {
    /// The value of the parameter `provisioning`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Provisioning::Thin => "thin",
            Provisioning::Thick => "thick",
        }
    }
}

/// The typed parameters of a volume; decoding refuses every key that is not here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeParameters {
    /// `backend`
    pub backend: BackendKind,
    /// `provisioning`
    pub provisioning: Provisioning,
    /// `pool`
    pub pool: PoolName,
    /// `mkfsOptions`, split at white space.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mkfs_options: Vec<String>,
    /// `directIO`: whether the loop device bypasses the page cache of the pool's filesystem.
    pub direct_io: bool,
    /// `sharedOnNode`: confirm MULTI_NODE modes for pods of the one node.
    pub shared_on_node: bool,
}
