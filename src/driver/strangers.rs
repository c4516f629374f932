//! What lies among the volumes and snapshots of a pool and has no record. It is left alone: a state file may have been restored that
//! is older than it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::locks::guarded::Guarded;
use super::{Driver, Pool};
use crate::backend::Mark;
use crate::model::PoolName;

/// What the last looks have found, by pool. A pool that could not be looked at is not among them.
#[derive(Default)]
pub(crate) struct Strangers(Guarded<HashMap<PoolName, Found>>);

#[derive(Default)]
struct Found {
    /// Of the last look. A call that runs may have made it or be about to remove it.
    seen: BTreeSet<PathBuf>,
    /// Of two looks in a row, and whether a damaged state file may have lost its record.
    certain: BTreeMap<PathBuf, bool>,
}

/// Whether no call can be at work in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    Yes,
    No,
}

/// How many directories and files of a pool have no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StrangerFigures {
    /// The state file does not know them.
    pub files: usize,
    /// A damaged state file may have lost what it knew of them.
    pub uncertain: usize,
}

impl Driver {
    /// Looks into every pool that answers.
    pub fn look_for_strangers(&self) {
        let open = self.pools.open();
        let (silent, answering): (Vec<_>, Vec<_>) =
            open.iter().partition(|pool| self.pools.is_silent(std::slice::from_ref(&pool.name)).is_some());
        let names: HashSet<&PoolName> = answering.iter().map(|pool| &pool.name).collect();
        // What is in a pool that does not answer is not known.
        self.strangers.0.lock().retain(|name, _| names.contains(name));
        drop(silent);
        answering.into_iter().for_each(|pool| self.find_strangers(pool, First::No));
    }

    /// Looks into one pool, and names in the log what was not named yet.
    pub(super) fn find_strangers(&self, pool: &Pool, first: First) {
        let listed = ["volumes", "snapshots"].map(|place| self.list_of(&pool.path.join(place)));
        let [Some(volumes), Some(snapshots)] = listed else {
            self.strangers.0.lock().remove(&pool.name);
            return;
        };
        // The records are read after the disk: what a call has made meanwhile has one.
        let records = self.store.volumes();
        let directories: HashSet<&str> = records.iter().map(|volume| volume.directory().as_str()).collect();
        let is_volume = |name: &str| directories.contains(name);
        let is_snapshot = |name: &str| name.parse().is_ok_and(|id| self.store.snapshot(&id).is_some());
        let unknown = volumes.into_iter().filter(|(owner, _)| !is_volume(owner));
        let unknown = unknown.chain(snapshots.into_iter().filter(|(owner, _)| !is_snapshot(owner)));
        let unknown: BTreeMap<PathBuf, bool> =
            unknown.map(|(owner, path)| (path, self.expect_certain(&owner).is_err())).collect();
        let mut strangers = self.strangers.0.lock();
        let known = strangers.entry(pool.name.clone()).or_default();
        let seen: BTreeSet<PathBuf> = unknown.keys().cloned().collect();
        let is_certain = |path: &PathBuf| first == First::Yes || known.seen.contains(path);
        let certain: BTreeMap<PathBuf, bool> =
            unknown.into_iter().filter(|(path, _)| is_certain(path)).collect();
        for path in certain.keys().filter(|path| first == First::Yes || !known.certain.contains_key(*path)) {
            tracing::warn!(path = %path.display(), "this has no record and is left alone");
        }
        *known = Found { seen, certain };
    }

    /// Returns what is in a directory, each path with the name of what it belongs to.
    fn list_of(&self, directory: &Path) -> Option<Vec<(String, PathBuf)>> {
        match self.os.files.list(directory) {
            Ok(names) => {
                let named = |name: String| (Mark::owner_of(&name).to_owned(), directory.join(&name));
                Some(names.into_iter().map(named).collect())
            }
            Err(error) => {
                tracing::warn!(path = %directory.display(), %error, "it could not be listed");
                None
            }
        }
    }

    /// Returns how many there are in each pool that could be looked at.
    pub(super) fn strangers_by_pool(&self) -> Vec<(PoolName, StrangerFigures)> {
        let strangers = self.strangers.0.lock();
        let count = |found: &Found| {
            let uncertain = found.certain.values().filter(|uncertain| **uncertain).count();
            StrangerFigures { files: found.certain.len() - uncertain, uncertain }
        };
        let names = self.pools.names().into_iter();
        names
            .filter_map(|name| Some((count(strangers.get(&name)?), name)))
            .map(|(figures, name)| (name, figures))
            .collect()
    }
}
