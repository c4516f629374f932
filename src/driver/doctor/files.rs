//! What lies in the pools without a record, and the marks of freezes.

use super::{Looked, print_of};
use crate::backend::{Uses, VolumePaths, presence_of};
use crate::driver::locks::Key;
use crate::driver::{Driver, Pool};
use crate::error::Result;
use crate::inventory::{self, Data, Entry, Place, Record};
use crate::model::findings::{FROZEN, Finding, Fix, ORPHAN_IMAGE};
use crate::model::{SnapshotId, Volume, VolumeId, format_bytes};
use crate::store::{Beside, Subject};

impl Driver {
    pub(super) fn look_at_files(&self, pool: &Pool, looked: &mut Looked) {
        let entries = match inventory::read(&self.os, &pool.name, &pool.path) {
            Ok(entries) => entries,
            Err(error) => return looked.unknown.push(format!("pool {}: {error}", pool.name)),
        };
        let entries: Vec<Entry> = entries.into_iter().filter(|entry| !self.is_recorded(entry)).collect();
        looked.findings.extend(entries.iter().filter_map(|entry| self.unrecorded(pool, entry)));
    }

    /// Reports whether the state file has what lies in a directory, or a call is at work on it.
    fn is_recorded(&self, entry: &Entry) -> bool {
        match entry.place {
            Place::Volume => {
                let here = |volume: &Volume| volume.directory().as_str() == entry.name;
                let id = entry.name.parse::<VolumeId>();
                self.store.volumes().iter().any(|volume| here(volume))
                    || id.is_ok_and(|id| self.store.get(&id).is_some() || self.is_at_work(&id))
            }
            Place::Snapshot => entry
                .name
                .parse::<SnapshotId>()
                .is_ok_and(|id| self.store.snapshot(&id).is_some() || self.is_at_work(&id)),
        }
    }

    /// Returns what is said of the directory of a volume or a snapshot that has no record, as it is now.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn unrecorded_at(&self, path: &str, name: &str) -> Result<Option<Finding>> {
        for pool in self.pools.open() {
            for place in [Place::Volume, Place::Snapshot] {
                let entry = inventory::entry(&self.os, (&pool.name, &pool.path), place, name)?;
                if let Some(entry) = entry.filter(|entry| entry.directory.to_str() == Some(path)) {
                    return Ok(self.unrecorded(&pool, &entry));
                }
            }
        }
        Ok(None)
    }

    /// `None` for what is gone meanwhile.
    fn unrecorded(&self, pool: &Pool, entry: &Entry) -> Option<Finding> {
        let since = self.changed(&entry.directory);
        let names = match self.os.files.stat(&entry.directory) {
            Ok(Some(_)) => self.os.files.list(&entry.directory).ok(),
            // What lies beside a directory that is gone is the record of something that is gone.
            Ok(None) if entry.record == Record::Missing => return None,
            Ok(None) | Err(_) => None,
        };
        let bytes = match entry.data {
            Data::Image { allocated, .. } => Some(allocated),
            Data::Tree => None,
            Data::Missing => Some(0),
        };
        let mut finding = Finding {
            class: ORPHAN_IMAGE.to_owned(),
            id: entry.name.clone(),
            pool: pool.name.to_string(),
            path: entry.directory.display().to_string(),
            since,
            bytes,
            seen: print_of(&(since, &names, format!("{:?} {:?}", entry.record, entry.data))),
            ..Finding::default()
        };
        self.judge(pool, entry, names, &mut finding);
        Some(finding)
    }

    /// Says what was found, and what can be done about it.
    fn judge(&self, pool: &Pool, entry: &Entry, names: Option<Vec<String>>, finding: &mut Finding) {
        let size = match entry.data {
            Data::Image { bytes, .. } => format!("an image of {}", format_bytes(bytes)),
            Data::Tree => "a directory".to_owned(),
            Data::Missing => "no data".to_owned(),
        };
        finding.found = format!("{size}, and no record in the state file");
        let is_empty = names.is_some_and(|names| names.is_empty());
        finding.fix = match &entry.record {
            _ if self.store.damage().is_some() => {
                Fix::Kept("the state file is damaged: run \"hostloop state repair\" on the node".to_owned())
            }
            Record::Whole(beside) => {
                (finding.needs_unnamed, finding.loses_data) = (true, true);
                match &beside.subject {
                    Subject::Volume(volume) => {
                        (finding.name, finding.claim) = (volume.name.clone(), volume.claim.clone());
                    }
                    Subject::Snapshot(snapshot, _) => {
                        finding.name = snapshot.name.clone();
                        finding.content = snapshot.object.as_ref().map(|object| object.content.clone());
                    }
                }
                match self.why_kept(pool, entry, beside) {
                    None => Fix::Does("deletes it".to_owned()),
                    Some(why) => Fix::Kept(why),
                }
            }
            Record::Missing if entry.data == Data::Missing && is_empty => {
                finding.found = "an empty directory without a record".to_owned();
                Fix::Does("removes the empty directory".to_owned())
            }
            Record::Missing | Record::Bad(_) => Fix::Kept(
                "its record beside the data is missing or damaged, so its owner is not known: decide with \"hostloop state rebuild\" \
                 on the node (--keep or --drop), or move the directory away"
                    .to_owned(),
            ),
        };
    }

    /// Returns why something with a whole record beside it is not to be deleted.
    fn why_kept(&self, pool: &Pool, entry: &Entry, beside: &Beside) -> Option<String> {
        let (ours, its) = (self.store.identity(), &beside.identity);
        if its.driver != ours.driver {
            return Some(format!(
                "it is of the driver {:?} on node {:?}, whose PersistentVolumes may be in another cluster",
                its.driver, its.node_id
            ));
        }
        if its.node_id != ours.node_id {
            return Some(format!("its record is of node {:?}: has the disk come from there?", its.node_id));
        }
        let elsewhere =
            "its record is of another directory or pool: see \"hostloop state check\" on the node";
        match &beside.subject {
            Subject::Volume(volume) => {
                if volume.id.as_str() != entry.name
                    || volume.directory() != &volume.id
                    || *volume.pool() != pool.name
                {
                    return Some(elsewhere.to_owned());
                }
                if let Some(why) = self.why_of_a_move(volume) {
                    return Some(why);
                }
                let paths = VolumePaths::of_volume(&pool.path, volume);
                match presence_of(&volume.content).uses(self.place(volume, &paths)) {
                    Ok(uses) => uses.any().then(|| in_use(&uses)),
                    Err(error) => Some(format!("it is not known whether it is in use: {error}")),
                }
            }
            Subject::Snapshot(snapshot, _)
                if snapshot.id.as_str() != entry.name || snapshot.pool != pool.name =>
            {
                Some(elsewhere.to_owned())
            }
            Subject::Snapshot(_, Some(group)) => Some(format!(
                "it is a member of group {}: run \"hostloop state rebuild\" on the node, and delete the group",
                group.id
            )),
            Subject::Snapshot(snapshot, None) => snapshot.pulled_for.as_ref().map(|_| {
                "it is a checkpoint for another node: run \"hostloop state rebuild\" on the node".to_owned()
            }),
        }
    }

    /// Returns what says that a move of the volume has not ended, or that its data are on another node now.
    fn why_of_a_move(&self, volume: &Volume) -> Option<String> {
        let found = match volume {
            Volume { copy_of: Some(_), .. } => "it is a copy for a move".to_owned(),
            Volume { retired: Some(retired), .. } => {
                format!("it is left of volume {}, which has moved to node {}", retired.was, retired.node_id)
            }
            Volume { moved_to: Some(node), .. } => format!("its data move to node {node:?}"),
            _ => self.moved(&volume.id)?.to_string(),
        };
        Some(format!("{found}; run \"hostloop state rebuild\" on the node, and look at its VolumeMove"))
    }

    pub(super) fn look_at_freezes(&self, looked: &mut Looked) {
        let directory = self.frozen_marker("");
        let names = match self.os.files.list(&directory) {
            Ok(names) => names,
            Err(error) => return looked.unknown.push(format!("list {}: {error}", directory.display())),
        };
        for name in names {
            let is_busy = self
                .frozen_volume(&name)
                .is_some_and(|id| self.locks.is_taken(&Key::Freeze(id.clone())) || self.is_at_work(&id));
            if !is_busy {
                looked.findings.extend(self.frozen(&name));
            }
        }
    }

    /// Returns the volume whose directory has this name.
    pub(super) fn frozen_volume(&self, name: &str) -> Option<VolumeId> {
        let volumes = self.store.volumes().into_iter();
        volumes.filter(|volume| volume.directory().as_str() == name).map(|volume| volume.id.clone()).next()
    }

    /// Returns what is said of the mark of a freeze that no process of the driver holds.
    pub(super) fn frozen(&self, name: &str) -> Option<Finding> {
        let marker = self.frozen_marker(name);
        let stat = self.os.files.stat(&marker).ok().flatten()?;
        let id = self.frozen_volume(name);
        let (found, fix) = match &id {
            Some(_) => {
                ("a freeze for a copy has not ended: its filesystem may be frozen, and pods wait", "thaws it")
            }
            None => ("the mark of a freeze of a volume that is gone", "removes the mark"),
        };
        Some(Finding {
            class: FROZEN.to_owned(),
            id: id.map_or_else(|| name.to_owned(), |id| id.to_string()),
            path: marker.display().to_string(),
            since: self.changed(&marker),
            found: found.to_owned(),
            fix: Fix::Does(fix.to_owned()),
            seen: format!("{:?} {}", stat.id, marker.display()),
            ..Finding::default()
        })
    }
}

fn in_use(uses: &Uses) -> String {
    format!("in use: {}", uses.describe())
}
