//! A snapshot moves to another node and keeps its id, alone or with its group (docs/decisions/0027).
//!
//! The target copies it from the source ([`take_snapshot`](Driver::take_snapshot)), which records before that to which node it offers the
//! snapshot. Only then may the source delete what it has ([`release_snapshot`](Driver::release_snapshot)). As long as both may have it,
//! each of them names the other one in its record, and a deletion on one goes on to the other. Of a group, its own record does.

mod keep_snapshot;
mod offer;
mod release_snapshot;
mod take_group;
mod take_snapshot;

use std::sync::Arc;

use crate::driver::Driver;
use crate::driver::locks::{Guard, Key, Mode};
use crate::error::{Error, Result};
use crate::model::{GroupSnapshot, Handover, MovingId, Phase, Side, Snapshot, SnapshotId, VolumeId};

/// What moves, as this node records it.
enum Recorded {
    Snapshot(Arc<Snapshot>),
    Group(Arc<GroupSnapshot>),
}

impl Recorded {
    fn handover(&self) -> Option<&Handover> {
        match self {
            Recorded::Snapshot(snapshot) => snapshot.handover.as_ref(),
            Recorded::Group(group) => group.handover.as_ref(),
        }
    }

    fn is_ready(&self) -> bool {
        match self {
            Recorded::Snapshot(snapshot) => snapshot.is_ready(),
            Recorded::Group(group) => group.phase == Phase::Ready,
        }
    }

    fn id(&self) -> MovingId {
        match self {
            Recorded::Snapshot(snapshot) => MovingId::Snapshot(snapshot.id.clone()),
            Recorded::Group(group) => MovingId::Group(group.id.clone()),
        }
    }
}

impl Driver {
    /// Returns the other node that may have a snapshot while it moves. That of a member is in the record of its group.
    pub(in crate::driver) fn handover_of(&self, snapshot: &Snapshot) -> Option<Handover> {
        match &snapshot.group {
            Some(group) => self.store.group(group)?.handover.clone(),
            None => snapshot.handover.clone(),
        }
    }

    /// Returns what this node records of a snapshot or a group.
    fn recorded(&self, id: &MovingId) -> Option<Recorded> {
        match id {
            MovingId::Snapshot(id) => self.store.snapshot(id).map(Recorded::Snapshot),
            MovingId::Group(id) => self.store.group(id).map(Recorded::Group),
        }
    }

    /// Makes sure that no record is an answer: one that is lost may come back.
    ///
    /// # Errors
    /// UNAVAILABLE if a damaged state file may have lost the record.
    fn expect_known(&self, id: &MovingId) -> Result<()> {
        self.expect_certain(id.as_str())?;
        match self.recorded(id).is_none() && self.may_be_lost(id.as_str()) {
            true => Err(self.uncertain(id.as_str())),
            false => Ok(()),
        }
    }

    /// Locks what moves: a group with all of its members. `ids` are members that have no record yet.
    ///
    /// # Errors
    /// ABORTED while another operation on one of them runs.
    fn lock_moving<'a>(&self, id: &MovingId, ids: impl IntoIterator<Item = &'a SnapshotId>) -> Result<Guard> {
        let mut keys: Vec<Key> = ids.into_iter().map(Into::into).collect();
        match id {
            MovingId::Snapshot(id) => keys.push(id.into()),
            MovingId::Group(id) => {
                keys.extend(self.store.group(id).iter().flat_map(|group| &group.snapshots).map(Key::from));
                keys.push(id.into());
            }
        }
        keys.sort();
        keys.dedup();
        self.lock_all(keys.into_iter().map(|key| (key, Mode::Exclusive)))
    }

    /// Ends the copies from other nodes that are being made of this.
    pub(in crate::driver) fn stop_taking<'a>(&self, ids: impl IntoIterator<Item = &'a SnapshotId>) {
        ids.into_iter().for_each(|id| self.pulls.stop(&VolumeId::of_taken(&self.node_key, id)));
    }

    /// Records which other node may have this, if any. The caller holds its lock.
    fn record_handover(&self, recorded: &Recorded, handover: Option<Handover>) -> Result<()> {
        let parts = match recorded {
            Recorded::Snapshot(snapshot) => {
                vec![self.store.put_snapshot(Snapshot { handover, ..(**snapshot).clone() })?]
            }
            Recorded::Group(group) => {
                let group = self.store.put_group(GroupSnapshot { handover, ..(**group).clone() })?;
                self.members_of(&group.id)
            }
        };
        // Also beside the data: a state file that is rebuilt knows of the other node.
        for part in parts {
            let paths = self.snapshot_paths(&part).ok();
            paths.iter().for_each(|paths| self.mend_record_of_snapshot(&part, paths));
        }
        Ok(())
    }
}

/// Says why an order does not fit the record of a snapshot or a group.
fn unfit(recorded: &Recorded, wanted: &str) -> Error {
    let id = recorded.id();
    Error::InUse(match recorded.handover() {
        None => format!("{wanted}, and {id} is not being moved; nothing was changed"),
        Some(Handover { side, node_id, number }) => {
            let how = match side {
                Side::Offered => "is offered to",
                Side::Withdrawn => "is no longer offered to",
                Side::Taken => "was copied from",
            };
            format!("{wanted}, and {id} {how} node {node_id:?} (offer {number}); nothing was changed")
        }
    })
}
