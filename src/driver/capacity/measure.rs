//! What a pool's filesystem can give and what its snapshots keep, measured on the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::State;
use super::budget::Apart;
use super::tally::{self, Tally};
use crate::backend::VolumePaths;
use crate::driver::{Driver, Pool};
use crate::error::{OsContext, Result};
use crate::kernel::{MetadataSpace, Upkeep, is_errno};
use crate::model::{PoolName, Volume};
use nix::errno::Errno;

/// A pool as it was measured.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    at: Instant,
    cost: Duration,
    pub(super) usable: u64,
    /// What the filesystem takes for itself.
    pub(super) upkeep: Upkeep,
    /// Where metadata have space of their own.
    pub(super) apart: Option<Apart>,
    /// What the snapshots keep, blocks that several have counted once: they never change.
    kept: u64,
    /// What their records said at that time.
    recorded: u64,
}

impl Measured {
    /// `S` now: what was measured, and in full what was recorded since.
    pub(super) fn snapshots(&self, recorded: u64) -> u64 {
        self.kept.saturating_add(recorded.saturating_sub(self.recorded))
    }

    /// Good for a second, and longer where measuring is dear, so that it takes at most a twentieth of the time.
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < Duration::from_secs(1).max(self.cost * 20)
    }
}

impl Driver {
    /// Whether the pool's filesystem keeps an extent until no file has any block of it.
    pub(crate) fn keeps_whole_extents(&self, pool: &Pool) -> Result<bool> {
        Ok(self.measured(pool)?.upkeep.whole_extents)
    }

    /// Forgets what was measured, after a change that moves bytes between what counts and what does not.
    pub(crate) fn measure_again(&self, pool: &PoolName) {
        self.capacity.state.lock().usable.remove(pool);
    }

    /// What the pool can give and what its snapshots keep, measured together.
    pub(super) fn measured(&self, pool: &Pool) -> Result<Measured> {
        let fresh = |state: &State| state.usable.get(&pool.name).copied().filter(Measured::is_fresh);
        if let Some(measured) = fresh(&self.capacity.state.lock()) {
            return Ok(measured);
        }
        let started = Instant::now();
        let recorded = self.store.totals(&pool.name).snapshot_bytes;
        let space = self.os.files.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
        let volumes = self.store.volumes().into_iter();
        let volumes = volumes.filter(|v| *v.pool() == pool.name && v.parameters.is_sized());
        let (volumes, limited): (Vec<Arc<Volume>>, Vec<_>) =
            volumes.partition(|volume| volume.parameters.backend.has_image());
        let snapshots = self.snapshot_images(pool);
        let mut upkeep =
            self.os.images.upkeep(&pool.path).doing(|| format!("look at {}", pool.path.display()))?;
        // Without copies no two images can share a block, and a stat of each tells all.
        let shares =
            pool.probe.may_reflink() && (!snapshots.is_empty() || volumes.iter().any(|v| v.source.is_some()));
        // Metadata that a stat does not tell of are estimated by the extents.
        let mut tally = Tally::new(&self.os, shares || upkeep.metadata.is_some());
        snapshots.iter().try_for_each(|image| tally.add(image))?;
        let (mut kept, shared_by_snapshots) = (tally.total(), tally.shared());
        for volume in volumes {
            tally.add(&VolumePaths::new(&pool.path, volume.directory(), volume.parameters.backend).data())?;
        }
        let in_images = tally.total().saturating_add(self.in_directories(pool, &limited)?);
        if upkeep.whole_extents {
            kept = kept.saturating_add(tally.shared().saturating_sub(shared_by_snapshots));
        }
        let metadata = MetadataOfImages::of(&upkeep, &tally);
        upkeep.unusable = upkeep.unusable.saturating_add(metadata.rounding);
        let in_all = space.left().saturating_add(in_images).saturating_add(metadata.usable);
        let kept_free = kept_free(pool, &upkeep, space.total);
        let usable = in_all.saturating_sub(kept_free);
        let data = usable.saturating_sub(metadata.usable);
        let apart = metadata.space.map(|metadata| Apart { data, metadata });
        let (at, cost) = (Instant::now(), started.elapsed());
        let measured = Measured { at, cost, usable, upkeep, apart, kept, recorded };
        let mut state = self.capacity.state.lock();
        state.usable.insert(pool.name.clone(), measured);
        Ok(measured)
    }

    /// What directories with an enforced size have taken, and nobody else has as well: what they share they need anew when
    /// they are written to. Those whose filesystem does not tell count with nothing: the pool then has less than it could.
    pub(super) fn in_directories(&self, pool: &Pool, volumes: &[Arc<Volume>]) -> Result<u64> {
        let taken = |volume: &Volume, id| {
            let directory = VolumePaths::of_volume(&pool.path, volume).directory;
            match self.os.quotas.quota(&directory, id) {
                Err(error) if is_errno(&error, Errno::EOPNOTSUPP) => Ok(0),
                quota => quota
                    .map(|quota| quota.own_bytes)
                    .doing(|| format!("ask for the quotas of {}", pool.path.display())),
            }
        };
        let numbered = volumes.iter().filter_map(|volume| Some((volume, volume.quota?)));
        numbered.into_iter().try_fold(0, |all: u64, (volume, id)| Ok(all.saturating_add(taken(volume, id)?)))
    }

    fn snapshot_images(&self, pool: &Pool) -> Vec<PathBuf> {
        let snapshots = self.store.snapshots().into_iter();
        let here = snapshots.filter(|s| s.pool == pool.name && s.content.backend().has_image());
        here.map(|s| VolumePaths::of_snapshot(&pool.path, &s.id, s.content.backend()).data()).collect()
    }

    /// What a snapshot of this image would keep that no other snapshot keeps already.
    pub(crate) fn not_kept_yet(&self, pool: &Pool, image: &Path) -> Result<u64> {
        let mut tally = Tally::new(&self.os, true);
        self.snapshot_images(pool).iter().try_for_each(|image| tally.add(image))?;
        let kept = tally.total();
        tally.add_written(image)?;
        Ok(tally.total().saturating_sub(kept))
    }

    /// Whether other files have blocks of this image too.
    pub(crate) fn has_shared_extents(&self, image: &Path) -> Result<bool> {
        let mut shared = false;
        let seen = tally::each_extent(&self.os, image, true, |extent| shared |= extent.shared);
        seen.doing(|| format!("read the extents of {}", image.display())).map(|()| shared)
    }
}

/// The room for the record beside the data of a new volume, and for one that takes the place of another: a block each.
const RECORDS: u64 = 2 * 4096;

/// What volumes leave free: for others, for records, and since the filesystem cannot give it to files.
pub(super) fn kept_free(pool: &Pool, upkeep: &Upkeep, total: u64) -> u64 {
    pool.reserve.bytes(total).max(upkeep.unusable.saturating_add(RECORDS))
}

/// Metadata of images as a part of what can be given to them.
struct MetadataOfImages {
    /// What they have, or can have without taking from what is available.
    usable: u64,
    /// What they can become in all, where they have space of their own.
    space: Option<u64>,
    /// What can be lost when they grow.
    rounding: u64,
}

impl MetadataOfImages {
    fn of(upkeep: &Upkeep, tally: &Tally<'_>) -> Self {
        let Some(metadata) = upkeep.metadata else {
            return MetadataOfImages { usable: tally.metadata(), space: None, rounding: 0 };
        };
        Self::in_space(metadata, tally.extents())
    }

    /// Of images with so many extents.
    fn in_space(metadata: MetadataSpace, extents: u64) -> Self {
        let of_images = metadata.used.min(extents.saturating_mul(metadata.per_extent));
        let of_others = metadata.used - of_images;
        let usable = metadata.total.saturating_sub(of_others);
        // btrfs gives metadata more when four fifths are in use; where that will never be, nothing is rounded.
        let most = of_others.saturating_add((metadata.data / 4096).saturating_mul(metadata.per_extent));
        let rounding = if most < metadata.total / 4 * 3 { 0 } else { metadata.rounding };
        let space = usable.saturating_add(metadata.growth.saturating_sub(rounding));
        MetadataOfImages { usable, space: Some(space), rounding }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn metadata_get_the_space_that_data_leave() {
        // 3 GiB, of which 1 GiB is used: 200,000 extents of 4 KiB, and what is not of images.
        let used = MetadataSpace {
            total: 3 * GIB,
            used: GIB,
            per_extent: 4096,
            growth: 5 * GIB,
            data: 100 * GIB,
            rounding: GIB,
        };
        let (of_images, few) = (200_000 * 4096, MetadataOfImages::in_space(used, 200_000));
        assert_eq!(few.usable, 3 * GIB - (GIB - of_images));
        assert_eq!((few.space, few.rounding), (Some(few.usable + 4 * GIB), GIB));
        let all = MetadataOfImages::in_space(used, u64::MAX);
        assert_eq!(all.usable, 3 * GIB, "never more than what is used");

        // Every block with an extent of its own takes less than three quarters, so that it never has to grow.
        let (eighth, quarter) = (MetadataSpace { used: 0, data: 2 * GIB, ..used }, 9 * GIB / 4);
        let ample = MetadataOfImages::in_space(eighth, 0);
        assert_eq!((ample.space, ample.rounding), (Some(8 * GIB), 0));
        let exactly = MetadataOfImages::in_space(MetadataSpace { data: quarter, ..eighth }, 0);
        assert_eq!((exactly.space, exactly.rounding), (Some(7 * GIB), GIB));
        let of_others = MetadataOfImages::in_space(MetadataSpace { used: GIB / 4, ..eighth }, 0);
        assert_eq!(of_others.rounding, GIB, "what is there counts");
    }

    #[test]
    fn a_dear_measurement_is_good_for_longer() {
        let fresh = |age: f64, cost: f64| {
            let at = Instant::now().checked_sub(Duration::from_secs_f64(age)).expect("a time");
            let (cost, upkeep) = (Duration::from_secs_f64(cost), Upkeep::default());
            Measured { at, cost, usable: 0, upkeep, apart: None, kept: 0, recorded: 0 }.is_fresh()
        };
        assert!(fresh(0.1, 0.0) && fresh(0.1, 0.001) && fresh(50.0, 3.0));
        assert!(!fresh(1.1, 0.0) && !fresh(1.1, 0.001) && !fresh(61.0, 3.0));
    }
}
