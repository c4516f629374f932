//! The end of a driver or of its machine, the next start, and the state that an earlier driver left.

mod recovered;
mod restart;
mod starting;
mod twice;
