//! Trees that are too large to be removed before an answer.
//!
//! What has few entries is removed at once, and so is a subvolume of btrfs with little in it. Of anything else the deletion is durable as soon as its record says so. Then it
//! becomes a record of its own, without a name and with an id that nobody knows ([`Volume::is_removed`]), and is moved to the
//! directory of that id among the volumes of its pool. So its old id is free, and yet what is on the disk has a record: its pool
//! counts it, its number is nobody else's, and a start finds it. One thread of each pool removes such trees, one after the
//! other, and tries again what fails.
//!
//! Between the new record and the end of the old one, two records have one number. Whichever finds no directory is of no use,
//! and goes without the number.

mod queue;
mod refused;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use nix::errno::Errno;

use self::queue::{Pace, Queue};
use self::refused::Refused;
use super::Driver;
use crate::backend::{
    GoOn, VolumePaths, begin_deletion, bytes_of_subvolume, counted, move_files, narrow, remove_files,
    remove_large_files,
};
use crate::error::{Error, OsContext, Result};
use crate::model::health::Trouble;
use crate::model::{
    BackendKind, Enforcement, ObjectId, Phase, PoolName, Snapshot, SnapshotId, Volume, VolumeId,
    VolumeParameters,
};
use crate::store::Durability;
pub(crate) use queue::Waiting;

/// So many entries are removed before an answer, which takes a few milliseconds.
const AT_ONCE: u64 = 256;
/// A subvolume of so many bytes is removed before an answer. How many files there are nobody counts, and the kernel forgets
/// what it has cached of each before it has removed the subvolume (fs/btrfs/inode.c, btrfs_delete_subvolume).
const BYTES_AT_ONCE: u64 = 1 << 20;

/// The trees that wait, and for whom they are removed.
#[derive(Default)]
pub(crate) struct Removals {
    queue: Arc<Queue>,
    /// What could not be removed before an answer.
    refused: Refused,
    driver: OnceLock<Weak<Driver>>,
}

/// Trees are removed as long as it lives.
pub struct Removing(Arc<Queue>);

impl Drop for Removing {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Says yes so often.
fn at_once() -> impl FnMut() -> bool {
    let mut left = AT_ONCE;
    move || {
        let some = left > 0;
        left = left.saturating_sub(1);
        some
    }
}

impl Driver {
    /// Begins to remove what waits for it, in threads of its own.
    pub fn remove_in_background(self: &Arc<Self>) -> Removing {
        let _ = self.removals.driver.set(Arc::downgrade(self));
        self.start_removals();
        Removing(Arc::clone(&self.removals.queue))
    }

    /// What waits in each pool, and what waits for its caller to try again.
    pub(crate) fn removals_by_pool(&self) -> Vec<(PoolName, Waiting)> {
        let names = self.pools.names().into_iter();
        let is_unfinished = |object: &ObjectId| match object {
            ObjectId::Volume(id) => self.store.get(id).is_some_and(|volume| !volume.is_ready()),
            ObjectId::Snapshot(id) => self.store.snapshot(id).is_some_and(|snapshot| !snapshot.is_ready()),
            ObjectId::Group(_) => false,
        };
        self.removals.refused.retain(is_unfinished);
        let waiting = |name: &PoolName| {
            let (queued, (refused, error)) =
                (self.removals.queue.waiting(name), self.removals.refused.of_pool(name));
            Waiting {
                trees: queued.trees + refused,
                failing: queued.failing + refused,
                error: queued.error.or(error),
            }
        };
        names.map(|name| (name.clone(), waiting(&name))).collect()
    }

    /// What is wrong with them, by pool.
    pub(crate) fn troubles_of_removals(&self) -> impl Iterator<Item = Trouble> {
        self.removals_by_pool().into_iter().filter_map(|(name, waiting)| {
            let Waiting { failing, error, .. } = waiting;
            let message = format!(
                "deleted volumes and snapshots of pool {name} whose files cannot be removed, and keep their space: {failing}; they are tried again. The last error: {}",
                error?
            );
            Some(Trouble::degraded("RemovalFailing", message))
        })
    }

    /// Removes a volume's files and its record, in this order: a crash in between is finished by start-up. What has many
    /// entries is gone for callers on return, and its files go later.
    pub(super) fn remove_volume(&self, volume: &Volume) -> Result<()> {
        if volume.is_removed() {
            self.remove_later(volume);
            return Ok(());
        }
        let removed = self.remove_recorded_volume(volume);
        self.removals.refused.put((&volume.id).into(), volume.pool(), &removed);
        removed
    }

    fn remove_recorded_volume(&self, volume: &Volume) -> Result<()> {
        let paths = self.paths_to_remove(volume)?;
        if volume.phase == Phase::Deleting {
            begin_deletion(&self.os, &paths)?;
            self.remember_deletion(volume);
        }
        let large = counted(&self.os, &paths).filter(|quota| quota.inodes > AT_ONCE);
        let later = large.is_some() || self.is_large_subvolume(&paths);
        if later || !remove_files(&self.os, &paths, &mut at_once())? {
            let capacity_bytes = large.map_or(volume.capacity_bytes, |quota| quota.bytes.max(1));
            self.move_out(Volume { capacity_bytes, ..volume.clone() }, &paths)?;
        }
        self.forget_with(volume)?;
        // The record need not be gone durably before the answer: where it comes back, start-up removes it again.
        Ok(self.store.delete(&volume.id, Durability::Lazy)?)
    }

    /// The same for the files of a snapshot, whose record is left to the caller.
    pub(super) fn remove_files_of_snapshot(&self, snapshot: &Snapshot, paths: &VolumePaths) -> Result<()> {
        let removed = self.remove_files_of_recorded_snapshot(snapshot, paths);
        self.removals.refused.put((&snapshot.id).into(), &snapshot.pool, &removed);
        removed
    }

    fn remove_files_of_recorded_snapshot(&self, snapshot: &Snapshot, paths: &VolumePaths) -> Result<()> {
        if snapshot.phase == Phase::Deleting {
            begin_deletion(&self.os, paths)?;
        }
        if !self.is_large_subvolume(paths) && remove_files(&self.os, paths, &mut at_once())? {
            return Ok(());
        }
        // As a volume, it is a directory that nothing was promised to, as the snapshot is.
        let parameters = VolumeParameters {
            backend: BackendKind::Directory,
            pool: snapshot.pool.clone(),
            enforcement: Some(Enforcement::None),
            ..VolumeParameters::default()
        };
        let content = snapshot.content.clone();
        let record = Volume {
            capacity_bytes: snapshot.size_bytes,
            block_size: snapshot.block_size,
            ..Volume::new(snapshot.source.clone(), Phase::Deleting, content, parameters)
        };
        self.move_out(record, paths)
    }

    /// Removes what could not be removed before an answer, if `pause` has passed since. A caller who comes back earlier is not in
    /// the way of this. Members of a group go with it.
    pub fn retry_removals(&self, pause: Duration) {
        for object in self.removals.refused.older_than(pause) {
            let retried = match &object {
                ObjectId::Volume(id) => self.retry_volume(id),
                ObjectId::Snapshot(id) => self.retry_snapshot(id),
                ObjectId::Group(_) => continue,
            };
            match retried {
                Ok(true) => tracing::info!(%object, "removed what an earlier call could not remove"),
                Ok(false) => {}
                // Health tells it.
                Err(error) => tracing::debug!(%object, %error, "what an earlier call could not remove stays"),
            }
        }
    }

    fn retry_volume(&self, id: &VolumeId) -> Result<bool> {
        let Ok(_guard) = self.lock(id) else { return Ok(false) };
        let Some(volume) = self.store.get(id).filter(|volume| !volume.is_ready()) else { return Ok(false) };
        self.delete(&volume)?;
        if id.is_inline() {
            self.inline.remember(id);
        }
        Ok(true)
    }

    fn retry_snapshot(&self, id: &SnapshotId) -> Result<bool> {
        let Ok(_guard) = self.lock(id) else { return Ok(false) };
        let snapshot = self.store.snapshot(id).filter(|found| !found.is_ready() && found.group.is_none());
        let Some(snapshot) = snapshot else { return Ok(false) };
        self.remove_snapshot(&snapshot).map(|()| true)
    }

    /// Whether it is a subvolume that takes long to be removed. Where nobody tells, it is not.
    fn is_large_subvolume(&self, paths: &VolumePaths) -> bool {
        bytes_of_subvolume(&self.os, paths).is_some_and(|bytes| bytes > BYTES_AT_ONCE)
    }

    /// Moves files to where only the driver knows them, under a record of their own, and has them removed. Where there is no
    /// room for the record, or no way to there, they are removed before the answer.
    fn move_out(&self, record: Volume, from: &VolumePaths) -> Result<()> {
        if record.phase != Phase::Deleting {
            begin_deletion(&self.os, from)?;
        }
        let random = self.os.files.random_id().doing(|| "make an id".to_owned())?;
        let id = VolumeId::of_removed(&self.node_key, &random);
        let record = Volume {
            capacity_bytes: record.capacity_bytes,
            block_size: record.block_size,
            quota: record.quota,
            ..Volume::new(id, Phase::Deleting, record.content, record.parameters)
        };
        let to = self.paths(&record)?;
        let moved = self.store.put(record).map_err(Error::from).and_then(|record| {
            let moved = move_files(&self.os, from, &to).and_then(|()| match counted(&self.os, &to) {
                // Nobody can write to it by its path any more: what is there is all that it may have.
                Some(_) => narrow(&self.os, &to),
                None => Ok(()),
            });
            // Also after an error: whatever is there now is removed, and its record.
            self.remove_later(&record);
            moved
        });
        match moved {
            Err(error) if matches!(error.errno(), Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EXDEV)) => {
                tracing::warn!(path = %from.directory.display(), %error, "it cannot be removed in the background, and is removed now");
                remove_files(&self.os, from, &mut || true).map(drop)
            }
            moved => moved,
        }
    }

    /// The files of a record that is about to go. Where there are none and another record has its number, they were moved
    /// there, or did not come from there: the number is the other's.
    fn paths_to_remove(&self, volume: &Volume) -> Result<VolumePaths> {
        let paths = self.paths(volume)?;
        let Some(quota) = volume.quota else { return Ok(paths) };
        let looking = || format!("look at {}", paths.directory.display());
        if self.os.files.stat(&paths.directory).doing(looking)?.is_some() {
            return Ok(paths);
        }
        let has_it = |other: &Arc<Volume>| {
            other.id != volume.id && other.quota == Some(quota) && other.pool() == volume.pool()
        };
        Ok(match self.store.volumes().iter().any(has_it) {
            true => {
                VolumePaths::new(&self.pool_of(volume)?.path, volume.directory(), volume.parameters.backend)
            }
            false => paths,
        })
    }

    /// Has what is left of something deleted removed; fine where it waits for that already.
    pub(super) fn remove_later(&self, record: &Volume) {
        self.removals.queue.push(&record.id, record.pool());
        self.start_removals();
    }

    /// Starts a thread for each pool that needs one; none before the driver serves.
    fn start_removals(&self) {
        let Some(driver) = self.removals.driver.get() else { return };
        for pool in self.removals.queue.take_pools() {
            let work = Work { driver: Weak::clone(driver), queue: Arc::clone(&self.removals.queue), pool };
            let pool = work.pool.clone();
            let thread = std::thread::Builder::new().name("removal".to_owned());
            if let Err(error) = thread.spawn(move || work.run()) {
                tracing::error!(%pool, %error, "there is no thread to remove deleted directories; the next deletion tries again");
                self.removals.queue.leave(&pool);
            }
        }
    }

    /// Removes what is left of something deleted, as far as `go_on` lets it. Whether it is gone.
    fn remove_left(&self, record: &Volume, go_on: GoOn<'_>) -> Result<bool> {
        let paths = self.paths_to_remove(record)?;
        if !remove_large_files(&self.os, &paths, go_on)? {
            return Ok(false);
        }
        self.store.delete(&record.id, Durability::Lazy)?;
        Ok(true)
    }
}

/// The thread of one pool.
struct Work {
    driver: Weak<Driver>,
    queue: Arc<Queue>,
    pool: PoolName,
}

impl Drop for Work {
    /// A bug in it was logged by its panic; the next deletion starts another one.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.queue.leave(&self.pool);
        }
    }
}

impl Work {
    fn run(self) {
        while let Some(id) = self.queue.next(&self.pool) {
            let Some(driver) = self.driver.upgrade() else { return self.queue.leave(&self.pool) };
            let Some(record) = driver.store.get(&id) else {
                self.queue.done(&id);
                continue;
            };
            let mut pace = Pace::new(&self.queue);
            let (pool, path) = (&self.pool, id.as_str());
            match driver.remove_left(&record, &mut || pace.go_on()) {
                Ok(false) => {} // the process ends
                Ok(true) => {
                    self.queue.done(&id);
                    tracing::info!(%pool, path, "removed what was left of a deleted directory");
                }
                Err(error) => {
                    if let Some(pause) = self.queue.failed(&id, error.to_string()) {
                        tracing::error!(%pool, path, %error, ?pause, "what is left of a deleted directory cannot be removed; it is tried again");
                    }
                }
            }
        }
    }
}
