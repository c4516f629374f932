//! Start-up: undo what was half made, finish what was half deleted, and take over what a crash left between
//! the disk and the record.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Driver;
use crate::backend::backend_of;
use crate::error::{OsContext, Result};
use crate::model::{BackendKind, Phase, Volume};
use crate::store::Durability;

/// What start-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Volumes in the state file.
    pub volumes: usize,
    /// Half-made or half-deleted ones that were removed.
    pub removed: usize,
    /// Ones that need an administrator; each is in the log.
    pub damaged: usize,
}

impl Driver {
    /// Brings disk and records together, then lets callers in. A volume that cannot be repaired is reported
    /// in the log and left as it is; the others are served.
    pub fn recover(&self) -> Recovered {
        let mut found = Recovered::default();
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
        self.ready.store(true, Ordering::Release);
        found
    }

    /// Names what lies among the volumes and has no record. It is left alone: a state file may have been restored
    /// that is older than it.
    fn report_strangers(&self) {
        for pool in self.pools.iter() {
            let directory = pool.path.join("volumes");
            let known = |name: &String| name.parse().is_ok_and(|id| self.store.get(&id).is_some());
            match self.os.disks.list(&directory) {
                Ok(names) => names.iter().filter(|name| !known(name)).for_each(|name| {
                    tracing::warn!(path = %directory.join(name).display(), "no record tells of this, it is left alone");
                }),
                Err(error) => tracing::warn!(pool = %pool.name, %error, "the volumes could not be listed"),
            }
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
                backend_of(&volume.content).grow(self.place(volume, &paths), volume.capacity_bytes)
            }
            Some(_) => Ok(()),
        }
    }
}
