//! Events of claims about what is wrong with their volumes, as the nodes know it: `kubectl describe pvc` shows them. One controller
//! writes them, by a Lease.

mod due;
mod run;
#[cfg(test)]
mod tests;
mod wrong;

pub use run::{Asks, Teller};
