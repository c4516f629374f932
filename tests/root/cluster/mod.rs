//! What a controller and its nodes do together.

mod attacked;
mod hostile_source;
pub mod processes;
mod two_at_once;
mod wrong_hands;
