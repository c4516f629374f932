//! A cluster in one process: nodes on fake kernels and controllers before them that are called over their sockets, and
//! what its processes let each other do over real connections.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests fail by panicking, and write files"
)]
#![allow(missing_docs)]

use hostloop_test_support::{orders, pki, requests, wait};

mod harness;

mod adopted;
mod answering;
mod certs;
mod codes;
mod controllers;
mod details;
mod discovery;
mod down;
mod forget;
mod groups;
mod health;
mod list_pages;
mod lists;
mod log;
mod lost_answers;
mod move_calls;
mod move_pools;
mod moved;
mod moved_snapshots;
mod newer;
mod peer;
mod permit_keys;
mod permits;
mod placement;
mod renewal;
mod silent;
mod sources;
mod streams;
mod tls;
mod wrong_hands;
