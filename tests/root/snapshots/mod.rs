//! Snapshots and groups of them: how they are cut, listed and read.

mod freeze;
mod group_snapshot;
mod metadata;
