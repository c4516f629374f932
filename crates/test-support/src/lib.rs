//! Code that several test programs share: the client and its requests, a driver on the fake kernel in the test's own
//! process ([`harness`]), a driver process on the real kernel ([`machine`]), the contract of the kernel traits
//! ([`contract`]), and a sequential model of volumes for many clients ([`model`]).
//!
//! Tests wait for a condition with a deadline and a message ([`wait`]). They sleep for a fixed time only where nothing
//! can be waited for, such as a permit that expires.
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
pub mod hostile;
pub mod invariants;
pub mod machine;
pub mod model;
pub mod orders;
pub mod pki;
pub mod requests;
pub mod wait;
