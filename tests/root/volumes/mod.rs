//! The life of a volume as its callers see it: created, listed, expanded, modified, deleted.

mod failed_expansion;
pub mod life;
mod limit;
mod many;
mod many_clients;
mod modify_volume;
mod soak;
mod thick;
mod truncated;
