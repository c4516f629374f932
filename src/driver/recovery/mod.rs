//! Start-up: undo what was half made, finish what was half deleted, and reconcile the disk with the record after a
//! crash.

mod settle;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::backend::{gone, presence_of};
use crate::driver::Driver;
use crate::driver::locks::Mode;
use crate::driver::strangers::First;
use crate::error::{Error, OsContext, Result};
use crate::model::{GroupSnapshot, Phase, PoolName, Snapshot, Volume, format_exactly};

/// What the log says where a thaw failed.
const FROZEN: &str = "a filesystem may still be frozen: thaw it with fsfreeze --unfreeze";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Volumes in the state file.
    pub volumes: usize,
    /// Snapshots in the state file.
    pub snapshots: usize,
    /// Half-made or half-deleted ones of either that were removed.
    pub removed: usize,
    /// Ones that need an administrator; each is in the log.
    pub damaged: usize,
}

impl Recovered {
    /// Counts what became of something that was settled, and is looked at where it is still there. Gives what went wrong.
    fn failure<T>(
        &mut self,
        settled: Result<Option<T>>,
        look: impl FnOnce(&T) -> Result<()>,
    ) -> Option<Error> {
        match settled.and_then(|settled| settled.as_ref().map(look).transpose()) {
            Ok(Some(())) => None,
            Ok(None) => {
                self.removed += 1;
                None
            }
            Err(error) => {
                self.damaged += 1;
                Some(error)
            }
        }
    }
}

impl Driver {
    /// Brings disk and records together, then lets callers in. A volume that cannot be repaired is reported
    /// in the log and left as it is; the others are served.
    pub fn recover(&self) -> Recovered {
        let (started, mut found) = (Instant::now(), Recovered::default());
        self.find_doubts(&self.pools.open());
        self.thaw_what_was_left();
        self.give_back_loop_devices();
        self.recover_snapshots(&mut found);
        for volume in self.store.volumes() {
            found.volumes += 1;
            if self.pools.get(volume.pool()).is_err() {
                found.damaged += 1; // the log has its pool
                continue;
            }
            self.recover_volume(&volume, &mut found);
        }
        for pool in self.pools.open() {
            self.find_strangers(&pool, First::Yes);
            self.pools.recovered(&pool.name);
        }
        // Only the first run is that of the start.
        let _ = self.recovered.set((found, started.elapsed()));
        self.ready.store(true, Ordering::Release);
        found
    }

    /// Brings one volume, which nobody else works on, and its record together.
    fn recover_volume(&self, volume: &Arc<Volume>, found: &mut Recovered) {
        if volume.is_removed() {
            return self.remove_later(volume);
        }
        if self.expect_certain(volume.id.as_str()).is_err() {
            found.damaged += 1; // the log has the state file
            return;
        }
        let result = match volume.phase {
            Phase::Creating | Phase::Deleting => self.settle_volume(volume),
            Phase::Ready => Ok(Some(Arc::clone(volume))),
        };
        if let Some(error) = found.failure(result, |volume| self.reconcile(volume)) {
            let claim = volume.claim.as_ref().map(ToString::to_string);
            tracing::error!(volume.id = %volume.id, claim, phase = ?volume.phase, %error, "volume needs attention");
        }
    }

    /// Tries a pool again that cannot be used, and recovers what is in it where it can be used now: what waits for that
    /// since the start, or since its disk went away. What somebody works on is left to the next time. To be called now
    /// and then, for each pool; it may take long.
    pub fn try_pool_again(&self, pool: &PoolName) {
        if !self.pools.reopen(pool, &self.store) {
            return;
        }
        self.pools.get(pool).iter().for_each(|open| self.find_doubts(std::slice::from_ref(open)));
        let is_certain = |id: &str| self.expect_certain(id).is_ok();
        let (mut found, mut complete) = (Recovered::default(), true);
        for group in self
            .store
            .groups()
            .into_iter()
            .filter(|group| group.phase != Phase::Ready && is_certain(group.id.as_str()))
        {
            let members = self.members_of(&group.id);
            let keys = members.iter().map(|member| ((&member.id).into(), Mode::Exclusive));
            let Ok(_guard) = self.lock_all(keys.chain([((&group.id).into(), Mode::Exclusive)])) else {
                complete = false;
                continue;
            };
            if let Some(group) = self.store.group(&group.id) {
                self.recover_group(&group, &mut found);
            }
        }
        for snapshot in
            self.store.snapshots().into_iter().filter(|it| it.pool == *pool && is_certain(it.id.as_str()))
        {
            let Ok(_guard) = self.lock(&snapshot.id) else {
                complete = false;
                continue;
            };
            // Another node may read a cut of this process. One of an older process goes once it is idle.
            let here =
                self.store.snapshot(&snapshot.id).filter(|now| !now.is_ready() || now.pulled_for.is_none());
            here.into_iter().for_each(|snapshot| self.recover_snapshot(&snapshot, &mut found));
        }
        for volume in
            self.store.volumes().into_iter().filter(|it| it.pool() == pool && is_certain(it.id.as_str()))
        {
            found.volumes += 1;
            let Ok(_guard) = self.lock(&volume.id) else {
                complete = false;
                continue;
            };
            let Some(volume) = self.store.get(&volume.id) else { continue };
            if let Err(error) = self.thaw_if_marked(volume.directory().as_str()) {
                tracing::error!(volume.id = %volume.id, %error, "its filesystem may still be frozen: thaw it with fsfreeze --unfreeze");
            }
            self.recover_volume(&volume, &mut found);
        }
        if complete && let Ok(open) = self.pools.get(pool) {
            self.pools.recovered(pool);
            let Recovered { volumes, snapshots, removed, damaged } = found;
            tracing::info!(%pool, volumes, snapshots, removed, damaged, "recovered what is in the pool");
            self.find_strangers(&open, First::Yes);
        }
    }

    /// The names of all pools, the default one first.
    pub fn pool_names(&self) -> Vec<PoolName> {
        self.pools.names()
    }

    /// Every pool with why it cannot be used, if so. Touches no disk.
    pub fn pool_states(&self) -> Vec<(PoolName, Option<String>)> {
        self.pools.states()
    }

    /// Thaws the filesystems that an earlier process froze and could not thaw, since its helper ended with it.
    fn thaw_what_was_left(&self) {
        let directory = self.frozen_marker("");
        let names = match self.os.files.list(&directory).doing(|| format!("list {}", directory.display())) {
            Ok(names) => names,
            Err(error) => return tracing::error!(%error, "{FROZEN}"),
        };
        for name in names {
            if let Err(error) = self.thaw(&name) {
                tracing::error!(volume.id = name, %error, "{FROZEN}");
            }
        }
    }

    /// Thaws the filesystem of a volume, by the name of its directory, if a marker says that it may be frozen.
    pub(in crate::driver) fn thaw_if_marked(&self, name: &str) -> Result<()> {
        let marker = self.frozen_marker(name);
        match self.os.files.stat(&marker).doing(|| format!("look at {}", marker.display()))? {
            Some(_) => self.thaw(name),
            None => Ok(()),
        }
    }

    fn thaw(&self, name: &str) -> Result<()> {
        let volume = self.store.volumes().into_iter().find(|volume| volume.directory().as_str() == name);
        if let Some(volume) = volume {
            let paths = self.paths(&volume)?;
            let uses = presence_of(&volume.content).uses(self.place(&volume, &paths))?;
            let thawing = || format!("thaw {}", volume.id);
            if let Some(mount) = uses.reachable(&self.os, |_| true)?
                && let pinned = self.os.mounts.pin(mount).doing(thawing)?
                && self.os.mounts.thaw(pinned.path()).doing(thawing)?
            {
                tracing::warn!(volume.id = %volume.id, "thawed the filesystem, which an earlier process had left frozen");
            }
        }
        let marker = self.frozen_marker(name);
        self.os.files.remove_file(&marker).doing(|| format!("remove {}", marker.display()))
    }

    /// Removes the snapshots and groups that were half made or half deleted: groups first, since a member whose own
    /// files are whole goes with a group that is not.
    fn recover_snapshots(&self, found: &mut Recovered) {
        for group in self.store.groups() {
            self.recover_group(&group, found);
        }
        for snapshot in self.store.snapshots() {
            self.recover_snapshot(&snapshot, found);
        }
    }

    fn recover_group(&self, group: &GroupSnapshot, found: &mut Recovered) {
        if group.phase == Phase::Ready || self.expect_certain(group.id.as_str()).is_err() {
            return;
        }
        if let Some(error) = found.failure(self.settle_group(group), |_| Ok(())) {
            tracing::error!(group.id = %group.id, phase = ?group.phase, %error, "group snapshot needs attention");
        }
    }

    /// Brings one snapshot, which nobody else works on, and its record together.
    fn recover_snapshot(&self, snapshot: &Arc<Snapshot>, found: &mut Recovered) {
        found.snapshots += 1;
        if self.pools.get(&snapshot.pool).is_err() {
            found.damaged += 1; // the log has its pool
            return;
        }
        let result = match snapshot.phase {
            _ if self.expect_certain(snapshot.id.as_str()).is_err() => {
                found.damaged += 1; // the log has the state file
                return;
            }
            // What became of its group is in the log, and goes for its members.
            _ if self.is_of_unfinished_group(snapshot) => return,
            Phase::Creating | Phase::Deleting => self.settle_snapshot(snapshot),
            // A cut as well: whoever pulls from it goes on, and it goes when nobody does for a while.
            Phase::Ready => Ok(Some(Arc::clone(snapshot))),
        };
        if let Some(error) = found.failure(result, |snapshot| self.look_at_snapshot(snapshot)) {
            tracing::error!(snapshot.id = %snapshot.id, phase = ?snapshot.phase, %error, "snapshot needs attention");
        }
    }

    fn is_of_unfinished_group(&self, snapshot: &Snapshot) -> bool {
        let group = snapshot.group.as_ref().and_then(|group| self.store.group(group));
        group.is_some_and(|group| group.phase != Phase::Ready)
    }

    fn look_at_snapshot(&self, snapshot: &Arc<Snapshot>) -> Result<()> {
        self.acknowledge_snapshot(Arc::clone(snapshot))?;
        let paths = self.snapshot_paths(snapshot)?;
        let file = paths.data();
        let found = self.os.files.stat(&file).doing(|| format!("look at {}", file.display()))?;
        found.map(drop).ok_or_else(|| gone(&file, "snapshot"))?;
        let what = format_args!("snapshot {}", snapshot.id);
        paths.bytes().expect_whole(&self.os, &paths, snapshot.size_bytes, &what)?;
        self.mend_record_of_snapshot(snapshot, &paths);
        Ok(())
    }

    /// An expansion that a crash cut off left an image and a record of different sizes.
    pub(in crate::driver) fn reconcile(&self, volume: &Arc<Volume>) -> Result<()> {
        let paths = self.paths(volume)?;
        self.acknowledge_volume(Arc::clone(volume))?;
        let longer = paths.bytes().recover(self.place(volume, &paths))?;
        self.mend_record_of_volume(volume, &paths);
        if let Some(bytes) = longer {
            tracing::info!(volume.id = %volume.id, size = %format_exactly(bytes), "taking over the size of an interrupted expansion");
            // The retry of the call says what was asked for.
            self.record(Volume { capacity_bytes: bytes, requested_bytes: None, ..(**volume).clone() })?;
        }
        Ok(())
    }
}
