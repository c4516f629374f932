//! Volumes that move to another node or another pool, and copies that stand by (docs/decisions/0022).

mod absent;
pub mod act;
pub mod admit;
mod adoption;
pub mod begin;
pub mod claims;
mod companions;
pub mod copies;
mod copying;
mod cutover;
pub mod deadline;
pub mod decide;
pub mod events;
pub mod exchange;
pub mod figures;
mod fits;
pub mod lease;
pub mod look;
pub mod nodes;
pub mod objects;
mod phases;
pub mod places;
pub mod pods;
mod pools;
pub mod progress;
pub mod queue;
pub mod request;
pub mod resources;
mod returns;
mod rooms;
pub mod run;
mod says;
pub mod seen;
mod silence;
mod strays;
pub mod view;

#[cfg(test)]
pub(crate) mod tests;
