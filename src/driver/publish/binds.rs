//! Bind mounts that lack requested flags.
//!
//! Before Linux 5.12, a bind mount gets its flags in a second step. A driver that is killed in between leaves the bind
//! without them. NodePublishVolume has not been acknowledged then, so a retry corrects the bind. An acknowledged bind has
//! the flags of its request and stays unchanged. The process that answered knows which binds it acknowledged. A bind of an
//! earlier process is corrected if no process writes through it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::{has_flags, same_or_exists};
use crate::driver::Driver;
use crate::driver::locks::guarded::Guarded;
use crate::error::{OsContext, Result};
use crate::kernel::{MountEntry, is_errno};
use crate::model::{MountFlags, VolumeId};

/// The paths of the binds that this process has answered for.
#[derive(Default)]
pub(crate) struct Answered(Guarded<HashSet<PathBuf>>);

impl Answered {
    /// Remembers one that is as it was asked for.
    pub(crate) fn remember(&self, path: &Path) {
        self.0.lock().insert(path.to_owned());
    }

    /// Forgets one that was taken away.
    pub(crate) fn forget(&self, path: &Path) {
        self.0.lock().remove(path);
    }
}

impl Driver {
    /// Makes sure that a bind of the volume is as it is asked for: it gets the flags that it lacks, where no answer was
    /// given for it. It never loses one.
    ///
    /// # Errors
    /// ALREADY_EXISTS where it was answered, is stricter than asked for, or somebody writes through it.
    pub(crate) fn settle_bind(
        &self,
        id: &VolumeId,
        there: &MountEntry,
        is_read_only: bool,
        read_only: bool,
        flags: &MountFlags,
    ) -> Result<()> {
        let exists = || same_or_exists(false, || format!("{id} is at {}", there.target.display()));
        if is_read_only == read_only && has_flags(there, flags) {
            self.bound.remember(&there.target);
            return Ok(());
        }
        if is_read_only && !read_only || self.bound.0.lock().contains(&there.target) {
            return exists();
        }
        let wanted = MountFlags { read_only, vfs: flags.vfs.clone(), data: Vec::new() };
        match self.os.mounts.tighten(there, &wanted) {
            Err(error) if is_errno(&error, Errno::EBUSY) => return exists(),
            done => done.doing(|| format!("give the bind of {id} its flags"))?,
        }
        self.bound.remember(&there.target);
        tracing::warn!(
            volume.id = %id, path = %there.target.display(),
            "a bind lacked its flags, as a driver leaves it that was killed: corrected"
        );
        Ok(())
    }
}
