//! Proto to model: one function per RPC, with its name. Only here is a request checked for being well formed: required
//! fields, size limits, syntax. Whether it fits the volume is for the use case to decide, so an id that no volume has
//! passes (it is NOT_FOUND or OK later, never INVALID_ARGUMENT).
//!
//! Every error is [`crate::error::Error::Invalid`], with a message that names the field and what to change.
//! Secrets are checked for their form and dropped.

mod capability;
mod consistency;
mod controller;
mod fields;
mod inline;
mod keys;
mod mutable;
mod node;
mod parameters;
mod snapshot;
mod topology;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod samples;

pub use controller::{
    controller_expand_volume, controller_get_volume, controller_get_volume_health,
    controller_list_volume_health, controller_modify_volume, controller_publish_volume,
    controller_unpublish_volume, create_volume, delete_volume, get_capacity, list_volumes, placement,
    validate_volume_capabilities,
};
pub use node::{
    node_expand_volume, node_get_storage_health, node_get_volume_health, node_get_volume_stats,
    node_publish_volume, node_stage_volume, node_unpublish_volume, node_unstage_volume,
};
pub use snapshot::{
    create_snapshot, create_volume_group_snapshot, delete_snapshot, delete_volume_group_snapshot,
    get_metadata_allocated, get_metadata_delta, get_snapshot, get_volume_group_snapshot, list_snapshots,
};
pub use topology::place;
