//! CSI CreateVolumeGroupSnapshot.

use std::sync::Arc;

use super::copies::cut::Member;
use super::copies::snapshots::{Draft, Purpose};
use super::locks::Mode;
use super::{Driver, not_found};
use crate::error::{Busy, Error, Result};
use crate::model::answer::Group;
use crate::model::request::CreateVolumeGroupSnapshot;
use crate::model::{
    GroupSnapshot, GroupSnapshotId, Phase, Snapshot, SnapshotId, Timestamp, Volume, VolumeId,
};

impl Driver {
    /// Makes snapshots of several volumes at one point in time, all or none, or finds the group that an earlier call
    /// with the same name made. The record of the group is what makes it and its members be there.
    ///
    /// # Errors
    /// NOT_FOUND for a volume; ALREADY_EXISTS where the name is that of a group of other volumes or made in another
    /// way; FAILED_PRECONDITION where the volumes cannot be cut at one point in time; RESOURCE_EXHAUSTED without room.
    /// After any error nothing of the group is left.
    pub fn create_volume_group_snapshot(&self, request: CreateVolumeGroupSnapshot) -> Result<Group> {
        let CreateVolumeGroupSnapshot { name, source_volume_ids, consistency } = request;
        let id = GroupSnapshotId::of_name(&self.node_key, &name);
        let parsed: Vec<Option<VolumeId>> =
            source_volume_ids.iter().map(|id| self.controller_id(id)).collect();
        let mut sources: Vec<VolumeId> = parsed.iter().flatten().cloned().collect();
        sources.sort();
        sources.dedup();
        // One of this name may have moved here: its id names the node that it was made on.
        let is_this =
            |group: &GroupSnapshot| group.id != id && group.name == name && group.sources == sources;
        let came = self.store.groups().into_iter().find(|group| is_this(group));
        let has_come = came.is_some();
        let id = came.map_or(id, |came| came.id.clone());
        let keys = sources.iter().map(|source| (source.into(), Mode::Shared));
        let _guard = self.lock_all([((&id).into(), Mode::Exclusive)].into_iter().chain(keys))?;
        let unknown =
            source_volume_ids.iter().zip(&parsed).find(|(_, parsed)| parsed.is_none()).map(|(id, _)| id);
        let there = match self.store.group(&id) {
            Some(there) if there.phase == Phase::Ready => Some(there),
            Some(there) => self.settle_group(&there)?,
            None => None,
        };
        if let Some(there) = there {
            let same = unknown.is_none() && there.sources == sources && there.consistency == consistency;
            return if same { self.acknowledge_group(there) } else { Err(exists(&name)) };
        }
        if let Some(unknown) = unknown {
            return Err(not_found(unknown));
        }
        // It was deleted meanwhile. A new one must not get the id that another node gave.
        if has_come {
            return Err(Busy::on(&id).because("it is being moved").into());
        }
        let ready = |source: &VolumeId| self.ready_volume(source, source.as_str());
        let volumes = sources.iter().map(ready).collect::<Result<Vec<_>>>()?;
        let snapshots: Vec<SnapshotId> =
            sources.iter().map(|source| SnapshotId::of_member(&id, &self.node_key, source)).collect();
        snapshots.iter().try_for_each(|id| self.expect_not_released(id))?;
        let _turn = self.copy_turn()?;
        let (phase, created) = (Phase::Creating, Timestamp::now());
        let group =
            GroupSnapshot { id, name, phase, created, sources, snapshots, consistency, handover: None };
        let group = self.store.put_group(group)?;
        let made = self.make_members(&group, volumes).and_then(|created| {
            let group = GroupSnapshot { phase: Phase::Ready, created, ..(*group).clone() };
            Ok(self.store.put_group(group)?)
        });
        let made = made.map_err(|cause| cause.after_undo(self.remove_group(&group)))?;
        let acknowledged = self.acknowledge_group(Arc::clone(&made));
        acknowledged.map_err(|cause| cause.after_undo(self.remove_group(&made)))
    }

    /// Takes the marks away from the members of a group that is recorded as `ready`: nobody is told of it before.
    pub(super) fn acknowledge_group(&self, group: Arc<GroupSnapshot>) -> Result<Group> {
        let (group, members) = self.store.group_with_members(&group.id).unwrap_or((group, Vec::new()));
        let group = with_members(group, members)?;
        for member in &group.members {
            self.acknowledge_snapshot(Arc::clone(member))?;
        }
        Ok(group)
    }

    /// Makes the members, durable on return, and says when they were cut.
    fn make_members(&self, group: &GroupSnapshot, volumes: Vec<Arc<Volume>>) -> Result<Timestamp> {
        let draft = |(volume, id): (_, &SnapshotId)| {
            self.draft(volume, id.clone(), group.name.clone(), Purpose::Group(group.id.clone()))
        };
        let drafts = volumes.into_iter().zip(&group.snapshots).map(draft).collect::<Result<Vec<Draft>>>()?;
        let members = drafts
            .iter()
            .map(|draft| self.member(draft, Some(group)))
            .collect::<Result<Vec<Member<'_>>>>()?;
        let created = self.cut(&members, group.consistency)?;
        drafts.iter().try_for_each(|draft| self.complete(&draft.snapshot, created).map(drop))?;
        Ok(created)
    }
}

/// A group with its members.
///
/// # Errors
/// FAILED_PRECONDITION if one of them has no record.
pub(super) fn with_members(group: Arc<GroupSnapshot>, members: Vec<Arc<Snapshot>>) -> Result<Group> {
    let is_lost = |id: &&SnapshotId| members.iter().all(|member| member.id != **id);
    match group.snapshots.iter().find(is_lost) {
        Some(id) => Err(Error::InUse(format!("group {} has lost its member {id}", group.id))),
        None => Ok(Group { group, members }),
    }
}

fn exists(name: &str) -> Error {
    Error::AlreadyExists(format!(
        "group snapshot {name:?} of other volumes or with other parameters already exists: choose another name"
    ))
}
