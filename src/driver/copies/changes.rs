//! What differs between two snapshots of a volume (docs/decisions/0007).

use std::path::PathBuf;

use nix::errno::Errno;

use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
pub(crate) use crate::kernel::Change;
use crate::kernel::{Extent, Images, Side, Sides, is_errno};
use crate::model::Snapshot;

/// The image of a snapshot, which nobody changes.
pub(crate) struct Image<'a> {
    images: &'a dyn Images,
    path: PathBuf,
    /// Both images are in one pool. The places of two disks have the same numbers, and prove nothing.
    is_beside: bool,
}

impl Driver {
    /// Two snapshots of one volume, side by side.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where they are of a directory.
    pub(crate) fn sides(&self, base: &Snapshot, target: &Snapshot) -> Result<Sides<Image<'_>>> {
        let image = |snapshot: &Snapshot| {
            let not_tracked = || {
                Error::InUse(format!(
                    "snapshot {} is of a directory, whose changes are not tracked",
                    snapshot.id
                ))
            };
            let path = self.snapshot_paths(snapshot)?.image().ok_or_else(not_tracked)?;
            let is_beside = base.pool == target.pool;
            Ok::<_, Error>((Image { images: self.os.images.as_ref(), path, is_beside }, snapshot.size_bytes))
        };
        Ok(Sides::new(image(base)?, image(target)?))
    }
}

impl Side for Image<'_> {
    type Error = Error;

    fn extents(&self, at: u64, most: usize) -> Result<Option<Vec<Extent>>> {
        let is_beside = self.is_beside;
        let told = |extent: Extent| Extent { located: extent.located && is_beside, ..extent };
        match self.images.extents(&self.path, at, most, true) {
            Ok(extents) => Ok(Some(extents.into_iter().map(told).collect())),
            Err(error) if is_errno(&error, Errno::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error).doing(|| format!("read the extents of {}", self.path.display())),
        }
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        self.images.read_at(&self.path, at, len).doing(|| format!("read {}", self.path.display()))
    }
}
