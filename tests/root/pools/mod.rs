//! Pools: their filesystems, devices, health and free space, and what they promise.

mod broken_pools;
mod filesystems;
mod full_disk;
mod lost;
mod managed_pools;
mod other_devices;
mod reserve;
mod space_promises;
