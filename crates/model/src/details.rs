//! What a node says of its pools, volumes and snapshots to people (`hostloop volumes`). Words stay text: another version may have
//! more of them.

use std::time::Duration;

use super::{Claim, Handover, SnapshotObject, Timestamp};

/// One page of what is on a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DetailsPage {
    /// With the first page only.
    pub node: Option<NodeDetails>,
    pub volumes: Vec<VolumeDetails>,
    pub snapshots: Vec<SnapshotDetails>,
    /// The token of the next page.
    pub next_token: Option<String>,
}

/// A node, and its pools.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeDetails {
    /// CSI node id.
    pub node_id: String,
    /// Version of its hostloop.
    pub version: String,
    /// When the certificate ends that it shows to its peers.
    pub certificate_end: Option<Timestamp>,
    pub pools: Vec<PoolDetails>,
}

/// A pool, with its last measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolDetails {
    pub name: String,
    pub path: String,
    /// Why it cannot be used now.
    pub unusable: Option<String>,
    /// `None` if it was never measured.
    pub figures: Option<PoolBytes>,
}

/// What a pool has, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PoolBytes {
    pub measured: Timestamp,
    /// Of its filesystem: all, in use, by volumes or by others, and not in use.
    pub size: u64,
    pub used: u64,
    pub free: u64,
    /// What volumes leave free.
    pub reserve: u64,
    /// What it can give to volumes and snapshots, with what they have.
    pub usable: u64,
    /// What is promised to thin volumes, to thick ones, and to snapshots.
    pub promised_thin: u64,
    pub promised_thick: u64,
    pub promised_snapshots: u64,
    /// The size of the largest volume for which there is room.
    pub room: u64,
    /// What it lacks to keep its promises.
    pub lacking: u64,
    /// What is left of deleted directories.
    pub removing: u64,
    /// Bytes of thin volumes that may be promised for each byte of it.
    pub overcommit: f64,
}

impl PoolBytes {
    /// Returns all that is promised.
    pub fn promised(&self) -> u64 {
        self.promised_thin.saturating_add(self.promised_thick).saturating_add(self.promised_snapshots)
    }
}

/// What a volume or a snapshot takes on the disk of its pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OnDisk {
    /// Allocated bytes.
    pub bytes: Option<u64>,
    /// Those of them that other files have, too; `None` if the filesystem does not tell.
    pub shared: Option<u64>,
    /// When it was measured; `None` if it never was.
    pub measured: Option<Timestamp>,
}

impl OnDisk {
    /// Returns how old the figures are at `now`.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        let nanos = now.as_nanos().saturating_sub(self.measured?.as_nanos());
        Some(Duration::from_nanos(nanos))
    }
}

/// A volume of a node, in any phase.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeDetails {
    /// Its CSI id.
    pub id: String,
    /// Its CSI name.
    pub name: String,
    pub pool: String,
    /// The value of the parameter `backend`.
    pub backend: String,
    /// The filesystem in its image, `block` or `directory`.
    pub content: String,
    /// The value of the parameter `provisioning`.
    pub provisioning: String,
    /// `creating`, `ready` or `deleting`.
    pub phase: String,
    /// `volume`, `inline`, `copy` or `left`.
    pub kind: String,
    pub size_bytes: u64,
    /// What its filesystem says; `None` if it is not mounted, has none or was not measured.
    pub used_bytes: Option<u64>,
    pub disk: OnDisk,
    /// Uids of the pods that have it.
    pub pods: Vec<String>,
    /// What is wrong with it; `None` if it was never examined.
    pub troubles: Option<Vec<DetailedTrouble>>,
    /// The claim and the PersistentVolume that it was made for.
    pub claim: Option<Claim>,
    /// How often it has moved.
    pub generation: u64,
    /// When it was made; `None` if an earlier version made it.
    pub created: Option<Timestamp>,
    /// Why the last measurement failed.
    pub unmeasured: Option<String>,
}

/// A trouble of a volume, as another process reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DetailedTrouble {
    /// `degraded`, `inaccessible` or `data_loss`.
    pub severity: String,
    /// For programs: CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A snapshot, or a checkpoint of a volume for another node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotDetails {
    /// Its CSI id.
    pub id: String,
    /// Its CSI name.
    pub name: String,
    pub pool: String,
    /// The CSI id of its volume, which may be gone.
    pub volume_id: String,
    /// `creating`, `ready` or `deleting`.
    pub phase: String,
    /// `snapshot`, `member` or `cut`.
    pub kind: String,
    pub size_bytes: u64,
    pub disk: OnDisk,
    pub created: Option<Timestamp>,
    /// The VolumeSnapshot that it was made for.
    pub object: Option<SnapshotObject>,
    /// The group that it is a member of.
    pub group_id: Option<String>,
    /// The other node that may have it, while it moves.
    pub handover: Option<Handover>,
}

/// A node, as the process that was asked knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownNode {
    /// CSI node id.
    pub node_id: String,
    /// `None` if no process of the driver runs there, or if it answers itself.
    pub address: Option<String>,
    /// When it answered that process last.
    pub last_answer: Option<Timestamp>,
}

/// One part of what the kernel of a node says (`hostloop support-bundle`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportPart {
    /// The name of a file for it.
    pub name: String,
    /// What it is, for people.
    pub about: String,
    /// The text, or why it could not be read.
    pub text: Result<String, String>,
}
