//! CompleteCopy of the protocol between the processes of a cluster.

use std::sync::Arc;

use crate::driver::locks::Mode;
use crate::driver::{Driver, not_found};
use crate::error::{Error, Result};
use crate::model::copy_of::{Becomes, CompleteCopy};
use crate::model::{Content, CopyOf, Retired, SizeRange, Volume, VolumeId, VolumeSource};

impl Driver {
    /// Makes a volume like any other of a copy, under its own id or under that of its source; succeeds if that has been
    /// done. With `stale`, also if something may have been written to its source that it lacks. If an update is running,
    /// this call ends it, and a retry finds the copy's lock free.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION if it does not have all of one sealed cut, or
    /// is a copy of another volume, or if this node has a volume with the id of its source.
    pub fn complete_copy(&self, request: &CompleteCopy) -> Result<()> {
        let CompleteCopy { volume_id, stale, becomes, least_bytes } = request;
        let ids = [Some(volume_id), becomes.as_ref().map(|becomes| &becomes.id)];
        let keys = ids.into_iter().flatten().map(|id| (id.into(), Mode::Exclusive));
        // A source that sends slowly, or nothing, must not delay the use of its copy.
        let _guard = self.lock_all(keys).inspect_err(|_| self.pulls.stop(volume_id))?;
        let Some(volume) = self.store.get(volume_id).filter(|volume| volume.is_ready()) else {
            return match becomes.as_ref().is_some_and(|becomes| self.has_become(volume_id, becomes)) {
                true => Ok(()),
                false => Err(not_found(volume_id.as_str())),
            };
        };
        if let Some(becomes) = becomes {
            self.expect_successor(&volume, becomes, *stale)?;
        }
        let volume = match volume.copy_of.as_ref().is_some_and(|copy| copy.staged_bytes.is_some()) {
            true => match self.end_staged(&volume) {
                // What is there is one cut whole, whatever the record says, and its source is given up.
                Err(Error::NotFound(why)) if *stale && volume.content == Content::Directory => {
                    tracing::warn!(volume.id = %volume.id, why, "the copy is completed as it is");
                    let copy_of = volume.copy_of.clone();
                    let copy_of = copy_of.map(|copy| CopyOf { next: None, staged_bytes: None, ..copy });
                    Arc::new(Volume { copy_of, ..(*volume).clone() })
                }
                ended => ended?,
            },
            false => volume,
        };
        let Some(copy_of) = &volume.copy_of else { return Ok(()) };
        if let Some(becomes) = becomes {
            expect_next(copy_of, becomes)?;
        }
        if let Some(next) = &copy_of.next {
            return Err(Error::InUse(format!(
                "copy {} has not all of cut {}, which it is being given; update it first",
                volume.id, next.id
            )));
        }
        if !copy_of.cut.sealed && !stale {
            return Err(Error::InUse(format!(
                "copy {} is of a cut after which its source may have been written to; seal the source and update the copy",
                volume.id
            )));
        }
        self.remove_staged(&volume)?;
        let volume = self.lift_filled(volume)?;
        let volume = self.grow_to(volume, *least_bytes)?;
        let completed = Volume { copy_of: None, ..(*volume).clone() };
        match becomes {
            None => drop(self.record(completed)?),
            Some(becomes) => self.become_volume(completed, becomes)?,
        }
        self.usage.forget(volume_id);
        tracing::info!(volume.id = %volume.id, ?becomes, stale, "the copy is a volume like any other");
        Ok(())
    }

    /// Grows a copy to the size that its volume is known by, which the volume may have got after the last pass. Without room the
    /// copy keeps its size: pods wait for its data.
    fn grow_to(&self, volume: Arc<Volume>, least_bytes: u64) -> Result<Arc<Volume>> {
        if volume.capacity_bytes >= least_bytes {
            return Ok(volume);
        }
        match self.expand(Arc::clone(&volume), SizeRange { required: least_bytes, limit: 0 }) {
            Err(error) if matches!(error, Error::Exhausted(_) | Error::OutOfRange(_)) => {
                tracing::warn!(volume.id = %volume.id, %error, "the copy is completed without the size of its volume");
                Ok(volume)
            }
            grown => grown,
        }
    }

    /// Gives a copy that is complete the id of its source.
    fn become_volume(&self, completed: Volume, becomes: &Becomes) -> Result<()> {
        let source = self.retire_source(becomes)?;
        let (staged_before, attachments) =
            source.map(|source| (source.staged_before.clone(), source.attachments.clone())).unzip();
        let copy = completed.id.clone();
        let became = Volume {
            id: becomes.id.clone(),
            directory: Some(completed.directory().clone()),
            generation: becomes.generation,
            source: None,
            staged_before: staged_before.unwrap_or_default(),
            attachments: attachments.unwrap_or_default(),
            ..completed
        };
        // The directory keeps its name, so that this is one step. It also ends the record of an earlier move away.
        self.record_as(&copy, became).map(drop)
    }

    /// Takes the id away from the source of a copy in another pool of this node, and returns what is left of it; `None` for a copy of another
    /// node's volume. If a crash follows, a retry finds the source retired: until then, a record says that the id is in use.
    fn retire_source(&self, Becomes { id, generation }: &Becomes) -> Result<Option<Arc<Volume>>> {
        let (was, by, node_id) = (id.clone(), *generation, self.node_id().to_owned());
        let left = match self.store.get(id) {
            Some(source) => self.retire(&source, Retired { was, by, node_id })?,
            None => VolumeId::of_retired(&self.node_key, id, by),
        };
        Ok(self.store.get(&left))
    }

    /// Reports whether this copy has taken over the id.
    fn has_become(&self, copy: &VolumeId, becomes: &Becomes) -> bool {
        let there = self.store.get(&becomes.id);
        there.is_some_and(|it| it.directory() == copy && it.generation == becomes.generation)
    }

    /// Makes sure that a copy can take over the id of its source.
    ///
    /// # Errors
    /// FAILED_PRECONDITION; UNAVAILABLE if its data cannot be used.
    fn expect_successor(&self, copy: &Volume, becomes: &Becomes, stale: bool) -> Result<()> {
        let (copy_id, id) = (&copy.id, &becomes.id);
        if copy.copy_of.is_none() || copy.source.as_ref() != Some(&VolumeSource::Volume(id.clone())) {
            return Err(Error::InUse(format!("volume {copy_id} is not a copy of volume {id}")));
        }
        if let Some(there) = self.store.get(id) {
            self.expect_source(&there, copy, becomes, stale)?;
        }
        // The record would become a volume without data, and the data of its source would be deleted.
        if let Some(why) = self.unusable(copy) {
            return Err(Error::Unavailable(why));
        }
        // NodeUnstageVolume and NodeUnpublishVolume find a volume by its id.
        let retired =
            |volume: &Arc<Volume>| volume.retired.as_ref().is_some_and(|retired| retired.was == *id);
        self.store
            .volumes()
            .iter()
            .filter(|volume| retired(volume))
            .try_for_each(|was| self.expect_unused(was))
    }

    /// Makes sure that the volume of this node with the id that a copy takes over is the source of the copy, in another pool, and is not in
    /// use. With `stale`, it need not be sealed if its data cannot be used.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    fn expect_source(
        &self,
        there: &Arc<Volume>,
        copy: &Volume,
        becomes: &Becomes,
        stale: bool,
    ) -> Result<()> {
        let (node, id, generation) = (self.node_id(), &there.id, there.generation);
        let is_sealed = there.moved_to.as_deref() == Some(node);
        let is_given_up = stale && there.moved_to.is_none() && self.unusable(there).is_some();
        let is_source = there.is_ready()
            && there.copy_of.is_none()
            && generation.checked_add(1) == Some(becomes.generation)
            && copy.id.node_key() == self.node_key.as_str();
        match is_source && (is_sealed || is_given_up) {
            // If its pool has failed, it was not sealed, and kubelet keeps it staged for a pod that waits.
            true => self.unstage_for_move(there).and_then(|()| self.expect_unused(there)),
            false => Err(Error::InUse(format!(
                "node {node:?} has volume {id}, with generation {generation}; retire it before copy {} takes its id over",
                copy.id
            ))),
        }
    }
}

/// Makes sure that the copy is of the generation before the one that it becomes.
///
/// # Errors
/// FAILED_PRECONDITION.
fn expect_next(copy_of: &CopyOf, Becomes { id, generation }: &Becomes) -> Result<()> {
    let has = copy_of.cut.generation;
    match has.checked_add(1) == Some(*generation) {
        true => Ok(()),
        false => Err(Error::InUse(format!(
            "the copy is of generation {has} of volume {id}, so that it cannot become generation {generation}"
        ))),
    }
}
