//! What a StorageClass (or the attributes of an inline volume) can choose.

use serde::{Deserialize, Serialize};

use super::{BackendKind, PoolName};

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

/// Whether the size of a directory is a hard limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// Its filesystem limits it, and the pool promises it.
    Required,
    /// Nothing does: it can take whatever is free.
    None,
}

impl Enforcement {
    /// The value of the parameter `enforcement`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Enforcement::Required => "required",
            Enforcement::None => "none",
        }
    }
}

/// The typed parameters of a volume; decoding refuses every key that is not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeParameters {
    pub backend: BackendKind,
    pub provisioning: Provisioning,
    pub pool: PoolName,
    /// `mkfsOptions`, split at white space.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mkfs_options: Vec<String>,
    /// `directIO`: whether the loop device bypasses the page cache of the pool's filesystem.
    pub direct_io: bool,
    /// `discard`: whether a thin volume's device gives blocks back that its user discards. A thick one's never does.
    pub discard: bool,
    /// `sharedOnNode`: confirm MULTI_NODE modes for pods of the one node.
    pub shared_on_node: bool,
    /// `enforcement`, of a directory. What is not given is left to its pool; the record of a directory has what that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// `inodes`: how many files and directories there may be in a directory with an enforced size; as many as ext4 would
    /// have where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
}

impl Default for VolumeParameters {
    fn default() -> Self {
        VolumeParameters {
            backend: BackendKind::default(),
            provisioning: Provisioning::default(),
            pool: PoolName::default(),
            mkfs_options: Vec::new(),
            direct_io: false,
            discard: true,
            shared_on_node: false,
            enforcement: None,
            inodes: None,
        }
    }
}

impl VolumeParameters {
    /// Whether the size is a hard limit, which the pool promises. What has none takes from what is free.
    pub fn is_sized(&self) -> bool {
        match self.backend {
            BackendKind::Loop => true,
            BackendKind::Directory => self.enforcement == Some(Enforcement::Required),
        }
    }

    /// Whether the volume is a directory with an enforced size.
    pub fn is_limited_directory(&self) -> bool {
        !self.backend.has_image() && self.is_sized()
    }

    /// Whether the volume's loop device may give blocks of the image back.
    pub fn discards(&self) -> bool {
        self.discard && self.provisioning == Provisioning::Thin
    }
}

/// What a VolumeAttributesClass changes (`mutable_parameters`); `None` leaves a parameter as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Modification {
    pub provisioning: Option<Provisioning>,
    pub direct_io: Option<bool>,
    pub discard: Option<bool>,
    pub enforcement: Option<Enforcement>,
}

impl Modification {
    /// The parameters after it.
    pub fn apply(self, parameters: &VolumeParameters) -> VolumeParameters {
        VolumeParameters {
            provisioning: self.provisioning.unwrap_or(parameters.provisioning),
            direct_io: self.direct_io.unwrap_or(parameters.direct_io),
            discard: self.discard.unwrap_or(parameters.discard),
            enforcement: self.enforcement.or(parameters.enforcement),
            ..parameters.clone()
        }
    }
}

/// How a copy of a volume in use gets to be of one point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Consistency {
    /// `freeze`: a mounted filesystem is frozen while it is cut, and what cannot be cut at one point in time is
    /// refused. Without it the copy is taken while writes go on.
    pub freeze: bool,
    /// `freezeTimeout`: the longest freeze, in milliseconds. A cut that takes longer fails and leaves nothing.
    pub freeze_timeout_ms: u64,
}

impl Consistency {
    /// Longest freeze in milliseconds: whoever writes to a frozen filesystem hangs.
    pub const LONGEST_FREEZE_MS: u64 = 300_000;
}

impl Default for Consistency {
    fn default() -> Self {
        Consistency { freeze: true, freeze_timeout_ms: 30_000 }
    }
}
