//! The records that no data have: those of groups, and of volumes that have moved away.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan::{Decision, Item, Planner, beside};
use crate::model::{GroupSnapshot, GroupSnapshotId, Moved, Phase, Snapshot};
use crate::store::Subject;

impl Planner<'_> {
    /// Adds the groups that members name.
    pub(super) fn groups(&mut self) {
        // Of members that differ, the last that was written says where the group goes.
        let mut found: BTreeMap<GroupSnapshotId, (u64, bool, GroupSnapshot)> = BTreeMap::new();
        for entry in self.known.entries {
            let Some(beside) = beside(entry) else { continue };
            // A disk of another node says where the group goes from there.
            let is_ours = beside.identity == *self.known.identity;
            if let Subject::Snapshot(snapshot, Some(group)) = &beside.subject
                && found.get(&group.id).is_none_or(|(seq, ..)| *seq < beside.seq)
                && self
                    .records
                    .snapshots
                    .get(&snapshot.id)
                    .is_some_and(|it| it.group.as_ref() == Some(&group.id))
            {
                found.insert(group.id.clone(), (beside.seq, is_ours, group.clone()));
            }
        }
        for (id, (_, is_ours, group)) in found {
            let is_deleted = |it: &Arc<Snapshot>| it.group.as_ref() == Some(&id) && !it.is_ready();
            let phase = match self.records.snapshots.values().any(is_deleted) {
                true => Phase::Deleting,
                false => Phase::Ready,
            };
            let decision = match self.records.groups.get(&id) {
                Some(_) if !self.believes_disk => Decision::Keep,
                Some(recorded) if recorded.phase == Phase::Ready => {
                    // A record beside the data that could not be written says less, or has an earlier offer.
                    let number = |group: &GroupSnapshot| group.handover.as_ref().map(|it| it.number);
                    match is_ours && number(recorded) < number(&group) {
                        true => Decision::Replace("it is on its way to another node".to_owned()),
                        false => Decision::Keep,
                    }
                }
                Some(_) => Decision::Replace("it is whole".to_owned()),
                None => Decision::Add,
            };
            if decision != Decision::Keep {
                self.records.groups.insert(id.clone(), Arc::new(GroupSnapshot { phase, ..group }));
            }
            let id = id.to_string();
            self.items.push(Item { kind: "group snapshot", id, purpose: None, directory: None, decision });
        }
    }

    /// Adds where volumes went: what the previous file says if the present one has lost records, and what is left of them here says.
    pub(super) fn moves(&mut self) {
        let mut moved: Vec<Arc<Moved>> = Vec::new();
        if self.known.present.is_none_or(|present| present.damage.is_some()) {
            moved.extend(self.known.previous.iter().flat_map(|it| it.records.moved.values().cloned()));
        }
        moved.extend(self.records.volumes.values().filter_map(|left| {
            let retired = left.retired.as_ref()?;
            Some(Arc::new(Moved {
                id: retired.was.clone(),
                left: left.id.clone(),
                by: retired.by,
                node_id: retired.node_id.clone(),
                deleted: false,
                deleted_here: None,
            }))
        }));
        for moved in moved {
            let is_newer = self.records.moved.get(&moved.id).is_none_or(|known| known.by < moved.by);
            let has_come_back =
                self.records.volumes.get(&moved.id).is_some_and(|volume| volume.generation >= moved.by);
            if is_newer && !has_come_back {
                self.records.moved.insert(moved.id.clone(), moved);
            }
        }
    }
}
