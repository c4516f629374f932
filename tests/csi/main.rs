//! The whole driver over a real socket, on a fake kernel: what a CSI caller sees, with every kill and fault.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(missing_docs)]

use hostloop_test_support::{client, harness, invariants, requests, wait};

mod bench;
mod beside;
mod chart;
mod clone;
mod concurrency;
mod controller_publish_volume;
mod create_snapshot;
mod create_volume;
mod cuts;
mod delete_snapshot;
mod delete_volume;
mod expand_volume;
mod expiry;
mod get_capacity;
mod get_snapshot;
mod given_limit;
mod group_snapshot;
mod half_formatted;
mod identity;
mod inline;
mod left_frozen;
mod life;
mod limited;
mod limits;
mod list_pages;
mod list_snapshots;
mod list_volumes;
mod long_copies;
mod managed_pools;
mod metadata;
mod metrics;
mod modify_volume;
mod monitoring;
mod names;
mod node_get_volume_stats;
mod node_publish_volume;
mod node_stage_volume;
mod node_unpublish_volume;
mod orphans;
mod other_kind;
mod pool_health;
mod pool_markers;
mod protected;
mod pull;
mod recovered;
mod register;
mod removals;
mod requested_sizes;
mod restart;
mod restore;
mod scrape;
mod secrets;
mod silent;
mod space;
mod starting;
mod subvolumes;
mod support;
mod taken_over;
mod turns;
mod twice;
mod validate_volume_capabilities;
mod volume_health;
mod walk;
mod xfs;
