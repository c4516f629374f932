//! How much a pool can still promise.
//!
//! A pool can give `P` bytes: what is free now, less the reserve, plus what its volumes and snapshots have allocated
//! already, blocks that several share counted once. Of these, thick volumes own their full size `T`, and snapshots what
//! they keep allocated, `S`, blocks that several snapshots share counted once, but also where a volume has them too:
//! once that is written to, it needs blocks of its own. Thin volumes may be promised `R` times the rest, where `R` is
//! the pool's over-commit ratio, and have been promised `N`. So there is room for
//!
//! - a thin volume of `R × (P − T − S) − N` bytes;
//! - a thick volume of `P − T − S − N / R` bytes, and never more than is free now;
//! - a snapshot of `P − T − S − N / R` bytes, and if its blocks have to be copied never more than is free now.
//!
//! Directories are promised nothing: what they take shows as less free space. They have no enforced size, so that new
//! ones are only where nothing is promised (see `directories`).
//!
//! A filesystem needs a part for itself ([`Upkeep`]): what is promised counts with the metadata that it takes when each
//! of its blocks is an extent of its own, and some of what is free cannot be given to files. So `T`, `S` and `N` are
//! more than the sizes they stand for, and `P` has the metadata that images take already. Where metadata have space of
//! their own (btrfs) they must also fit into what that can become. Where an extent stays whole until nobody has a block
//! of it (btrfs), what volumes share with each other and with no snapshot counts once more, as a part of `S`: each of
//! them can come to own every block, and a few that are left keep all of what they shared.
//!
//! A thick volume that shares blocks needs new ones to be rewritten. Only in a managed pool without over-commit is
//! it sure that those stay free, so only there do thick volumes share (see `Driver::may_share`); elsewhere they
//! and their snapshots get blocks of their own.

mod figures;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::tally::{self, Tally};
use super::{Driver, Pool};
use crate::backend::VolumePaths;
use crate::error::{Error, OsContext, Result};
use crate::model::{BackendKind, PoolName, Provisioning, Volume, format_bytes};
use crate::os::{MetadataSpace, Upkeep};
use crate::store::Totals;

pub use figures::PoolFigures;

/// What a pool can give and has promised.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Budget {
    /// `P`
    usable: u64,
    /// Free now, less the reserve.
    free: u64,
    /// `T` and `N`
    promised: Totals,
    /// `R`
    overcommit: f64,
    /// Bytes of metadata for each byte that is promised.
    metadata: f64,
    /// Where metadata have space of their own.
    apart: Option<Apart>,
}

/// What two kinds of space can become, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Apart {
    data: u64,
    metadata: u64,
}

impl Budget {
    /// The bytes of images there can be in all.
    fn bytes(self) -> f64 {
        // f64 is exact to 2^53 bytes (8 PiB), and errs by less than a block far beyond.
        let bytes = self.usable as f64 / (1.0 + self.metadata);
        match self.apart {
            Some(Apart { data, metadata }) if self.metadata > 0.0 => {
                bytes.min(data as f64).min(metadata as f64 / self.metadata)
            }
            _ => bytes,
        }
    }

    /// `P − T − S`
    fn unowned(self) -> f64 {
        let Totals { thick_bytes, snapshot_bytes, .. } = self.promised;
        (self.bytes() - thick_bytes as f64 - snapshot_bytes as f64).max(0.0)
    }

    /// What is not promised to anybody: `P − T − S − N / R`.
    fn rest(self) -> u64 {
        (self.unowned() - self.promised.thin_bytes as f64 / self.overcommit).max(0.0) as u64
    }

    /// The largest volume for which there is room, with an enforced size or without one.
    fn room(self, sized: bool, provisioning: Provisioning) -> u64 {
        let thin_bytes = self.promised.thin_bytes as f64;
        match provisioning {
            Provisioning::Thin if !sized => self.rest().min(self.free),
            Provisioning::Thin if self.free == 0 => 0,
            Provisioning::Thin => (self.unowned() * self.overcommit - thin_bytes).max(0.0) as u64,
            Provisioning::Thick => self.rest().min(self.free),
        }
    }
}

/// Promises that are being made, and what the volumes of a pool had allocated a moment ago.
#[derive(Default)]
pub(super) struct Ledger {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Admitted, but not yet in the store.
    reserved: HashMap<PoolName, Reserved>,
    /// `P`, measured by a look at every image: kept for a while, since writes of our own volumes do not change it.
    usable: HashMap<PoolName, Measured>,
}

impl State {
    fn hold(&mut self, shared: &Arc<Mutex<State>>, pool: &Pool, held: Reserved) -> Reservation {
        let reserved = self.reserved.entry(pool.name.clone()).or_default();
        let totals = &mut reserved.promised;
        totals.thin_bytes = totals.thin_bytes.saturating_add(held.promised.thin_bytes);
        totals.thick_bytes = totals.thick_bytes.saturating_add(held.promised.thick_bytes);
        totals.snapshot_bytes = totals.snapshot_bytes.saturating_add(held.promised.snapshot_bytes);
        reserved.copying = reserved.copying.saturating_add(held.copying);
        Reservation { state: Arc::clone(shared), pool: pool.name.clone(), held }
    }
}

/// What is held for work that runs.
#[derive(Debug, Clone, Copy, Default)]
struct Reserved {
    /// Promises that are not in the store yet.
    promised: Totals,
    /// Bytes that copies which run may still allocate.
    copying: u64,
}

#[derive(Clone, Copy)]
struct Measured {
    at: Instant,
    cost: Duration,
    usable: u64,
    /// What the filesystem takes for itself.
    upkeep: Upkeep,
    /// Where metadata have space of their own.
    apart: Option<Apart>,
    /// What the snapshots keep, blocks that several have counted once: they never change.
    kept: u64,
    /// What their records said at that time.
    recorded: u64,
}

impl Measured {
    /// `S` now: what was measured, and in full what was recorded since.
    fn snapshots(&self, recorded: u64) -> u64 {
        self.kept.saturating_add(recorded.saturating_sub(self.recorded))
    }

    /// Good for a second, and longer where measuring is dear, so that it takes at most a twentieth of the time.
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < Duration::from_secs(1).max(self.cost * 20)
    }
}

/// Room that is held until the value is dropped: the promise until its record is in the store, the bytes of a copy
/// until the copy has ended.
pub(super) struct Reservation {
    state: Arc<Mutex<State>>,
    pool: PoolName,
    held: Reserved,
}

impl Reservation {
    /// The record is in the store and counts there.
    pub(super) fn recorded(&mut self) {
        let promised = std::mem::take(&mut self.held.promised);
        self.give_back(promised, 0);
    }

    fn give_back(&self, promised: Totals, copying: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reserved) = state.reserved.get_mut(&self.pool) else { return };
        let totals = &mut reserved.promised;
        totals.thin_bytes = totals.thin_bytes.saturating_sub(promised.thin_bytes);
        totals.thick_bytes = totals.thick_bytes.saturating_sub(promised.thick_bytes);
        totals.snapshot_bytes = totals.snapshot_bytes.saturating_sub(promised.snapshot_bytes);
        reserved.copying = reserved.copying.saturating_sub(copying);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back(self.held.promised, self.held.copying);
    }
}

/// What is to be made in a pool.
#[derive(Debug, Clone, Copy)]
pub(super) enum Want {
    /// A volume of this kind, or so many bytes more of one.
    Volume(BackendKind, Provisioning, u64),
    /// A snapshot that keeps so many bytes allocated; of a directory nothing is promised.
    Snapshot(BackendKind, u64),
    /// A volume that shares so many bytes with another one, where extents stay whole.
    Shared(u64),
}

impl Want {
    fn of(volume: &Volume, bytes: u64) -> Self {
        Want::Volume(volume.parameters.backend, volume.parameters.provisioning, bytes)
    }

    /// The bytes, and what they are for.
    fn describe(self) -> (u64, &'static str) {
        match self {
            Want::Volume(backend, _, bytes) if !backend.is_sized() => (bytes, "directory volume"),
            Want::Volume(_, Provisioning::Thin, bytes) => (bytes, "thin volume"),
            Want::Volume(_, Provisioning::Thick, bytes) => (bytes, "thick volume"),
            Want::Snapshot(_, bytes) => (bytes, "snapshot"),
            Want::Shared(bytes) => (bytes, "copy that shares its extents"),
        }
    }

    fn promise(self) -> Totals {
        let none = Totals::default();
        match self {
            Want::Volume(backend, ..) | Want::Snapshot(backend, _) if !backend.is_sized() => none,
            Want::Volume(_, Provisioning::Thin, bytes) => Totals { thin_bytes: bytes, ..none },
            Want::Volume(_, Provisioning::Thick, bytes) => Totals { thick_bytes: bytes, ..none },
            Want::Snapshot(_, bytes) | Want::Shared(bytes) => Totals { snapshot_bytes: bytes, ..none },
        }
    }
}

impl Driver {
    /// Holds room for what is to be made, and for the bytes that have to be `copied` into blocks of their own for it.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the pool cannot promise that much, or has no room for the copy.
    pub(super) fn reserve(&self, pool: &Pool, want: Want, copied: u64) -> Result<Reservation> {
        let measured = self.measured(pool)?;
        let mut state = self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = self.budget(pool, &state, measured)?;
        let (bytes, what) = want.describe();
        let room = match want {
            Want::Volume(backend, provisioning, _) => budget.room(backend.is_sized(), provisioning),
            Want::Snapshot(backend, _) if !backend.is_sized() => budget.rest().min(budget.free),
            Want::Snapshot(..) | Want::Shared(_) => budget.rest(),
        };
        let exhausted = |room, what, bytes| {
            let (room, bytes) = (format_bytes(room), format_bytes(bytes));
            Err(Error::Exhausted(format!(
                "pool {} has room for a {what} of {room}, not of {bytes}",
                pool.name
            )))
        };
        if bytes > room {
            return exhausted(room, what, bytes);
        }
        if copied > budget.free {
            return exhausted(budget.free, "copy", copied);
        }
        let held = Reserved { promised: want.promise(), copying: copied };
        Ok(state.hold(&self.capacity.state, pool, held))
    }

    /// [`reserve`](Self::reserve) for what a thin volume is to become, whose promise of now ends with it.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub(super) fn reserve_instead(
        &self,
        pool: &Pool,
        want: Want,
        copied: u64,
        thin: &Volume,
    ) -> Result<Reservation> {
        let measured = self.measured(pool)?;
        let mut state = self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut budget = self.budget(pool, &state, measured)?;
        budget.promised.thin_bytes = budget.promised.thin_bytes.saturating_sub(thin.capacity_bytes);
        let (bytes, what) = want.describe();
        // Most of it may be allocated already, so that free space limits only what is missing.
        let room = budget.rest();
        if bytes > room || copied > budget.free {
            let (room, bytes) = (format_bytes(room.min(budget.free)), format_bytes(bytes.max(copied)));
            return Err(Error::Exhausted(format!(
                "pool {} has room for a {what} of {room}, not of {bytes}",
                pool.name
            )));
        }
        let held = Reserved { promised: want.promise(), copying: copied };
        Ok(state.hold(&self.capacity.state, pool, held))
    }

    /// Whether other files have blocks of this image too.
    pub(super) fn has_shared_extents(&self, image: &Path) -> Result<bool> {
        let mut shared = false;
        let seen = tally::each_extent(&self.os, image, true, |extent| shared |= extent.shared);
        seen.doing(|| format!("read the extents of {}", image.display())).map(|()| shared)
    }

    /// [`reserve`](Self::reserve) for so many bytes more of a volume.
    pub(super) fn reserve_volume(&self, pool: &Pool, volume: &Volume, bytes: u64) -> Result<Reservation> {
        self.reserve(pool, Want::of(volume, bytes), 0)
    }

    /// The largest volume of this kind for which the pool has room.
    pub(super) fn room(&self, pool: &Pool, backend: BackendKind, provisioning: Provisioning) -> Result<u64> {
        let measured = self.measured(pool)?;
        let state = self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.budget(pool, &state, measured)?.room(backend.is_sized(), provisioning))
    }

    fn budget(&self, pool: &Pool, state: &State, measured: Measured) -> Result<Budget> {
        let reserved = state.reserved.get(&pool.name).copied().unwrap_or_default();
        let stored = self.store.totals(&pool.name);
        let promised = Totals {
            thin_bytes: stored.thin_bytes + reserved.promised.thin_bytes,
            thick_bytes: stored.thick_bytes + reserved.promised.thick_bytes,
            snapshot_bytes: measured.snapshots(stored.snapshot_bytes) + reserved.promised.snapshot_bytes,
        };
        let space = self.os.disks.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
        let free = space.available.saturating_sub(kept_free(pool, &measured.upkeep, space.total));
        Ok(Budget {
            usable: measured.usable,
            free: free.saturating_sub(reserved.copying),
            promised,
            overcommit: pool.overcommit,
            metadata: measured.upkeep.per_block as f64 / 4096.0,
            apart: measured.apart,
        })
    }

    /// Whether the pool's filesystem keeps an extent until no file has any block of it.
    pub(super) fn keeps_whole_extents(&self, pool: &Pool) -> Result<bool> {
        Ok(self.measured(pool)?.upkeep.whole_extents)
    }

    /// Forgets what was measured, after a change that moves bytes between what counts and what does not.
    pub(super) fn measure_again(&self, pool: &PoolName) {
        self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner).usable.remove(pool);
    }

    /// What the pool can give and what its snapshots keep, measured together.
    fn measured(&self, pool: &Pool) -> Result<Measured> {
        let fresh = |state: &State| state.usable.get(&pool.name).copied().filter(Measured::is_fresh);
        if let Some(measured) = fresh(&self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(measured);
        }
        let started = Instant::now();
        let recorded = self.store.totals(&pool.name).snapshot_bytes;
        let space = self.os.disks.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
        let volumes = self.store.volumes().into_iter();
        let volumes = volumes.filter(|v| *v.pool() == pool.name && v.parameters.backend.is_sized());
        let volumes: Vec<Arc<Volume>> = volumes.collect();
        let snapshots = self.snapshot_images(pool);
        let mut upkeep =
            self.os.disks.upkeep(&pool.path).doing(|| format!("look at {}", pool.path.display()))?;
        // Without copies no two images can share a block, and a stat of each tells all.
        let shares =
            pool.probe.may_reflink() && (!snapshots.is_empty() || volumes.iter().any(|v| v.source.is_some()));
        // Metadata that a stat does not tell of are estimated by the extents.
        let mut tally = Tally::new(&self.os, shares || upkeep.metadata.is_some());
        snapshots.iter().try_for_each(|image| tally.add(image))?;
        let (mut kept, shared_by_snapshots) = (tally.total(), tally.shared());
        for volume in volumes {
            tally.add(&VolumePaths::new(&pool.path, &volume.id, volume.parameters.backend).data())?;
        }
        let in_images = tally.total();
        if upkeep.whole_extents {
            kept = kept.saturating_add(tally.shared().saturating_sub(shared_by_snapshots));
        }
        let metadata = MetadataOfImages::of(&upkeep, &tally);
        upkeep.unusable = upkeep.unusable.saturating_add(metadata.rounding);
        let in_all = space.available.saturating_add(in_images).saturating_add(metadata.usable);
        let kept_free = kept_free(pool, &upkeep, space.total);
        let usable = in_all.saturating_sub(kept_free);
        let data = usable.saturating_sub(metadata.usable);
        let apart = metadata.space.map(|metadata| Apart { data, metadata });
        let (at, cost) = (Instant::now(), started.elapsed());
        let measured = Measured { at, cost, usable, upkeep, apart, kept, recorded };
        let mut state = self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.usable.insert(pool.name.clone(), measured);
        Ok(measured)
    }

    fn snapshot_images(&self, pool: &Pool) -> Vec<PathBuf> {
        let snapshots = self.store.snapshots().into_iter();
        let here = snapshots.filter(|s| s.pool == pool.name && s.content.backend().is_sized());
        here.map(|s| VolumePaths::of_snapshot(&pool.path, &s.id, s.content.backend()).data()).collect()
    }

    /// What a snapshot of this image would keep that no other snapshot keeps already.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn not_kept_yet(&self, pool: &Pool, image: &Path) -> Result<u64> {
        let mut tally = Tally::new(&self.os, true);
        self.snapshot_images(pool).iter().try_for_each(|image| tally.add(image))?;
        let kept = tally.total();
        tally.add_written(image)?;
        Ok(tally.total().saturating_sub(kept))
    }
}

/// What volumes leave free: for others, and since the filesystem cannot give it to files.
fn kept_free(pool: &Pool, upkeep: &Upkeep, total: u64) -> u64 {
    pool.reserve.bytes(total).max(upkeep.unusable)
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
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn budget(usable: u64, free: u64, thin: u64, thick: u64, overcommit: f64) -> Budget {
        Budget {
            usable,
            free,
            promised: Totals { thin_bytes: thin, thick_bytes: thick, snapshot_bytes: 0 },
            overcommit,
            metadata: 0.0,
            apart: None,
        }
    }

    #[test]
    fn metadata_with_space_of_their_own_are_given_what_others_leave() {
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
    fn metadata_take_their_part() {
        let pool = Budget { metadata: 0.25, ..budget(100 * GIB, 100 * GIB, 0, 40 * GIB, 1.0) };
        assert_eq!(pool.room(true, Provisioning::Thick), 40 * GIB);
        let small = Budget { apart: Some(Apart { data: 100 * GIB, metadata: 15 * GIB }), ..pool };
        assert_eq!(small.room(true, Provisioning::Thin), 20 * GIB);
    }

    #[test]
    fn without_overcommit_every_promise_can_be_kept() {
        let pool = budget(100 * GIB, 60 * GIB, 50 * GIB, 20 * GIB, 1.0);
        assert_eq!(pool.room(true, Provisioning::Thin), 30 * GIB);
        assert_eq!(pool.room(true, Provisioning::Thick), 30 * GIB);
        assert_eq!(pool.room(false, Provisioning::Thin), 30 * GIB);
    }

    #[test]
    fn overcommit_is_for_thin_volumes() {
        let pool = budget(100 * GIB, 90 * GIB, 100 * GIB, 0, 4.0);
        assert_eq!(pool.room(true, Provisioning::Thin), 300 * GIB);
        assert_eq!(pool.room(true, Provisioning::Thick), 75 * GIB);
    }

    #[test]
    fn a_full_disk_has_no_room_whatever_was_promised() {
        assert_eq!(budget(10 * GIB, 0, 0, 0, 10.0).room(true, Provisioning::Thin), 0);
        assert_eq!(budget(GIB, 0, 5 * GIB, 5 * GIB, 1.0).room(true, Provisioning::Thick), 0);
    }

    proptest! {
        #[test]
        fn a_thick_promise_leaves_room_for_the_thin_ones(usable in 0u64..1 << 45, free in 0u64..1 << 45, thin in 0u64..1 << 45, thick in 0u64..1 << 45, ratio in 1.0f64..100.0) {
            let before = budget(usable, free.min(usable), thin, thick, ratio);
            let room = before.room(true, Provisioning::Thick);
            prop_assert!(room <= free);
            if room > 0 {
                let kept = (usable - thick - room) as f64 * ratio;
                prop_assert!(kept + ratio * 4096.0 >= thin as f64);
            }
        }
    }
}
