//! The parts of a move on Kubernetes in memory (crates/fake-kubernetes).

mod api;
mod exchange;
