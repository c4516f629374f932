//! The life of a volume as its callers see it: created, listed, expanded, modified, deleted.

mod adopt;
mod controller_expand_volume;
mod controller_publish_volume;
mod every_rpc;
pub mod life;
mod limits;
mod many;
mod many_clients;
mod modify_volume;
mod soak;
mod thick;
mod truncated;
