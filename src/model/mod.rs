//! Plain types of the driver: ids, sizes, access, filesystems, volumes. No I/O, no protocol types.

mod access;
pub mod answer;
mod fs_type;
pub mod health;
mod id;
mod limits;
mod mount_flags;
mod parameters;
mod permit;
pub mod pull;
pub mod request;
mod settings;
mod size;
mod snapshot;
mod topology;
pub mod tree;
mod volume;

pub use access::{AccessMode, AccessType, Capability, SecondPublish};
pub use fs_type::{FsType, UnknownFsType};
pub use id::{
    GroupSnapshotId, Id, InvalidId, InvalidPoolName, NodeKey, ObjectId, PoolName, SnapshotId, VolumeId,
};
pub use limits::Limits;
pub use mount_flags::{InvalidMountFlag, MountFlags, VfsFlag};
pub use parameters::{BackendKind, Consistency, Modification, Provisioning, VolumeParameters};
pub use permit::{Grant, Permit};
pub use settings::{InlineSettings, PoolKind, PoolSettings, Reserve, Settings};
pub use size::{
    DEFAULT_BYTES, GRANULARITY, InvalidQuantity, SizeError, SizeRange, format_bytes, parse_quantity,
};
pub use snapshot::{GroupSnapshot, Snapshot, Timestamp};
pub use topology::{InvalidTopology, TopologyRequirement, check_topology_value};
pub use volume::{Attachment, Content, Format, Phase, Volume, VolumeSource};
