//! The whole driver over a real socket, on a fake kernel: what a CSI caller sees, with every kill and fault.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(missing_docs)]

mod harness;
mod invariants;
mod requests;

mod concurrency;
mod controller_publish_volume;
mod create_volume;
mod delete_volume;
mod expand_volume;
mod get_capacity;
mod identity;
mod inline;
mod life;
mod limits;
mod list_volumes;
mod node_get_volume_stats;
mod node_publish_volume;
mod node_stage_volume;
mod node_unpublish_volume;
mod restart;
mod secrets;
mod support;
mod validate_volume_capabilities;
mod walk;
