//! Volumes that move to another node, and copies that stand by (docs/decisions/0022).

pub mod exchange;
pub mod nodes;
pub mod objects;
pub mod resources;

#[cfg(test)]
mod tests;
