//! UpdateCopy of the protocol between the processes of a cluster.

use std::sync::Arc;

use crate::backend::{Mark, VolumePaths, content_of_copy, presence_of, sync_files};
use crate::driver::pull::{Counted, Remote};
use crate::driver::{Driver, not_found, settled};
use crate::error::{Error, OsContext, Result};
use crate::model::copy_of::{UpdateCopy, Updated};
use crate::model::pull::{Keep, OpenSource};
use crate::model::{
    Consistency, Content, CopyOf, Cut, Format, Provisioning, SizeRange, Volume, VolumeId, VolumeSource,
};

/// A copy in the middle of its update; its lock is held.
struct Round<'a> {
    driver: &'a Driver,
    source: VolumeId,
    request: &'a UpdateCopy,
}

impl Driver {
    /// Brings a copy up to date: to a cut of its source that is made now. What an earlier call has begun is ended first.
    ///
    /// # Errors
    /// NOT_FOUND where there is no such copy, or its source is gone, or the cut that it has is gone from the node of that;
    /// ABORTED while another operation on it runs; FAILED_PRECONDITION for a volume that is no copy; RESOURCE_EXHAUSTED without room; UNAVAILABLE where that node cannot be reached. The copy is at the cut that it had,
    /// or on its way to the next one.
    pub fn update_copy(&self, request: &UpdateCopy) -> Result<Updated> {
        let volume_id = &request.volume_id;
        let id = self.controller_id(volume_id).ok_or_else(|| not_found(volume_id))?;
        let _guard = self.lock(&id).inspect_err(|_| {
            if let Some(VolumeSource::Volume(source)) =
                self.store.get(&id).and_then(|volume| volume.source.clone())
            {
                // Perhaps it is pulled at this moment, from a node that has moved meanwhile, with a permit that ends.
                self.pulls.show(&id, &VolumeSource::Volume(source), &request.way);
            }
        })?;
        let volume = self.ready_volume(&id, volume_id)?;
        let (Some(copy_of), Some(VolumeSource::Volume(source))) = (&volume.copy_of, &volume.source) else {
            return Err(Error::InUse(format!(
                "volume {id} is not a copy that is brought up to date, or has been completed"
            )));
        };
        let _turn = self.copy_turn()?;
        self.expect_unused(&volume)?;
        let round = Round { driver: self, source: source.clone(), request };
        let (volume, ended) = match &copy_of.next {
            None => (Arc::clone(&volume), Counted::default()),
            Some(next) => {
                let remote = round.open(&volume, Keep::Made(next.handle()))?;
                round.apply(volume.clone(), &remote, copy_of.cut.clone())?
            }
        };
        let base = volume.copy_of.as_ref().map_or(&copy_of.cut, |copy| &copy.cut).clone();
        let remote = round.open(&volume, Keep::After(base.handle()))?;
        let (volume, counted) = round.apply(volume, &remote, base)?;
        let cut = volume.copy_of.as_ref().map_or_else(|| remote.cut(), |copy| copy.cut.clone());
        let updated = Updated {
            cut,
            sent_bytes: ended.sent_bytes + counted.sent_bytes,
            changed_bytes: ended.changed_bytes + counted.changed_bytes,
        };
        let Updated { sent_bytes, changed_bytes, .. } = updated;
        tracing::info!(volume.id = %volume.id, %source, sent_bytes, changed_bytes, sealed = updated.cut.sealed, "the copy is up to date");
        Ok(updated)
    }

    /// Nobody can stage it; somebody may have attached its image nevertheless.
    fn expect_unused(&self, volume: &Volume) -> Result<()> {
        let paths = self.paths(volume)?;
        let uses = settled(|| presence_of(&volume.content).uses(self.place(volume, &paths)))?;
        match uses.any() {
            true => Err(Error::InUse(format!("copy {} is in use: {}", volume.id, uses.describe()))),
            false => Ok(()),
        }
    }
}

impl Round<'_> {
    fn open(&self, volume: &Volume, keep: Keep) -> Result<Remote> {
        let driver = self.driver;
        let sources = driver.remote_sources.as_ref();
        let sources =
            sources.ok_or_else(|| Error::Unavailable("this node pulls from no other one".to_owned()))?;
        let (source, target) = (VolumeSource::Volume(self.source.clone()), volume.id.clone());
        let is_cut = matches!(keep, Keep::Made(_));
        let consistency: Consistency = self.request.consistency;
        let request = OpenSource { source, target, consistency, began: None, keep };
        let remote = driver.open_for(sources.as_ref(), &self.request.way, &volume.id, request);
        let remote = remote.map_err(|error| match error {
            Error::NotFound(why) => Error::NotFound(format!(
                "copy {} cannot be brought up to date any more: {why}; delete it and make another one",
                volume.id
            )),
            error => error,
        })?;
        if is_cut {
            remote.keep(); // the record needs it
        }
        Ok(remote)
    }

    /// Gives a copy that has `base`, or some of it, all of the opened cut.
    fn apply(&self, volume: Arc<Volume>, remote: &Remote, base: Cut) -> Result<(Arc<Volume>, Counted)> {
        let (driver, next) = (self.driver, remote.cut());
        let description = remote.description();
        let content = content_of_copy(
            &description.content,
            &remote.source.to_string(),
            &volume.parameters,
            &volume.capabilities,
        )?;
        if description.block_size != volume.block_size {
            return Err(Error::InUse(format!(
                "{} has blocks of {} bytes by now, and copy {} of {}; delete it and make another one",
                remote.source, description.block_size, volume.id, volume.block_size
            )));
        }
        let size = SizeRange { required: description.size_bytes, limit: 0 };
        let volume = driver.expand(volume, size)?;
        let copy_of = CopyOf { cut: base.clone(), next: Some(next.clone()) };
        // First: a record whose write failed may be there all the same.
        remote.keep();
        let volume = driver.store.put(Volume { copy_of: Some(copy_of), ..(*volume).clone() })?;
        let paths = driver.paths(&volume)?;
        let counted = self.pull(&volume, remote, &base, &paths)?;
        self.tell_half_formatted(&description.content, &paths)?;
        sync_files(&driver.os, &paths)?;
        let copy_of = Some(CopyOf { cut: next, next: None });
        let volume = driver.store.put(Volume { copy_of, content, ..(*volume).clone() })?;
        driver.usage.forget(&volume.id);
        remote.close(&base.id);
        Ok((volume, counted))
    }

    fn pull(&self, volume: &Volume, remote: &Remote, base: &Cut, paths: &VolumePaths) -> Result<Counted> {
        let no_image = || Error::InUse(format!("copy {} is a directory", volume.id));
        let image = paths.image().ok_or_else(no_image)?;
        let is_thick = volume.parameters.provisioning == Provisioning::Thick;
        let mut progress = self.driver.copies.begin(volume.id.as_str(), remote.description().data_bytes);
        self.driver.pulling(remote, volume, |driver| {
            driver.pull_changes_to(remote, &base.handle(), (&image, is_thick), &mut progress)
        })
    }

    /// What a mkfs has left that was cut off is told by a mark.
    fn tell_half_formatted(&self, content: &Content, paths: &VolumePaths) -> Result<()> {
        let os = &self.driver.os;
        let syncing = || format!("sync {}", paths.directory.display());
        match content.format() == Some(Format::Formatting) {
            true => Mark::Formatting.set(os, paths)?,
            false => Mark::Formatting.clear(os, paths)?,
        }
        os.files.sync_directory(&paths.directory).doing(syncing)
    }
}
