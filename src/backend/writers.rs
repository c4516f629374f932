//! Who may be writing to a volume: what must stand still for a copy of one point in time.

use super::{Place, Uses};
use crate::error::Result;
use crate::kernel::{LoopDevice, MountEntry};

/// Who may be writing to a volume.
pub enum Writers {
    /// Nobody.
    None,
    /// Its filesystem is mounted, here among others, and on these devices.
    Mounted(MountEntry, Vec<LoopDevice>),
    /// Its raw devices are attached.
    Raw(Vec<LoopDevice>),
    /// Its directory is mounted: a copy is of one moment if it is made in one step. How it is.
    Directory(String),
    /// Its filesystem is mounted where this process does not see it: it cannot be frozen. How it is.
    Unstoppable(String),
}

/// A mount of the volume whose filesystem can be written to.
pub(super) fn mount(place: Place<'_>, uses: &Uses) -> Result<Option<MountEntry>> {
    Ok(uses.reachable(place.os, |mount| !mount.superblock_read_only)?.cloned())
}

/// Its devices that can be written to.
pub(super) fn devices(uses: &Uses) -> Vec<LoopDevice> {
    uses.loops.iter().filter(|device| !device.read_only).cloned().collect()
}
