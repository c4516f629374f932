//! How much a pool can still promise.
//!
//! A pool can give its volumes `P` bytes: what is free now, less the reserve, plus what its volumes have
//! allocated already. Of these, thick volumes own their full size `T`; thin ones may be promised `R` times the
//! rest, where `R` is the pool's over-commit ratio, and have been promised `N`. So there is room for
//!
//! - a thin volume of `R × (P − T) − N` bytes;
//! - a thick volume of `P − T − N / R` bytes, and never more than is free now.
//!
//! Directory volumes are promised nothing: what they take shows as less free space.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Driver, Pool};
use crate::backend::VolumePaths;
use crate::error::{Error, OsContext, Result};
use crate::model::{BackendKind, PoolName, Provisioning, Volume, format_bytes};
use crate::store::Totals;

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
}

impl Budget {
    /// The largest volume of this kind for which there is room.
    fn room(self, backend: BackendKind, provisioning: Provisioning) -> u64 {
        let Totals { thin_bytes, thick_bytes } = self.promised;
        let rest = self.usable.saturating_sub(thick_bytes) as f64;
        // f64 is exact to 2^53 bytes (8 PiB), and errs by less than a block far beyond.
        let thick = (rest - thin_bytes as f64 / self.overcommit).max(0.0) as u64;
        match (backend, provisioning) {
            (BackendKind::Loop, Provisioning::Thin) if self.free == 0 => 0,
            (BackendKind::Loop, Provisioning::Thin) => {
                (rest * self.overcommit - thin_bytes as f64).max(0.0) as u64
            }
            (BackendKind::Loop, Provisioning::Thick) | (BackendKind::Directory, _) => thick.min(self.free),
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
    reserved: HashMap<PoolName, Totals>,
    /// `P`, measured by a stat of every image: kept for a while, since writes of our own volumes do not change it.
    usable: HashMap<PoolName, Measured>,
}

#[derive(Clone, Copy)]
struct Measured {
    at: Instant,
    cost: Duration,
    usable: u64,
}

impl Measured {
    /// Good for a second, and longer where measuring is dear, so that it takes at most a twentieth of the time.
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < Duration::from_secs(1).max(self.cost * 20)
    }
}

/// Room for a volume, held until its record is in the store (or forgotten).
pub(super) struct Reservation {
    state: Arc<Mutex<State>>,
    pool: PoolName,
    promise: Totals,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reserved) = state.reserved.get_mut(&self.pool) {
            reserved.thin_bytes = reserved.thin_bytes.saturating_sub(self.promise.thin_bytes);
            reserved.thick_bytes = reserved.thick_bytes.saturating_sub(self.promise.thick_bytes);
        }
    }
}

impl Driver {
    /// Holds room for `bytes` more of a volume.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the pool cannot promise that much.
    pub(super) fn reserve(&self, pool: &Pool, volume: &Volume, bytes: u64) -> Result<Reservation> {
        let (backend, provisioning) = (volume.parameters.backend, volume.parameters.provisioning);
        let usable = self.usable(pool)?;
        let mut state = self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.budget(pool, &state, usable)?.room(backend, provisioning);
        if bytes > room {
            return Err(Error::Exhausted(format!(
                "pool {} has room for a {} volume of {}, not of {}",
                pool.name,
                if backend == BackendKind::Directory { backend.as_str() } else { provisioning.as_str() },
                format_bytes(room),
                format_bytes(bytes),
            )));
        }
        let promise = match (backend, provisioning) {
            (BackendKind::Loop, Provisioning::Thin) => Totals { thin_bytes: bytes, thick_bytes: 0 },
            (BackendKind::Loop, Provisioning::Thick) => Totals { thin_bytes: 0, thick_bytes: bytes },
            (BackendKind::Directory, _) => Totals::default(),
        };
        let reserved = state.reserved.entry(pool.name.clone()).or_default();
        reserved.thin_bytes += promise.thin_bytes;
        reserved.thick_bytes += promise.thick_bytes;
        Ok(Reservation { state: Arc::clone(&self.capacity.state), pool: pool.name.clone(), promise })
    }

    /// The largest volume of this kind for which the pool has room.
    pub(super) fn room(&self, pool: &Pool, backend: BackendKind, provisioning: Provisioning) -> Result<u64> {
        let usable = self.usable(pool)?;
        let state = self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.budget(pool, &state, usable)?.room(backend, provisioning))
    }

    fn budget(&self, pool: &Pool, state: &State, usable: u64) -> Result<Budget> {
        let reserved = state.reserved.get(&pool.name).copied().unwrap_or_default();
        let stored = self.store.totals(&pool.name);
        let promised = Totals {
            thin_bytes: stored.thin_bytes + reserved.thin_bytes,
            thick_bytes: stored.thick_bytes + reserved.thick_bytes,
        };
        let space = self.os.disks.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
        let free = space.available.saturating_sub(pool.reserve.bytes(space.total));
        Ok(Budget { usable, free, promised, overcommit: pool.overcommit })
    }

    /// `P`: free space and the images' allocated bytes, measured together.
    fn usable(&self, pool: &Pool) -> Result<u64> {
        let fresh = |state: &State| state.usable.get(&pool.name).copied().filter(Measured::is_fresh);
        if let Some(measured) = fresh(&self.capacity.state.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(measured.usable);
        }
        let started = Instant::now();
        let space = self.os.disks.space(&pool.path).doing(|| format!("statvfs {}", pool.path.display()))?;
        let mut allocated = 0;
        for volume in self
            .store
            .volumes()
            .iter()
            .filter(|v| v.parameters.backend == BackendKind::Loop && *v.pool() == pool.name)
        {
            let image = VolumePaths::new(&pool.path, &volume.id).image();
            let stat = self.os.disks.stat(&image).doing(|| format!("look at {}", image.display()))?;
            allocated += stat.map_or(0, |stat| stat.allocated);
        }
        let usable = (space.available + allocated).saturating_sub(pool.reserve.bytes(space.total));
        let measured = Measured { at: Instant::now(), cost: started.elapsed(), usable };
        self.capacity
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .usable
            .insert(pool.name.clone(), measured);
        Ok(usable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn budget(usable: u64, free: u64, thin: u64, thick: u64, overcommit: f64) -> Budget {
        Budget { usable, free, promised: Totals { thin_bytes: thin, thick_bytes: thick }, overcommit }
    }

    #[test]
    fn without_overcommit_every_promise_can_be_kept() {
        let pool = budget(100 * GIB, 60 * GIB, 50 * GIB, 20 * GIB, 1.0);
        assert_eq!(pool.room(BackendKind::Loop, Provisioning::Thin), 30 * GIB);
        assert_eq!(pool.room(BackendKind::Loop, Provisioning::Thick), 30 * GIB);
        assert_eq!(pool.room(BackendKind::Directory, Provisioning::Thin), 30 * GIB);
    }

    #[test]
    fn overcommit_is_for_thin_volumes() {
        let pool = budget(100 * GIB, 90 * GIB, 100 * GIB, 0, 4.0);
        assert_eq!(pool.room(BackendKind::Loop, Provisioning::Thin), 300 * GIB);
        assert_eq!(pool.room(BackendKind::Loop, Provisioning::Thick), 75 * GIB);
    }

    #[test]
    fn a_full_disk_has_no_room_whatever_was_promised() {
        assert_eq!(budget(10 * GIB, 0, 0, 0, 10.0).room(BackendKind::Loop, Provisioning::Thin), 0);
        assert_eq!(budget(GIB, 0, 5 * GIB, 5 * GIB, 1.0).room(BackendKind::Loop, Provisioning::Thick), 0);
    }

    proptest! {
        #[test]
        fn a_thick_promise_leaves_room_for_the_thin_ones(usable in 0u64..1 << 45, free in 0u64..1 << 45, thin in 0u64..1 << 45, thick in 0u64..1 << 45, ratio in 1.0f64..100.0) {
            let before = budget(usable, free.min(usable), thin, thick, ratio);
            let room = before.room(BackendKind::Loop, Provisioning::Thick);
            prop_assert!(room <= free);
            if room > 0 {
                let kept = (usable - thick - room) as f64 * ratio;
                prop_assert!(kept + ratio * 4096.0 >= thin as f64);
            }
        }
    }
}
