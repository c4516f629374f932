//! The life of a volume as its callers see it: created, listed, expanded, modified, deleted.

mod adopt;
mod chart;
mod concurrency;
pub mod controller_expand_volume;
mod controller_publish_volume;
mod create_volume;
mod delete_volume;
mod limits;
mod list_pages;
mod list_volumes;
mod modify_volume;
mod records;
mod requested_sizes;
mod validate_volume_capabilities;
