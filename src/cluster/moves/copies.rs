//! What a move needs of the nodes: a copy of a volume that is brought up to date until it takes the volume's place.

use std::collections::BTreeMap;

/// A copy that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCopy {
    /// Its CSI name. The copy's id follows from it and from the node.
    pub name: String,
    /// Id of the volume that is copied.
    pub source: String,
    /// CSI node id of the node that has this volume.
    pub source_node: String,
    /// How often the volume has moved.
    pub generation: u64,
    /// It gets the backend and the filesystem of these parameters, whatever its PersistentVolume says.
    pub convert: bool,
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

/// What a pass did.
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
