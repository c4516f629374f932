//! What a controller and its nodes do together.

mod attacked;
pub mod processes;
mod wrong_hands;
