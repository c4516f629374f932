//! What becomes of each record: no I/O.

use std::path::PathBuf;
use std::sync::Arc;

use super::Wishes;
use super::believe::{adjusted, is_of, usable};
use super::subjects::{
    difference, id_of, is_being_deleted, is_more_formatted, is_ready, kind_of, pool_of, purpose_of, says_same,
};
use crate::inventory::{Data, Entry, Place, Record};
use crate::model::{BackendKind, Content, Phase, PoolName, Snapshot, Volume, VolumeId, VolumeParameters};
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
    /// It is left unchanged until the administrator decides.
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
    let believes_disk = believes_disk(known);
    let mut planner = Planner { known, wishes, believes_disk, records, items: Vec::new() };
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

pub(super) fn beside(entry: &Entry) -> Option<&Beside> {
    match &entry.record {
        Record::Whole(beside) => Some(beside),
        _ => None,
    }
}

/// Reports whether the state file has lost records, or is older than a record beside data.
fn believes_disk(known: &Known<'_>) -> bool {
    let last = known.present.map_or(0, |present| present.last);
    let is_newer = |beside: &Beside| beside.identity == *known.identity && beside.seq > last;
    known.present.is_none_or(|present| present.damage.is_some())
        || known.entries.iter().filter_map(beside).any(is_newer)
}

/// The records and decisions so far.
pub(super) struct Planner<'a> {
    pub(super) known: &'a Known<'a>,
    wishes: &'a Wishes,
    /// The records beside data take precedence: the state file has lost records, or is older.
    pub(super) believes_disk: bool,
    pub(super) records: Records,
    pub(super) items: Vec<Item>,
}

impl Planner<'_> {
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
            (Err(_), Some(subject)) if is_ready(&subject) && entry.data != Data::Missing => {
                self.keep_formatted(entry, &subject)
            }
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
            None if self.went_to(&subject).is_some() => {
                let node = self.went_to(&subject).unwrap_or_default();
                Decision::Leave(format!("it has moved to node {node:?}"))
            }
            // A volume that moved to another pool of the node, whose earlier pool could not be written to.
            recorded if (recorded.is_none() || self.believes_disk) && self.has_later(entry, &subject) => {
                recorded.iter().for_each(|recorded| self.remove(recorded));
                Decision::Leave("another directory has a later generation of it".to_owned())
            }
            None if self.has(&id_of(&subject)) => {
                Decision::Leave(format!("the state file has {} in another directory", id_of(&subject)))
            }
            _ if entry.deleting => {
                if let Some(recorded) = recorded {
                    // A whole file that says `ready` is followed: the next start takes the mark away.
                    if !is_ready(&recorded) || !self.believes_disk {
                        return Decision::Keep;
                    }
                    self.remove(&recorded);
                }
                self.put(&subject, Phase::Deleting);
                Decision::Finish
            }
            None => {
                self.put(&subject, Phase::Ready);
                Decision::Add
            }
            Some(recorded)
                if says_same(&recorded, &subject)
                    && is_ready(&recorded)
                    && !(self.believes_disk && is_more_formatted(&subject, &recorded)) =>
            {
                Decision::Keep
            }
            Some(recorded) if is_being_deleted(&recorded) => Decision::Keep,
            Some(recorded) if !self.believes_disk => match is_ready(&recorded) {
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

    /// Keeps a record. If the state file is damaged, the line that said `formatted` may be lost, and a stage would erase the image.
    fn keep_formatted(&mut self, entry: &Entry, recorded: &Subject) -> Decision {
        let found = adjusted(entry, recorded);
        if !self.believes_disk || !is_more_formatted(&found, recorded) {
            return Decision::Keep;
        }
        self.put(&found, Phase::Ready);
        Decision::Replace("its image is formatted".to_owned())
    }

    /// Takes a contradictory record, because the administrator said so.
    fn keep_anyway(&mut self, entry: &Entry, why: String) -> Decision {
        match beside(entry).map(|beside| beside.subject.clone()) {
            // A record of another directory would be one of other data.
            Some(subject) if is_of(entry, &subject) => {
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
            // What was not `ready` then may be blank and acknowledged by now, and the next start would erase it.
            Some(subject) if is_of(entry, &subject) && (is_ready(&subject) || entry.deleting) => {
                let phase = if entry.deleting { Phase::Deleting } else { Phase::Ready };
                self.put(&adjusted(entry, &subject), phase);
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
        if !entry.deleting || entry.record != Record::Missing || self.is_elsewhere(entry, id.as_str()) {
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

    /// Reports whether a volume with this id is recorded, or lies in another directory: what is left here of one is not that volume.
    fn is_elsewhere(&self, entry: &Entry, id: &str) -> bool {
        let is_it =
            |other: &&Entry| beside(other).is_some_and(|it| id_of(&it.subject) == id) || other.name == id;
        let mut others = self.known.entries.iter().filter(|other| other.directory != entry.directory);
        self.has(id) || others.any(|other| is_it(&other))
    }

    /// Removes the records that have no directory, if the records beside data take precedence.
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
            let decision = match (self.believes_disk && !is_empty) || self.wishes.drops(&id, &id) {
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

    /// The node that a volume has moved to, if the records say so.
    fn went_to(&self, subject: &Subject) -> Option<String> {
        let Subject::Volume(volume) = subject else { return None };
        let files = [self.known.present, self.known.previous].into_iter().flatten();
        let moved =
            files.filter_map(|file| file.records.moved.get(&volume.id)).max_by_key(|moved| moved.by)?;
        (moved.by > volume.generation).then(|| moved.node_id.clone())
    }

    /// Reports whether another directory has a record of a volume with the same id and a later generation.
    fn has_later(&self, entry: &Entry, subject: &Subject) -> bool {
        let Subject::Volume(volume) = subject else { return false };
        let is_elsewhere = |other: &&Entry| (&other.name, &other.pool) != (&entry.name, &entry.pool);
        let others = self.known.entries.iter().filter(is_elsewhere);
        others.filter_map(|other| usable(other, self.known.identity).ok()).any(|other| {
            matches!(other, Subject::Volume(other) if other.id == volume.id && other.generation > volume.generation)
        })
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
