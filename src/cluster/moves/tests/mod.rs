//! The parts of a move, and whole moves, on Kubernetes in memory (crates/fake-kubernetes).

mod adoption;
mod aftermath;
pub(crate) mod api;
mod copying;
mod crowd;
mod exchange;
mod hostile;
mod leading;
mod load;
mod lost_status;
pub(crate) mod nodes;
mod pods;
mod pools;
mod stuck;
mod whole;
mod world;
