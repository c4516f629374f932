//! The `hostloop serve` process on the real kernel, driven over its socket as kubelet and the sidecars do it.
//!
//! Needs root, loop devices and the tools of e2fsprogs, xfsprogs, btrfs-progs and util-linux: it fails without,
//! and never skips. Every test has a directory of its own, and asserts at its end that nothing is left of it:
//! no mount, no loop device, no file of a volume.
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

mod anchor;
mod at_the_limit;
mod bare_dev;
mod bench;
mod blocks;
mod broken_pools;
mod cluster;
mod copies;
mod copy_on_write;
mod copy_tree;
mod directories;
mod failed_expansion;
mod flags;
mod foreign;
mod freeze;
mod full_disk;
mod given_limit;
mod golden;
mod groups;
mod growth;
mod health;
mod held;
mod inline;
#[cfg(target_arch = "x86_64")]
mod kernel_walk;
mod kill;
mod left_frozen;
mod life;
mod limit;
mod logs;
mod long_tools;
mod lost;
mod managed_pools;
mod many;
mod many_clients;
mod modify;
mod mount_options;
mod namespaces;
mod old_kernels;
mod old_quotas;
mod old_state;
mod one_step;
mod orphans;
mod os_contract;
mod os_copies;
mod os_mounts;
mod other_devices;
mod other_release;
mod pools;
mod process;
mod propagated;
mod protected;
mod pull;
mod qgroups;
mod quota_figures;
mod quotas;
mod read_only_sysfs;
mod readonly;
mod removals;
mod reserve;
mod restart;
mod selftest;
mod soak;
mod space_promises;
mod stacked;
mod starting;
mod streams;
mod subvolumes;
mod taken_over;
mod thick;
mod truncated;
mod unpublish;
mod unused_devices;
mod updates;
