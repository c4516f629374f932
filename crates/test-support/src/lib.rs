//! What the tests share, so that there is one of each: the client and its requests, a driver on the fake kernel in the
//! process of the test ([`harness`]), a driver beside it on the real kernel ([`machine`]), a machine's contract, and the
//! model of the volumes that many clients use.
//!
//! A test that waits, waits for a condition with a deadline and a message: [`machine::eventually`].
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::new_without_default,
    clippy::should_implement_trait,
    reason = "tests fail by panicking, look from outside at what the driver did, and have no users elsewhere"
)]

pub mod client;
pub mod contract;
pub mod harness;
pub mod invariants;
pub mod machine;
pub mod model;
pub mod orders;
pub mod pki;
pub mod requests;
