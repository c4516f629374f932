//! Plain types of the driver: ids, sizes, access, filesystems, volumes. No I/O, no protocol types.

mod access;
mod adopt;
pub mod answer;
mod backend;
pub mod copy_of;
pub mod details;
pub mod findings;
mod fs_type;
mod handover;
pub mod health;
mod id;
mod limits;
mod mount_flags;
mod move_limits;
mod parameters;
mod permit;
mod pod;
pub mod pull;
mod quota;
pub mod request;
mod settings;
mod size;
mod snapshot;
mod standby;
mod topology;
pub mod tree;
mod volume;

pub use access::SecondPublish;
pub use access::{AccessMode, AccessType, Capability};
pub use adopt::{AdoptVolume, Adopted, Adoption, AdoptionOrder, Taken};
pub use backend::{BackendKind, Content, Format};
pub use copy_of::{CopyOf, Cut, Filled};
pub use fs_type::FsType;
pub use fs_type::UnknownFsType;
pub use handover::{
    FoundSnapshot, Handover, KeepSnapshot, MovingId, MovingSnapshot, ReleaseSnapshot, Side, TakeSnapshot,
};
pub use id::{
    GroupSnapshotId, Id, InvalidId, InvalidPoolName, NodeKey, ObjectId, PoolName, SnapshotId, VolumeId,
};
pub use limits::Limits;
pub use mount_flags::{MountFlags, OptionName, VfsFlag};
pub use move_limits::MoveLimits;
pub use parameters::Modification;
pub use parameters::{Consistency, Enforcement, Provisioning, VolumeParameters};
pub use permit::{Grant, Permit};
pub use pod::pod_uid_in;
pub use quota::{QuotaId, QuotaIds};
pub use settings::{InlineSettings, PoolKind, PoolSettings, Reserve, Settings};
pub use size::{
    GRANULARITY, SizeError, SizeRange, format_bytes, format_exactly, format_two, most_bytes, parse_quantity,
    rounded, with_margin,
};
pub use snapshot::{GroupSnapshot, Snapshot, SnapshotObject, Timestamp};
pub use standby::Standby;
pub use topology::{TopologyRequirement, check_topology_value};
pub use volume::{Attachment, Claim, Moved, Phase, Retired, Volume, VolumeSource};
