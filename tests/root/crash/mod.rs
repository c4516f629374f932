//! The end of a driver or of its machine, the next start, and the state that an earlier driver left.

mod anchor;
mod golden;
mod kill;
mod old_state;
mod other_release;
mod rebuilt_state;
mod restart;
mod starting;
