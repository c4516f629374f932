//! TakeSnapshot of the protocol between the processes of a cluster, for a group.

use std::sync::Arc;

use super::Recorded;
use crate::driver::Driver;
use crate::driver::pull::Remote;
use crate::error::{Error, Result};
use crate::model::{
    GroupSnapshot, GroupSnapshotId, Handover, Phase, Side, SnapshotId, TakeSnapshot, VolumeId,
};

impl Driver {
    /// Copies all members of a group, whose record then makes all of them be there at once.
    ///
    /// # Errors
    /// As [`take_snapshot`](Driver::take_snapshot); FAILED_PRECONDITION if the members are not those of the group.
    pub(super) fn take_group(&self, id: &GroupSnapshotId, request: &TakeSnapshot) -> Result<Recorded> {
        let TakeSnapshot { node_id, ways, .. } = request;
        let mut members = Vec::new();
        for (member, way) in ways {
            members.push((member, self.open_taken(member, way, Some(id))?));
        }
        // Another node names them, and must not replace what is here.
        if let Some((there, _)) = ways.iter().find(|(member, _)| self.store.snapshot(member).is_some()) {
            return Err(Error::InUse(format!(
                "node {:?} has snapshot {there}, which is no member of group {id} here; see hostloop snapshots",
                self.node_id()
            )));
        }
        let group = self.store.put_group(design(id, node_id, &members)?)?;
        drop(members);
        let targets = ways.iter().map(|(id, way)| (VolumeId::of_taken(&self.node_key, id), way));
        targets.for_each(|(target, way)| self.pulls.wait(target, way));
        let made = self.take_members(&group, request).and_then(|()| {
            Ok(self.store.put_group(GroupSnapshot { phase: Phase::Ready, ..(*group).clone() })?)
        });
        for (id, _) in ways {
            drop(self.pulls.turn(&VolumeId::of_taken(&self.node_key, id)));
        }
        made.map(Recorded::Group).map_err(|cause| cause.after_undo(self.remove_group(&group)))
    }

    fn take_members(&self, group: &Arc<GroupSnapshot>, request: &TakeSnapshot) -> Result<()> {
        let TakeSnapshot { node_id, ways, .. } = request;
        for (id, way) in ways {
            // Once more: the time that a copy may take counts from here, and the permit may have ended since.
            let way = self.pulls.turn(&VolumeId::of_taken(&self.node_key, id)).unwrap_or_else(|| way.clone());
            let remote = self.open_taken(id, &way, Some(&group.id))?;
            let number = remote.description().moving.as_ref().map(|moving| moving.number);
            if number != group.handover.as_ref().map(|handover| handover.number) {
                return Err(Error::Unavailable(format!(
                    "node {node_id:?} has offered group {} anew",
                    group.id
                )));
            }
            let (snapshot, pool) = self.design_taken(id, node_id, remote.description(), Some(group))?;
            let target = VolumeId::of_taken(&self.node_key, id);
            self.make_taken(&remote, snapshot, (&pool, target), Some(group))?;
        }
        Ok(())
    }
}

/// Returns the record of the copy of a group, as the node of the first member has described it.
///
/// # Errors
/// FAILED_PRECONDITION if that node runs an earlier version, or if these are not its members.
fn design(id: &GroupSnapshotId, node_id: &str, members: &[(&SnapshotId, Remote)]) -> Result<GroupSnapshot> {
    let moving = members.first().and_then(|(_, remote)| remote.description().moving.clone());
    let described = moving.and_then(|moving| Some((moving.group?, moving.number)));
    let (group, number) = described.filter(|(group, _)| group.id == *id).ok_or_else(|| {
        Error::InUse(format!("node {node_id:?} does not say that these snapshots are of group {id}"))
    })?;
    let mut named: Vec<&SnapshotId> = members.iter().map(|(member, _)| *member).collect();
    let mut there: Vec<&SnapshotId> = group.snapshots.iter().collect();
    named.sort();
    there.sort();
    let is_one = |(_, remote): &(&SnapshotId, Remote)| {
        let moving = remote.description().moving.as_ref();
        moving.is_some_and(|moving| moving.number == number && moving.group.as_ref() == Some(&group))
    };
    if named != there || !members.iter().all(is_one) {
        return Err(Error::InUse(format!(
            "these are not the members of group {id} on node {node_id:?}; look again"
        )));
    }
    let handover = Some(Handover { side: Side::Taken, node_id: node_id.to_owned(), number });
    Ok(GroupSnapshot { phase: Phase::Creating, handover, ..group })
}
