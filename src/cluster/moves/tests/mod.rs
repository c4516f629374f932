//! The parts of a move, and whole moves, on Kubernetes in memory (crates/fake-kubernetes).

mod api;
mod exchange;
mod nodes;
mod whole;
mod world;
