//! Copies that are brought up to date: what the record of one says (docs/decisions/0019).

use serde::{Deserialize, Serialize};

use super::pull::SourceHandle;
use super::{SnapshotId, Timestamp, VolumeId};

/// What a volume has of the volume of another node that it is a copy of. Nobody uses it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyOf {
    /// The cut whose data it has.
    pub cut: Cut,
    /// The cut whose data it is being given: each of its blocks is of the one or of the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Cut>,
    /// Everything that `next` changes is on this node, and the rest of the record is as it is to be then: the node of the
    /// source is not needed for it any more. It is in a file of so many bytes; of a directory it is a tree beside the
    /// other one, for which so many bytes were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged_bytes: Option<u64>,
    /// Its filesystem is made file by file, from a directory or from another filesystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filled: Option<Filled>,
}

/// Where the files of a copy are that is made file by file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filled {
    /// In a directory of their own in the filesystem.
    Apart,
    /// They may be in their place, or on the way there: nothing more is copied.
    Lifting,
}

impl CopyOf {
    /// Returns the record of a copy that has all of a cut, and is given no other one.
    pub fn at(cut: Cut, filled: Option<Filled>) -> Self {
        CopyOf { cut, next: None, staged_bytes: None, filled }
    }

    /// The cut of which all is on this node, if its data are not in their place yet.
    pub fn staged(&self) -> Option<&Cut> {
        self.next.as_ref().filter(|_| self.staged_bytes.is_some())
    }
}

/// A cut that stays at its node for as long as a copy has its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cut {
    /// Its id at that node.
    pub id: SnapshotId,
    /// When it was made, by that node's clock.
    pub created: Timestamp,
    /// It was made of a sealed volume, so nothing was written after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// An interrupted mkfs has left its filesystem incomplete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub half_formatted: bool,
    /// How often the volume had moved when it was made: a copy takes over only from that generation.
    #[serde(default, skip_serializing_if = "crate::volume::is_first")]
    pub generation: u64,
}

impl Cut {
    /// By which it is read.
    pub fn handle(&self) -> SourceHandle {
        SourceHandle { id: self.id.clone(), created: self.created }
    }
}

/// UpdateCopy of the protocol between processes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateCopy {
    /// The CSI id of the copy: any text.
    pub volume_id: String,
    /// How a source in use is cut.
    pub consistency: super::Consistency,
    /// The way to the source.
    pub way: super::pull::Way,
    /// The copy is to be one cut whole also if the node of the source is lost meanwhile.
    pub whole: bool,
    /// The largest size that the source may report, in bytes; `None` for any size.
    pub most_bytes: Option<u64>,
    /// The source is sealed, and pods wait for this pass.
    pub last_pass: bool,
}

/// CompleteCopy of the protocol between processes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompleteCopy {
    /// The id of the copy.
    pub volume_id: VolumeId,
    /// Complete the copy even if its source may have later data.
    pub stale: bool,
    /// The identity that it takes over; `None` if it keeps its own id.
    pub becomes: Option<Becomes>,
    /// The size that the volume is known by, in bytes: a copy that is smaller grows.
    pub least_bytes: u64,
}

/// The id that a copy takes over from its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Becomes {
    /// The id of the source.
    pub id: VolumeId,
    /// The number of moves of the volume, this move included.
    pub generation: u64,
}

/// DeleteCopy of the protocol between processes of a cluster: what a node has beside the volume itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteCopy {
    /// The id of the copy, or of what is left of a volume that has moved away.
    pub volume_id: VolumeId,
    /// The volume that it is a copy of, or is left of.
    pub source: VolumeId,
    /// Of a copy: the number of moves of its source when the copy was cut. Of what is left: that of the copy which has
    /// replaced it.
    pub generation: u64,
}

/// What UpdateCopy has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updated {
    /// The cut whose data the copy has now.
    pub cut: Cut,
    /// Bytes of data that were sent.
    pub sent_bytes: u64,
    /// Bytes that changed: those that were sent, and those that read as zeros now.
    pub changed_bytes: u64,
}
