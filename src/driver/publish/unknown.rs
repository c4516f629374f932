//! What NodeUnpublishVolume and NodeUnstageVolume answer for a volume that this node does not know.
//!
//! kubelet sends both for a pod whose NodeStageVolume or NodePublishVolume ended with a code that leaves open what was done,
//! such as UNAVAILABLE while the driver starts, and repeats them until they succeed. Until then the pod is Terminating, or the
//! node counts as one that uses the volume. The volume may never have been here: a pod can come to the node of a copy, and
//! the move be cancelled. csi.proto has NOT_FOUND for that, which to kubelet is an error like any other. So the answer is OK if
//! the kernel knows nothing of the volume; otherwise it is an error that says what to look at.

use std::path::{Path, PathBuf};

use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::model::VolumeId;

impl Driver {
    /// Checks that a volume which this node does not know is neither at this path nor attached.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if anything is mounted there, or if a mount or a loop device has the name of the volume;
    /// INVALID_ARGUMENT for a path that no volume can be at; INTERNAL if the kernel does not tell.
    pub(crate) fn expect_unknown(&self, id: &VolumeId, volume_id: &str, path: &Path) -> Result<()> {
        let resolved = match self.mount_target(path) {
            Ok(target) => target.path().to_owned(),
            // Nothing is there, unless a mount hides the way to it: that has the same path.
            Err(Error::NotFound(_)) => path.to_owned(),
            Err(error) => return Err(error),
        };
        let refuse = |what: String| {
            Err(Error::InUse(format!(
                "volume {volume_id:?} does not exist on this node, but {what}: unmount or detach it if nothing needs it"
            )))
        };
        let mounts = self.os.mounts.list().doing(|| "look for mounts".to_owned())?;
        if let Some(mount) = mounts.iter().find(|mount| mount.target == path || mount.target == resolved) {
            return refuse(format!("{} is mounted at {}", mount.source, mount.target.display()));
        }
        // A record that was lost would leave these: each has the directory of the volume in its path.
        let is_named = |path: &Path| path.components().any(|name| name.as_os_str() == id.as_str());
        if let Some(mount) = mounts.iter().find(|mount| is_named(&mount.root)) {
            return refuse(format!("a directory of this name is mounted at {}", mount.target.display()));
        }
        match self.device_named(&is_named)? {
            Some((device, file)) => refuse(format!("{} is attached to {}", device.display(), file.display())),
            None => Ok(()),
        }
    }

    /// Returns a loop device and its backing file, if there is one whose path is named so.
    fn device_named(&self, is_named: &dyn Fn(&Path) -> bool) -> Result<Option<(PathBuf, PathBuf)>> {
        let looking = || "find loop devices".to_owned();
        for device in self.os.loops.list().doing(looking)? {
            let file = self.os.loops.backing_path(&device).doing(looking)?;
            if let Some(file) = file.filter(|file| is_named(file)) {
                return Ok(Some((device.path(), file)));
            }
        }
        Ok(None)
    }
}
