//! The acknowledged state in memory, and sums over it that are kept up with each change.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::record::{Change, Delete, Put};
use crate::model::{BackendKind, PoolName, Provisioning, Volume, VolumeId};

/// What has been promised to the volumes of a pool. Volumes of the directory backend count in neither:
/// nothing is promised to them. A volume counts in every phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Sum of the sizes of thin volumes.
    pub thin_bytes: u64,
    /// Sum of the sizes of thick volumes.
    pub thick_bytes: u64,
}

/// Every record.
#[derive(Debug, Default)]
pub(super) struct Memory {
    volumes: BTreeMap<VolumeId, Arc<Volume>>,
    /// Wider than what is reported: sums of thin sizes may pass any limit.
    sums: BTreeMap<PoolName, Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    thin: u128,
    thick: u128,
}

impl Memory {
    /// Makes the change.
    pub fn apply(&mut self, change: &Change) {
        let old = match change {
            Change::Put(Put::Volume(volume)) => {
                if let Some(sum) = self.sum_for(volume) {
                    *sum += u128::from(volume.capacity_bytes);
                }
                self.volumes.insert(volume.id.clone(), Arc::clone(volume))
            }
            Change::Delete(Delete::Volume(id)) => self.volumes.remove(id),
        };
        let Some(old) = old else { return };
        if let Some(sum) = self.sum_for(&old) {
            *sum = sum.saturating_sub(u128::from(old.capacity_bytes));
        }
    }

    /// The sum that a volume counts in.
    fn sum_for(&mut self, volume: &Volume) -> Option<&mut u128> {
        match volume.parameters.backend {
            BackendKind::Directory => None,
            BackendKind::Loop => {
                let sums = self.sums.entry(volume.pool().clone()).or_default();
                Some(match volume.parameters.provisioning {
                    Provisioning::Thin => &mut sums.thin,
                    Provisioning::Thick => &mut sums.thick,
                })
            }
        }
    }

    /// One volume.
    pub fn get(&self, id: &VolumeId) -> Option<&Arc<Volume>> {
        self.volumes.get(id)
    }

    /// How many volumes there are.
    pub fn len(&self) -> usize {
        self.volumes.len()
    }

    /// Every volume, by id.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        self.volumes.values().cloned().collect()
    }

    /// Up to `max` volumes after `after` that `filter` takes, and whether there are more of them.
    pub fn page(
        &self,
        after: Option<&VolumeId>,
        max: Option<usize>,
        filter: impl Fn(&Volume) -> bool,
    ) -> (Vec<Arc<Volume>>, bool) {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.volumes.range::<VolumeId, _>((start, Bound::Unbounded));
        let mut rest = range.map(|(_, volume)| volume).filter(|volume| filter(volume));
        let page = rest.by_ref().take(max.unwrap_or(usize::MAX)).cloned().collect();
        (page, rest.next().is_some())
    }

    /// The sums of a pool.
    pub fn totals(&self, pool: &PoolName) -> Totals {
        let clamp = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        self.sums
            .get(pool)
            .map(|sums| Totals { thin_bytes: clamp(sums.thin), thick_bytes: clamp(sums.thick) })
            .unwrap_or_default()
    }
}
