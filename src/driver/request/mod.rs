//! What several RPCs look up and check in a request.

pub(super) mod check;
mod lookup;
mod target;
pub(crate) mod token;
