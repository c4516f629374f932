//! What the node side does for pods: staging, publishing, mounts and devices.

mod bare_dev;
mod doctor;
mod flags;
mod foreign;
mod held;
mod inline;
mod left_frozen;
pub mod long_tools;
mod mount_options;
mod namespaces;
mod node_expand_volume;
mod node_unpublish_volume;
mod old_kernels;
mod one_step;
mod orphans;
mod os_mounts;
mod propagated;
mod read_only_sysfs;
mod readonly;
mod stacked;
mod subvolumes;
mod taken_over;
mod unused_devices;
