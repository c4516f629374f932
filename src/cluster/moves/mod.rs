//! Volumes that move to another node, and copies that stand by (docs/decisions/0022).

pub mod act;
pub mod admit;
pub mod begin;
mod copying;
mod cutover;
pub mod decide;
pub mod exchange;
pub mod look;
pub mod nodes;
pub mod objects;
pub mod pods;
pub mod queue;
pub mod request;
pub mod resources;
pub mod seen;
mod silence;
pub mod view;

#[cfg(test)]
mod tests;
