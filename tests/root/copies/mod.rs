//! Volumes that are made from snapshots, from volumes and from what another node has.

mod copy_on_write;
mod copy_tree;
mod in_use;
mod os_copies;
mod pull;
