//! Pools: their filesystems, devices, health and free space, and what they promise.

mod get_capacity;
mod managed_pools;
mod other_kind;
mod pool_health;
mod pool_markers;
mod space_promises;
