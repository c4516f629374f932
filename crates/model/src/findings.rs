//! What is amiss on a node (`hostloop doctor`). Words stay text: another version may have more of them.

use super::{Claim, Timestamp};

/// A directory in a pool that no record is of.
pub const ORPHAN_IMAGE: &str = "orphan-image";
/// A record that no object of the API server names.
pub const ORPHAN_RECORD: &str = "orphan-record";
/// A PersistentVolume whose node has no such volume.
pub const PV_WITHOUT_VOLUME: &str = "pv-without-volume";
/// A VolumeSnapshotContent whose node has no such snapshot.
pub const CONTENT_WITHOUT_SNAPSHOT: &str = "content-without-snapshot";
/// A mount for a pod that is gone, or a staged volume that no PersistentVolume names.
pub const STALE_MOUNT: &str = "stale-mount";
/// A loop device that nothing uses.
pub const STALE_DEVICE: &str = "stale-device";
/// A filesystem that an earlier process may have left frozen.
pub const FROZEN: &str = "frozen";
/// What a call has begun and not finished.
pub const HALF_MADE: &str = "half-made";
/// A directory whose filesystem does not enforce its size.
pub const SIZE_NOT_ENFORCED: &str = "size-not-enforced";
/// What a volume that has moved has left on its earlier node.
pub const MOVED_LEFT: &str = "moved-left";

/// One page of what a node says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FindingsPage {
    /// CSI node id.
    pub node_id: String,
    /// The name of its driver.
    pub driver_name: String,
    /// Its clock.
    pub now: Timestamp,
    /// What it could not look at.
    pub unknown: Vec<String>,
    pub findings: Vec<Finding>,
    pub records: Vec<HeldRecord>,
    /// The token of the next page.
    pub next_token: Option<String>,
}

/// Something that is amiss.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Finding {
    /// One of the constants above.
    pub class: String,
    /// The CSI id that it is about, or a name.
    pub id: String,
    pub pool: String,
    /// A directory, a device or a mount.
    pub path: String,
    /// When it began.
    pub since: Option<Timestamp>,
    /// What it takes.
    pub bytes: Option<u64>,
    /// What was found, for people.
    pub found: String,
    pub fix: Fix,
    /// The fix deletes data.
    pub loses_data: bool,
    /// The fix is possible only if nothing in the API server names the id.
    pub needs_unnamed: bool,
    /// Anything that has changed changes it.
    pub seen: String,
    /// The CSI name; empty if that is not known.
    pub name: String,
    /// What the volume was made for.
    pub claim: Option<Claim>,
    /// The VolumeSnapshotContent that the snapshot was made for.
    pub content: Option<String>,
}

/// What is done about a finding if that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// The node does this.
    Does(String),
    /// Nothing, and why.
    Kept(String),
}

impl Default for Fix {
    fn default() -> Self {
        Fix::Kept(String::new())
    }
}

/// What the state file of a node has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeldRecord {
    /// Its CSI id.
    pub id: String,
    /// volume, inline, copy, left, snapshot, member or cut.
    pub kind: String,
    /// Its CSI name.
    pub name: String,
    pub pool: String,
    /// creating, ready or deleting.
    pub phase: String,
    /// When its directory has changed last.
    pub since: Option<Timestamp>,
    /// Bytes on the disk of the pool.
    pub bytes: Option<u64>,
    /// Its directory.
    pub path: String,
    pub mounts: Vec<HeldMount>,
    /// Who uses it, for people; `None` if nothing does.
    pub uses: Option<String>,
    pub claim: Option<Claim>,
    /// The VolumeSnapshotContent that a snapshot was made for.
    pub content: Option<String>,
    /// How often a volume has moved.
    pub generation: u64,
    /// Of what a moved volume has left.
    pub left_by: Option<LeftBy>,
    /// Anything that has changed changes it.
    pub seen: String,
}

/// Where a volume went that has left something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBy {
    /// The CSI id of the volume.
    pub id: String,
    /// How often it has moved since.
    pub generation: u64,
    /// The CSI node id of its node.
    pub node_id: String,
}

/// Where a volume is mounted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeldMount {
    pub path: String,
    /// The uid of the pod; `None` for where it is staged.
    pub pod_uid: Option<String>,
    /// When the node looked at it first, since its driver has started: the kernel does not say since when it is mounted.
    pub since: Option<Timestamp>,
    /// Anything that has changed changes it. Empty if the node does not unmount it.
    pub seen: String,
}

/// A request to put one finding right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FixFinding {
    /// The CSI node id of the node; empty for the node that is asked.
    pub node_id: String,
    pub class: String,
    pub id: String,
    pub path: String,
    pub seen: String,
    /// The API server has just answered that nothing names the id.
    pub unnamed: bool,
    /// The API server has just answered that the pod is gone whose mount is to be taken down.
    pub pod_gone: bool,
}
