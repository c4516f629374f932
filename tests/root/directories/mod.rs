//! Directory volumes, with and without an enforced size.

mod at_the_limit;
mod given_limit;
mod old_quotas;
mod placement;
mod protected;
mod qgroups;
mod quota_figures;
pub mod quotas;
mod removals;
