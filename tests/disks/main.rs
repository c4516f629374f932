//! Disks that lie, fail and hang, under the `hostloop serve` process on the real kernel: loop devices on files that the
//! test serves itself, by FUSE.
//!
//! Needs what tests/root needs, and /dev/fuse: it fails without, and never skips.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test, which fails by panicking and looks from outside at what the driver did"
)]

use hostloop_test_support::machine as harness;

mod check;
mod faults;
mod load;
mod lying;
mod model;
mod node;
mod record;
mod server;
mod syncs;

/// The next number of a sequence (splitmix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
