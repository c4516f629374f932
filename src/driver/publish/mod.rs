//! What the RPCs that stage and publish share.

pub(super) mod binds;
pub(super) mod inline;
