//! Copies of volumes: snapshots, and volumes that are made from a snapshot or from another volume.

pub(super) mod block_ranges;
pub(super) mod changes;
pub(super) mod cut;
mod freeze;
pub(super) mod origin;
pub(super) mod progress;
pub(super) mod snapshots;
