//! OpenSource of the protocol between nodes.

use super::lock::Mode;
use super::snapshots::Purpose;
use super::{Driver, after_undo, not_found};
use crate::error::Result;
use crate::model::pull::{OpenSource, SourceDescription};
use crate::model::{Consistency, SnapshotId, VolumeId, VolumeSource};

impl Driver {
    /// Tells what a source is that another node makes a volume from. A snapshot is read as it is. A volume is cut at one
    /// point in time; a retry for the same new volume finds the cut.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION where the volume cannot be cut as
    /// asked for; RESOURCE_EXHAUSTED without room for the cut, or after too many. Nothing is left of a cut that failed.
    pub fn open_source(&self, request: &OpenSource) -> Result<SourceDescription> {
        match &request.source {
            VolumeSource::Snapshot(id) => {
                let _guard = self.lock_all([(id.as_str(), Mode::Shared)])?;
                self.describe_source(&*self.ready_snapshot(id.as_str())?)
            }
            VolumeSource::Volume(id) => {
                let cut = SnapshotId::of_pull(&self.node_key, id, &request.target);
                match self.existing_cut(&cut)? {
                    Some(description) => Ok(description),
                    None => self.cut_for(&request.target, id, cut, request.consistency),
                }
            }
        }
    }

    /// The cut that an earlier call has made; it may be read from at this moment.
    fn existing_cut(&self, id: &SnapshotId) -> Result<Option<SourceDescription>> {
        let _guard = self.lock_all([(id.as_str(), Mode::Shared)])?;
        let Some(cut) = self.store.snapshot(id).filter(|cut| cut.is_ready()) else { return Ok(None) };
        self.last_reads.touch(id);
        self.describe_source(&cut).map(Some)
    }

    fn cut_for(
        &self,
        target: &VolumeId,
        source: &VolumeId,
        id: SnapshotId,
        consistency: Consistency,
    ) -> Result<SourceDescription> {
        let _guard = self.lock_all([(id.as_str(), Mode::Exclusive), (source.as_str(), Mode::Shared)])?;
        match self.store.snapshot(&id) {
            // A call that ran at the same time was faster.
            Some(cut) if cut.is_ready() => return self.describe_source(&cut),
            // What a failed call could not undo.
            Some(cut) => self.remove_snapshot(&cut)?,
            None => {}
        }
        self.recent_cuts.admit(target.node_key(), std::time::Instant::now())?;
        let known = self.controller_id(source.as_str()).ok_or_else(|| not_found(source.as_str()))?;
        let volume = self.ready_volume(&known, source.as_str())?;
        let _turn = self.copy_turn()?;
        let name = format!("pulled for {target}");
        let draft = self.draft(volume, id, name, Purpose::Pull(target.clone()))?;
        let made = self.member(&draft).and_then(|member| self.cut(&[member], consistency));
        let made = made.and_then(|created| self.complete(&draft.snapshot, created));
        let made = made.and_then(|cut| self.describe_source(&cut));
        let description = made.map_err(|cause| after_undo(cause, self.remove_snapshot(&draft.snapshot)))?;
        self.last_reads.touch(&description.handle.id);
        Ok(description)
    }
}
