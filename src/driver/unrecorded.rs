//! What lies on a disk and has no record, such as after the state file was lost, or an older one was restored.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Driver, Pool};
use crate::backend::{Mark, VolumePaths, label, presence_of, read_record, record_path};
use crate::error::{Error, OsContext, Result};
use crate::model::{
    BackendKind, Content, Format, FsType, Phase, Snapshot, SnapshotId, Volume, VolumeId, VolumeParameters,
};
use crate::store::{Beside, Subject};

impl Driver {
    /// Checks that no pool has the directory of a volume that has no record.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if a pool has one; UNAVAILABLE if a pool cannot be used, because the volume may be there.
    pub(super) fn expect_no_files_of_volume(&self, id: &VolumeId) -> Result<()> {
        let found = self.find_directory("volumes", id.as_str())?;
        expect_none("volume", id.as_str(), found.filter(|_| !self.is_of_another(id)))
    }

    /// Checks that no pool has the directory of a snapshot that has no record.
    ///
    /// # Errors
    /// Those of [`expect_no_files_of_volume`](Self::expect_no_files_of_volume).
    pub(super) fn expect_no_files_of_snapshot(&self, id: &SnapshotId) -> Result<()> {
        expect_none("snapshot", id.as_str(), self.find_directory("snapshots", id.as_str())?)
    }

    /// Checks that no pool has the directory of a snapshot that has no record, for the members of a group that a caller names.
    ///
    /// # Errors
    /// Those of [`expect_no_files_of_volume`](Self::expect_no_files_of_volume).
    pub(super) fn expect_no_files_of_members(&self, snapshot_ids: &[String]) -> Result<()> {
        let ids = snapshot_ids.iter().filter_map(|id| id.parse().ok());
        let mut unrecorded = ids.filter(|id| self.store.snapshot(id).is_none());
        unrecorded.try_for_each(|id| self.expect_no_files_of_snapshot(&id))
    }

    /// Returns a volume that has lost its record in the state file, as the record beside its data says.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn volume_beside(&self, id: &VolumeId) -> Result<Option<Arc<Volume>>> {
        let found = self.beside(|pool, backend| VolumePaths::new(&pool.path, id, backend))?;
        Ok(found.and_then(|(pool, subject)| match subject {
            Subject::Volume(volume)
                if volume.id == *id && volume.directory() == id && *volume.pool() == pool.name =>
            {
                Some(Arc::new(volume))
            }
            _ => None,
        }))
    }

    /// Returns a snapshot that has lost its record in the state file, as the record beside its data says. Returns no member of a group.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn snapshot_beside(&self, id: &SnapshotId) -> Result<Option<Arc<Snapshot>>> {
        let found = self.beside(|pool, backend| VolumePaths::of_snapshot(&pool.path, id, backend))?;
        Ok(found.and_then(|(pool, subject)| match subject {
            Subject::Snapshot(snapshot, None)
                if snapshot.id == *id && snapshot.pool == pool.name && snapshot.pulled_for.is_none() =>
            {
                Some(Arc::new(snapshot))
            }
            _ => None,
        }))
    }

    /// Reads the record of this driver beside data that a pool has.
    fn beside(
        &self,
        paths: impl Fn(&Pool, BackendKind) -> VolumePaths,
    ) -> Result<Option<(Arc<Pool>, Subject)>> {
        for pool in self.pools.open() {
            for backend in BackendKind::ALL {
                let paths = paths(&pool, backend);
                let data = paths.data();
                if self.os.files.stat(&data).doing(|| format!("look at {}", data.display()))?.is_none() {
                    continue;
                }
                let record = read_record(&self.os, &record_path(&paths))?;
                let record = record.and_then(|bytes| Beside::read(&bytes).ok());
                if let Some(beside) = record.filter(|it| it.identity == *self.store.identity()) {
                    return Ok(Some((pool, beside.subject)));
                }
            }
        }
        Ok(None)
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

    /// Reports whether the directory with this name belongs to another record: to what is left of a volume that has moved away.
    fn is_of_another(&self, id: &VolumeId) -> bool {
        self.store.volumes().iter().any(|volume| volume.directory() == id)
    }

    /// Returns what the disk and the kernel say of a volume that has a directory and no record. The driver takes down what is mounted or
    /// attached of it, so that a pod can end, and never stores it. Returns `None` if no pool that can be used has such a directory, if
    /// nothing is attached, or if the kind of the volume is not known: [`expect_unknown`](Self::expect_unknown) asks the kernel then.
    ///
    /// # Errors
    /// INTERNAL if the kernel does not say what is mounted or attached.
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

    /// Returns what a directory without a record holds, according to what is mounted and attached.
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
        // The mounts of a btrfs do not have the number of their device, so the type has to be tried.
        for fs_type in FsType::ALL {
            if uses(filesystem(fs_type))?.all().any(|mount| mount.fs_type == fs_type.as_str()) {
                return Ok(Some(filesystem(fs_type)));
            }
        }
        let as_device = uses(Content::Block)?;
        if as_device.all().next().is_some() {
            return Ok(Some(Content::Block));
        }
        // The device of a volume with a filesystem goes with its last mount. An administrator has attached this one, and it stays.
        let paths = VolumePaths::new(&pool.path, id, BackendKind::Loop);
        let may_be_set = |mark: Mark| mark.is_set(&self.os, &paths).unwrap_or(true);
        let may_be_filesystem = may_be_set(Mark::Formatting)
            || may_be_set(Mark::Formatted)
            || !matches!(label(self.os.images.as_ref(), &paths.data()), Ok(None));
        Ok((as_device.any() && !may_be_filesystem).then_some(Content::Block))
    }
}

fn unrecorded(id: &VolumeId, pool: &Pool, content: Content) -> Volume {
    let (backend, pool) = (content.backend(), pool.name.clone());
    let parameters = VolumeParameters { backend, pool, ..VolumeParameters::default() };
    Volume::new(id.clone(), Phase::Ready, content, parameters)
}

fn expect_none(what: &str, id: &str, found: Option<PathBuf>) -> Result<()> {
    let Some(path) = found else { return Ok(()) };
    Err(Error::InUse(format!(
        "{what} {id} has no record on this node, but {} exists: the state file may be lost, or older than the {what}; \
         \"hostloop state rebuild\" records it again, or remove the directory if no pod needs its data",
        path.display()
    )))
}
