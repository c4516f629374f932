//! Snapshots and groups of them: how they are cut, listed and read.

pub mod create_snapshot;
mod delete_snapshot;
mod get_snapshot;
mod group_snapshot;
mod list_snapshots;
mod metadata;
