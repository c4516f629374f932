//! How much a pool can still promise.
//!
//! A pool can give `P` bytes: what is free now, less the reserve, plus what its volumes and snapshots have allocated
//! already, with blocks that several share counted once. Of these, thick volumes own their full size `T`, and snapshots
//! what they keep allocated, `S`: blocks that several snapshots share count once, but they count although a volume has
//! them too, because a volume that is written to needs blocks of its own. Thin volumes may be promised `R` times the
//! rest, where `R` is the pool's over-commit ratio, and have been promised `N`. So there is room for
//!
//! - a thin volume of `R × (P − T − S) − N` bytes;
//! - a thick volume of `P − T − S − N / R` bytes, and never more than is free now;
//! - a snapshot of `P − T − S − N / R` bytes, and if its blocks have to be copied never more than is free now.
//!
//! A directory whose size its filesystem enforces is a thin volume, and what its quota says that it alone has is what it has
//! allocated. What it shares with copies (btrfs with full qgroups) it needs again when it is rewritten, so making one takes
//! room for that.
//! Directories without an enforced size are promised nothing: what they take shows as less free space. New ones are only made
//! where nothing is promised (see `directories`). The same goes for snapshots of directories of either kind, which do not
//! grow.
//!
//! A filesystem needs a part for itself (`kernel::Upkeep`): a promise counts with the metadata that it takes when each of its
//! blocks is an extent of its own, and files cannot have some of what is free. So `T`, `S` and `N` are more than the
//! sizes they stand for, and `P` includes the metadata that images take already. If metadata have space of their own
//! (btrfs), they must also fit into what that can become. If an extent stays whole until nobody has a block of it
//! (btrfs), what volumes share with each other and with no snapshot counts once more, as a part of `S`: each of them can
//! come to own every block, and a few blocks that are left keep all of what they shared.
//!
//! A thick volume that shares blocks needs new ones to be rewritten. Only in a managed pool without over-commit are
//! those certain to stay free, so only there do thick volumes share (see `Driver::may_share`); elsewhere they and their
//! snapshots get blocks of their own.

mod budget;
mod figures;
mod measure;
pub(super) mod tally;
pub(super) mod usage;

use std::collections::HashMap;
use std::sync::Arc;

use super::{Driver, Pool};
use crate::driver::locks::guarded::Guarded;
use crate::error::{Error, OsContext, Result};
use crate::model::{BackendKind, PoolName, Provisioning, Volume, VolumeId, format_two};
use crate::store::Totals;
use budget::Budget;
pub use figures::PoolFigures;
use measure::{Measured, kept_free};

/// Promises that are being made, and what the volumes of a pool had allocated a moment ago.
#[derive(Default)]
pub(crate) struct Ledger {
    state: Arc<Guarded<State>>,
}

#[derive(Default)]
struct State {
    /// Admitted, but not yet in the store.
    reserved: HashMap<PoolName, Reserved>,
    /// What of that is for the records of these volumes: once one is in the store, it counts there, although the call that
    /// put it there has not said so yet.
    recording: HashMap<VolumeId, (PoolName, Totals)>,
    /// `P`, measured by a look at every image: kept for a while, since writes of our own volumes do not change it.
    usable: HashMap<PoolName, Measured>,
}

impl State {
    fn hold(
        &mut self,
        shared: &Arc<Guarded<State>>,
        pool: &PoolName,
        want: Want,
        copying: u64,
    ) -> Reservation {
        let held = Reserved { promised: want.promise(), copying };
        let reserved = self.reserved.entry(pool.clone()).or_default();
        reserved.promised = reserved.promised.zip(held.promised, u64::saturating_add);
        reserved.copying = reserved.copying.saturating_add(held.copying);
        Reservation { state: Arc::clone(shared), pool: pool.clone(), held, id: None }
    }

    /// What is held in a pool for what the store does not have.
    fn outstanding(&self, pool: &PoolName, is_stored: impl Fn(&VolumeId) -> bool) -> Reserved {
        let stored = self.recording.iter().filter(|(id, (of, _))| of == pool && is_stored(id));
        let stored =
            stored.fold(Totals::default(), |all, (_, (_, promised))| all.zip(*promised, u64::saturating_add));
        let reserved = self.reserved.get(pool).copied().unwrap_or_default();
        Reserved { promised: reserved.promised.zip(stored, u64::saturating_sub), ..reserved }
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

/// Room that is held until the value is dropped: the promise until its record is in the store, the bytes of a copy
/// until the copy has ended.
pub(crate) struct Reservation {
    state: Arc<Guarded<State>>,
    pool: PoolName,
    held: Reserved,
    id: Option<VolumeId>,
}

impl Reservation {
    /// What it is for: the record of this volume.
    pub(crate) fn recording(mut self, id: &VolumeId) -> Self {
        let recording = (self.pool.clone(), self.held.promised);
        self.state.lock().recording.insert(id.clone(), recording);
        self.id = Some(id.clone());
        self
    }

    /// The record is in the store and counts there.
    pub(crate) fn recorded(&mut self) {
        let promised = std::mem::take(&mut self.held.promised);
        self.give_back(promised, 0);
    }

    fn give_back(&self, promised: Totals, copying: u64) {
        let mut state = self.state.lock();
        if let Some(id) = &self.id {
            state.recording.remove(id);
        }
        let Some(reserved) = state.reserved.get_mut(&self.pool) else { return };
        reserved.promised = reserved.promised.zip(promised, u64::saturating_sub);
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
pub(crate) enum Want {
    /// A volume, with an enforced size or without one, or so many bytes more of it.
    Volume(bool, Provisioning, u64),
    /// A snapshot that keeps so many bytes allocated; of a directory nothing is promised.
    Snapshot(BackendKind, u64),
    /// A volume that shares so many bytes with another one, where extents stay whole.
    Shared(u64),
    /// So many bytes more of what changes in a copy, which is written down before it is applied.
    Changes(u64),
}

impl Want {
    fn of(volume: &Volume, bytes: u64) -> Self {
        Want::Volume(volume.parameters.is_sized(), volume.parameters.provisioning, bytes)
    }

    /// The bytes, and what they are for.
    fn describe(self) -> (u64, &'static str) {
        match self {
            Want::Volume(false, _, bytes) => (bytes, "directory volume"),
            Want::Volume(true, Provisioning::Thin, bytes) => (bytes, "thin volume"),
            Want::Volume(true, Provisioning::Thick, bytes) => (bytes, "thick volume"),
            Want::Snapshot(_, bytes) => (bytes, "snapshot"),
            Want::Shared(bytes) => (bytes, "copy that shares its extents"),
            Want::Changes(bytes) => (bytes, "file of what changes in a copy"),
        }
    }

    fn promise(self) -> Totals {
        let none = Totals::default();
        match self {
            Want::Volume(false, ..) => none,
            Want::Snapshot(backend, _) if !backend.has_image() => none,
            Want::Volume(true, Provisioning::Thin, bytes) => Totals { thin_bytes: bytes, ..none },
            Want::Volume(true, Provisioning::Thick, bytes) => Totals { thick_bytes: bytes, ..none },
            Want::Snapshot(_, bytes) | Want::Shared(bytes) | Want::Changes(bytes) => {
                Totals { snapshot_bytes: bytes, ..none }
            }
        }
    }
}

impl Driver {
    /// Holds room for what is to be made, and for the bytes that have to be `copied` into blocks of their own for it.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the pool cannot promise that much, or has no room for the copy.
    pub(crate) fn reserve(&self, pool: &Pool, want: Want, copied: u64) -> Result<Reservation> {
        let measured = self.measured(pool)?;
        let mut state = self.capacity.state.lock();
        let budget = self.budget(pool, &state, measured)?;
        let (bytes, what) = want.describe();
        let room = match want {
            Want::Volume(sized, provisioning, _) => budget.room(sized, provisioning),
            Want::Snapshot(backend, _) if !backend.has_image() => budget.rest().min(budget.free),
            Want::Snapshot(..) | Want::Shared(_) | Want::Changes(_) => budget.rest(),
        };
        if bytes > room {
            return Err(exhausted(pool, what, room, bytes));
        }
        if copied > budget.free {
            return Err(exhausted(pool, "copy", budget.free, copied));
        }
        Ok(state.hold(&self.capacity.state, &pool.name, want, copied))
    }

    /// [`reserve`](Self::reserve) for what a thin volume is to become, whose promise of now ends with it.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub(crate) fn reserve_instead(
        &self,
        pool: &Pool,
        want: Want,
        copied: u64,
        thin: &Volume,
    ) -> Result<Reservation> {
        let measured = self.measured(pool)?;
        let mut state = self.capacity.state.lock();
        let mut budget = self.budget(pool, &state, measured)?;
        budget.promised.thin_bytes = budget.promised.thin_bytes.saturating_sub(thin.capacity_bytes);
        let (bytes, what) = want.describe();
        // Most of it may be allocated already, so that free space limits only what is missing.
        let room = budget.rest();
        if bytes > room || copied > budget.free {
            return Err(exhausted(pool, what, room.min(budget.free), bytes.max(copied)));
        }
        Ok(state.hold(&self.capacity.state, &pool.name, want, copied))
    }

    /// [`reserve`](Self::reserve) for so many bytes more of a volume.
    pub(crate) fn reserve_volume(&self, pool: &Pool, volume: &Volume, bytes: u64) -> Result<Reservation> {
        self.reserve(pool, Want::of(volume, bytes), 0)
    }

    /// The largest volume of this kind for which the pool has room.
    pub(crate) fn room(&self, pool: &Pool, sized: bool, provisioning: Provisioning) -> Result<u64> {
        let measured = self.measured(pool)?;
        let state = self.capacity.state.lock();
        Ok(self.budget(pool, &state, measured)?.room(sized, provisioning))
    }

    fn budget(&self, pool: &Pool, state: &State, measured: Measured) -> Result<Budget> {
        // In this order: what is stored in between counts twice, and never not at all.
        let reserved = state.outstanding(&pool.name, |id| self.store.get(id).is_some());
        let stored = self.store.totals(&pool.name);
        let stored = Totals { snapshot_bytes: measured.snapshots(stored.snapshot_bytes), ..stored };
        let space = self.os.files.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
        let free = space.left().saturating_sub(kept_free(pool, &measured.upkeep, space.total));
        Ok(Budget {
            usable: measured.usable,
            free: free.saturating_sub(reserved.copying),
            promised: stored.zip(reserved.promised, u64::saturating_add),
            overcommit: pool.overcommit,
            metadata: measured.upkeep.per_block as f64 / 4096.0,
            apart: measured.apart,
        })
    }
}

fn exhausted(pool: &Pool, what: &str, room: u64, bytes: u64) -> Error {
    let (name, [room, bytes]) = (&pool.name, format_two(room, bytes));
    Error::Exhausted(format!("pool {name} has room for a {what} of {room}, not of {bytes}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeKey;

    /// A batch of records comes into the store at once, and then each of its calls says so when it runs again.
    #[test]
    fn a_stored_record_is_not_held_as_well() {
        let (shared, pools) =
            (Arc::new(Guarded::<State>::default()), ["a", "b"].map(|name| name.parse().unwrap()));
        let [pool, other]: [PoolName; 2] = pools;
        let id = |number: u64| VolumeId::of_name(&NodeKey::of("node-a"), &number.to_string());
        let hold = |pool: &PoolName, number: u64| {
            let want = Want::Volume(true, Provisioning::Thin, number);
            let held = shared.lock().hold(&shared, pool, want, 1);
            held.recording(&id(number))
        };
        let (first, mut second, _third) = (hold(&pool, 1), hold(&pool, 20), hold(&other, 300));
        let held = |stored: &[u64]| {
            let is_stored = |asked: &VolumeId| stored.iter().any(|number| id(*number) == *asked);
            let reserved = shared.lock().outstanding(&pool, is_stored);
            (reserved.promised.thin_bytes, reserved.copying)
        };
        assert_eq!(
            [held(&[]), held(&[1]), held(&[1, 20]), held(&[300])],
            [(21, 2), (20, 2), (0, 2), (21, 2)]
        );
        second.recorded();
        assert_eq!(
            [held(&[]), held(&[1, 20])],
            [(1, 2), (0, 2)],
            "it says so, and nothing is taken off twice"
        );
        drop(first);
        assert_eq!([held(&[]), held(&[1, 20])], [(0, 1), (0, 1)]);
    }

    #[test]
    fn sizes_are_promised_if_they_are_enforced() {
        let totals =
            |thin_bytes, thick_bytes, snapshot_bytes| Totals { thin_bytes, thick_bytes, snapshot_bytes };
        for (want, promised, what) in [
            (Want::Volume(true, Provisioning::Thin, 7), totals(7, 0, 0), "thin volume"),
            (Want::Volume(true, Provisioning::Thick, 7), totals(0, 7, 0), "thick volume"),
            (Want::Volume(false, Provisioning::Thin, 7), totals(0, 0, 0), "directory volume"),
            (Want::Snapshot(BackendKind::Loop, 7), totals(0, 0, 7), "snapshot"),
            (Want::Snapshot(BackendKind::Directory, 7), totals(0, 0, 0), "snapshot"),
            (Want::Shared(7), totals(0, 0, 7), "copy that shares its extents"),
        ] {
            assert_eq!((want.promise(), want.describe()), (promised, (7, what)), "{want:?}");
        }
    }
}
