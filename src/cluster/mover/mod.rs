//! Volumes that move to another node while pods use them (docs/moving.md; docs/decisions/0018).
//!
//! A move has two halves. As long as the claim is there, what was done is written on the claim, which a finalizer holds
//! (`look.rs` reads what is known, `decide.rs` says what comes next, `act.rs` and `swap.rs` do it, `hindered.rs` what it means
//! if they cannot). When the copy is complete, its PersistentVolume holds the record of the claim, and the claim is made again
//! for it (`rebind.rs`). What the nodes have to do is in `copies.rs`.

pub(in crate::cluster) mod act;
mod api;
pub mod copies;
mod decide;
mod figures;
pub(in crate::cluster) mod fits;
mod hindered;
mod lease;
mod look;
pub(in crate::cluster) mod objects;
mod rebind;
mod refuse;
mod run;
mod standby;
pub mod status;
mod swap;
pub(in crate::cluster) mod view;

pub use self::act::{Failure, Mover, Next};
pub use self::figures::Figures;
pub use self::lease::lease_name;
pub use self::view::node_of;

#[cfg(test)]
pub(crate) mod tests;
