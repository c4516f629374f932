//! TakeSnapshot of the protocol between the processes of a cluster.

use std::sync::Arc;

use super::Recorded;
use crate::backend::{Shape, VolumePaths, prepare_files, sync_files};
use crate::driver::capacity::Want;
use crate::driver::locks::turns::Urgency;
use crate::driver::pools::directories;
use crate::driver::pull::{Making, Remote};
use crate::driver::records::Makes;
use crate::driver::{Driver, Pool};
use crate::error::{Error, Result};
use crate::model::pull::{Keep, OpenSource, SourceDescription, Way};
use crate::model::{
    Consistency, GroupSnapshot, GroupSnapshotId, Handover, MovingId, Phase, Side, Snapshot, SnapshotId,
    TakeSnapshot, Timestamp, Volume, VolumeId, VolumeParameters, VolumeSource, format_bytes,
};

impl Driver {
    /// Copies a snapshot or a group of another node, with its id, or finds the copy. It is whole and durable on return. A long copy goes on
    /// if its caller gives up: a repeated call is answered ABORTED, with the progress. Returns the number of the offer of the source; 0 if
    /// this node has it by itself.
    ///
    /// # Errors
    /// NOT_FOUND if the source does not have it; ABORTED while another operation on it runs; FAILED_PRECONDITION if the source moves it
    /// to another node, or if the pool cannot have it; RESOURCE_EXHAUSTED without room; UNAVAILABLE if the node of the source cannot be
    /// reached. After any error nothing of the copy is left.
    pub fn take_snapshot(&self, request: &TakeSnapshot) -> Result<u64> {
        let TakeSnapshot { id, node_id, ways } = request;
        let guard = self.lock_moving(id, ways.iter().map(|(part, _)| part));
        // Perhaps it is copied at this moment, from a node that has moved meanwhile, with a permit that ends.
        let _guard =
            guard.inspect_err(|_| ways.iter().for_each(|(part, way)| self.show_taking(part, way)))?;
        if let Some(there) = self.settled(id)? {
            self.expect_whole(&there)?;
            return self.taken(&there, node_id);
        }
        let first = ways.first().ok_or_else(|| Error::Invalid("there is nothing to copy".to_owned()))?;
        let _turn = self.copy_turn_for(first.1.node_key.as_str(), Urgency::Usual)?;
        let made = match id {
            MovingId::Snapshot(_) => self.take_one(node_id, first)?,
            MovingId::Group(group) => self.take_group(group, request)?,
        };
        // It is not undone if the mark cannot be taken away: another controller may have heard that it is whole, and have had the source
        // release it.
        self.taken(&made, node_id)
    }

    /// Makes sure that the data are here, whole: the record may outlive its disk, and the source releases its own by this word.
    ///
    /// # Errors
    /// UNAVAILABLE if they are not, or if the record may be lost.
    pub(super) fn expect_whole(&self, there: &Recorded) -> Result<()> {
        let parts = match there {
            Recorded::Snapshot(snapshot) => vec![Arc::clone(snapshot)],
            Recorded::Group(group) => self.members_of(&group.id),
        };
        if let Recorded::Group(group) = there
            && parts.len() != group.snapshots.len()
        {
            return Err(Error::Unavailable(format!("members of group {} are missing here", group.id)));
        }
        for part in parts {
            self.expect_certain(part.id.as_str())?;
            let damaged = |why: Error| {
                Error::Unavailable(format!(
                    "snapshot {} is not whole on node {:?}: {why}",
                    part.id,
                    self.node_id()
                ))
            };
            self.describe_source(&part).map_err(damaged)?;
        }
        Ok(())
    }

    /// Tells a copy that runs where its source is now.
    fn show_taking(&self, id: &SnapshotId, way: &Way) {
        let target = VolumeId::of_taken(&self.node_key, id);
        self.pulls.show(&target, &VolumeSource::Snapshot(id.clone()), way);
    }

    /// Returns what is here already; what a failed call could not undo, or a failed deletion left, is removed first.
    fn settled(&self, id: &MovingId) -> Result<Option<Recorded>> {
        match self.recorded(id) {
            Some(there) if there.is_ready() => Ok(Some(there)),
            Some(Recorded::Snapshot(there)) => Ok(self.settle_snapshot(&there)?.map(Recorded::Snapshot)),
            Some(Recorded::Group(there)) => Ok(self.settle_group(&there)?.map(Recorded::Group)),
            None => Ok(None),
        }
    }

    /// Returns the number of the offer by which this node has it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it comes from another node, or is something else.
    fn taken(&self, there: &Recorded, from: &str) -> Result<u64> {
        if let Recorded::Snapshot(snapshot) = there
            && (snapshot.group.is_some() || snapshot.pulled_for.is_some())
        {
            let id = &snapshot.id;
            return Err(Error::InUse(format!(
                "{id} is a member of a group, which moves as a whole, or a cut"
            )));
        }
        let number = match there.handover() {
            Some(Handover { side: Side::Taken, node_id, number }) if node_id == from => *number,
            Some(Handover { side: Side::Taken, node_id, .. }) => {
                let id = there.id();
                return Err(Error::InUse(format!(
                    "{id} comes from node {node_id:?}, and not from node {from:?}"
                )));
            }
            Some(_) | None => 0,
        };
        match there {
            Recorded::Snapshot(there) => drop(self.acknowledge_snapshot(Arc::clone(there))?),
            Recorded::Group(there) => drop(self.acknowledge_group(Arc::clone(there))?),
        }
        self.forget_release(&there.id());
        Ok(number)
    }

    fn take_one(&self, node_id: &str, (id, way): &(SnapshotId, Way)) -> Result<Recorded> {
        let remote = self.open_taken(id, way, None)?;
        let (snapshot, pool) = self.design_taken(id, node_id, remote.description(), None)?;
        let target = VolumeId::of_taken(&self.node_key, id);
        self.make_taken(&remote, snapshot, (&pool, target), None).map(Recorded::Snapshot)
    }

    /// Opens a snapshot at its node, which offers it to this one from here on.
    pub(super) fn open_taken(
        &self,
        id: &SnapshotId,
        way: &Way,
        group: Option<&GroupSnapshotId>,
    ) -> Result<Remote> {
        let sources = self.remote_sources.as_ref();
        let sources =
            sources.ok_or_else(|| Error::Unavailable("this node copies from no other one".to_owned()))?;
        let target = VolumeId::of_taken(&self.node_key, id);
        let request = OpenSource {
            by_file: false,
            source: VolumeSource::Snapshot(id.clone()),
            target: target.clone(),
            consistency: Consistency::default(),
            began: Timestamp::now(),
            keep: Keep::Moves { node_id: self.node_id().to_owned(), group: group.cloned() },
        };
        self.open_for(sources.as_ref(), way, &target, request)
    }

    /// Returns the record of the copy, and the pool that it comes into: the one with the name of the source's pool.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the source is of another group, or runs an earlier version, or if the pool cannot have it.
    pub(super) fn design_taken(
        &self,
        id: &SnapshotId,
        node_id: &str,
        described: &SourceDescription,
        group: Option<&GroupSnapshot>,
    ) -> Result<(Snapshot, Arc<Pool>)> {
        let moving = described.moving.clone().ok_or_else(|| {
            Error::InUse(format!(
                "node {node_id:?} runs an earlier version, which moves no snapshots; upgrade it first"
            ))
        })?;
        if moving.group.as_ref().map(|group| &group.id) != group.map(|group| &group.id) {
            return Err(Error::InUse(format!(
                "snapshot {id} is a member of a group, which moves as a whole"
            )));
        }
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
            group: group.map(|group| group.id.clone()),
            pulled_for: None,
            kept: false,
            sealed: described.sealed,
            generation: described.generation,
            object: moving.object,
            handover: group.is_none().then_some(handover),
        };
        Ok((snapshot, pool))
    }

    /// Makes the copy. Its record says `creating` before the first byte is read, and `ready` after the last is durable.
    pub(super) fn make_taken(
        &self,
        remote: &Remote,
        snapshot: Snapshot,
        (pool, target): (&Arc<Pool>, VolumeId),
        group: Option<&GroupSnapshot>,
    ) -> Result<Arc<Snapshot>> {
        let paths = self.snapshot_paths(&snapshot)?;
        self.nothing_on_disk(&paths)?;
        let bytes = snapshot.allocated_bytes;
        let mut reservation = self.reserve(pool, Want::Snapshot(snapshot.content.backend(), bytes), bytes)?;
        let snapshot = self.store.put_snapshot(snapshot)?;
        reservation.recorded();
        let made = self.pull_snapshot(remote, Makes::Snapshot(&snapshot, group), (pool, &paths, target));
        let made = made.and_then(|()| self.complete(&snapshot, snapshot.created));
        made.map_err(|cause| cause.after_undo(self.remove_snapshot(&snapshot)))
    }

    fn pull_snapshot(
        &self,
        remote: &Remote,
        makes: Makes<'_>,
        (pool, paths, target): (&Pool, &VolumePaths, VolumeId),
    ) -> Result<()> {
        let described = remote.description();
        let (bytes, id) = (described.data_bytes, described.handle.id.as_str());
        let parameters = VolumeParameters {
            backend: described.backend(),
            pool: pool.name.clone(),
            ..VolumeParameters::default()
        };
        // No record has it. It stands for the copy where a pull is for a volume.
        let volume = Volume {
            capacity_bytes: described.size_bytes,
            ..Volume::new(target, Phase::Creating, described.content.clone(), parameters)
        };
        self.pulling(remote, &volume, |driver| {
            prepare_files(&driver.os, paths)?;
            tracing::info!(snapshot.id = id, size = %format_bytes(bytes), "copying the snapshot from its node");
            let mut progress = driver.copies.begin(id, bytes);
            match paths.shape() {
                Shape::Blocks(image) => driver.pull_image_within(remote, &image, pool, &mut progress)?,
                Shape::Tree(tree) => {
                    let place = driver.place(&volume, paths);
                    let making = Making { path: &tree, pool, place, reserved: bytes };
                    driver.pull_tree_to(remote, &making, &mut progress)?;
                }
            }
            let record = driver.record_of_copy(makes, described.handle.created)?;
            sync_files(&driver.os, paths, &record)
        })
    }
}
