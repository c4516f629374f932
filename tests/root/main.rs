//! The `hostloop serve` process on the real kernel, driven over its socket as kubelet and the sidecars do it.
//!
//! Needs root, loop devices and the tools of e2fsprogs, xfsprogs, btrfs-progs and util-linux: it fails without.
//! Tests of quotas pass without a check on a kernel that has no such quotas, and print that; `make test-vm` runs
//! those of project quotas on a kernel that has them. Every test has a directory of its own, and asserts at its end
//! that nothing is left of it: no mount, no loop device, no file of a volume.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test, which fails by panicking and looks from outside at what the driver did"
)]

use hostloop_test_support::{client, contract, machine as harness, model, orders};

mod cluster;
mod copies;
mod crash;
mod directories;
#[cfg(target_arch = "x86_64")]
mod kernel_walk;
mod metrics;
mod node;
mod os_contract;
mod pools;
mod snapshots;
mod volumes;
