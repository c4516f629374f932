//! The allocated bytes of each volume, for metrics. They are asked for as often as metrics are scraped, so nothing else is: no extents,
//! no mounts, no filesystems.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::known::Task;
use crate::backend::VolumePaths;
use crate::driver::{Driver, Pool};
use crate::error::{OsContext, Result};
use crate::model::{PoolName, Volume, VolumeId};

/// How long a scrape waits for the figures. Then it shows the last ones.
const PATIENCE: Duration = Duration::from_secs(2);

impl Driver {
    /// Asks for the allocated bytes of all volumes, and waits for the answer, but not for a disk that does not answer.
    pub fn measure_allocated(self: &Arc<Self>) {
        for task in self.pools.names().into_iter().map(Task::Allocated) {
            if self.details.begin(&task) {
                self.begin(task);
            }
        }
        self.details.wait(PATIENCE, |task| matches!(task, Task::Allocated(_)));
    }

    pub(super) fn measure_allocated_in(&self, name: &PoolName) {
        let Ok(pool) = self.pools.get(name) else { return self.details.put_allocated(name, HashMap::new()) };
        let volumes = self.store.volumes().into_iter().filter(|volume| volume.pool() == name);
        let bytes = |volume: Arc<Volume>| Some((volume.id.clone(), self.allocated(&pool, &volume).ok()??));
        self.details.put_allocated(name, volumes.filter_map(bytes).collect());
    }

    /// Returns the allocated bytes of one volume; `None` if they are not known.
    fn allocated(&self, pool: &Pool, volume: &Volume) -> Result<Option<u64>> {
        let paths = VolumePaths::of_volume(&pool.path, volume);
        let Some(image) = paths.image() else { return Ok(self.directory_on_disk(volume, &paths)?.bytes) };
        let stat = self.os.files.stat(&image).doing(|| format!("look at {}", image.display()))?;
        Ok(stat.map(|stat| stat.allocated))
    }

    /// Returns what was measured last, by pool.
    pub(in crate::driver) fn known_allocated(&self) -> HashMap<VolumeId, u64> {
        self.pools.names().iter().flat_map(|name| self.details.allocated(name)).collect()
    }
}
