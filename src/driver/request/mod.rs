//! What several RPCs check in a request.

pub(super) mod check;
pub(crate) mod token;
