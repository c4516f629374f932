//! Volumes and snapshots whose record a damaged state file may have lost. Calls on them are UNAVAILABLE until it is repaired; everything
//! else is served.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::locks::guarded::Guarded;
use super::{Driver, Pool};
use crate::error::{Error, Result};
use crate::inventory::{self, Entry, Place, Record};
use crate::model::health::Trouble;
use crate::model::{Format, GroupSnapshotId, Phase, PoolName, SnapshotId, VolumeId};
use crate::store::{Damage, Store, Subject};

/// Their ids, and those of groups.
#[derive(Default)]
pub(super) struct Doubts(Guarded<State>);

#[derive(Default)]
struct State {
    ids: BTreeSet<String>,
    /// What the records beside data have confirmed, in whichever pool.
    certain: BTreeSet<String>,
}

impl Driver {
    /// Finds the ids that a damaged state file may have lost: those of records beside data that differ from the file, and those in its
    /// damaged lines. Call it before the pools are used.
    pub(super) fn find_doubts(&self, pools: &[Arc<Pool>]) {
        let (entries, unread) = self.entries(pools);
        let Some(damage) = self.store.damage() else { return self.report_lost_state(&entries) };
        let mut state = self.doubts.0.lock();
        let mut found = BTreeSet::new();
        for entry in entries {
            let ids = ids_of(&entry);
            match self.agrees(&entry) {
                true => state.certain.extend(ids),
                false => found.extend(ids.into_iter().chain(self.recorded_at(&entry))),
            }
        }
        found.extend(unread.iter().flat_map(|pool| self.recorded_in(pool)));
        let is_id = |word: &&String| {
            word.parse::<VolumeId>().is_ok()
                || word.parse::<SnapshotId>().is_ok()
                || word.parse::<GroupSnapshotId>().is_ok()
        };
        found.extend(damage.words.iter().filter(is_id).cloned());
        // The lost line may be the record of a move.
        let retired = self.store.volumes().into_iter().filter_map(|left| left.retired.clone());
        found.extend(
            retired.map(|it| it.was).filter(|was| self.store.moved(was).is_none()).map(|was| was.to_string()),
        );
        found.retain(|id| !state.certain.contains(id));
        state.ids.extend(found);
        let doubts = state.ids.len();
        drop(state);
        self.report_damage(damage, doubts);
    }

    /// Reads what is in the pools, if the state file is damaged or empty.
    /// Also returns the pools that cannot be read.
    fn entries(&self, pools: &[Arc<Pool>]) -> (Vec<Entry>, Vec<PoolName>) {
        let (mut entries, mut unread) = (Vec::new(), Vec::new());
        if self.store.damage().is_none() && self.knows_something() {
            return (entries, unread);
        }
        for pool in pools {
            match inventory::read(&self.os, &pool.name, &pool.path) {
                Ok(found) => entries.extend(found),
                Err(error) => {
                    tracing::warn!(pool = %pool.name, %error, "the contents of the pool are not known");
                    unread.push(pool.name.clone());
                }
            }
        }
        (entries, unread)
    }

    /// Returns the ids that the state file has in a pool.
    fn recorded_in(&self, pool: &PoolName) -> Vec<String> {
        let volumes = self.store.volumes().into_iter().filter(|volume| volume.pool() == pool);
        let snapshots = self.store.snapshots().into_iter().filter(|snapshot| snapshot.pool == *pool);
        let volumes = volumes.map(|volume| volume.id.to_string());
        volumes.chain(snapshots.map(|snapshot| snapshot.id.to_string())).collect()
    }

    /// Reports whether the state file says the same as the record beside the data.
    fn agrees(&self, entry: &Entry) -> bool {
        let Record::Whole(beside) = &entry.record else { return false };
        if beside.identity != *self.store.identity() {
            return false;
        }
        match &beside.subject {
            Subject::Volume(volume) => self.store.get(&volume.id).is_some_and(|recorded| {
                // A line that said `formatted` may be lost, and what is not formatted is erased.
                let is_formatted = recorded.content.format() != Some(Format::Blank) || !entry.formatting;
                recorded.directory().as_str() == entry.name
                    && recorded.phase != Phase::Creating
                    && is_formatted
                    && Subject::of_volume(&recorded).agrees(&beside.subject)
            }),
            Subject::Snapshot(snapshot, group) => self.store.snapshot(&snapshot.id).is_some_and(|recorded| {
                let of = |id: &GroupSnapshotId| {
                    self.store.group(id).filter(|group| group.phase != Phase::Creating)
                };
                let recorded_group = group.as_ref().and_then(|group| of(&group.id));
                recorded.phase != Phase::Creating
                    && Subject::of_snapshot(&recorded, recorded_group.as_deref()).agrees(&beside.subject)
            }),
        }
    }

    /// The id that the state file has for a directory.
    fn recorded_at(&self, entry: &Entry) -> Option<String> {
        match entry.place {
            Place::Snapshot => None, // it is that of the directory
            Place::Volume => {
                let volumes = self.store.volumes().into_iter();
                let mut here = volumes.filter(|volume| volume.directory().as_str() == entry.name);
                here.next().map(|volume| volume.id.to_string())
            }
        }
    }

    /// # Errors
    /// UNAVAILABLE for what may have lost its record.
    pub(super) fn expect_certain(&self, id: &str) -> Result<()> {
        match self.doubts.0.lock().ids.contains(id) {
            false => Ok(()),
            true => Err(self.uncertain(id)),
        }
    }

    /// Reports whether a damaged state file may have lost what it knows of this volume or snapshot.
    pub(super) fn may_be_lost(&self, id: &str) -> bool {
        self.store.damage().is_some() && !self.doubts.0.lock().certain.contains(id)
    }

    /// What is said of an id whose record may be lost.
    pub(super) fn uncertain(&self, id: &str) -> Error {
        Error::Unavailable(format!(
            "the record of {id} may be lost, because the state file of node {:?} is damaged; run \"hostloop state repair\" there",
            self.node_id()
        ))
    }

    /// What the damage of the state file means for callers.
    pub(crate) fn troubles_of_state(&self) -> Option<Trouble> {
        let damage = self.store.damage()?;
        let doubts = self.doubts.0.lock().ids.len();
        Some(Trouble::degraded(
            "StateFileDamaged",
            format!(
                "the state file is damaged at line {} ({}), and {doubts} volumes and snapshots are not available; stop the driver and run \
                 \"hostloop state repair\" on this node",
                damage.line, damage.reason
            ),
        ))
    }

    fn report_damage(&self, damage: &Damage, doubts: usize) {
        let file = Store::file(&self.settings.data_dir);
        tracing::error!(
            file = %file.display(), line = damage.line, reason = damage.reason, lost = damage.lost, unavailable = doubts,
            "the state file is damaged; what it does not say for sure is unavailable, and everything else is served. Stop the driver and run: {}",
            self.command("repair")
        );
    }

    /// Says once what to do about pools that hold volumes of this driver, and a state file that knows nothing.
    fn report_lost_state(&self, entries: &[Entry]) {
        let is_ours = |entry: &Entry| match &entry.record {
            Record::Whole(beside) => beside.identity == *self.store.identity() && !entry.deleting,
            _ => false,
        };
        let found: Vec<&Entry> = entries.iter().filter(|entry| is_ours(entry)).collect();
        if let Some(first) = found.first() {
            let file = Store::file(&self.settings.data_dir);
            tracing::error!(
                file = %file.display(), found = found.len(), first = %first.directory.display(),
                "the state file has no record of the volumes and snapshots in the pools: it may be lost. Stop the driver and run: {}",
                self.command("rebuild")
            );
        }
    }

    fn knows_something(&self) -> bool {
        !self.store.is_empty() || !self.store.snapshots().is_empty()
    }

    /// The command with the flags of this driver.
    fn command(&self, verb: &str) -> String {
        let (node, data_dir) = (&self.settings.node_id, self.settings.data_dir.display());
        format!(
            "hostloop state {verb} --node-id {node} --data-dir {data_dir}, with the --pool of this driver"
        )
    }
}

/// The ids that an entry is of: those of its record and of its group; without a record, its name.
fn ids_of(entry: &Entry) -> Vec<String> {
    let Record::Whole(beside) = &entry.record else { return vec![entry.name.clone()] };
    match &beside.subject {
        Subject::Volume(volume) => vec![volume.id.to_string()],
        Subject::Snapshot(snapshot, group) => {
            let group = group.as_ref().map(|group| group.id.to_string());
            [snapshot.id.to_string()].into_iter().chain(group).collect()
        }
    }
}
