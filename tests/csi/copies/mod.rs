//! Volumes that are made from snapshots, from volumes and from what another node has.

mod beside;
mod clone;
mod half_formatted;
mod long_copies;
pub mod pull;
mod restore;
mod turns;
