//! Snapshots and groups of them as the state file keeps them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Consistency, Content, GroupSnapshotId, Handover, Phase, PoolName, SnapshotId, VolumeId};

/// A point in time, in nanoseconds since the epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Now, by the machine's clock.
    pub fn now() -> Self {
        Timestamp::of(SystemTime::now())
    }

    /// Returns this time; the epoch for a time before it.
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The point in time that is so many nanoseconds after the epoch.
    pub fn from_nanos(nanos: u64) -> Self {
        Timestamp(nanos)
    }

    /// Returns the point in time that is this much earlier.
    pub fn before(self, time: Duration) -> Self {
        Timestamp(self.0.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Nanoseconds since the epoch.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch.
    pub fn seconds(self) -> i64 {
        i64::try_from(self.0 / 1_000_000_000).unwrap_or(i64::MAX)
    }

    /// The nanoseconds of the second.
    pub fn nanos(self) -> i32 {
        i32::try_from(self.0 % 1_000_000_000).unwrap_or(0)
    }
}

/// The VolumeSnapshot of a snapshot, as external-snapshotter sends it (`--extra-create-metadata`). The driver decides nothing by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotObject {
    /// The namespace of the VolumeSnapshot.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of the VolumeSnapshotContent.
    pub content: String,
}

/// One snapshot. It has files of its own and outlives its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Its id, and its directory's name.
    pub id: SnapshotId,
    /// The CSI name; for a member of a group that of the group.
    pub name: String,
    pub phase: Phase,
    /// The volume that it is of, which may be gone.
    pub source: VolumeId,
    /// When it was cut.
    pub created: Timestamp,
    /// The size of the volume at that time in bytes: the least size of a volume restored from it.
    pub size_bytes: u64,
    /// The size that was asked for at that time, if it is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    /// The bytes that it keeps allocated, shared or not: what its pool has promised to it.
    pub allocated_bytes: u64,
    pub content: Content,
    /// The pool that it lives in.
    pub pool: PoolName,
    /// Logical block size of the source's loop device, which the restored volume's must have.
    pub block_size: u32,
    /// The group that it is a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupSnapshotId>,
    /// It is the cut of a volume that another node makes this volume from: no caller is told of it, and it is removed
    /// when that is done (docs/decisions/0009).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulled_for: Option<VolumeId>,
    /// A cut that stays after it was read, since the copy that has its data will ask for what changes after it
    /// (docs/decisions/0019).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Its source was sealed when it was cut: nothing was written to it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// How often its source had moved when it was cut.
    #[serde(default, skip_serializing_if = "crate::volume::is_first")]
    pub generation: u64,
    /// The VolumeSnapshot that it was made for, if its caller says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<SnapshotObject>,
    /// Another node may have it as well, while it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<Handover>,
}

impl Snapshot {
    /// Returns CSI `size_bytes`: the least request for a volume restored from it. external-provisioner refuses a claim
    /// for less, so it must not be more than the claim of the source.
    pub fn requested(&self) -> u64 {
        super::volume::requested(self.requested_bytes, self.size_bytes)
    }

    /// Whether its own files are whole. A member of a group is there for callers only if the group is.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }
}

/// Snapshots that were cut at one point in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshot {
    pub id: GroupSnapshotId,
    /// The CSI name.
    pub name: String,
    /// Where it is in its life. Its members are there for callers only while it is `ready`.
    pub phase: Phase,
    /// When it was cut.
    pub created: Timestamp,
    pub sources: Vec<VolumeId>,
    /// The members, in the order of the sources.
    pub snapshots: Vec<SnapshotId>,
    pub consistency: Consistency,
    /// Another node may have the group as well, while it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<Handover>,
}
