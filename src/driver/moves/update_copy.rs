//! UpdateCopy of the protocol between the processes of a cluster.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::{
    Mark, Shape, VolumePaths, content_converted, content_of_copy, narrow, presence_of, remove_trees_beside,
    rename_tree, replace_tree, staged_changes, staged_tree, sync_copied, tree_in_the_making, widen,
};
use crate::driver::locks::turns::Urgency;
use crate::driver::pull::{Counted, Earlier, Making, Remote};
use crate::driver::{Driver, not_found, settled};
use crate::error::{Error, OsContext, Result};
use crate::kernel::Reuse;
use crate::model::copy_of::{UpdateCopy, Updated};
use crate::model::pull::{Keep, OpenSource};
use crate::model::{
    Consistency, Content, CopyOf, Cut, Filled, Provisioning, SizeRange, Volume, VolumeId, VolumeSource,
    format_bytes,
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
        if copy_of.filled == Some(Filled::Lifting) {
            return Err(Error::NotFound(format!(
                "the completion of copy {id} was interrupted, so the copy cannot be updated; delete it and make another one"
            )));
        }
        let urgency = if request.last_pass { Urgency::LastPass } else { Urgency::Usual };
        let _turn = self.copy_turn_for(request.way.node_key.as_str(), urgency)?;
        self.expect_unused(&volume)?;
        if copy_of.staged_bytes.is_none() {
            self.remove_staged(&volume)?;
        }
        let round = Round { driver: self, source: source.clone(), request };
        let (volume, ended) = match &copy_of.next {
            None => (Arc::clone(&volume), Counted::default()),
            Some(_) if copy_of.staged_bytes.is_some() => (self.end_staged(&volume)?, Counted::default()),
            Some(next) => {
                let remote = round.open(&volume, Keep::Made(next.handle()))?;
                round.go_on(volume.clone(), &remote, copy_of.cut.clone())?
            }
        };
        let base = volume.copy_of.as_ref().map_or(&copy_of.cut, |copy| &copy.cut).clone();
        let remote = round.open(&volume, Keep::After(base.handle()))?;
        let (volume, counted) = match (is_tree(&volume), request.whole && !is_filled(&volume)) {
            // A tree that is changed in place would be of two cuts by halves, and nobody could tell which.
            (true, _) => round.stage_tree(volume, &remote, base)?,
            (false, true) => round.stage(volume, &remote, base)?,
            (false, false) => round.go_on(volume, &remote, base)?,
        };
        let cut = volume.copy_of.as_ref().map_or_else(|| remote.cut(), |copy| copy.cut.clone());
        let updated = Updated {
            cut,
            sent_bytes: ended.sent_bytes + counted.sent_bytes,
            changed_bytes: ended.changed_bytes + counted.changed_bytes,
        };
        let Updated { sent_bytes, changed_bytes, .. } = updated;
        tracing::info!(
            volume.id = %volume.id, %source, sent = %format_bytes(sent_bytes), changed = %format_bytes(changed_bytes),
            sealed = updated.cut.sealed, "the copy is up to date"
        );
        Ok(updated)
    }

    /// Makes sure that nothing uses a volume. Nobody can stage it; its earlier users may still be there.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    pub(in crate::driver) fn expect_unused(&self, volume: &Volume) -> Result<()> {
        // Its pool may have failed: what is left of a lost volume must not be in the way of a copy in another pool.
        let paths = self.paths_of_use(volume)?;
        self.see_all_devices()?;
        let uses = settled(|| presence_of(&volume.content).uses(self.place(volume, &paths)))?;
        match uses.any() {
            true => Err(Error::InUse(format!("volume {} is in use: {}", volume.id, uses.describe()))),
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
        // Before its last round, in which the source is unused, a move of a directory need not copy one point in time.
        let by_file = volume.converted && !self.request.whole;
        let is_of_one_moment = self.request.whole || by_file || !is_tree(volume);
        let freeze = self.request.consistency.freeze && is_of_one_moment;
        let consistency = Consistency { freeze, ..self.request.consistency };
        let began = driver.pulls.began(&volume.id);
        let request = OpenSource { source, target, consistency, began, keep, by_file };
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
    fn go_on(&self, volume: Arc<Volume>, remote: &Remote, base: Cut) -> Result<(Arc<Volume>, Counted)> {
        match is_filled(&volume) {
            true => self.fill(volume, remote, base),
            false => self.apply(volume, remote, base),
        }
    }

    /// Updates a filesystem that is made file by file. An interrupted round leaves a mixture of two cuts. Applying the differences between
    /// the two cuts again turns the mixture into the later one.
    fn fill(&self, volume: Arc<Volume>, remote: &Remote, base: Cut) -> Result<(Arc<Volume>, Counted)> {
        let (driver, next) = (self.driver, remote.cut_for(&volume.content));
        let (volume, _) = self.fit(volume, remote)?;
        let paths = driver.paths(&volume)?;
        // First: a record whose write failed may be there all the same.
        remote.keep();
        let begin = || {
            let copy_of =
                CopyOf { next: Some(next.clone()), ..CopyOf::at(base.clone(), Some(Filled::Apart)) };
            driver.record(Volume { copy_of: Some(copy_of), ..(*volume).clone() }).map(drop)
        };
        let mut progress = driver.copies.begin(volume.id.as_str(), remote.description().data_bytes);
        let counted = driver.pulling(remote, &volume, |driver| {
            driver.refill_filesystem(remote, (&volume, &paths), (&base, &next), &begin, &mut progress)
        })?;
        let volume = driver.end_round((*volume).clone(), next, &paths)?;
        remote.close(&base.id);
        Ok((volume, counted))
    }

    /// Gives a copy that has `base`, or some of it, all of the opened cut, block by block.
    fn apply(&self, volume: Arc<Volume>, remote: &Remote, base: Cut) -> Result<(Arc<Volume>, Counted)> {
        let (driver, next) = (self.driver, remote.cut());
        let (volume, content) = self.fit(volume, remote)?;
        let copy_of = CopyOf { next: Some(next.clone()), ..CopyOf::at(base.clone(), None) };
        // First: a record whose write failed may be there all the same.
        remote.keep();
        let volume = driver.record(Volume { copy_of: Some(copy_of), ..(*volume).clone() })?;
        let paths = driver.paths(&volume)?;
        let counted = self.pull(&volume, remote, &base, &paths)?;
        let volume = driver.end_round(Volume { content, ..(*volume).clone() }, next, &paths)?;
        remote.close(&base.id);
        Ok((volume, counted))
    }

    /// The same, but everything that changes is on this node's disk before any of it is applied.
    fn stage(&self, volume: Arc<Volume>, remote: &Remote, base: Cut) -> Result<(Arc<Volume>, Counted)> {
        let driver = self.driver;
        let (volume, content) = self.fit(volume, remote)?;
        let (paths, pool) = (driver.paths(&volume)?, driver.pool_of(&volume)?);
        image_of(&volume, &paths)?;
        let file = staged_changes(&paths);
        let mut progress = driver.copies.begin(volume.id.as_str(), remote.description().data_bytes);
        let staged = driver.pulling(remote, &volume, |driver| {
            driver.stage_changes(remote, &base.handle(), (&pool, &file), &mut progress)
        });
        let (bytes, counted) = staged.inspect_err(|_| {
            // The next round would cut it off as well; until then it would take room.
            let _ = driver.os.files.remove_file(&file);
        })?;
        driver.sync_directory_of(&paths)?;
        let volume = self.end_on_this_node(Volume { content, ..(*volume).clone() }, remote, base, bytes)?;
        Ok((volume, counted))
    }

    /// The same of a directory: the tree of the opened cut is made beside the one that is there.
    fn stage_tree(&self, volume: Arc<Volume>, remote: &Remote, base: Cut) -> Result<(Arc<Volume>, Counted)> {
        let driver = self.driver;
        let (volume, content) = self.fit(volume, remote)?;
        let (paths, pool) = (driver.paths(&volume)?, driver.pool_of(&volume)?);
        let (data, making) = (paths.data(), tree_in_the_making(&paths.directory));
        // The earlier tree is removed when the later one has taken its place.
        widen(&driver.os, &paths)?;
        let mut progress = driver.copies.begin(volume.id.as_str(), remote.description().data_bytes);
        let earlier = Earlier { cut: &base.handle(), path: &data, reuse: Reuse::Share };
        let place = driver.place(&volume, &paths);
        let making_it = Making { path: &making, pool: &pool, place, reserved: 0 };
        let staged = driver.pulling(remote, &volume, |driver| {
            driver.stage_tree(remote, &earlier, &making_it, &mut progress)
        });
        let staged = staged.and_then(|counted| {
            let staged = staged_tree(&paths.directory, &remote.cut());
            rename_tree(&driver.os, &paths.directory, (&making, &staged)).map(|()| counted)
        });
        let counted = staged.inspect_err(|_| {
            // The next round would do both as well; until then it would take room.
            let _ = driver.remove_staged(&volume);
        })?;
        let bytes = counted.sent_bytes;
        let volume = self.end_on_this_node(Volume { content, ..(*volume).clone() }, remote, base, bytes)?;
        Ok((volume, counted))
    }

    /// Records that everything is on this node, and ends the round.
    fn end_on_this_node(
        &self,
        volume: Volume,
        remote: &Remote,
        base: Cut,
        bytes: u64,
    ) -> Result<Arc<Volume>> {
        let id = base.id.clone();
        let next = Some(remote.cut_for(&volume.content));
        let copy_of = CopyOf { next, staged_bytes: Some(bytes), ..CopyOf::at(base, None) };
        remote.keep();
        let volume = self.driver.record(Volume { copy_of: Some(copy_of), ..volume })?;
        let volume = self.driver.end_staged(&volume)?;
        remote.close(&id);
        Ok(volume)
    }

    /// Makes sure that the copy can have the opened cut, and room for it. Gives what is in it then.
    fn fit(&self, volume: Arc<Volume>, remote: &Remote) -> Result<(Arc<Volume>, Content)> {
        let description = remote.description();
        if let Some(most) = self.request.most_bytes.filter(|most| description.size_bytes > *most) {
            // While the source is expanded, its PersistentVolume still has the earlier size.
            return Err(Error::Unavailable(format!(
                "the node of {} says that it has {}, and the controller allows copy {} {}; try again when the expansion of the \
                 source has ended",
                remote.source,
                format_bytes(description.size_bytes),
                volume.id,
                format_bytes(most)
            )));
        }
        remote.expect_generation(volume.copy_of.as_ref().map(|copy| copy.cut.generation))?;
        let content_for = if volume.converted { content_converted } else { content_of_copy };
        let source = remote.source.to_string();
        let content = content_for(&description.content, &source, &volume.parameters, &volume.capabilities)?;
        let is_same_kind = description.content.is_kind_of(&content);
        let is_made_by_file = is_filled(&volume) || is_tree(&volume);
        let has_grown = is_filled(&volume) && description.size_bytes > volume.capacity_bytes;
        if has_grown || is_filled(&volume) && is_same_kind || !is_made_by_file && !is_same_kind {
            return Err(Error::NotFound(format!(
                "{} has another size or another filesystem than copy {} was made for, which is made file by file; delete the copy and \
                 make another one",
                remote.source, volume.id
            )));
        }
        if is_same_kind && description.block_size != volume.block_size {
            return Err(Error::InUse(format!(
                "{} has blocks of {} bytes by now, and copy {} of {}; delete it and make another one",
                remote.source, description.block_size, volume.id, volume.block_size
            )));
        }
        let size = SizeRange { required: description.size_bytes, limit: 0 };
        let volume = self.driver.expand(volume, size)?;
        // A copy that is larger than its source has a request of its own.
        let requested_bytes = match volume.capacity_bytes == description.size_bytes {
            true => description.requested_bytes,
            false => volume.requested_bytes,
        };
        Ok((Arc::new(Volume { requested_bytes, ..(*volume).clone() }), content))
    }

    fn pull(&self, volume: &Volume, remote: &Remote, base: &Cut, paths: &VolumePaths) -> Result<Counted> {
        let image = image_of(volume, paths)?;
        let mut progress = self.driver.copies.begin(volume.id.as_str(), remote.description().data_bytes);
        self.driver.pulling(remote, volume, |driver| {
            driver.pull_changes_to(remote, &base.handle(), (&image, is_thick(volume)), &mut progress)
        })
    }
}

fn image_of(volume: &Volume, paths: &VolumePaths) -> Result<PathBuf> {
    paths.image().ok_or_else(|| Error::InUse(format!("copy {} is a directory", volume.id)))
}

/// What is said where a record names a tree that is not there.
fn lost(volume: &Volume, cut: &Cut) -> Error {
    Error::NotFound(format!(
        "the data of cut {} are not beside those of copy {}, as its record says: it cannot be brought up to date any more; delete it and make another one",
        cut.id, volume.id
    ))
}

fn is_tree(volume: &Volume) -> bool {
    volume.content == Content::Directory
}

/// Whether its filesystem is made file by file.
fn is_filled(volume: &Volume) -> bool {
    volume.copy_of.as_ref().is_some_and(|copy| copy.filled.is_some())
}

fn is_thick(volume: &Volume) -> bool {
    volume.parameters.provisioning == Provisioning::Thick
}

impl Driver {
    /// Ends a round of which everything is on this node.
    pub(super) fn end_staged(&self, volume: &Volume) -> Result<Arc<Volume>> {
        let staged = volume.copy_of.as_ref().and_then(|copy| copy.next.clone().zip(copy.staged_bytes));
        let Some((next, bytes)) = staged else { return Ok(Arc::new(volume.clone())) };
        let paths = self.paths(volume)?;
        match paths.shape() {
            Shape::Tree(_) if !replace_tree(&self.os, &paths.directory, &next)? => {
                return Err(lost(volume, &next));
            }
            Shape::Tree(_) => {}
            Shape::Blocks(image) => {
                self.apply_staged((&staged_changes(&paths), bytes), (&image, is_thick(volume)))?;
            }
        }
        let volume = self.end_round(volume.clone(), next, &paths)?;
        self.remove_staged(&volume)?;
        Ok(volume)
    }

    /// Records that the copy has all of a cut, once that is durable.
    fn end_round(&self, volume: Volume, cut: Cut, paths: &VolumePaths) -> Result<Arc<Volume>> {
        match cut.half_formatted {
            true => Mark::Formatting.set(&self.os, paths)?,
            false => Mark::Formatting.clear(&self.os, paths)?,
        }
        self.sync_directory_of(paths)?;
        sync_copied(&self.os, paths)?;
        let filled = volume.copy_of.as_ref().and_then(|copy| copy.filled);
        let copy_of = Some(CopyOf::at(cut, filled));
        let volume = self.record(Volume { copy_of, ..volume })?;
        self.usage.forget(&volume.id);
        Ok(volume)
    }

    /// Removes a file of changes, or trees beside the data, that are of no use, if there are some.
    pub(super) fn remove_staged(&self, volume: &Volume) -> Result<()> {
        let paths = self.paths(volume)?;
        let Shape::Blocks(_) = paths.shape() else {
            remove_trees_beside(&self.os, &paths.directory)?;
            return narrow(&self.os, &paths);
        };
        let file = staged_changes(&paths);
        self.os.files.remove_file(&file).doing(|| format!("remove {}", file.display()))
    }

    fn sync_directory_of(&self, paths: &VolumePaths) -> Result<()> {
        let syncing = || format!("sync {}", paths.directory.display());
        self.os.files.sync_directory(&paths.directory).doing(syncing)
    }
}
