//! What directory volumes take: counting a tree is dear, so an answer is kept in proportion to its cost.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::Stats;
use crate::error::Result;
use crate::model::VolumeId;

/// The last counts.
#[derive(Default)]
pub(super) struct Cache(Mutex<HashMap<VolumeId, Counted>>);

#[derive(Clone, Copy)]
struct Counted {
    at: Instant,
    cost: Duration,
    stats: Stats,
}

impl Cache {
    /// The last answer, if it is younger than twenty times what it cost; else a new one. So kubelet's polling
    /// takes at most a twentieth of one core's time, whatever the size of the tree.
    pub(super) fn get_or(&self, id: &VolumeId, count: impl FnOnce() -> Result<Stats>) -> Result<Stats> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied();
        if let Some(last) = last.filter(|last| last.at.elapsed() < last.cost * 20) {
            return Ok(last.stats);
        }
        let started = Instant::now();
        let stats = count()?;
        let counted = Counted { at: Instant::now(), cost: started.elapsed(), stats };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), counted);
        Ok(stats)
    }

    /// Forgets a volume that is being deleted.
    pub(super) fn forget(&self, id: &VolumeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}
