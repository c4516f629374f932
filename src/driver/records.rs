//! The records of a volume or a snapshot: in the state file, and beside its data. The state file is the truth while it is whole.
//! `hostloop state rebuild` makes a lost state file from the records beside the data.
//!
//! A change is written to the state file first. If a crash follows, the next start updates the record beside the data.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Driver;
use super::locks::guarded::Guarded;
use crate::backend::{VolumePaths, read_record, record_path, remove_new_record, replace_record};
use crate::error::Result;
use crate::model::{GroupSnapshot, ObjectId, Snapshot, Timestamp, Volume, VolumeId};
use crate::store::{Beside, Subject};

/// What a copy becomes.
#[derive(Clone, Copy)]
pub(crate) enum Makes<'a> {
    Volume(&'a Volume),
    /// A snapshot, with the group that it is a member of.
    Snapshot(&'a Snapshot, Option<&'a GroupSnapshot>),
}

impl Makes<'_> {
    /// Returns the record of what is made from a cut of this time.
    fn at(&self, created: Timestamp) -> Subject {
        match self {
            Makes::Volume(volume) => Subject::of_volume(volume),
            Makes::Snapshot(snapshot, group) => {
                let snapshot = Snapshot { created, ..(*snapshot).clone() };
                let group = group.map(|group| GroupSnapshot { created, ..group.clone() });
                Subject::of_snapshot(&snapshot, group.as_ref())
            }
        }
    }
}

impl Driver {
    /// Records a change of a volume. It is durable when this returns. If the record beside the data cannot be written, as on a full
    /// pool, that follows when it can be ([`retry_records`](Self::retry_records)).
    ///
    /// # Errors
    /// The kernel's; the volume is what it was before.
    pub(super) fn record(&self, volume: Volume) -> Result<Arc<Volume>> {
        let before = self.store.get(&volume.id);
        let stored = self.store.put(volume)?;
        self.record_beside(before.as_deref(), &stored);
        Ok(stored)
    }

    /// Records a volume under another id.
    ///
    /// # Errors
    /// Those of [`record`](Self::record).
    pub(super) fn record_as(&self, from: &VolumeId, to: Volume) -> Result<Arc<Volume>> {
        let before = self.store.get(from);
        let stored = self.store.rename(from, to)?;
        self.record_beside(before.as_deref(), &stored);
        Ok(stored)
    }

    fn record_beside(&self, before: Option<&Volume>, now: &Volume) {
        let subject = Subject::of_volume(now);
        let is_same = before.is_some_and(|before| Subject::of_volume(before).agrees(&subject));
        // A volume can be sealed and retired while its pool is away.
        if now.is_ready() && !is_same {
            let written =
                self.paths(now).and_then(|paths| replace_record(&self.os, &paths, &self.text_of(subject)?));
            self.late_records.put((&now.id).into(), now.id.as_str(), written);
        }
    }

    /// Returns the record that lies beside the data of a new volume.
    ///
    /// # Errors
    /// INTERNAL if it cannot be JSON, which no record of ours is.
    pub(super) fn record_of_volume(&self, volume: &Volume) -> Result<Vec<u8>> {
        self.text_of(Subject::of_volume(volume))
    }

    /// Returns the record of what is made from a cut of this time.
    ///
    /// # Errors
    /// Those of [`record_of_volume`](Self::record_of_volume).
    pub(super) fn record_of_copy(&self, makes: Makes<'_>, created: Timestamp) -> Result<Vec<u8>> {
        self.text_of(makes.at(created))
    }

    fn text_of(&self, subject: Subject) -> Result<Vec<u8>> {
        Ok(self.store.beside(subject)?)
    }

    /// Writes the record beside the data of a volume if there is none, or if it says something else. One that is newer than the state
    /// file is kept.
    pub(super) fn mend_record_of_volume(&self, volume: &Volume, paths: &VolumePaths) {
        let mended = self.mend_record(paths, Subject::of_volume(volume), volume.id.as_str());
        self.late_records.put((&volume.id).into(), volume.id.as_str(), mended);
    }

    /// Writes the record beside the data of a snapshot if it is missing or differs.
    pub(super) fn mend_record_of_snapshot(&self, snapshot: &Snapshot, paths: &VolumePaths) {
        let group = snapshot.group.as_ref().and_then(|group| self.store.group(group));
        let subject = Subject::of_snapshot(snapshot, group.as_deref());
        let mended = self.mend_record(paths, subject, snapshot.id.as_str());
        self.late_records.put((&snapshot.id).into(), snapshot.id.as_str(), mended);
    }

    fn mend_record(&self, paths: &VolumePaths, subject: Subject, id: &str) -> Result<()> {
        let path = record_path(paths);
        remove_new_record(&self.os, paths)?;
        let found = read_record(&self.os, &path)?.and_then(|bytes| Beside::read(&bytes).ok());
        let ours = found.filter(|found| found.identity == *self.store.identity());
        match ours {
            Some(found) if found.subject.agrees(&subject) => Ok(()),
            Some(found) if found.seq > self.store.sequence() => {
                tracing::warn!(
                    id, path = %path.display(),
                    "this record is newer than the state file, which may have been restored: hostloop state check compares them"
                );
                replace_record(&self.os, paths, &self.store.newer(&found)?)
            }
            _ => replace_record(&self.os, paths, &self.text_of(subject)?),
        }
    }

    /// Writes the records beside data that could not be written. To be called now and then.
    pub fn retry_records(&self) {
        for object in self.late_records.all() {
            match &object {
                ObjectId::Volume(id) => {
                    let Ok(_guard) = self.lock(id) else { continue };
                    match self.store.get(id).filter(|volume| volume.is_ready()) {
                        None => self.late_records.forget(&object),
                        Some(volume) => {
                            let paths = self.paths(&volume).ok();
                            paths.iter().for_each(|paths| self.mend_record_of_volume(&volume, paths));
                        }
                    }
                }
                ObjectId::Snapshot(id) => {
                    let Ok(_guard) = self.lock(id) else { continue };
                    match self.store.snapshot(id).filter(|snapshot| snapshot.is_ready()) {
                        None => self.late_records.forget(&object),
                        Some(snapshot) => {
                            let paths = self.snapshot_paths(&snapshot).ok();
                            paths.iter().for_each(|paths| self.mend_record_of_snapshot(&snapshot, paths));
                        }
                    }
                }
                ObjectId::Group(_) => {}
            }
        }
    }
}

/// The records beside data that could not be written.
#[derive(Default)]
pub(super) struct Late(Guarded<BTreeSet<ObjectId>>);

impl Late {
    fn put(&self, object: ObjectId, id: &str, written: Result<()>) {
        let mut late = self.0.lock();
        match written {
            Ok(()) => drop(late.remove(&object)),
            Err(error) if late.insert(object) => {
                tracing::warn!(id, %error, "the record beside the data cannot be written, and is tried again: do not lose the state file");
            }
            Err(error) => tracing::debug!(id, %error, "the record beside the data still cannot be written"),
        }
    }

    fn forget(&self, object: &ObjectId) {
        self.0.lock().remove(object);
    }

    fn all(&self) -> BTreeSet<ObjectId> {
        self.0.lock().clone()
    }
}
