//! What a controller permits one node to read from another.

use std::fmt;

use super::{NodeKey, SnapshotId, VolumeId, VolumeSource};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// CSI node id of the node that has the source.
    pub source_node: String,
    /// CSI node id of the node that makes the volume.
    pub target_node: String,
    /// What may be read; of a volume a cut, which may be made and removed.
    pub source: VolumeSource,
    /// The volume that is made from it.
    pub target: VolumeId,
    /// It is good until then, in seconds since the epoch.
    pub expires: u64,
}

impl Grant {
    /// Whether an opened source, by its handle, is what may be read: the snapshot, or a cut that was made of the volume for
    /// this target.
    pub fn covers(&self, handle: &SnapshotId) -> bool {
        match &self.source {
            VolumeSource::Snapshot(id) => id == handle,
            VolumeSource::Volume(id) => self.cuts_of(id).contains(handle),
        }
    }

    fn cuts_of(&self, volume: &VolumeId) -> [SnapshotId; 2] {
        SnapshotId::of_copy(&NodeKey::of(&self.source_node), volume, &self.target)
    }
}

/// A permit as it is sent: signed by a controller for the node that has the source, and opaque to whoever carries it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Permit(Vec<u8>);

impl Permit {
    /// The most bytes that one has. It travels as a header of CreateVolume, in base64, and all headers together have
    /// 16 KiB.
    pub const LONGEST: usize = 8 << 10;

    /// A permit of these bytes; `None` where they are too many.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() <= Self::LONGEST).then_some(Permit(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Whoever has it may use it, where all nodes share a certificate: a log has none of its bytes.
impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_covers_its_snapshot_or_its_targets_cut() {
        let [a, b] = ["a", "b"].map(NodeKey::of);
        let [volume, other] = ["v", "w"].map(|name| VolumeId::of_name(&a, name));
        let [target, another] = ["t", "u"].map(|name| VolumeId::of_name(&b, name));
        let snapshot = SnapshotId::of_name(&a, "s");
        let grant = |source| Grant {
            source_node: "a".to_owned(),
            target_node: "b".to_owned(),
            source,
            target: target.clone(),
            expires: 0,
        };
        let of_snapshot = grant(VolumeSource::Snapshot(snapshot.clone()));
        let of_volume = grant(VolumeSource::Volume(volume.clone()));
        assert!(of_snapshot.covers(&snapshot) && !of_volume.covers(&snapshot));
        assert!(!of_snapshot.covers(&SnapshotId::of_name(&a, "other")));
        let cut = SnapshotId::of_pull(&a, &volume, &target);
        assert!(of_volume.covers(&cut) && !of_snapshot.covers(&cut));
        let [first, second] = SnapshotId::of_copy(&a, &volume, &target);
        assert!(first == cut && second != cut && of_volume.covers(&second));
        assert!(!of_volume.covers(&SnapshotId::of_pull(&a, &other, &target)));
        assert!(!of_volume.covers(&SnapshotId::of_pull(&a, &volume, &another)));
    }

    #[test]
    fn a_permit_fits_into_a_header_and_is_not_printed() {
        let permit = Permit::new(vec![7; Permit::LONGEST]).unwrap();
        assert_eq!(format!("{permit:?}"), "Permit(8192 bytes)");
        assert!(Permit::new(vec![7; Permit::LONGEST + 1]).is_none());
    }
}
