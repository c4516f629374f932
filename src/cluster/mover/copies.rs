//! What a move needs of the nodes: a copy of a volume that is brought up to date until it takes the volume's place.

use std::collections::BTreeMap;

use crate::model::with_margin;

/// A copy that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCopy {
    /// Its CSI name. The copy's id follows from it and from the node.
    pub name: String,
    /// Id of the volume that is copied.
    pub source: String,
    /// CSI node id of the node that gets it.
    pub target: String,
    /// The smallest size in bytes: that of the source.
    pub bytes: u64,
    pub access: Access,
    /// Those of the StorageClass, without Kubernetes' own.
    pub parameters: BTreeMap<String, String>,
    /// Those of the VolumeAttributesClass.
    pub mutable_parameters: BTreeMap<String, String>,
}

/// How pods see the volume, as its PersistentVolume says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    pub block: bool,
    pub fs_type: String,
    pub mount_options: Vec<String>,
    /// Access modes as Kubernetes names them, such as `ReadWriteOnce`.
    pub modes: Vec<String>,
}

/// One round: what has changed at the source since the last one comes to the copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Id of the copy.
    pub copy: String,
    /// Id of the volume that is copied.
    pub source: String,
    /// Those of the StorageClass: `freeze` and `freezeTimeout` say how the source is cut.
    pub parameters: BTreeMap<String, String>,
    /// The copy is to be one cut whole also if the node of its source is lost meanwhile. Costs one more write of what changes.
    pub whole: bool,
    /// The largest size that the source may report, in bytes.
    pub most_bytes: u64,
}

/// The bytes that a node may add to the size of a volume of any size.
const ROUNDED_UP: u64 = 16 << 20;

/// Returns the largest size in bytes of a volume whose PersistentVolume has `capacity`: nodes round
/// sizes up.
pub(in crate::cluster) const fn most_bytes(capacity: u64) -> u64 {
    with_margin(capacity).saturating_add(ROUNDED_UP)
}

/// What a round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Updated {
    /// Bytes that went over the network.
    pub sent_bytes: u64,
    /// Bytes that differed.
    pub changed_bytes: u64,
    /// When the source was cut, in nanoseconds since 1970.
    pub cut_ns: u64,
    /// Whether the source was in use then: if not, nothing can have been written since.
    pub source_in_use: bool,
}

/// Why the nodes did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// It is being done; the text says how far it is (ABORTED).
    #[error("{0}")]
    Running(String),
    /// Nothing was heard in time: it may be done, or the node may be gone (DEADLINE_EXCEEDED).
    #[error("{0}")]
    Silent(String),
    #[error("{0}")]
    NotFound(String),
    /// The target has no room (RESOURCE_EXHAUSTED).
    #[error("{0}")]
    NoRoom(String),
    /// Something uses the volume, or it is not in the state for it (FAILED_PRECONDITION).
    #[error("{0}")]
    InUse(String),
    /// It will never be done like this (INVALID_ARGUMENT, UNIMPLEMENTED, OUT_OF_RANGE, ALREADY_EXISTS).
    #[error("{0}")]
    Refused(String),
    /// Everything else: worth another try.
    #[error("{0}")]
    Unavailable(String),
}

/// The nodes, as far as a move has to do with them. Every call can be repeated.
#[tonic::async_trait]
pub trait Copies: Send + Sync {
    /// CSI node ids of the nodes with the driver; `None` until they are known.
    fn nodes(&self) -> Option<Vec<String>>;

    /// Bytes that a copy of this kind may have on the node `target`.
    ///
    /// # Errors
    /// [`CopyError`], as of all calls.
    async fn room(&self, copy: &NewCopy) -> Result<u64, CopyError>;

    /// Makes the copy; it holds what the source held at some moment since. No pod can use it until it is completed.
    ///
    /// # Errors
    /// [`CopyError::Running`] while the data come over.
    async fn create(&self, copy: &NewCopy) -> Result<(), CopyError>;

    /// Brings the copy up to date.
    ///
    /// # Errors
    /// [`CopyError::Running`] while a round runs; [`CopyError::NotFound`] where the copy or its source is gone;
    /// [`CopyError::InUse`] for a copy that is complete.
    async fn update(&self, round: &Round) -> Result<Updated, CopyError>;

    /// Makes the copy an ordinary volume. What the node of its source has kept for it goes. With `stale` also where something
    /// may have been written to its source that it lacks.
    ///
    /// # Errors
    /// [`CopyError::NotFound`] where it is gone; [`CopyError::InUse`] where it is of two cuts by halves, or lacks something.
    async fn complete(&self, copy: &str, source: &str, stale: bool) -> Result<(), CopyError>;

    /// Gives a volume at least so many bytes.
    ///
    /// # Errors
    /// [`CopyError::NoRoom`] where its node has no room.
    async fn expand(&self, volume: &str, bytes: u64) -> Result<(), CopyError>;

    /// Has removed what the node of a source keeps for a copy, which cannot be brought up to date after that.
    ///
    /// # Errors
    /// [`CopyError::Unavailable`] where the node does not answer; it removes it by itself after a day.
    async fn release(&self, source: &str, copy: &str) -> Result<(), CopyError>;

    /// Lets no pod use the volume any more, and says where it has gone; with `None`, lets pods use it again.
    ///
    /// # Errors
    /// [`CopyError::InUse`] while it is staged; [`CopyError::NotFound`] where it is gone.
    async fn seal(&self, volume: &str, moved_to: Option<&str>) -> Result<(), CopyError>;

    /// Deletes a copy, complete or not, and what the node of its source has kept for it. One that is gone is deleted.
    ///
    /// # Errors
    /// [`CopyError::InUse`] while a pod uses it.
    async fn delete(&self, copy: &str, source: &str) -> Result<(), CopyError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_round_a_size_up() {
        assert_eq!(most_bytes(1000 << 20), (1050 << 20) + (16 << 20));
        assert_eq!(most_bytes(u64::MAX), u64::MAX);
    }
}
