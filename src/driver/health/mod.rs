//! Whether volumes are as they should be. [`Driver::examine_volumes`] examines all of them every minute and keeps what it
//! found, so that a caller who lists volumes never waits for a disk. A caller who asks for one volume's health gets its
//! present state.

mod known;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::backend::{ATTACHED_WITHOUT_MOUNT, Seen, troubles};
use crate::driver::{Driver, Pool, not_found};
use crate::error::{Busy, Result};
use crate::model::health::{Severity, Trouble, merged};
use crate::model::{PoolName, Volume, VolumeId};
use known::Examining;
pub(crate) use known::Known;

/// One look at the kernel and at the pools.
pub(crate) struct Look {
    began: Instant,
    pub(crate) seen: Seen,
    pools: Vec<(PoolName, Trouble)>,
}

impl Driver {
    /// Looks at every volume. Returns at once while another examination runs, which may wait for a disk.
    pub fn examine_volumes(&self) {
        if self.health.examining.swap(true, Ordering::AcqRel) {
            return;
        }
        let _examining = Examining(&self.health.examining);
        let mut volumes = self.store.volumes();
        volumes.retain(|volume| volume.is_ready());
        // A look opens every loop device of the machine for a moment, which may be in the way of their owners.
        if !volumes.is_empty() {
            match self.look() {
                Ok(look) => {
                    let found =
                        volumes.iter().filter_map(|volume| Some((volume, self.examine(volume, &look)?)));
                    found.for_each(|(volume, found)| {
                        self.health.put((&volume.id, volume.claim.as_ref()), look.began, found)
                    });
                }
                Err(error) => return tracing::warn!(%error, "the health of the volumes is not known"),
            }
        }
        let there = |id: &VolumeId| self.store.get(id).is_some_and(|volume| volume.is_ready());
        let gone = self.health.known();
        gone.iter().filter(|id| !there(id)).for_each(|id| self.health.forget(id));
    }

    /// What was wrong with a volume when it was examined last; nothing where it never was. From memory.
    pub fn known_troubles(&self, id: &VolumeId) -> Arc<[Trouble]> {
        self.health.get(id)
    }

    /// What is wrong with a volume now, with the look that told it.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED where it is changed all the time.
    pub(crate) fn troubles_now(
        &self,
        id: &VolumeId,
        volume_id: &str,
    ) -> Result<(Arc<Volume>, Look, Vec<Trouble>)> {
        const TRIES: u32 = 3;
        for _ in 0..TRIES {
            let volume = self.ready_volume(id, volume_id)?;
            let look = self.look()?;
            if let Some(found) = self.examine(&volume, &look) {
                self.health.put((id, volume.claim.as_ref()), look.began, found.clone());
                return Ok((volume, look, found));
            }
        }
        match self.store.get(id) {
            Some(_) => Err(Busy::on(id).into()),
            None => Err(not_found(volume_id)),
        }
    }

    /// What is wrong with the pools, each reason once.
    pub(crate) fn pool_troubles(&self) -> Result<Vec<Trouble>> {
        let troubles = self.look()?.pools.into_iter().map(|(_, trouble)| trouble);
        // No volume is worse off by what another one has left.
        Ok(merged(
            troubles
                .chain(self.troubles_of_state())
                .chain(self.troubles_of_removals())
                .chain(self.troubles_of_orphans())
                .collect(),
        ))
    }

    fn look(&self) -> Result<Look> {
        let began = Instant::now();
        let seen = Seen::now(&self.os)?;
        let names = self.pools.names();
        let silent = self.pools.silent(&names);
        let pools = names.into_iter().filter_map(|name| {
            let why = silent.iter().find(|(silent, _)| *silent == name).map(|(_, why)| why);
            let trouble = match (self.pools.get(&name), why) {
                (Ok(pool), Some(why)) => {
                    let message = format!("pool {name} at {}: {why}", pool.path.display());
                    Trouble::inaccessible("PoolUnreadable", message)
                }
                (Ok(pool), None) => self.trouble_of(&pool, &seen)?,
                (Err(error), _) => Trouble::inaccessible(self.pools.trouble(&name), error.to_string()),
            };
            Some((name, trouble))
        });
        let pools = pools.collect();
        Ok(Look { began, seen, pools })
    }

    fn trouble_of(&self, pool: &Pool, seen: &Seen) -> Option<Trouble> {
        let (name, path) = (&pool.name, pool.path.display());
        if let Err(error) = self.os.files.space(&pool.path) {
            let message = format!("the disk of pool {name} at {path} does not answer: {error}");
            return Some(Trouble::inaccessible("PoolUnreadable", message));
        }
        let mount = seen.holder(&pool.path)?;
        (mount.read_only || mount.superblock_read_only).then(|| {
            let message = format!("the disk of pool {name} at {path} is read-only: see the kernel's log");
            Trouble::degraded("PoolReadOnly", message)
        })
    }

    /// What is wrong with a volume; `None` where it has been changed or deleted meanwhile, so that what was seen may have
    /// been the middle of that.
    fn examine(&self, volume: &Arc<Volume>, look: &Look) -> Option<Vec<Trouble>> {
        let found = self.compare(volume, look);
        let unchanged = self.store.get(&volume.id).is_some_and(|now| now == *volume);
        (found.is_empty() || unchanged).then_some(found)
    }

    fn compare(&self, volume: &Volume, look: &Look) -> Vec<Trouble> {
        let paths = match self.paths_of_use(volume) {
            Ok(paths) => paths,
            Err(error) => return vec![Trouble::inaccessible("PoolMissing", error.to_string())],
        };
        let pool =
            look.pools.iter().find(|(name, _)| name == volume.pool()).map(|(_, trouble)| trouble.clone());
        match pool {
            // It would be the same again.
            Some(trouble) if trouble.severity == Severity::Inaccessible => vec![trouble],
            pool => {
                let mut own = troubles(self.place(volume, &paths), &look.seen);
                // A call that runs attaches before it mounts, and detaches after it unmounts.
                if self.locks.is_taken(&(&volume.id).into()) {
                    own.retain(|trouble| trouble.reason != ATTACHED_WITHOUT_MOUNT);
                }
                merged(pool.into_iter().chain(own).collect())
            }
        }
    }
}
