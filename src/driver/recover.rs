//! Start-up: undo what was half made, finish what was half deleted, and take over what a crash left between
//! the disk and the record.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Driver;
use crate::backend::{backend_of, remove_growing};
use crate::error::{OsContext, Result};
use crate::model::{BackendKind, Phase, Snapshot, Volume};
use crate::store::Durability;

/// What start-up found.
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

impl Driver {
    /// Brings disk and records together, then lets callers in. A volume that cannot be repaired is reported
    /// in the log and left as it is; the others are served.
    pub fn recover(&self) -> Recovered {
        let (started, mut found) = (Instant::now(), Recovered::default());
        self.thaw_what_was_left();
        self.give_back_loop_devices();
        self.recover_snapshots(&mut found);
        for volume in self.store.volumes() {
            found.volumes += 1;
            let result = match volume.phase {
                Phase::Creating | Phase::Deleting => self.finish(&volume).map(|()| found.removed += 1),
                Phase::Ready => self.reconcile(&volume),
            };
            if let Err(error) = result {
                found.damaged += 1;
                tracing::error!(volume.id = %volume.id, phase = ?volume.phase, %error, "volume needs attention");
            }
        }
        self.report_strangers();
        // Only the first run is that of the start.
        let _ = self.recovered.set((found, started.elapsed()));
        self.ready.store(true, Ordering::Release);
        found
    }

    /// Thaws the filesystems that an earlier process froze and could not thaw, since its helper ended with it.
    fn thaw_what_was_left(&self) {
        let directory = self.frozen_marker("");
        let thawed = self.os.disks.list(&directory).doing(|| format!("list {}", directory.display()));
        let thawed = thawed.and_then(|names| names.iter().try_for_each(|name| self.thaw(name)));
        if let Err(error) = thawed {
            tracing::error!(%error, "a filesystem may still be frozen: thaw it with fsfreeze --unfreeze");
        }
    }

    /// Gives the numbers of loop devices back that an earlier process could not: nobody could discard with them.
    fn give_back_loop_devices(&self) {
        match self.os.loops.give_back_all() {
            Ok(numbers) if numbers.is_empty() => {}
            Ok(numbers) => tracing::info!(?numbers, "loop devices can discard again"),
            Err(error) => {
                tracing::warn!(%error, "some loop devices cannot discard until the next restart of the machine")
            }
        }
    }

    fn thaw(&self, name: &str) -> Result<()> {
        let volume = name.parse().ok().and_then(|id| self.store.get(&id));
        if let Some(volume) = volume {
            let paths = self.paths(&volume)?;
            let uses = backend_of(&volume.content).uses(self.place(&volume, &paths))?;
            if let Some(mount) = uses.mounts.iter().chain(&uses.partial).next()
                && self.os.mounts.thaw(&mount.target).doing(|| format!("thaw {}", volume.id))?
            {
                tracing::warn!(volume.id = %volume.id, "thawed the filesystem, which an earlier process had left frozen");
            }
        }
        let marker = self.frozen_marker(name);
        self.os.disks.remove_file(&marker).doing(|| format!("remove {}", marker.display()))
    }

    /// Removes the snapshots and groups that were half made or half deleted: groups first, since a member whose own
    /// files are whole goes with a group that is not.
    fn recover_snapshots(&self, found: &mut Recovered) {
        for group in self.store.groups() {
            if group.phase == Phase::Ready {
                continue;
            }
            match self.remove_group(&group) {
                Ok(()) => found.removed += 1,
                Err(error) => {
                    found.damaged += 1;
                    tracing::error!(group.id = %group.id, phase = ?group.phase, %error, "group snapshot needs attention");
                }
            }
        }
        for snapshot in self.store.snapshots() {
            found.snapshots += 1;
            let result = match snapshot.phase {
                Phase::Creating | Phase::Deleting => {
                    self.remove_snapshot(&snapshot).map(|()| found.removed += 1)
                }
                // Whoever pulled from it begins anew.
                Phase::Ready if snapshot.pulled_for.is_some() => {
                    self.remove_snapshot(&snapshot).map(|()| found.removed += 1)
                }
                Phase::Ready => self.look_at_snapshot(&snapshot),
            };
            if let Err(error) = result {
                found.damaged += 1;
                tracing::error!(snapshot.id = %snapshot.id, phase = ?snapshot.phase, %error, "snapshot needs attention");
            }
        }
    }

    fn look_at_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        let paths = self.snapshot_paths(snapshot)?;
        let file = match snapshot.content.backend() {
            BackendKind::Loop => paths.image(),
            BackendKind::Directory => paths.data(),
        };
        let gone = || {
            crate::error::Error::InUse(format!(
                "its {} is gone; restore it or delete the snapshot",
                file.display()
            ))
        };
        self.os.disks.stat(&file).doing(|| format!("look at {}", file.display()))?.map(drop).ok_or_else(gone)
    }

    /// Names what lies among the volumes and snapshots and has no record. It is left alone: a state file may have been
    /// restored that is older than it.
    fn report_strangers(&self) {
        let volume = |name: &str| name.parse().is_ok_and(|id| self.store.get(&id).is_some());
        let snapshot = |name: &str| name.parse().is_ok_and(|id| self.store.snapshot(&id).is_some());
        for pool in self.pools.iter() {
            self.report_strangers_in(&pool.path.join("volumes"), volume);
            self.report_strangers_in(&pool.path.join("snapshots"), snapshot);
        }
    }

    fn report_strangers_in(&self, directory: &Path, known: impl Fn(&str) -> bool) {
        match self.os.disks.list(directory) {
            Ok(names) => names.iter().filter(|name| !known(name)).for_each(|name| {
                tracing::warn!(path = %directory.join(name).display(), "no record tells of this, it is left alone");
            }),
            Err(error) => tracing::warn!(path = %directory.display(), %error, "it could not be listed"),
        }
    }

    /// Removes a volume that nobody was told of, or that was to be deleted.
    fn finish(&self, volume: &Volume) -> Result<()> {
        let paths = self.paths(volume)?;
        let (place, backend) = (self.place(volume, &paths), backend_of(&volume.content));
        let uses = backend.uses(place)?;
        if uses.any() {
            // Cannot be by our own doing: staging needs `ready`, and deleting an unused volume.
            return Err(crate::error::Error::InUse(format!(
                "it is half made or deleted, and in use: {}",
                uses.describe()
            )));
        }
        backend.remove(place)?;
        tracing::info!(volume.id = %volume.id, phase = ?volume.phase, "removed what an interrupted call left");
        Ok(self.store.delete(&volume.id, Durability::Synced)?)
    }

    /// An expansion that a crash cut off left an image and a record of different sizes.
    fn reconcile(&self, volume: &Arc<Volume>) -> Result<()> {
        if volume.parameters.backend != BackendKind::Loop {
            return Ok(());
        }
        let paths = self.paths(volume)?;
        if let Err(error) = remove_growing(self.place(volume, &paths)) {
            // The next NodeStageVolume or DeleteVolume does it.
            tracing::warn!(volume.id = %volume.id, %error, "the copy of a growth that was cut off is still there");
        }
        let image = paths.image();
        let stat = self.os.disks.stat(&image).doing(|| format!("look at {}", image.display()))?;
        match stat {
            None => Err(crate::error::Error::InUse(format!(
                "its image {} is gone; restore it or delete the volume",
                image.display()
            ))),
            Some(stat) if stat.size > volume.capacity_bytes => {
                tracing::info!(volume.id = %volume.id, bytes = stat.size, "taking over the size of an interrupted expansion");
                self.store.put(Volume { capacity_bytes: stat.size, ..(**volume).clone() })?;
                Ok(())
            }
            Some(stat) if stat.size < volume.capacity_bytes => {
                tracing::warn!(volume.id = %volume.id, bytes = stat.size, "the image is shorter than its volume, growing it");
                backend_of(&volume.content).grow(self.place(volume, &paths), volume.capacity_bytes).map(drop)
            }
            Some(_) => Ok(()),
        }
    }
}
