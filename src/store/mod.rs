//! The state file `state.jsonl`: what the driver has promised, one JSON record per line.
//!
//! # Format
//!
//! The first line names the format and the owner; each further line is one change:
//!
//! ```text
//! {"hostloop":1,"driver":"hostloop.csi.dev","node":"node-a","first":1,"synced":0,"crc":"8e1f0c52"}
//! {"seq":1,"synced":0,"put":{"volume":{"id":"vol-…",…}},"crc":"5d70a3ee"}
//! {"seq":2,"synced":1,"rename":{"from":"vol-…","to":{"id":"vol-…",…}},"crc":"3f08b27e"}
//! {"seq":3,"synced":2,"delete":{"volume":"vol-…"},"crc":"90b1c6a4"}
//! ```
//!
//! - `crc` is the last member of every line: eight lower-case hex digits, the CRC-32 (IEEE) of the line's bytes
//!   from its first up to, not including, `,"crc"`. A line is *intact* if it ends in `,"crc":"…"}` and a newline
//!   and the checksum matches. JSON escapes newlines and NULs, so neither occurs inside a line.
//! - `seq` increases by one on each line, from the header's `first`. No number is used twice, not even by the file
//!   that replaces this one.
//! - `synced` is the mark that tells a crash from damage: every line up to that number was on disk when this
//!   line was written (in the header: before the file got its name).
//!
//! `jq -c 'select(.put).put.volume' state.jsonl` shows everything that was ever put.
//!
//! # Reading it
//!
//! Lines are accepted as long as they are intact. Let *n* be the number that should come next. If any intact line
//! of the file, also after a bad one, has a mark of *n* or more, line *n* was once on disk: the file is
//! damaged, and the start stops with the line and what to do. If none has, nothing says that line *n* or
//! anything after it was ever acknowledged, and the rest is dropped, whatever it looks like: half a line, a
//! whole line without its newline, zeros where the file grew before its data arrived, or a batch of which the
//! later blocks reached the disk and the earlier did not. An intact line in the wrong place, a second header
//! and a bad header always stop the start: no crash makes those.
//!
//! The price: damage to the very last batch looks like a crash. It is small, because every start rewrites the
//! file and puts all of it under the header's mark.
//!
//! # Writing it
//!
//! A change is one line, appended and synced before it is acknowledged; changes that wait for each other share
//! an append and a sync. Memory follows the file, so readers see nothing that could still fail.
//!
//! After a failure the file's end is unknown, and all changes of the batch fail. Before they do, the file is
//! brought back to what memory holds: a failed append is cut off again; after a failed sync, which must never be
//! tried again on the same file, a new file takes its place. So a caller may continue with what it had before, and no
//! later start finds the change made. If that fails as well, the next change tries it again before it is written
//! itself. Until then the file may hold lines of the failed batch, and a driver that starts at that point sees
//! those changes as made. That is sound for a caller who repeats the call: start-up undoes a volume in phase
//! `creating`; for every other failed change the caller undoes its work and then calls [`Store::delete`] or
//! [`Store::put`], which repairs the file first.
//!
//! When more than half of the lines (and 1000) are out of date, the file is rewritten, inline: amortised over the
//! changes before it, the cost of a change does not depend on the number of volumes.
//!
//! # On a full disk
//!
//! The file owns room beyond its end for the removal of every record (`store/room.rs`). A change that would take from it
//! fails with ENOSPC before anything is written, and changes nothing.

mod beside;
mod commit;
mod error;
mod load;
mod memory;
mod offline;
mod record;
mod room;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::kernel::Files;
use crate::model::{
    GroupSnapshot, GroupSnapshotId, Moved, Phase, PoolName, Snapshot, SnapshotId, Timestamp, Volume,
    VolumeId, format_bytes,
};

pub use beside::{Beside, Subject};
pub use commit::Durability;
pub use error::StoreError;
pub use load::Damage;
pub use memory::Totals;
pub use offline::{Records, Salvage};

use commit::Committer;
use memory::{Memory, page};
use record::{Change, Delete, Put, Rename};
use writer::Writer;

/// Lines out of date that the file may hold beside as many as there are live records.
const SLACK: u64 = 1000;

/// More than the changes that a state file has in its life.
const NEWER: u64 = 1 << 40;

/// Returns the previous state file; `None` if there is none, or if it cannot be read.
fn read_previous(files: &dyn Files, data_dir: &Path) -> Option<Vec<u8>> {
    files.read(&data_dir.join(writer::PREVIOUS_FILE)).ok()
}

/// Whose state it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// CSI plugin name.
    pub driver: String,
    /// CSI node id.
    pub node_id: String,
}

/// The records of a data directory: in memory for reading, in the state file for good. Its caller holds the
/// data directory's lock and sees to it that no two changes of one volume run at a time.
pub struct Store {
    identity: Identity,
    committer: Committer,
    damage: Option<Damage>,
}

impl Store {
    /// The state file of a data directory.
    pub fn file(data_dir: &Path) -> PathBuf {
        data_dir.join(writer::FILE)
    }

    /// Reads the state file of a data directory, or makes one where there is none. What is read is on disk
    /// when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`] where the kernel fails, anything else where the file is not ours or not whole; it is
    /// left as it is then.
    pub fn open(files: Arc<dyn Files>, data_dir: &Path, identity: Identity) -> Result<Store, StoreError> {
        Self::open_with(files, data_dir, identity, SLACK)
    }

    fn open_with(
        files: Arc<dyn Files>,
        data_dir: &Path,
        identity: Identity,
        slack: u64,
    ) -> Result<Store, StoreError> {
        let file = Self::file(data_dir);
        let bytes = files.stat(&file)?.map(|_| files.read(&file)).transpose()?;
        let previous = || read_previous(files.as_ref(), data_dir);
        let loaded = bytes.map(|bytes| load::load(&bytes, &identity, &file, previous)).transpose()?;
        for left in [writer::NEW_FILE, writer::NEW_PREVIOUS] {
            files.remove_file(&data_dir.join(left))?;
        }
        let mut writer = Writer::new(files, data_dir, identity.clone(), slack);
        let damage = loaded.as_ref().and_then(|loaded| loaded.damage.clone());
        let memory = match loaded {
            None => {
                writer.rewrite(&[])?;
                Memory::default()
            }
            Some(loaded) => {
                if loaded.torn > 0 {
                    let (file, size) = (file.display(), format_bytes(loaded.torn));
                    tracing::warn!(%file, size, "dropped the end of the state file, which was never acknowledged");
                }
                writer.take_over(&loaded)?;
                // Before the file was written anew: what lies beside data is compared with it.
                let mut memory = loaded.memory;
                memory.sequence = loaded.next.saturating_sub(1);
                memory
            }
        };
        Ok(Store { identity, committer: Committer::new(memory, writer), damage })
    }

    /// Whose state it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the damage to the state file; `None` if it is whole. The records that are whole are served, and the file is not written
    /// anew until `hostloop state repair` has run.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Returns the number of the last change that is surely on disk; after the start, of the last one that the file had then.
    pub fn sequence(&self) -> u64 {
        self.committer.read(|memory| memory.sequence)
    }

    /// Returns the record of a volume or a snapshot as it lies beside its data.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it cannot be JSON, which no record of ours is.
    pub fn beside(&self, subject: Subject) -> Result<Vec<u8>, StoreError> {
        let beside = Beside { identity: self.identity.clone(), seq: self.sequence(), subject };
        Ok(beside.text().map_err(std::io::Error::from)?)
    }

    /// Returns a record beside data that is newer than the state file, so that it stays newer: the numbers of the file go on.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it cannot be JSON, which no record of ours is.
    pub fn newer(&self, beside: &Beside) -> Result<Vec<u8>, StoreError> {
        let seq = beside.seq.max(self.sequence()).saturating_add(NEWER);
        Ok(Beside { seq, ..beside.clone() }.text().map_err(std::io::Error::from)?)
    }

    /// Records a volume, new or changed. It is on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the record is what it was before.
    pub fn put(&self, volume: Volume) -> Result<Arc<Volume>, StoreError> {
        let volume = Arc::new(volume);
        self.committer.commit(Change::Put(Put::Volume(Arc::clone(&volume))), Durability::Synced)?;
        Ok(volume)
    }

    /// Replaces the record `from` by one with another id, in one step. It is on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`]: both are what they were before.
    pub fn rename(&self, from: &VolumeId, to: Volume) -> Result<Arc<Volume>, StoreError> {
        let to = Arc::new(to);
        let change = Change::Rename(Rename { from: from.clone(), to: Arc::clone(&to) });
        self.committer.commit(change, Durability::Synced)?;
        Ok(to)
    }

    /// Removes a volume's record; fine if there is none.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the record is what it was before.
    pub fn delete(&self, id: &VolumeId, durability: Durability) -> Result<(), StoreError> {
        self.committer.commit(Change::Delete(Delete::Volume(id.clone())), durability)
    }

    /// [`put`](Self::put) for a snapshot.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the record is what it was before.
    pub fn put_snapshot(&self, snapshot: Snapshot) -> Result<Arc<Snapshot>, StoreError> {
        let snapshot = Arc::new(snapshot);
        self.committer.commit(Change::Put(Put::Snapshot(Arc::clone(&snapshot))), Durability::Synced)?;
        Ok(snapshot)
    }

    /// [`delete`](Self::delete) for a snapshot.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the record is what it was before.
    pub fn delete_snapshot(&self, id: &SnapshotId, durability: Durability) -> Result<(), StoreError> {
        self.committer.commit(Change::Delete(Delete::Snapshot(id.clone())), durability)
    }

    /// [`put`](Self::put) for a group.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the record is what it was before.
    pub fn put_group(&self, group: GroupSnapshot) -> Result<Arc<GroupSnapshot>, StoreError> {
        let group = Arc::new(group);
        self.committer.commit(Change::Put(Put::GroupSnapshot(Arc::clone(&group))), Durability::Synced)?;
        Ok(group)
    }

    /// [`delete`](Self::delete) for a group.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the record is what it was before.
    pub fn delete_group(&self, id: &GroupSnapshotId, durability: Durability) -> Result<(), StoreError> {
        self.committer.commit(Change::Delete(Delete::GroupSnapshot(id.clone())), durability)
    }

    /// Records that a volume has moved away. The record ends if the volume comes back: if a volume with this id is put that has
    /// this generation or a later one.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the record is what it was before.
    pub fn put_moved(&self, moved: Moved) -> Result<(), StoreError> {
        self.committer.commit(Change::Put(Put::Moved(Arc::new(moved))), Durability::Synced)
    }

    /// [`delete`](Self::delete) for where a volume went.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the record is what it was before.
    pub fn delete_moved(&self, id: &VolumeId, durability: Durability) -> Result<(), StoreError> {
        self.committer.commit(Change::Delete(Delete::Moved(id.clone())), durability)
    }

    /// Returns where a volume went that has moved away.
    pub fn moved(&self, id: &VolumeId) -> Option<Arc<Moved>> {
        let moved = self.committer.read(|memory| memory.moved.get(id).cloned());
        moved.filter(|moved| moved.deleted_here.is_none())
    }

    /// Reports whether this node remembers that the volume moved to it and was deleted here.
    pub fn is_deleted(&self, id: &VolumeId) -> bool {
        let is_it = |moved: &Arc<Moved>| moved.deleted_here.is_some();
        self.committer.read(|memory| memory.moved.get(id).is_some_and(is_it))
    }

    /// Returns the node that has what this id stands for, if it was released to another one.
    pub fn released_to(&self, id: &VolumeId) -> Option<String> {
        let moved = self.committer.read(|memory| memory.moved.get(id).cloned());
        let released = moved.filter(|moved| moved.deleted_here.is_some() && !moved.deleted);
        released.map(|moved| moved.node_id.clone())
    }

    /// Returns the volumes that moved to this node and were deleted here before this time.
    pub fn deleted_before(&self, time: Timestamp) -> Vec<VolumeId> {
        let is_old = |moved: &&Arc<Moved>| moved.deleted_here.is_some_and(|at| at < time);
        let id = |moved: &Arc<Moved>| moved.id.clone();
        self.committer.read(|memory| memory.moved.values().filter(is_old).map(id).collect())
    }

    /// Reports whether there is a cut of a volume for a copy on another node.
    pub fn has_cut(&self, of: &VolumeId) -> bool {
        let is_cut = |snapshot: &Arc<Snapshot>| snapshot.source == *of && snapshot.pulled_for.is_some();
        self.committer.read(|memory| memory.snapshots.values().any(is_cut))
    }

    /// One snapshot.
    pub fn snapshot(&self, id: &SnapshotId) -> Option<Arc<Snapshot>> {
        self.committer.read(|memory| memory.snapshots.get(id).cloned())
    }

    /// One group.
    pub fn group(&self, id: &GroupSnapshotId) -> Option<Arc<GroupSnapshot>> {
        self.committer.read(|memory| memory.groups.get(id).cloned())
    }

    /// One group with those of its members that have a record, all as they are at one moment.
    pub fn group_with_members(
        &self,
        id: &GroupSnapshotId,
    ) -> Option<(Arc<GroupSnapshot>, Vec<Arc<Snapshot>>)> {
        self.committer.read(|memory| {
            let group = memory.groups.get(id)?;
            let members = group.snapshots.iter().filter_map(|id| memory.snapshots.get(id).cloned());
            Some((Arc::clone(group), members.collect()))
        })
    }

    /// Every snapshot, sorted by id.
    pub fn snapshots(&self) -> Vec<Arc<Snapshot>> {
        self.committer.read(|memory| memory.snapshots.values().cloned().collect())
    }

    /// Every group, sorted by id.
    pub fn groups(&self) -> Vec<Arc<GroupSnapshot>> {
        self.committer.read(|memory| memory.groups.values().cloned().collect())
    }

    /// Up to `max` snapshots that callers may see and `filter` takes, sorted by id, from the first after `after`
    /// on; and whether there are more of them. `filter` must not call the store.
    pub fn snapshot_page(
        &self,
        after: Option<&SnapshotId>,
        max: Option<usize>,
        filter: impl Fn(&Snapshot) -> bool,
    ) -> (Vec<Arc<Snapshot>>, bool) {
        self.committer.read(|memory| {
            let group =
                |id: &GroupSnapshotId| memory.groups.get(id).is_some_and(|group| group.phase == Phase::Ready);
            page(&memory.snapshots, after, max, |snapshot: &Snapshot| {
                let shown = snapshot.is_ready() && snapshot.pulled_for.is_none();
                shown && snapshot.group.as_ref().is_none_or(group) && filter(snapshot)
            })
        })
    }

    /// One volume.
    pub fn get(&self, id: &VolumeId) -> Option<Arc<Volume>> {
        self.committer.read(|memory| memory.volumes.get(id).cloned())
    }

    /// Every volume, sorted by id.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        self.committer.read(|memory| memory.volumes.values().cloned().collect())
    }

    /// Up to `max` volumes that `filter` takes, sorted by id, from the first after `after` on; and whether
    /// there are more of them. `filter` must not call the store.
    pub fn page(
        &self,
        after: Option<&VolumeId>,
        max: Option<usize>,
        filter: impl Fn(&Volume) -> bool,
    ) -> (Vec<Arc<Volume>>, bool) {
        self.committer.read(|memory| page(&memory.volumes, after, max, filter))
    }

    /// How many volumes there are.
    pub fn len(&self) -> usize {
        self.committer.read(|memory| memory.volumes.len())
    }

    /// Whether there is no volume.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has been promised in a pool.
    pub fn totals(&self, pool: &PoolName) -> Totals {
        self.committer.read(|memory| memory.totals(pool))
    }
}
