//! What lies on a disk and has no record, such as after the state file was lost, or an older one was restored.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Driver, Pool};
use crate::backend::{Mark, VolumePaths, label, presence_of};
use crate::error::{Error, OsContext, Result};
use crate::model::{
    BackendKind, Content, Format, FsType, Phase, SnapshotId, Volume, VolumeId, VolumeParameters,
};

impl Driver {
    /// Checks that no pool has a directory with the id of a volume that has no record.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if a pool has one; UNAVAILABLE if a pool cannot be used, since the volume may be there.
    pub(super) fn expect_no_files_of_volume(&self, id: &VolumeId) -> Result<()> {
        let found = self.find_directory("volumes", id.as_str())?;
        expect_none("volume", id.as_str(), found.filter(|_| !self.is_of_another(id)))
    }

    /// Returns a record for a volume that has a directory and none: what the disk and the kernel say of it. It is there to take
    /// down what is mounted or attached, so that a pod can end, and is never stored. `None` if no pool that answers has such a
    /// directory, or if it cannot be told what the volume is; [`expect_unknown`](Self::expect_unknown) asks the kernel then.
    ///
    /// # Errors
    /// INTERNAL if the kernel does not tell what is mounted or attached.
    pub(super) fn unrecorded_volume(&self, id: &VolumeId) -> Result<Option<Arc<Volume>>> {
        for name in self.pools.names() {
            let Ok(pool) = self.pools.get(&name) else { continue };
            if let Some(content) = self.unrecorded_content(&pool, id)?.filter(|_| !self.is_of_another(id)) {
                tracing::warn!(volume.id = %id, pool = %name, "this volume has no record; what is mounted or attached can be taken down");
                return Ok(Some(Arc::new(unrecorded(id, &pool, content))));
            }
        }
        Ok(None)
    }

    /// Returns what a directory without a record holds, as far as it matters to what is mounted and attached.
    fn unrecorded_content(&self, pool: &Pool, id: &VolumeId) -> Result<Option<Content>> {
        let has_data = |backend| {
            let data = VolumePaths::new(&pool.path, id, backend).data();
            self.os.files.stat(&data).is_ok_and(|found| found.is_some())
        };
        if !has_data(BackendKind::Loop) {
            return Ok(has_data(BackendKind::Directory).then_some(Content::Directory));
        }
        let filesystem = |fs_type| Content::Filesystem { fs_type, format: Format::Formatted };
        let uses = |content: Content| {
            let guess = unrecorded(id, pool, content);
            let paths = self.paths_of_use(&guess)?;
            presence_of(&guess.content).uses(self.place(&guess, &paths))
        };
        // The mounts of a btrfs are told in another way than those of the others.
        for fs_type in FsType::ALL {
            if uses(filesystem(fs_type))?.all().any(|mount| mount.fs_type == fs_type.as_str()) {
                return Ok(Some(filesystem(fs_type)));
            }
        }
        let as_device = uses(Content::Block)?;
        if as_device.all().next().is_some() || !as_device.any() {
            return Ok(Some(Content::Block));
        }
        // The device of a volume with a filesystem goes with its last mount: this one is an administrator's, and stays.
        let paths = VolumePaths::new(&pool.path, id, BackendKind::Loop);
        let is_filesystem = [Mark::Formatting, Mark::Formatted].into_iter().any(|mark| {
            // If the disk does not tell, it may be one.
            mark.is_set(&self.os, &paths).unwrap_or(true)
        });
        let is_unlabelled = matches!(label(self.os.images.as_ref(), &paths.data()), Ok(None));
        Ok((is_unlabelled && !is_filesystem).then_some(Content::Block))
    }

    /// Reports whether the directory with this name belongs to another record: to what is left of a volume that has moved away.
    fn is_of_another(&self, id: &VolumeId) -> bool {
        self.store.volumes().iter().any(|volume| volume.directory() == id)
    }

    /// The same for a snapshot.
    pub(super) fn expect_no_files_of_snapshot(&self, id: &SnapshotId) -> Result<()> {
        expect_none("snapshot", id.as_str(), self.find_directory("snapshots", id.as_str())?)
    }

    /// The same for the members of a group that has no record, by the ids that a caller names.
    pub(super) fn expect_no_files_of_members(&self, snapshot_ids: &[String]) -> Result<()> {
        let ids = snapshot_ids.iter().filter_map(|id| id.parse().ok());
        let mut unrecorded = ids.filter(|id| self.store.snapshot(id).is_none());
        unrecorded.try_for_each(|id| self.expect_no_files_of_snapshot(&id))
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

fn unrecorded(id: &VolumeId, pool: &Pool, content: Content) -> Volume {
    Volume {
        id: id.clone(),
        directory: None,
        generation: 0,
        name: String::new(),
        phase: Phase::Ready,
        capacity_bytes: 0,
        requested_bytes: None,
        parameters: VolumeParameters {
            backend: content.backend(),
            pool: pool.name.clone(),
            ..VolumeParameters::default()
        },
        content,
        capabilities: Vec::new(),
        block_size: 0,
        source: None,
        quota: None,
        copy_of: None,
        moved_to: None,
        unsealed: 0,
        retired: None,
        inline_target: None,
        attachments: Vec::new(),
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
