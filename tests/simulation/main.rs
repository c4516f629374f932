//! A whole cluster in one process, which a seed decides: two controllers, five nodes on fake kernels, their connections
//! with real certificates, and the sidecars and kubelets that call them. Threads, time, random bytes and the net are the
//! simulation's (`libc.rs`, `schedule.rs`, `net.rs`), so that the same seed is the same run; docs/decisions/0011 says how.
//!
//! Each seed is a process of its own, which nothing of another one touches:
//!
//! ```text
//! make simulate SEEDS=1000         a thousand of them from 0 on
//! make simulate SEED=17            one, with all that happens
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests fail by panicking, and start themselves again"
)]
#![allow(missing_docs)]

use hostloop_fake_kubernetes as kubernetes;
use hostloop_test_support::{pki, requests};

mod calls;
mod gate;
mod harness;
mod libc;
mod life;
mod machine;
mod moves;
mod nemesis;
mod net;
mod random;
mod run;
mod schedule;
mod seeds;

/// Takes something that happens into the trace, and shows it where one seed is looked at.
pub fn log(text: impl FnOnce() -> String) {
    let text = text();
    schedule::note(&text);
    if run::is_shown() {
        let time = schedule::elapsed();
        println!("{:>6}.{:06} {text}", time / 1_000_000_000, time / 1000 % 1_000_000);
    }
}
