//! CSI CreateSnapshot.

use std::sync::Arc;

use super::copies::snapshots::Purpose;
use super::locks::Mode;
use super::{Driver, not_found};
use crate::error::{Busy, Error, Result};
use crate::model::request::CreateSnapshot;
use crate::model::{Snapshot, SnapshotId};

impl Driver {
    /// Makes a snapshot, or finds the one that an earlier call with the same name made. A long copy goes on when its
    /// caller gives up: a retry is answered ABORTED, with the progress, until the copy has ended, and then gets the
    /// snapshot. It is ready to use as soon as it is there.
    ///
    /// # Errors
    /// NOT_FOUND for the volume; ALREADY_EXISTS where the name is that of a snapshot of another volume;
    /// FAILED_PRECONDITION where the volume cannot be cut as asked for; RESOURCE_EXHAUSTED without room, or where the
    /// requirement names other nodes only. After any error nothing of the snapshot is left.
    pub fn create_snapshot(&self, request: CreateSnapshot) -> Result<Arc<Snapshot>> {
        let CreateSnapshot { name, source_volume_id, consistency, topology, object } = request;
        let id = SnapshotId::of_name(&self.node_key, &name);
        let source = self.controller_id(&source_volume_id);
        // One of this name may have moved here: its id names the node that it was made on.
        let came = self
            .snapshot_named(&name, |snapshot| snapshot.id != id && Some(&snapshot.source) == source.as_ref());
        let has_come = came.is_some();
        let id = came.map_or(id, |came| came.id.clone());
        let volume_key = source.as_ref().map(|source| (source.into(), Mode::Shared));
        let _guard = self.lock_all([((&id).into(), Mode::Exclusive)].into_iter().chain(volume_key))?;
        let there = match self.store.snapshot(&id) {
            Some(there) if there.is_ready() => Some(there),
            // What a failed call could not undo, or a failed deletion left.
            Some(there) => self.settle_snapshot(&there)?,
            None => None,
        };
        if let Some(there) = there {
            if source.as_ref() == Some(&there.source) {
                return self.acknowledge_snapshot(there);
            }
            return Err(Error::AlreadyExists(format!(
                "snapshot {name:?} of volume {} already exists: choose another name",
                there.source
            )));
        }
        // It was deleted meanwhile. A new one must not get the id that another node gave.
        if has_come {
            return Err(Busy::on(&id).because("it is being moved").into());
        }
        self.expect_not_released(&id)?;
        let source = source.ok_or_else(|| not_found(&source_volume_id))?;
        let volume = self.ready_volume(&source, &source_volume_id)?;
        let node = &self.settings.node_id;
        if topology.is_some_and(|topology| !topology.allows(node)) {
            return Err(Error::Exhausted(format!(
                "accessibility_requirements leave out node {node:?}, where volume {source} is"
            )));
        }
        let _turn = self.copy_turn()?;
        let draft = self.draft(volume, id, name, Purpose::Caller(object))?;
        let made = self.member(&draft, None).and_then(|member| self.cut(&[member], consistency));
        let made = made.and_then(|created| self.complete(&draft.snapshot, created));
        let made = made.map_err(|cause| cause.after_undo(self.remove_snapshot(&draft.snapshot)))?;
        let acknowledged = self.acknowledge_snapshot(Arc::clone(&made));
        acknowledged.map_err(|cause| cause.after_undo(self.delete_known_snapshot(&made)))
    }
}
