//! Volumes that move to another node, and copies that stand by (docs/decisions/0022).

pub mod decide;
pub mod exchange;
pub mod nodes;
pub mod objects;
pub mod resources;
pub mod view;

#[cfg(test)]
mod tests;
