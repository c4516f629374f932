//! The volume as the state file keeps it. It does not hold what the kernel knows (mounts, loop devices).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Adopted, Capability, Content, CopyOf, FsType, NodeKey, ObjectId, PoolName, QuotaId, SnapshotId,
    Timestamp, VolumeId, VolumeParameters,
};

/// Where a volume is in its life. Start-up undoes `Creating` and finishes `Deleting`, where what lies on the disk says
/// the same: the record may be older than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Its files are being made; nobody has been told of it.
    Creating,
    Ready,
    /// Its files are being removed.
    Deleting,
}

impl Phase {
    /// Every phase, in the order of life.
    pub const ALL: [Phase; 3] = [Phase::Creating, Phase::Ready, Phase::Deleting];

    /// Its name, as the state file has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Creating => "creating",
            Phase::Ready => "ready",
            Phase::Deleting => "deleting",
        }
    }
}

/// CSI ControllerPublishVolume as bookkeeping: the volume may be staged on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    pub node_id: String,
    /// Whether only reading was granted.
    pub read_only: bool,
    /// The capability it was published with.
    pub capability: Capability,
}

/// What a volume was made from (CSI `VolumeContentSource`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeSource {
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

impl VolumeSource {
    /// The key of the node that has it.
    pub fn node_key(&self) -> &str {
        match self {
            VolumeSource::Snapshot(id) => id.node_key(),
            VolumeSource::Volume(id) => id.node_key(),
        }
    }
}

impl From<&VolumeSource> for ObjectId {
    fn from(source: &VolumeSource) -> Self {
        match source {
            VolumeSource::Snapshot(id) => id.into(),
            VolumeSource::Volume(id) => id.into(),
        }
    }
}

impl fmt::Display for VolumeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeSource::Snapshot(id) => write!(f, "snapshot {id}"),
            VolumeSource::Volume(id) => write!(f, "volume {id}"),
        }
    }
}

/// The claim of a volume, as external-provisioner sends it (`--extra-create-metadata`). The driver decides nothing by it. It shows an
/// administrator whose data these are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The namespace of the PersistentVolumeClaim.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of the PersistentVolume.
    pub persistent_volume: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How a volume was replaced by its copy on another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retired {
    /// The id that it had, which the copy has now.
    pub was: VolumeId,
    /// The generation of the copy that has replaced it.
    pub by: u64,
    /// The CSI node id of the node of that copy.
    pub node_id: String,
}

/// Where a volume went that has moved away from this node. It is remembered when nothing of the volume is left here, so that its
/// id and its name stay in use until it is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    /// The id of the volume.
    pub id: VolumeId,
    /// The id of what it left here, which may be gone.
    pub left: VolumeId,
    /// The generation that it has had since.
    pub by: u64,
    /// The CSI node id of the node that it went to.
    pub node_id: String,
    /// The volume was deleted. This is remembered as long as something of it is left here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// When the volume was deleted on this node, to which it had moved. `left` is its id then. This is remembered for a while: what
    /// the volume has left on another node is deleted only by this word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_here: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Its id, which stays the same when the volume moves to another node.
    pub id: VolumeId,
    /// The name of its directory; `None` if that is its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<VolumeId>,
    /// The number of its moves to another node or another pool. If two nodes have a record with the same id, the higher number is the
    /// volume (docs/decisions/0021).
    #[serde(default, skip_serializing_if = "is_first")]
    pub generation: u64,
    /// The CSI name; for an inline volume the CSI volume id that the caller chose. None for a [removed
    /// one](Volume::is_removed).
    pub name: String,
    pub phase: Phase,
    /// When it was made, by the clock of the node that made it: of an adopted volume when it was adopted, of a copy of a volume when that
    /// was made. `None` if an earlier version made it. The driver decides nothing by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// Its exact size in bytes; for a directory without an enforced size the one asked for.
    pub capacity_bytes: u64,
    /// The size that its caller asked for, if it is less: a size is rounded up, and has a minimum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    pub content: Content,
    pub parameters: VolumeParameters,
    /// The capabilities it was made for.
    pub capabilities: Vec<Capability>,
    /// Logical block size of its loop device in bytes, fixed for life: a filesystem made for 512-byte sectors
    /// may not mount on a device of 4096-byte blocks.
    pub block_size: u32,
    /// What it was made from, which may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<VolumeSource>,
    /// The number under which a directory with an enforced size counts. It is recorded before the directory is made, and
    /// given back before the record goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaId>,
    /// It is brought up to date with its source on another node, and nobody uses it until that has ended
    /// (docs/decisions/0019).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<CopyOf>,
    /// It is sealed: its data move to this node. It cannot be staged or published. A pod that has it may still use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<String>,
    /// How often the seal was taken back. A request to seal it that comes late, or a second time, names an earlier number.
    #[serde(default, skip_serializing_if = "is_first")]
    pub unsealed: u64,
    /// Its copy on another node has replaced it. It cannot be staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<Retired>,
    /// The CSI node ids of the nodes that it was on before this node adopted it, with the disk or under another name. The first use here
    /// ends that: from then on, only a move changes the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adopted_from: Vec<String>,
    /// The staging path, links resolved, that a move to another pool of this node has unmounted; an empty text for a raw block volume.
    /// Its caller takes it for staged, so that the next publish stages it again. There are several paths if the kernel shows one mount at
    /// several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staged_before: Vec<String>,
    /// Where an inline volume is published, links resolved; `None` for a path that is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_target: Option<String>,
    /// The claim that it was made for, if its caller says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// A move has given it the backend or the filesystem of another StorageClass than that of its PersistentVolume, which keeps what it
    /// said.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub converted: bool,
    /// What it was made of, if that was none of hostloop's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
    /// ControllerPublishVolume's bookkeeping.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// Returns the size that was asked for. A record without it is of the size itself.
pub(super) fn requested(requested_bytes: Option<u64>, bytes: u64) -> u64 {
    requested_bytes.map_or(bytes, |requested| requested.min(bytes))
}

// serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
pub(crate) fn is_first(generation: &u64) -> bool {
    *generation == 0
}

impl Volume {
    /// Returns a volume with nothing but this: of 0 bytes, without a name, a limit, a source or a move.
    pub fn new(id: VolumeId, phase: Phase, content: Content, parameters: VolumeParameters) -> Self {
        Volume {
            id,
            directory: None,
            generation: 0,
            name: String::new(),
            phase,
            created: None,
            capacity_bytes: 0,
            requested_bytes: None,
            content,
            parameters,
            capabilities: Vec::new(),
            block_size: 0,
            source: None,
            quota: None,
            copy_of: None,
            moved_to: None,
            unsealed: 0,
            retired: None,
            adopted_from: Vec::new(),
            staged_before: Vec::new(),
            inline_target: None,
            claim: None,
            converted: false,
            adopted: None,
            attachments: Vec::new(),
        }
    }

    /// What a small directory has all the same.
    const FEWEST_INODES: u64 = 128;

    pub fn pool(&self) -> &PoolName {
        &self.parameters.pool
    }

    /// Returns the name of its directory.
    pub fn directory(&self) -> &VolumeId {
        self.directory.as_ref().unwrap_or(&self.id)
    }

    /// Returns the size that was asked for. It is never more than the volume has.
    pub fn requested(&self) -> u64 {
        requested(self.requested_bytes, self.capacity_bytes)
    }

    /// How many files and directories a directory with an enforced size may have: one for each 16 KiB, as mke2fs(8) makes
    /// them (inode_ratio), unless the class says otherwise.
    pub fn inode_limit(&self) -> u64 {
        self.parameters.inodes.unwrap_or((self.capacity_bytes / 16384).max(Self::FEWEST_INODES))
    }

    pub fn is_block(&self) -> bool {
        self.content == Content::Block
    }

    /// Whether it is sealed because its data move to another pool of its node. Its directory has the key of that node.
    pub fn moves_within_node(&self) -> bool {
        let to = self.moved_to.as_deref().map(NodeKey::of);
        to.is_some_and(|to| to.as_str() == self.directory().node_key())
    }

    /// The filesystem in its image, if it is to have one.
    pub fn fs_type(&self) -> Option<FsType> {
        self.content.fs_type()
    }

    /// Whether callers may see it: made, and not being deleted.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether its data came from somewhere else when it was made, so that a mark says whether all of them did.
    pub fn is_made_of_something(&self) -> bool {
        self.source.is_some() || self.adopted.is_some()
    }

    /// Whether it is only what is left of a deleted volume or snapshot, whose id may be somebody else's by now. No caller has
    /// ever heard of it.
    pub fn is_removed(&self) -> bool {
        self.phase == Phase::Deleting && self.name.is_empty()
    }

    /// CSI `volume_context`, without what ControllerModifyVolume changes. It is checked when a caller sends it back. A PersistentVolume
    /// keeps what CreateVolume returned, and a move may change the pool.
    pub fn context(&self) -> BTreeMap<String, String> {
        let parameters = &self.parameters;
        [("backend", parameters.backend.as_str()), ("pool", parameters.pool.as_str())]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }
}
