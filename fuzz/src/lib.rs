//! What the fuzz targets run, each as a function of one input. A target fails by a panic.
//!
//! `fuzz_targets/` has the programs, as cargo-fuzz wants them; `scripts/fuzz` builds and runs them without it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "test support only: a broken promise must end the run"
)]

pub mod config;
pub mod grpc;
pub mod machine;
pub mod messages;
pub mod mountinfo;
pub mod mutate;
pub mod pull;
pub mod registration;
pub mod rpc;
pub mod seeds;
pub mod signature;
pub mod state;
pub mod tree;
