//! The acknowledged state in memory, and sums over it that are updated with each change.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::record::{Change, Delete, Put, Rename};
use crate::model::{
    GroupSnapshot, GroupSnapshotId, Moved, PoolName, Provisioning, Snapshot, SnapshotId, Volume, VolumeId,
};

/// What has been promised in a pool. Volumes and snapshots of the directory backend count in none: nothing is
/// promised to them. Everything counts in every phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Sum of the sizes of thin volumes.
    pub thin_bytes: u64,
    /// Sum of the sizes of thick volumes.
    pub thick_bytes: u64,
    /// Sum of what snapshots keep allocated.
    pub snapshot_bytes: u64,
}

impl Totals {
    /// These and others, each sum put together with its like.
    pub(crate) fn zip(self, other: Totals, with: fn(u64, u64) -> u64) -> Totals {
        Totals {
            thin_bytes: with(self.thin_bytes, other.thin_bytes),
            thick_bytes: with(self.thick_bytes, other.thick_bytes),
            snapshot_bytes: with(self.snapshot_bytes, other.snapshot_bytes),
        }
    }
}

/// Every record.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub volumes: BTreeMap<VolumeId, Arc<Volume>>,
    pub snapshots: BTreeMap<SnapshotId, Arc<Snapshot>>,
    pub groups: BTreeMap<GroupSnapshotId, Arc<GroupSnapshot>>,
    /// By the id of the volume.
    pub moved: BTreeMap<VolumeId, Arc<Moved>>,
    /// The number of the last change that is surely on disk.
    pub sequence: u64,
    /// Wider than what is reported: sums of thin sizes may pass any limit.
    sums: BTreeMap<PoolName, Sums>,
    /// Sum of [`Put::way_out`] of all records.
    way_out: u64,
}

#[derive(Debug, Default)]
struct Sums {
    thin: u128,
    thick: u128,
    snapshots: u128,
}

impl Memory {
    /// Makes the change.
    pub fn apply(&mut self, change: &Change) {
        if let Change::Rename(Rename { from, to }) = change {
            self.apply(&Change::Delete(Delete::Volume(from.clone())));
            return self.apply(&Change::Put(Put::Volume(Arc::clone(to))));
        }
        let before = self.before(change);
        if let Change::Put(put) = change {
            self.count(put, u64::saturating_add, u128::saturating_add);
        }
        if let Some(before) = before {
            self.count(&before, u64::saturating_sub, u128::saturating_sub);
        }
        // In the same line of the file: no crash leaves a returned volume with the record of its earlier move.
        if let Change::Put(Put::Volume(volume)) = change
            && self.moved.get(&volume.id).is_some_and(|moved| moved.by <= volume.generation)
        {
            self.apply(&Change::Delete(Delete::Moved(volume.id.clone())));
        }
        match change {
            Change::Put(Put::Volume(volume)) => drop(self.volumes.insert(volume.id.clone(), volume.clone())),
            Change::Put(Put::Snapshot(put)) => drop(self.snapshots.insert(put.id.clone(), put.clone())),
            Change::Put(Put::GroupSnapshot(put)) => drop(self.groups.insert(put.id.clone(), put.clone())),
            Change::Put(Put::Moved(put)) => drop(self.moved.insert(put.id.clone(), put.clone())),
            Change::Rename(Rename { from: id, .. }) | Change::Delete(Delete::Volume(id)) => {
                drop(self.volumes.remove(id));
            }
            Change::Delete(Delete::Snapshot(id)) => drop(self.snapshots.remove(id)),
            Change::Delete(Delete::GroupSnapshot(id)) => drop(self.groups.remove(id)),
            Change::Delete(Delete::Moved(id)) => drop(self.moved.remove(id)),
        }
    }

    /// Adds a record to the sums, or takes it out of them.
    fn count(&mut self, put: &Put, bytes: fn(u64, u64) -> u64, sum: fn(u128, u128) -> u128) {
        self.way_out = bytes(self.way_out, put.way_out());
        match put {
            Put::Volume(volume) => self.count_volume(volume, sum),
            Put::Snapshot(snapshot) => self.count_snapshot(snapshot, sum),
            Put::GroupSnapshot(_) | Put::Moved(_) => {}
        }
    }

    fn count_volume(&mut self, volume: &Volume, count: fn(u128, u128) -> u128) {
        if !volume.parameters.is_sized() {
            return;
        }
        let sums = self.sums.entry(volume.pool().clone()).or_default();
        let sum = match volume.parameters.provisioning {
            Provisioning::Thin => &mut sums.thin,
            Provisioning::Thick => &mut sums.thick,
        };
        *sum = count(*sum, u128::from(volume.capacity_bytes));
    }

    fn count_snapshot(&mut self, snapshot: &Snapshot, count: fn(u128, u128) -> u128) {
        if snapshot.content.backend().has_image() {
            let sums = self.sums.entry(snapshot.pool.clone()).or_default();
            sums.snapshots = count(sums.snapshots, u128::from(snapshot.allocated_bytes));
        }
    }

    /// The record that the change is about, as it is before it.
    fn before(&self, change: &Change) -> Option<Put> {
        let volume = |id| self.volumes.get(id).cloned().map(Put::Volume);
        let snapshot = |id| self.snapshots.get(id).cloned().map(Put::Snapshot);
        let group = |id| self.groups.get(id).cloned().map(Put::GroupSnapshot);
        let moved = |id| self.moved.get(id).cloned().map(Put::Moved);
        match change {
            Change::Put(Put::Volume(put)) => volume(&put.id),
            Change::Put(Put::Snapshot(put)) => snapshot(&put.id),
            Change::Put(Put::GroupSnapshot(put)) => group(&put.id),
            Change::Put(Put::Moved(put)) => moved(&put.id),
            Change::Rename(Rename { from: id, .. }) | Change::Delete(Delete::Volume(id)) => volume(id),
            Change::Delete(Delete::Snapshot(id)) => snapshot(id),
            Change::Delete(Delete::GroupSnapshot(id)) => group(id),
            Change::Delete(Delete::Moved(id)) => moved(id),
        }
    }

    /// Whether there is a record with this id, of whatever kind.
    pub fn contains(&self, change: &Change) -> bool {
        self.before(change).is_some()
    }

    /// The bytes that the file gets if every record is removed: see [`Put::way_out`].
    pub fn way_out(&self) -> u64 {
        self.way_out
    }

    /// Whether the change is a step of that way, for which room is set aside.
    pub fn leads_out(&self, change: &Change) -> bool {
        match change {
            Change::Rename(_) => false,
            Change::Delete(_) => true,
            // A new one is what is left of another, which can go without it.
            Change::Put(put) if put.is_going() => self.before(change).is_some(),
            Change::Put(put) => self.before(change).is_some_and(|old| put.attachments() < old.attachments()),
        }
    }

    /// How much longer the way out gets by the change.
    pub fn longer_by(&self, change: &Change) -> u64 {
        let way_out = match change {
            Change::Put(put) => put.way_out(),
            Change::Rename(Rename { to, .. }) => Put::Volume(Arc::clone(to)).way_out(),
            Change::Delete(_) => return 0,
        };
        way_out.saturating_sub(self.before(change).map_or(0, |old| old.way_out()))
    }

    /// How many records there are of every kind.
    pub fn len(&self) -> usize {
        self.volumes.len() + self.snapshots.len() + self.groups.len() + self.moved.len()
    }

    /// Every record, in a fixed order.
    pub fn records(&self) -> Vec<Put> {
        let volumes = self.volumes.values().map(|volume| Put::Volume(Arc::clone(volume)));
        let snapshots = self.snapshots.values().map(|snapshot| Put::Snapshot(Arc::clone(snapshot)));
        let groups = self.groups.values().map(|group| Put::GroupSnapshot(Arc::clone(group)));
        let moved = self.moved.values().map(|moved| Put::Moved(Arc::clone(moved)));
        volumes.chain(snapshots).chain(groups).chain(moved).collect()
    }

    /// The sums of a pool.
    pub fn totals(&self, pool: &PoolName) -> Totals {
        let clamp = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        let totals = |sums: &Sums| Totals {
            thin_bytes: clamp(sums.thin),
            thick_bytes: clamp(sums.thick),
            snapshot_bytes: clamp(sums.snapshots),
        };
        self.sums.get(pool).map(totals).unwrap_or_default()
    }
}

/// Up to `max` records after `after` that `filter` takes, and whether there are more of them.
pub(super) fn page<K: Ord, V>(
    records: &BTreeMap<K, Arc<V>>,
    after: Option<&K>,
    max: Option<usize>,
    filter: impl Fn(&V) -> bool,
) -> (Vec<Arc<V>>, bool) {
    let start = after.map_or(Bound::Unbounded, Bound::Excluded);
    let range = records.range::<K, _>((start, Bound::Unbounded));
    let mut rest = range.map(|(_, record)| record).filter(|record| filter(record));
    let page = rest.by_ref().take(max.unwrap_or(usize::MAX)).cloned().collect();
    (page, rest.next().is_some())
}
