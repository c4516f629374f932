//! OpenSource of the protocol between nodes.

use std::sync::Arc;

use super::urgency;
use crate::driver::copies::snapshots::Purpose;
use crate::driver::locks::Mode;
use crate::driver::{Driver, not_found};
use crate::error::{Error, Result};
use crate::model::pull::{Keep, OpenSource, SourceDescription, SourceHandle};
use crate::model::{Consistency, Content, Snapshot, SnapshotId, Timestamp, VolumeId, VolumeSource};

impl Driver {
    /// Returns what a source is that another node makes a volume from. A snapshot is read as it is. A volume is cut at one
    /// point in time; a retry for the same new volume finds the cut, and one that begins anew has it made anew. `order` is the
    /// last second of the permit, in seconds since 1970: each permit is good for one cut, and further ones are limited.
    ///
    /// # Errors
    /// NOT_FOUND, also for a cut that was to be kept; ABORTED while another operation on it runs; FAILED_PRECONDITION where the volume cannot be cut as
    /// asked for; RESOURCE_EXHAUSTED without room for the cut, or after too many. Nothing is left of a cut that failed.
    pub fn open_source(&self, request: &OpenSource, order: Option<u64>) -> Result<SourceDescription> {
        match &request.source {
            VolumeSource::Snapshot(id) if let Keep::Moves { node_id, group } = &request.keep => {
                self.offer_snapshot(id, node_id, group.as_ref())
            }
            VolumeSource::Snapshot(id) => {
                let _guard = self.share(id)?;
                self.describe_source(&*self.ready_snapshot(id.as_str())?)
            }
            VolumeSource::Volume(id) => {
                let [first, second] = SnapshotId::of_copy(&self.node_key, id, &request.target);
                let cut = match &request.keep {
                    Keep::Made(cut) => return self.kept_cut(cut, request),
                    Keep::After(base) => {
                        self.kept_cut(base, request)?;
                        if base.id == first { second } else { first }
                    }
                    Keep::Nothing | Keep::First | Keep::Moves { .. } => first,
                };
                match self.existing_cut(&cut, request.began)? {
                    Some(description) => Ok(description),
                    None => self.cut_for(request, (id, order), cut),
                }
            }
        }
    }

    /// A cut of the source that was kept for this copy.
    fn kept_cut(&self, cut: &SourceHandle, request: &OpenSource) -> Result<SourceDescription> {
        let (_guard, snapshot) = self.opened(cut)?;
        let is_for = snapshot.pulled_for.as_ref() == Some(&request.target)
            && request.source == VolumeSource::Volume(snapshot.source.clone());
        match is_for && snapshot.kept {
            true => self.describe_source(&snapshot),
            false => Err(Error::NotFound(format!("cut {} is not kept for {}", cut.id, request.target))),
        }
    }

    /// The cut that an earlier call has made; it may be read from at this moment.
    fn existing_cut(&self, id: &SnapshotId, began: Timestamp) -> Result<Option<SourceDescription>> {
        let _guard = self.share(id)?;
        let Some(cut) = self.usable_cut(id, began) else { return Ok(None) };
        self.cuts.touch(id);
        self.describe_source(&cut).map(Some)
    }

    fn usable_cut(&self, id: &SnapshotId, began: Timestamp) -> Option<Arc<Snapshot>> {
        self.store.snapshot(id).filter(|cut| cut.is_ready() && self.cuts.is_of(id, began))
    }

    fn cut_for(
        &self,
        request: &OpenSource,
        (source, order): (&VolumeId, Option<u64>),
        id: SnapshotId,
    ) -> Result<SourceDescription> {
        let OpenSource { target, began, .. } = request;
        let _guard = self.lock_all([((&id).into(), Mode::Exclusive), (source.into(), Mode::Shared)])?;
        // A call that ran at the same time was faster.
        if let Some(cut) = self.usable_cut(&id, *began) {
            return self.describe_source(&cut);
        }
        // What was left of an earlier pull, whose node could not say that it had ended, or what a failed call could not undo.
        if let Some(left) = self.store.snapshot(&id) {
            self.delete_known_snapshot(&left)?;
        }
        let order = order.map(|expires| (source.clone(), target.clone(), expires));
        self.recent_cuts.admit(target.node_key(), order, std::time::Instant::now())?;
        let known = self.controller_id(source.as_str()).ok_or_else(|| not_found(source.as_str()))?;
        let volume = self.ready_volume(&known, source.as_str())?;
        // A copy in another pool of this node has its turn from the call that makes it or brings it up to date.
        let is_elsewhere = target.node_key() != self.node_key.as_str();
        let turn = is_elsewhere.then(|| self.copy_turn_for(target.node_key(), urgency(&volume, target)));
        let _turn = turn.transpose()?;
        let name = format!("pulled for {target}");
        let purpose = match &request.keep {
            Keep::Nothing | Keep::Moves { .. } => Purpose::Pull(target.clone()),
            Keep::First | Keep::After(_) | Keep::Made(_) => Purpose::Copy(target.clone()),
        };
        let consistency = match request.by_file {
            true => Consistency { freeze: volume.content != Content::Directory, ..request.consistency },
            false => request.consistency,
        };
        let draft = self.draft(volume, id, name, purpose)?;
        self.cuts.begin(&draft.snapshot.id, *began);
        let made = self.member(&draft, None).and_then(|member| self.cut(&[member], consistency));
        let made = made.and_then(|created| self.complete(&draft.snapshot, created));
        let made = made.and_then(|cut| self.describe_source(&cut));
        made.inspect(|description| self.cuts.touch(&description.handle.id)).map_err(|cause| {
            self.cuts.forget(&draft.snapshot.id);
            cause.after_undo(self.remove_snapshot(&draft.snapshot))
        })
    }
}
