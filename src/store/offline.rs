//! The state file without a driver: read as far as it can be, and made anew. For `hostloop state`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::load::{self, Damage};
use super::record::Put;
use super::writer::{DAMAGED_FILE, PREVIOUS_FILE, Writer};
use super::{Identity, Store, StoreError, read_previous};
use crate::kernel::Files;
use crate::model::{GroupSnapshot, GroupSnapshotId, Moved, Snapshot, SnapshotId, Volume, VolumeId};

/// Every record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    pub volumes: BTreeMap<VolumeId, Arc<Volume>>,
    pub snapshots: BTreeMap<SnapshotId, Arc<Snapshot>>,
    pub groups: BTreeMap<GroupSnapshotId, Arc<GroupSnapshot>>,
    /// Where volumes went, by their ids.
    pub moved: BTreeMap<VolumeId, Arc<Moved>>,
}

/// What a state file holds, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvage {
    pub records: Records,
    /// The number of its last change.
    pub last: u64,
    pub damage: Option<Damage>,
}

impl Store {
    /// Reads the state file of a data directory as it is; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn salvage(
        files: &dyn Files,
        data_dir: &Path,
        identity: &Identity,
    ) -> Result<Option<Salvage>, StoreError> {
        salvage(files, &Self::file(data_dir), identity, || read_previous(files, data_dir))
    }

    /// Reads the previous state file; `None` if it does not exist or cannot be read.
    pub fn salvage_previous(files: &dyn Files, data_dir: &Path, identity: &Identity) -> Option<Salvage> {
        salvage(files, &data_dir.join(PREVIOUS_FILE), identity, || None).ok().flatten()
    }

    /// Makes the state file anew, in one step; durable on return. Its numbers begin with `first`. The present one is kept as the
    /// previous one if it is whole, and else as the damaged one.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the file is what it was before.
    pub fn replace(
        files: Arc<dyn Files>,
        data_dir: &Path,
        identity: Identity,
        first: u64,
        (records, is_whole): (&Records, bool),
    ) -> Result<(), StoreError> {
        let kept = if is_whole { PREVIOUS_FILE } else { DAMAGED_FILE };
        Ok(Writer::starting_at(files, data_dir, identity, first).succeed(&records.all(), Some(kept))?)
    }
}

fn salvage(
    files: &dyn Files,
    file: &Path,
    identity: &Identity,
    previous: impl FnOnce() -> Option<Vec<u8>>,
) -> Result<Option<Salvage>, StoreError> {
    let bytes = files.stat(file)?.map(|_| files.read(file)).transpose()?;
    let loaded = bytes.map(|bytes| load::load(&bytes, identity, file, previous)).transpose()?;
    Ok(loaded.map(|loaded| Salvage {
        records: Records {
            volumes: loaded.memory.volumes,
            snapshots: loaded.memory.snapshots,
            groups: loaded.memory.groups,
            moved: loaded.memory.moved,
        },
        last: loaded.next.saturating_sub(1),
        damage: loaded.damage,
    }))
}

impl Records {
    fn all(&self) -> Vec<Put> {
        let volumes = self.volumes.values().map(|volume| Put::Volume(Arc::clone(volume)));
        let snapshots = self.snapshots.values().map(|snapshot| Put::Snapshot(Arc::clone(snapshot)));
        let groups = self.groups.values().map(|group| Put::GroupSnapshot(Arc::clone(group)));
        let moved = self.moved.values().map(|moved| Put::Moved(Arc::clone(moved)));
        volumes.chain(snapshots).chain(groups).chain(moved).collect()
    }
}
