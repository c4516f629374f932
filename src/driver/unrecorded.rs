//! What lies on a disk and has no record, such as after the state file was lost, or an older one was restored.

use std::path::PathBuf;

use super::Driver;
use crate::error::{Error, OsContext, Result};
use crate::model::{SnapshotId, VolumeId};

impl Driver {
    /// Checks that no pool has a directory with the id of a volume that has no record.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if a pool has one; UNAVAILABLE if a pool cannot be used, since the volume may be there.
    pub(super) fn expect_no_files_of_volume(&self, id: &VolumeId) -> Result<()> {
        let found = self.find_directory("volumes", id.as_str())?;
        // What is left of a volume that has moved away has a record with another id, and the directory of the volume.
        let is_of_another = || self.store.volumes().iter().any(|volume| volume.directory() == id);
        expect_none("volume", id.as_str(), found.filter(|_| !is_of_another()))
    }

    /// The same for a snapshot.
    pub(super) fn expect_no_files_of_snapshot(&self, id: &SnapshotId) -> Result<()> {
        expect_none("snapshot", id.as_str(), self.find_directory("snapshots", id.as_str())?)
    }

    fn find_directory(&self, kind: &str, name: &str) -> Result<Option<PathBuf>> {
        for pool in self.pools.names() {
            let path = self.pools.get(&pool)?.path.join(kind).join(name);
            if self.os.files.stat(&path).doing(|| format!("look at {}", path.display()))?.is_some() {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
}

fn expect_none(what: &str, id: &str, found: Option<PathBuf>) -> Result<()> {
    let Some(path) = found else { return Ok(()) };
    Err(Error::InUse(format!(
        "{what} {id} has no record on this node, but {} exists: the state file may be lost, or older than the {what}; restore a later \
         one, or remove the directory if no pod needs its data",
        path.display()
    )))
}
