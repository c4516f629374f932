//! What a controller and its nodes do together.

pub mod processes;
