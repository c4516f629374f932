//! What the RPCs that stage and publish share.

pub(super) mod binds;
pub(super) mod inline;
pub(super) mod orphans;
mod unknown;

use crate::backend::{Place, Target, refuses_writes};
use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::kernel::MountEntry;
use crate::model::{MountFlags, Volume};

impl Driver {
    /// Whether ControllerPublishVolume granted reading only. Without `--attach` everything is granted.
    pub(crate) fn granted_read_only(&self, volume: &Volume) -> Result<bool> {
        if !self.settings.attach || volume.id.is_inline() {
            return Ok(false);
        }
        let node = &self.settings.node_id;
        let attachment = volume.attachments.iter().find(|there| there.node_id == *node);
        let missing = || {
            Error::InUse(format!(
                "volume {} is not published to node {node:?}: call ControllerPublishVolume first",
                volume.id
            ))
        };
        attachment.map(|there| there.read_only).ok_or_else(missing)
    }

    /// Makes sure that no one else has mounted something at the path.
    pub(crate) fn nothing_else_at(&self, target: &Target) -> Result<()> {
        if !target.exists() {
            return Ok(());
        }
        let is_there = |mount: &MountEntry| mount.target == target.path();
        let there = self.os.mounts.matching(&is_there).doing(|| "look for mounts".to_owned())?;
        match there.last() {
            Some(other) => {
                let (path, source) = (target.path().display(), &other.source);
                Err(Error::InUse(format!("{path} has another mount on it ({} from {source})", other.fs_type)))
            }
            None => Ok(()),
        }
    }
}

/// Makes sure that a mounted filesystem takes writes, as long as its mount does.
///
/// # Errors
/// FAILED_PRECONDITION with what health says of it.
pub(crate) fn expect_writable(place: Place<'_>, mount: &MountEntry) -> Result<()> {
    match refuses_writes(place, mount) {
        Some(trouble) => {
            Err(Error::InUse(format!("volume {} takes no writes: {}", place.volume.id, trouble.message)))
        }
        None => Ok(()),
    }
}

/// The answer where something is there already: fine if it is what is asked for.
pub(crate) fn same_or_exists(same: bool, what: impl FnOnce() -> String) -> Result<()> {
    if same {
        Ok(())
    } else {
        Err(Error::AlreadyExists(format!("{} with another capability, flags or access", what())))
    }
}

/// Whether a mount has every flag that was asked for, as far as mountinfo shows them per mount.
pub(crate) fn has_flags(mount: &MountEntry, flags: &MountFlags) -> bool {
    flags.vfs.iter().filter(|flag| flag.is_comparable()).all(|flag| mount.flags.contains(flag))
}
