//! TakeSnapshot of the protocol between the processes of a cluster.

use std::sync::Arc;

use crate::backend::{Shape, VolumePaths, prepare_files, sync_files};
use crate::driver::capacity::Want;
use crate::driver::locks::turns::Urgency;
use crate::driver::pools::directories;
use crate::driver::pull::{Making, Remote};
use crate::driver::records::Makes;
use crate::driver::{Driver, Pool};
use crate::error::{Error, Result};
use crate::model::pull::{Keep, OpenSource, SourceDescription};
use crate::model::{
    Consistency, Handover, Phase, Side, Snapshot, SnapshotId, TakeSnapshot, Timestamp, Volume, VolumeId,
    VolumeParameters, VolumeSource, format_bytes,
};

impl Driver {
    /// Copies a snapshot of another node, with its id, or finds the copy. It is whole and durable on return. A long copy goes on if its
    /// caller gives up: a repeated call is answered ABORTED, with the progress. Returns the number of the offer of the source; 0 if this
    /// node has the snapshot by itself.
    ///
    /// # Errors
    /// NOT_FOUND if the source does not have it; ABORTED while another operation on it runs; FAILED_PRECONDITION if the source moves it
    /// to another node, or if the pool cannot have it; RESOURCE_EXHAUSTED without room; UNAVAILABLE if the node of the source cannot be
    /// reached. After any error nothing of the copy is left.
    pub fn take_snapshot(&self, request: &TakeSnapshot) -> Result<u64> {
        let TakeSnapshot { id, node_id, way } = request;
        let target = VolumeId::of_taken(&self.node_key, id);
        let source = VolumeSource::Snapshot(id.clone());
        // Perhaps it is copied at this moment, from a node that has moved meanwhile, with a permit that ends.
        let _guard = self.lock(id).inspect_err(|_| self.pulls.show(&target, &source, way))?;
        let there = match self.store.snapshot(id) {
            Some(there) if there.is_ready() => Some(there),
            // What a failed call could not undo, or a failed deletion left.
            Some(there) => self.settle_snapshot(&there)?,
            None => None,
        };
        if let Some(there) = there {
            return self.taken(&there, node_id);
        }
        let _turn = self.copy_turn_for(way.node_key.as_str(), Urgency::Usual)?;
        let sources = self.remote_sources.as_ref();
        let sources =
            sources.ok_or_else(|| Error::Unavailable("this node copies from no other one".to_owned()))?;
        let request = OpenSource {
            source,
            target: target.clone(),
            consistency: Consistency::default(),
            began: Timestamp::now(),
            keep: Keep::Moves(self.node_id().to_owned()),
        };
        let remote = self.open_for(sources.as_ref(), way, &target, request)?;
        let (snapshot, pool) = self.design_taken(id, node_id, remote.description())?;
        let made = self.make_taken(&remote, snapshot, (&pool, target))?;
        let number = self.taken(&made, node_id);
        number.map_err(|cause| cause.after_undo(self.delete_known_snapshot(&made)))
    }

    /// Returns the number of the offer by which this node has a snapshot.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it comes from another node.
    fn taken(&self, there: &Arc<Snapshot>, from: &str) -> Result<u64> {
        Self::expect_movable(there)?;
        if there.pulled_for.is_some() {
            return Err(Error::InUse(format!("{} is a cut of a volume of this node", there.id)));
        }
        let number = match &there.handover {
            Some(Handover { side: Side::Taken, node_id, number }) if node_id == from => *number,
            Some(Handover { side: Side::Taken, node_id, .. }) => {
                return Err(Error::InUse(format!(
                    "snapshot {} comes from node {node_id:?}, and not from node {from:?}",
                    there.id
                )));
            }
            Some(_) | None => 0,
        };
        self.acknowledge_snapshot(Arc::clone(there)).map(|_| number)
    }

    /// Returns the record of the copy, and the pool that it comes into: the one with the name of the source's pool.
    fn design_taken(
        &self,
        id: &SnapshotId,
        node_id: &str,
        described: &SourceDescription,
    ) -> Result<(Snapshot, Arc<Pool>)> {
        let moving = described.moving.clone().ok_or_else(|| {
            Error::InUse(format!(
                "node {node_id:?} runs an earlier version, which moves no snapshots; upgrade it first"
            ))
        })?;
        let pool = self.pools.require(&moving.pool)?;
        directories::admit_snapshot(&pool, described.backend())?;
        let handover = Handover { side: Side::Taken, node_id: node_id.to_owned(), number: moving.number };
        let snapshot = Snapshot {
            id: id.clone(),
            name: moving.name,
            phase: Phase::Creating,
            source: moving.source,
            created: described.handle.created,
            size_bytes: described.size_bytes,
            requested_bytes: described.requested_bytes,
            allocated_bytes: described.data_bytes,
            content: described.content.clone(),
            pool: pool.name.clone(),
            block_size: described.block_size,
            group: None,
            pulled_for: None,
            kept: false,
            sealed: described.sealed,
            generation: described.generation,
            object: moving.object,
            handover: Some(handover),
        };
        Ok((snapshot, pool))
    }

    /// Makes the copy. Its record says `creating` before the first byte is read, and `ready` after the last is durable.
    fn make_taken(
        &self,
        remote: &Remote,
        snapshot: Snapshot,
        (pool, target): (&Arc<Pool>, VolumeId),
    ) -> Result<Arc<Snapshot>> {
        let paths = self.snapshot_paths(&snapshot)?;
        self.nothing_on_disk(&paths)?;
        let bytes = snapshot.allocated_bytes;
        let mut reservation = self.reserve(pool, Want::Snapshot(snapshot.content.backend(), bytes), bytes)?;
        let snapshot = self.store.put_snapshot(snapshot)?;
        reservation.recorded();
        let made = self.pull_snapshot(remote, &snapshot, (pool, &paths, target));
        let made = made.and_then(|()| self.complete(&snapshot, snapshot.created));
        made.map_err(|cause| cause.after_undo(self.remove_snapshot(&snapshot)))
    }

    fn pull_snapshot(
        &self,
        remote: &Remote,
        snapshot: &Snapshot,
        (pool, paths, target): (&Pool, &VolumePaths, VolumeId),
    ) -> Result<()> {
        let bytes = remote.description().data_bytes;
        let parameters = VolumeParameters {
            backend: snapshot.content.backend(),
            pool: pool.name.clone(),
            ..VolumeParameters::default()
        };
        // No record has it. It stands for the copy where a pull is for a volume.
        let volume = Volume {
            capacity_bytes: snapshot.size_bytes,
            ..Volume::new(target, Phase::Creating, snapshot.content.clone(), parameters)
        };
        self.pulling(remote, &volume, |driver| {
            prepare_files(&driver.os, paths)?;
            tracing::info!(snapshot.id = %snapshot.id, size = %format_bytes(bytes), "copying the snapshot from its node");
            let mut progress = driver.copies.begin(snapshot.id.as_str(), bytes);
            match paths.shape() {
                Shape::Blocks(image) => driver.pull_image_within(remote, &image, pool, &mut progress)?,
                Shape::Tree(tree) => {
                    let place = driver.place(&volume, paths);
                    let making = Making { path: &tree, pool, place, reserved: bytes };
                    driver.pull_tree_to(remote, &making, &mut progress)?;
                }
            }
            let record = driver.record_of_copy(Makes::Snapshot(snapshot, None), snapshot.created)?;
            sync_files(&driver.os, paths, &record)
        })
    }
}
