//! The whole driver over a real socket, on a fake kernel: what a CSI caller sees, with every kill and fault.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(missing_docs)]

use hostloop_test_support::{client, harness, invariants, requests, wait};

mod cluster;
mod copies;
mod crash;
mod cuts;
mod directories;
mod life;
mod metrics;
mod node;
mod pools;
mod snapshots;
mod state;
mod support;
mod volumes;
mod walk;
