//! What a controller and its nodes do together.

mod names;
