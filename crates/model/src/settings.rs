//! What the administrator decides, valid by construction: cli.rs and config.rs make it, the driver takes it.

use std::path::PathBuf;

use super::{BackendKind, FsType, PoolName, QuotaIds};

#[derive(Debug, Clone, PartialEq)]
pub struct PoolSettings {
    /// Its name in the StorageClass parameter `pool`.
    pub name: PoolName,
    /// Its directory; volumes lie in `volumes/` below it. Of a managed pool the mount point of its filesystem,
    /// which is `pools/NAME` in the data directory.
    pub path: PathBuf,
    pub kind: PoolKind,
    /// Bytes of the filesystem that volumes must leave free.
    pub reserve: Reserve,
    /// How many bytes of thin volumes are promised for each byte there is: 1.0 promises only what exists.
    pub overcommit: f64,
    /// Whether it is a pool of directory volumes without an enforced size: then it has nothing else, since they
    /// could use up what was promised to others.
    pub directories: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolKind {
    /// A directory on a filesystem that the administrator looks after.
    Directory,
    /// A filesystem of the driver's own in an image file.
    Image {
        file: PathBuf,
        /// Its size in bytes, a multiple of `GRANULARITY`.
        bytes: u64,
        /// xfs or btrfs.
        fs_type: FsType,
    },
    /// A filesystem of the driver's own on a whole block device.
    Device {
        /// The device's node, or a link to it.
        device: PathBuf,
        /// xfs or btrfs.
        fs_type: FsType,
    },
}

impl PoolKind {
    /// Its name in `--pool`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            PoolKind::Directory => "directory",
            PoolKind::Image { .. } => "image",
            PoolKind::Device { .. } => "device",
        }
    }

    /// The image or device of a managed pool.
    pub fn medium(&self) -> Option<&PathBuf> {
        match self {
            PoolKind::Directory => None,
            PoolKind::Image { file: path, .. } | PoolKind::Device { device: path, .. } => Some(path),
        }
    }
}

/// What a pool keeps free for others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reserve {
    /// What the start finds right: enough for kubelet where the pool is on its disk, little otherwise.
    Auto,
    /// So many bytes.
    Bytes(u64),
    /// So much of the filesystem's size, in percent.
    Percent(f64),
}

impl Reserve {
    /// The reserve in bytes on a filesystem of `total` bytes; none where the start has to choose first.
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Reserve::Auto => 0,
            Reserve::Bytes(bytes) => bytes,
            // Both are far below 2^53 times a percentage: no precision that matters is lost.
            Reserve::Percent(percent) => (total as f64 * percent / 100.0) as u64,
        }
    }
}

/// What the author of a pod may ask for as an inline ephemeral volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlineSettings {
    /// The largest one in bytes.
    pub max_bytes: u64,
    /// The pools that they may be in.
    pub pools: Vec<PoolName>,
    /// The backends that they may have.
    pub backends: Vec<BackendKind>,
}

impl InlineSettings {
    /// The largest one in bytes, where the administrator says nothing: less than what one pod should be able to ask
    /// of a node that others share, and much for a scratch space.
    pub const DEFAULT_MAX_BYTES: u64 = 10 << 30;
}

impl Default for InlineSettings {
    fn default() -> Self {
        InlineSettings {
            max_bytes: Self::DEFAULT_MAX_BYTES,
            pools: vec![PoolName::default()],
            backends: vec![BackendKind::default()],
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// CSI plugin name.
    pub driver_name: String,
    /// CSI node id, and the value of the topology key.
    pub node_id: String,
    /// Holds the state file, and is the pool `default`.
    pub data_dir: PathBuf,
    /// Where it is remembered that the data directory is in use; `None` for a place that suits.
    pub anchor_dir: Option<PathBuf>,
    /// Every pool, the default one first.
    pub pools: Vec<PoolSettings>,
    /// Serve ControllerPublishVolume and ControllerUnpublishVolume.
    pub attach: bool,
    /// At most so many volumes attached to a node, as NodeGetInfo reports and ControllerPublishVolume enforces; 0 for
    /// no limit.
    pub max_volumes_per_node: u32,
    /// The largest size of a volume in bytes.
    pub max_volume_bytes: u64,
    /// What an inline ephemeral volume may be.
    pub inline: InlineSettings,
    /// Staging and target paths must lie below this directory, if it is given.
    pub kubelet_dir: Option<PathBuf>,
    /// The numbers that directories with an enforced size get.
    pub quota_ids: QuotaIds,
    /// The directories below which images and directories may become volumes; empty if none may.
    pub adopt_from: Vec<PathBuf>,
}

impl Settings {
    /// The key of the driver's topology segment.
    pub const TOPOLOGY_KEY: &'static str = "topology.hostloop.csi.dev/node";

    /// Where the filesystems of managed pools are mounted, below the data directory.
    pub const POOLS_DIR: &'static str = "pools";
}
