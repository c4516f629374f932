//! Directory volumes, with and without an enforced size.

mod given_limit;
mod protected;
mod qgroups;
pub mod quotas;
mod removals;
