//! What becomes of each record: no I/O.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::Wishes;
use super::believe::usable;
use super::subjects::{
    difference, id_of, is_being_deleted, is_more_formatted, is_ready, kind_of, phase_of, pool_of, purpose_of,
    says_same,
};
use crate::inventory::{Data, Entry, Place, Record};
use crate::model::{
    BackendKind, Content, GroupSnapshot, Moved, Phase, PoolName, Snapshot, Volume, VolumeId, VolumeParameters,
};
use crate::store::{Beside, Identity, Records, Salvage, Subject};

/// What is known.
pub(super) struct Known<'a> {
    pub(super) identity: &'a Identity,
    /// The present state file, as far as it can be read.
    pub(super) present: Option<&'a Salvage>,
    /// The one before it.
    pub(super) previous: Option<&'a Salvage>,
    /// What lies in the pools.
    pub(super) entries: &'a [Entry],
    /// The pools that were looked at.
    pub(super) pools: &'a [PoolName],
}

/// What is done about one volume, snapshot or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Its record stays.
    Keep,
    /// Its record stays, and the next start writes the one beside its data.
    Mend,
    /// It gets the record that lies beside its data.
    Add,
    /// It gets the record that the previous state file has.
    AddPrevious,
    /// The record beside its data takes the place of the one in the state file.
    Replace(String),
    /// Its deletion had begun, and the next start finishes it.
    Finish,
    /// Its record goes, since nothing of it is left.
    Forget(String),
    /// It is left as it is, until somebody decides.
    Leave(String),
}

/// One line of what is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) kind: &'static str,
    pub(super) id: String,
    /// The claim or the VolumeSnapshot that it is for.
    pub(super) purpose: Option<String>,
    pub(super) directory: Option<PathBuf>,
    pub(super) decision: Decision,
}

/// The records that there are to be, and why.
pub(super) struct Plan {
    pub(super) records: Records,
    pub(super) items: Vec<Item>,
    /// The first number of the new file: greater than any that was used.
    pub(super) first: u64,
}

/// Decides about everything.
pub(super) fn plan(known: &Known<'_>, wishes: &Wishes) -> Plan {
    let records = known.present.map(|present| present.records.clone()).unwrap_or_default();
    let mut planner = Planner { known, wishes, records, items: Vec::new() };
    known.entries.iter().for_each(|entry| planner.entry(entry));
    planner.forget_what_is_gone();
    planner.groups();
    planner.moves();
    let Planner { records, mut items, .. } = planner;
    items.sort_by(|one, other| (one.kind, &one.id).cmp(&(other.kind, &other.id)));
    let besides = known.entries.iter().filter_map(|entry| beside(entry).map(|beside| beside.seq));
    let files = [known.present, known.previous].into_iter().flatten().map(|file| file.last);
    let first = besides.chain(files).max().unwrap_or(0).saturating_add(1);
    Plan { records, items, first }
}

fn beside(entry: &Entry) -> Option<&Beside> {
    match &entry.record {
        Record::Whole(beside) => Some(beside),
        _ => None,
    }
}

struct Planner<'a> {
    known: &'a Known<'a>,
    wishes: &'a Wishes,
    records: Records,
    items: Vec<Item>,
}

impl Planner<'_> {
    /// Reports whether the disk is to be believed rather than the state file: that has lost records, or is older.
    fn believes_disk(&self) -> bool {
        let last = self.known.present.map_or(0, |present| present.last);
        let is_newer = |beside: &Beside| beside.identity == *self.known.identity && beside.seq > last;
        self.known.present.is_none_or(|present| present.damage.is_some())
            || self.known.entries.iter().filter_map(beside).any(is_newer)
    }

    fn entry(&mut self, entry: &Entry) {
        let recorded = self.recorded(entry);
        let found = usable(entry, self.known.identity);
        let id = match (&found, &recorded) {
            (Ok(subject), _) | (_, Some(subject)) => id_of(subject),
            _ => entry.name.clone(),
        };
        if self.wishes.drops(&id, &entry.name) {
            recorded.iter().for_each(|subject| self.remove(subject));
            return self.say(entry, id, None, Decision::Forget("as you said; its files stay".to_owned()));
        }
        let keeps = self.wishes.keeps(&id, &entry.name);
        let purpose = found.as_ref().ok().or(recorded.as_ref()).and_then(purpose_of);
        let decision = match (found, recorded) {
            (Ok(subject), recorded) => self.with_record(entry, subject, recorded),
            (Err(why), _) if keeps && beside(entry).is_some() => self.keep_anyway(entry, why),
            (Err(_), Some(subject)) if is_ready(&subject) && entry.data != Data::Missing => Decision::Keep,
            (Err(_), Some(subject)) if !is_ready(&subject) => Decision::Keep, // the next start settles it
            (Err(why), Some(_)) => Decision::Leave(why),
            (Err(why), None) => self.without_record(entry, why),
        };
        self.say(entry, id, purpose, decision);
    }

    /// What the state file says of these data.
    fn recorded(&self, entry: &Entry) -> Option<Subject> {
        match entry.place {
            Place::Volume => {
                let here = |volume: &&Arc<Volume>| {
                    volume.directory().as_str() == entry.name && *volume.pool() == entry.pool
                };
                self.records.volumes.values().find(here).map(|volume| Subject::Volume((**volume).clone()))
            }
            Place::Snapshot => {
                let snapshot = self.records.snapshots.get(&entry.name.parse().ok()?)?;
                let group = snapshot.group.as_ref().and_then(|group| self.records.groups.get(group));
                Some(Subject::Snapshot((**snapshot).clone(), group.map(|group| (**group).clone())))
            }
        }
    }

    fn with_record(&mut self, entry: &Entry, subject: Subject, recorded: Option<Subject>) -> Decision {
        match recorded {
            _ if entry.deleting => {
                if let Some(recorded) = recorded {
                    // A whole file that says `ready` is followed: the next start takes the mark away.
                    if !is_ready(&recorded) || !self.believes_disk() {
                        return Decision::Keep;
                    }
                    self.remove(&recorded);
                }
                self.put(&subject, Phase::Deleting);
                Decision::Finish
            }
            None if self.went_to(&subject).is_some() => {
                let node = self.went_to(&subject).unwrap_or_default();
                Decision::Leave(format!("it has moved to node {node:?}"))
            }
            None if self.has(&id_of(&subject)) => {
                Decision::Leave(format!("the state file has {} in another directory", id_of(&subject)))
            }
            None => {
                self.put(&subject, Phase::Ready);
                Decision::Add
            }
            Some(recorded)
                if says_same(&recorded, &subject)
                    && is_ready(&recorded)
                    && !(self.believes_disk() && is_more_formatted(&subject, &recorded)) =>
            {
                Decision::Keep
            }
            Some(recorded) if is_being_deleted(&recorded) => Decision::Keep,
            Some(recorded) if !self.believes_disk() => match is_ready(&recorded) {
                true => Decision::Mend,
                false => Decision::Keep, // the next start settles it
            },
            Some(recorded) => {
                let why = difference(&recorded, &subject);
                self.remove(&recorded);
                self.put(&subject, Phase::Ready);
                Decision::Replace(why)
            }
        }
    }

    /// Takes a record that cannot be believed, because somebody says so.
    fn keep_anyway(&mut self, entry: &Entry, why: String) -> Decision {
        match beside(entry).map(|beside| beside.subject.clone()) {
            Some(subject) if entry.data != Data::Missing => {
                self.recorded(entry).iter().for_each(|recorded| self.remove(recorded));
                self.put(&subject, Phase::Ready);
                Decision::Replace(format!("as you said, although {why}"))
            }
            _ => Decision::Leave(why),
        }
    }

    fn without_record(&mut self, entry: &Entry, why: String) -> Decision {
        let previous = self.known.previous.map(|previous| &previous.records);
        let of_volume = || {
            let mut volumes = previous?.volumes.values();
            let here = volumes.find(|volume| volume.directory().as_str() == entry.name)?;
            (*here.pool() == entry.pool).then(|| Subject::Volume((**here).clone()))
        };
        let of_snapshot = || {
            let here = previous?.snapshots.get(&entry.name.parse().ok()?)?;
            let group = here.group.as_ref().and_then(|group| previous?.groups.get(group));
            Some(Subject::Snapshot((**here).clone(), group.map(|group| (**group).clone())))
        };
        let found = match entry.place {
            Place::Volume => of_volume(),
            Place::Snapshot => of_snapshot(),
        };
        if let Some(node) = found.as_ref().and_then(|subject| self.went_to(subject)) {
            return Decision::Leave(format!("it has moved to node {node:?}"));
        }
        match found.filter(|subject| !self.has(&id_of(subject))) {
            Some(subject) if entry.data != Data::Missing => {
                self.put(&subject, if entry.deleting { Phase::Deleting } else { phase_of(&subject) });
                Decision::AddPrevious
            }
            _ => match self.left_of_deleted(entry) {
                Some(volume) => {
                    self.put(&Subject::Volume(volume), Phase::Deleting);
                    Decision::Finish
                }
                None => Decision::Leave(why),
            },
        }
    }

    /// The record of what is being deleted, of which nothing else is known.
    fn left_of_deleted(&self, entry: &Entry) -> Option<Volume> {
        let id: VolumeId = entry.name.parse().ok()?;
        if !entry.deleting || entry.record != Record::Missing {
            return None;
        }
        let backend = match entry.data {
            Data::Image { .. } => BackendKind::Loop,
            Data::Tree | Data::Missing => BackendKind::Directory,
        };
        let content = match backend {
            BackendKind::Loop => Content::Block,
            BackendKind::Directory => Content::Directory,
        };
        let parameters =
            VolumeParameters { backend, pool: entry.pool.clone(), ..VolumeParameters::default() };
        Some(Volume::new(id, Phase::Deleting, content, parameters))
    }

    /// Removes the records of what has no directory any more, if the disk is to be believed.
    fn forget_what_is_gone(&mut self) {
        let is_there = |place, name: &str| {
            self.known.entries.iter().any(|entry| entry.place == place && entry.name == name)
        };
        let looked_at = |pool: &PoolName| self.known.pools.contains(pool);
        let volumes = self.records.volumes.values();
        let gone =
            volumes.filter(|it| looked_at(it.pool()) && !is_there(Place::Volume, it.directory().as_str()));
        let volumes = gone.map(|volume| Subject::Volume((**volume).clone()));
        let snapshots = self.records.snapshots.values();
        let gone = snapshots.filter(|it| looked_at(&it.pool) && !is_there(Place::Snapshot, it.id.as_str()));
        let snapshots = gone.map(|snapshot| Subject::Snapshot((**snapshot).clone(), None));
        let gone: Vec<Subject> = volumes.chain(snapshots).collect();
        for subject in gone.iter().filter(|subject| is_ready(subject)) {
            let id = id_of(subject);
            // A pool in which nothing at all is may be one whose disk is not mounted.
            let pool = pool_of(subject);
            let is_empty = self.known.entries.iter().all(|entry| entry.pool != *pool);
            let decision = match (self.believes_disk() && !is_empty) || self.wishes.drops(&id, &id) {
                true => {
                    self.remove(subject);
                    Decision::Forget("its directory is gone".to_owned())
                }
                false => Decision::Leave("its directory is gone".to_owned()),
            };
            self.items.push(Item {
                kind: kind_of(subject),
                purpose: purpose_of(subject),
                id,
                directory: None,
                decision,
            });
        }
    }

    /// Adds the groups that members name.
    fn groups(&mut self) {
        let mut found = BTreeMap::new();
        for entry in self.known.entries {
            if let Some(Subject::Snapshot(snapshot, Some(group))) =
                beside(entry).map(|beside| &beside.subject)
                && self
                    .records
                    .snapshots
                    .get(&snapshot.id)
                    .is_some_and(|it| it.group.as_ref() == Some(&group.id))
            {
                found.insert(group.id.clone(), group.clone());
            }
        }
        for (id, group) in found {
            let is_deleted = |it: &Arc<Snapshot>| it.group.as_ref() == Some(&id) && !it.is_ready();
            let phase = match self.records.snapshots.values().any(is_deleted) {
                true => Phase::Deleting,
                false => Phase::Ready,
            };
            let decision = match self.records.groups.get(&id) {
                Some(recorded) if recorded.phase == Phase::Ready || !self.believes_disk() => Decision::Keep,
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
    fn moves(&mut self) {
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

    /// The node that a volume has moved to, if the records say so.
    fn went_to(&self, subject: &Subject) -> Option<String> {
        let Subject::Volume(volume) = subject else { return None };
        let files = [self.known.present, self.known.previous].into_iter().flatten();
        let moved =
            files.filter_map(|file| file.records.moved.get(&volume.id)).max_by_key(|moved| moved.by)?;
        (moved.by > volume.generation).then(|| moved.node_id.clone())
    }

    fn has(&self, id: &str) -> bool {
        let volume = id.parse().is_ok_and(|id| self.records.volumes.contains_key(&id));
        volume || id.parse().is_ok_and(|id| self.records.snapshots.contains_key(&id))
    }

    fn put(&mut self, subject: &Subject, phase: Phase) {
        match subject {
            Subject::Volume(volume) => {
                let volume = Volume { phase, ..volume.clone() };
                self.records.volumes.insert(volume.id.clone(), Arc::new(volume));
            }
            Subject::Snapshot(snapshot, _) => {
                let snapshot = Snapshot { phase, ..snapshot.clone() };
                self.records.snapshots.insert(snapshot.id.clone(), Arc::new(snapshot));
            }
        }
    }

    fn remove(&mut self, subject: &Subject) {
        match subject {
            Subject::Volume(volume) => drop(self.records.volumes.remove(&volume.id)),
            Subject::Snapshot(snapshot, _) => drop(self.records.snapshots.remove(&snapshot.id)),
        }
    }

    fn say(&mut self, entry: &Entry, id: String, purpose: Option<String>, decision: Decision) {
        let kind = match entry.place {
            Place::Volume => "volume",
            Place::Snapshot => "snapshot",
        };
        let directory = Some(entry.directory.clone());
        self.items.push(Item { kind, id, purpose, directory, decision });
    }
}
