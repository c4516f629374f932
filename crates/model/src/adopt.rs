//! Volumes that are made of what another driver, or a person, has made: an image file or a directory.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::request::CreateVolume;

/// How the data of an adopted volume came to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Taken {
    /// The source was renamed, and is gone from its place.
    Renamed,
    /// The volume shares blocks with the source.
    Shared,
    Copied,
}

impl Taken {
    /// Returns its name in messages and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Taken::Renamed => "rename",
            Taken::Shared => "reflink",
            Taken::Copied => "copy",
        }
    }
}

/// What a volume was made of that was none of hostloop's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Adopted {
    /// Where the source was.
    pub path: String,
    /// Its inode number.
    pub inode: u64,
    pub way: Taken,
    /// Whether the source has left its place: it was renamed into the volume, or out of the way of a second adoption.
    #[serde(default)]
    pub settled: bool,
    /// What the source was like when its copy began, as the driver writes it down; `None` if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// A request to make a volume of an image file or a directory of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptVolume {
    /// Absolute, of plain names.
    pub path: PathBuf,
    pub is_directory: bool,
    /// What the volume is to be. Its name is of no use: it follows from the source.
    pub volume: CreateVolume,
    /// Whether the source is removed when the volume has all of it. Otherwise it gets another name.
    pub remove_source: bool,
    /// Nothing is changed.
    pub dry_run: bool,
    /// It is only said whether there is a volume of it, and where the source is.
    pub look: bool,
}

/// What an administrator asks a node for, as it is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdoptionOrder {
    /// The CSI node id; empty for the node that is asked.
    pub node_id: String,
    /// An absolute path on the node, as its driver sees it.
    pub path: String,
    pub is_directory: bool,
    /// Those of a StorageClass, and the claim and the PersistentVolume as external-provisioner sends them.
    pub parameters: HashMap<String, String>,
    /// The volume is a raw block device.
    pub block: bool,
    /// The filesystem that has to be in the image; empty for any.
    pub fs_type: String,
    pub mount_flags: Vec<String>,
    /// The smallest size in bytes; 0 for that of the image.
    pub size_bytes: u64,
    pub remove_source: bool,
    /// Nothing is changed.
    pub dry_run: bool,
    /// It is only said whether there is a volume of it, and where the source is.
    pub look: bool,
}

/// What a node answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adoption {
    pub volume_id: String,
    pub capacity_bytes: u64,
    pub volume_context: BTreeMap<String, String>,
    pub node_id: String,
    pub driver_name: String,
    /// The filesystem in the image; empty for a raw block device and a directory.
    pub fs_type: String,
    pub block: bool,
    /// How the data came to the volume: rename, reflink or copy.
    pub way: String,
    /// Where the source is now; `None` if it is in the volume or was removed, and in an answer to a look also if that cannot be seen.
    pub left: Option<String>,
    /// There is a volume. Otherwise nothing was taken away from where the source was.
    pub made: bool,
}
