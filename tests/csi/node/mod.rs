//! What the node side does for pods: staging, publishing, mounts and devices.

mod details;
mod doctor;
mod doctor_groups;
mod doctor_moves;
mod identity;
mod inline;
mod left_frozen;
mod node_expand_volume;
mod node_get_volume_stats;
mod node_publish_volume;
mod node_stage_volume;
mod node_unpublish_volume;
mod orphans;
mod register;
mod taken_over;
mod unknown_volume;
mod xfs;
