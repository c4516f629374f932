//! CSI NodeExpandVolume.

use super::{Driver, request::check};
use crate::backend::{not_at, presence_of, resolve};
use crate::error::{Error, OsContext, Result};
use crate::kernel::MountEntry;
use crate::model::request::NodeExpandVolume;

impl Driver {
    /// Lets a volume in use take on the size of its storage; the storage grows first where the caller wants
    /// more than it has. Returns the volume's size in bytes. A volume that is large enough stays as it is.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown volume, or one that is not at the path; OUT_OF_RANGE; FAILED_PRECONDITION
    /// where it is mounted read-only; INVALID_ARGUMENT for a capability that the volume does not have.
    pub fn node_expand_volume(&self, request: NodeExpandVolume) -> Result<u64> {
        let (_guard, volume) = self.take_at_node(&request.volume_id)?;
        if let Some(capability) = &request.capability {
            check::capability(&volume, capability, Error::Invalid)?;
        }
        let not_there = || not_at(&volume, &request.volume_path);
        if !request.volume_path.is_absolute() {
            return Err(not_there());
        }
        let paths = self.paths(&volume)?;
        let (place, presence) = (self.place(&volume, &paths), presence_of(&volume.content));
        let uses = presence.uses(place)?;
        let there = if volume.is_block() {
            // kubelet may send the published file, its own map of it, or a link to the device.
            let stat = self.os.files.stat(&request.volume_path);
            stat.doing(|| format!("look at {}", request.volume_path.display()))?.is_some()
                && !uses.loops.is_empty()
        } else {
            match resolve(&self.os, &request.volume_path) {
                Ok(target) => uses.top_at(&self.os, target.path())?.is_some(),
                Err(Error::Invalid(_) | Error::NotFound(_)) => false,
                Err(error) => return Err(error),
            }
        };
        if !there {
            return Err(not_there());
        }
        uses.sound(place)?;
        let writable = |mount: &MountEntry| !mount.read_only && !mount.superblock_read_only;
        if volume.fs_type().is_some() && !uses.all().any(writable) {
            return Err(Error::InUse(format!(
                "volume {} is mounted read-only and cannot be grown",
                volume.id
            )));
        }
        let volume = self.expand(volume, request.size)?;
        let paths = self.paths(&volume)?;
        presence.grow_in_use(self.place(&volume, &paths), &uses)?;
        Ok(volume.capacity_bytes)
    }
}
