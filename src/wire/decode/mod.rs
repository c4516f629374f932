//! Proto to model: one function per RPC, with its name. Only here is a request checked for being well formed: required
//! fields, size limits, syntax. Whether it fits the volume is for the use case to decide, so an id that no volume has
//! passes (it is NOT_FOUND or OK later, never INVALID_ARGUMENT).
//!
//! Every error is [`crate::error::Error::Invalid`], with a message that names the field and what to change.
//! Secrets are checked for their form and dropped.

mod capability;
mod consistency;
mod controller;
pub(crate) mod fields;
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

pub use consistency::consistency;
pub use controller::*;
pub use fields::{Metadata, check_secrets, page, snapshot_of, volume_id, volume_of};
pub use node::*;
pub use snapshot::*;
pub use topology::place;
