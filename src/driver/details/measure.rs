//! What volumes and snapshots take. Each pool is measured in a thread of its own, so that a disk that hangs holds up neither the
//! other pools nor the answer. Nothing is mounted, attached, frozen or written for it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use super::Extent;
use super::known::{Known, Measured, Task};
use crate::backend::{Stats, VolumePaths, presence_of};
use crate::driver::capacity::tally::Tally;
use crate::driver::{Driver, Pool};
use crate::error::{OsContext, Result};
use crate::kernel::is_errno;
use crate::model::details::{OnDisk, PoolBytes};
use crate::model::{ObjectId, PoolName, Snapshot, Timestamp, Volume, pod_uid_in};

/// How long the caller waits for a measurement.
const PATIENCE: Duration = Duration::from_secs(3);

/// A task that runs; also a panic ends it.
struct Running<'a>(&'a Known, &'a Task);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

impl Driver {
    /// Measures the pools, and waits for that, but not for a disk that does not answer.
    pub(in crate::driver) fn measure_details(self: &Arc<Self>, extent: Extent) {
        let task = match extent {
            Extent::Everything => Task::Measure,
            Extent::Pools => Task::Figures,
        };
        let mut tasks: Vec<Task> = self.pools.names().into_iter().map(task).collect();
        let is_new = |volume: &Arc<Volume>| volume.is_ready() && self.health.examined(&volume.id).is_none();
        if self.store.volumes().iter().any(is_new) {
            tasks.push(Task::Examine);
        }
        for task in tasks {
            if self.details.begin(&task) {
                self.begin(task);
            }
        }
        self.details.wait(PATIENCE, |task| !matches!(task, Task::Allocated(_)));
    }

    /// Does a task in a thread of its own.
    pub(super) fn begin(self: &Arc<Self>, task: Task) {
        let (driver, of_thread) = (Arc::clone(self), task.clone());
        let work = move || {
            let _running = Running(&driver.details, &of_thread);
            match &of_thread {
                Task::Measure(pool) => driver.measure_all_in(pool),
                Task::Figures(pool) => driver.measure_figures_of(pool),
                Task::Allocated(pool) => driver.measure_allocated_in(pool),
                Task::Examine => driver.examine_volumes(),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("details".to_owned()).spawn(work) {
            tracing::warn!(?task, %error, "volumes cannot be looked at");
            self.details.end(&task);
        }
    }

    /// Measures one pool. What takes longest comes last.
    fn measure_all_in(&self, name: &PoolName) {
        let volumes = self.store.volumes();
        let snapshots = self.store.snapshots();
        let there = volumes.iter().map(|volume| ObjectId::from(&volume.id));
        let there: HashSet<ObjectId> = there.chain(snapshots.iter().map(|s| ObjectId::from(&s.id))).collect();
        self.details.retain(&there);
        let Ok(pool) = self.pools.get(name) else { return };
        self.measure_figures_of(name);
        let mut here: Vec<&Arc<Volume>> = volumes.iter().filter(|volume| volume.pool() == name).collect();
        here.sort_by_key(|volume| is_counted(volume));
        for volume in here.iter().filter(|volume| !is_counted(volume)) {
            self.details.put(ObjectId::from(&volume.id), self.measure_volume(&pool, volume));
        }
        for snapshot in snapshots.iter().filter(|snapshot| snapshot.pool == *name) {
            self.details.put(ObjectId::from(&snapshot.id), self.measure_snapshot(&pool, snapshot));
        }
        for volume in here.iter().filter(|volume| is_counted(volume)) {
            self.details.put(ObjectId::from(&volume.id), self.measure_volume(&pool, volume));
        }
    }

    /// Measures one pool without what is in it.
    fn measure_figures_of(&self, name: &PoolName) {
        let Ok(pool) = self.pools.get(name) else { return };
        if let Ok(figures) = self.measure_pool(&pool) {
            self.details.put_pool(name, bytes_of(&figures));
        }
    }

    fn measure_volume(&self, pool: &Pool, volume: &Volume) -> Measured {
        let paths = VolumePaths::of_volume(&pool.path, volume);
        let (disk, mut error) = told(self.volume_on_disk(pool, volume, &paths));
        let mut measured = Measured { disk: disk.unwrap_or_default(), ..Measured::default() };
        if !volume.content.backend().has_image() {
            measured.used_bytes = measured.disk.bytes;
        }
        match told(self.uses_of(volume, &paths)) {
            (Some((used, pods)), _) => {
                (measured.used_bytes, measured.pods) = (used.or(measured.used_bytes), pods);
            }
            (None, why) => error = error.or(why),
        }
        measured.disk.measured = Some(Timestamp::now());
        Measured { error, ..measured }
    }

    /// Returns the bytes in use of a mounted filesystem, and the pods that have the volume.
    fn uses_of(&self, volume: &Volume, paths: &VolumePaths) -> Result<(Option<u64>, Vec<String>)> {
        let (place, presence) = (self.place(volume, paths), presence_of(&volume.content));
        let uses = presence.uses(place)?;
        let uids = uses.all().filter_map(|mount| pod_uid_in(mount.target.to_str()?).map(str::to_owned));
        let mut pods: Vec<String> = uids.collect();
        pods.sort();
        pods.dedup();
        if volume.fs_type().is_none() {
            return Ok((None, pods));
        }
        let Some(mount) = uses.reachable(&self.os, |mount| uses.mounts.contains(mount))? else {
            return Ok((None, pods));
        };
        let used = match presence.stats(place, &mount.target, &uses)? {
            Stats::Filesystem(space) => Some(space.used),
            Stats::Directory(..) | Stats::Limited(..) | Stats::Device(_) => None,
        };
        Ok((used, pods))
    }

    fn volume_on_disk(&self, pool: &Pool, volume: &Volume, paths: &VolumePaths) -> Result<OnDisk> {
        match paths.image() {
            Some(image) => self.image_on_disk(pool, &image),
            None => self.directory_on_disk(volume, paths),
        }
    }

    pub(super) fn directory_on_disk(&self, volume: &Volume, paths: &VolumePaths) -> Result<OnDisk> {
        if let Some(id) = volume.quota {
            match self.os.quotas.quota(&paths.directory, id) {
                Err(error) if is_errno(&error, Errno::EOPNOTSUPP) => {}
                quota => {
                    let quota = quota.doing(|| format!("ask for the quota of {}", volume.id))?;
                    let shared = Some(quota.bytes.saturating_sub(quota.own_bytes));
                    return Ok(OnDisk { bytes: Some(quota.bytes), shared, measured: None });
                }
            }
        }
        let data = paths.data();
        let count = || {
            let usage = self.os.trees.usage(&data).doing(|| format!("measure {}", data.display()))?;
            let space = self.os.files.space(&data).doing(|| format!("statvfs {}", data.display()))?;
            Ok(Stats::Directory(usage, space))
        };
        let bytes = match self.usage.get_or(&volume.id, count)? {
            Stats::Directory(usage, _) => Some(usage.bytes),
            Stats::Limited(quota, _) => Some(quota.bytes),
            Stats::Filesystem(_) | Stats::Device(_) => None,
        };
        Ok(OnDisk { bytes, shared: None, measured: None })
    }

    /// The kernel is not made to write anything, so that what was written a moment ago may be missing.
    fn image_on_disk(&self, pool: &Pool, image: &Path) -> Result<OnDisk> {
        let looking = || format!("look at {}", image.display());
        let Some(stat) = self.os.files.stat(image).doing(looking)? else { return Ok(OnDisk::default()) };
        let shared = match pool.probe.may_reflink() {
            true => {
                let mut tally = Tally::new(&self.os, true);
                tally.add(image)?;
                Some(tally.shared())
            }
            // No two files of this filesystem have a block.
            false => Some(0),
        };
        Ok(OnDisk { bytes: Some(stat.allocated), shared, measured: None })
    }

    fn measure_snapshot(&self, pool: &Pool, snapshot: &Snapshot) -> Measured {
        let paths = VolumePaths::of_snapshot(&pool.path, &snapshot.id, snapshot.content.backend());
        let (disk, error) = match paths.image() {
            Some(image) => told(self.image_on_disk(pool, &image)),
            // It does not change, and its record has what was counted when it was made.
            None => (Some(OnDisk { bytes: Some(snapshot.allocated_bytes), ..OnDisk::default() }), None),
        };
        let disk = OnDisk { measured: Some(Timestamp::now()), ..disk.unwrap_or_default() };
        Measured { disk, error, ..Measured::default() }
    }
}

/// Returns whether the files of the volume have to be counted one by one.
fn is_counted(volume: &Volume) -> bool {
    !volume.content.backend().has_image() && volume.quota.is_none()
}

fn told<T>(measured: Result<T>) -> (Option<T>, Option<String>) {
    match measured {
        Ok(measured) => (Some(measured), None),
        Err(error) => (None, Some(error.to_string())),
    }
}

fn bytes_of(figures: &crate::driver::PoolFigures) -> PoolBytes {
    PoolBytes {
        measured: Timestamp::now(),
        size: figures.size,
        used: figures.used,
        free: figures.free,
        reserve: figures.reserve,
        usable: figures.usable,
        promised_thin: figures.promised.thin_bytes,
        promised_thick: figures.promised.thick_bytes,
        promised_snapshots: figures.promised.snapshot_bytes,
        room: figures.room,
        lacking: figures.lacking,
        removing: figures.removing,
        overcommit: figures.overcommit,
    }
}
