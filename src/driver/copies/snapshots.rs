//! What the RPCs of snapshots and of groups share: making a snapshot, and removing it.

use std::sync::Arc;

use super::cut::Member;
use crate::backend::{Mark, Share, begin_deletion};
use crate::driver::capacity::{Reservation, Want};
use crate::driver::records::Makes;
use crate::driver::request::check;
use crate::driver::{Driver, Pool, pools::directories};
use crate::error::{Error, Result};
use crate::model::{
    Format, GroupSnapshot, GroupSnapshotId, Phase, Provisioning, Snapshot, SnapshotId, SnapshotObject,
    Timestamp, Volume, VolumeId,
};
use crate::store::Durability;

/// A snapshot that is to be made.
pub(crate) struct Draft {
    pub(crate) volume: Arc<Volume>,
    pub(crate) snapshot: Arc<Snapshot>,
    share: Share,
    bytes: u64,
    /// Room for what is copied, until it has been.
    _reservation: Reservation,
}

/// Whom a snapshot is for.
pub(crate) enum Purpose {
    /// A caller who asked for it, and for what.
    Caller(Option<SnapshotObject>),
    Group(GroupSnapshotId),
    /// Another node, which makes this volume from it.
    Pull(VolumeId),
    /// The same, and it stays as long as this copy has its data.
    Copy(VolumeId),
}

impl Purpose {
    /// Returns what the record says of it: the group, the volume that another node makes, the VolumeSnapshot.
    fn recorded(self) -> (Option<GroupSnapshotId>, Option<VolumeId>, Option<SnapshotObject>) {
        match self {
            Purpose::Caller(object) => (None, None, object),
            Purpose::Group(group) => (Some(group), None, None),
            Purpose::Pull(target) | Purpose::Copy(target) => (None, Some(target), None),
        }
    }
}

impl Driver {
    /// Records a snapshot of the volume as `creating`, after making sure that there is room and that nothing is in its
    /// place. From then on the caller removes it again if anything fails.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED without room; nothing is recorded then.
    pub(crate) fn draft(
        &self,
        volume: Arc<Volume>,
        id: SnapshotId,
        name: String,
        purpose: Purpose,
    ) -> Result<Draft> {
        // What another node pulls is gone soon, and is how a volume gets away from here.
        let is_for_callers = matches!(purpose, Purpose::Caller(_) | Purpose::Group(_));
        let kept = matches!(purpose, Purpose::Copy(_));
        let (group, pulled_for, object) = purpose.recorded();
        check::is_no_copy(&volume)?;
        let pool = self.pool_of(&volume)?;
        if is_for_callers {
            directories::admit_snapshot(&pool, volume.parameters.backend)?;
        }
        let paths = self.paths(&volume)?;
        let data = paths.bytes();
        let share = self.share_with_snapshot(&pool, &volume)?;
        let what = format_args!("volume {}", volume.id);
        data.expect_whole(&self.os, &paths, volume.capacity_bytes, &what)?;
        let bytes = match share {
            Share::Nothing => data.to_copy(&self.os, &paths)?,
            Share::Files | Share::Whole => data.allocated(&self.os, &paths)?,
        };
        let content = match self.is_volume_half_formatted(&volume)? {
            true => volume.content.with_format(Format::Formatting),
            false => volume.content.clone(),
        };
        let snapshot = Snapshot {
            id,
            name,
            phase: Phase::Creating,
            source: volume.id.clone(),
            created: Timestamp::now(),
            size_bytes: volume.capacity_bytes,
            requested_bytes: volume.requested_bytes,
            allocated_bytes: bytes,
            content,
            pool: pool.name.clone(),
            block_size: volume.block_size,
            group,
            pulled_for,
            kept,
            // A pod that had the volume before it was sealed may still write.
            sealed: volume.moved_to.is_some() && self.expect_unused(&volume).is_ok(),
            generation: volume.generation,
            object,
            handover: None,
        };
        self.nothing_on_disk(&self.snapshot_paths(&snapshot)?)?;
        let mut reservation = self.reserve_snapshot(&pool, &volume, share, bytes)?;
        let snapshot = self.store.put_snapshot(snapshot)?;
        // What a directory shares shows only when it has been copied.
        if share != Share::Whole || volume.parameters.backend.has_image() {
            reservation.recorded();
        }
        Ok(Draft { volume, snapshot, share, bytes, _reservation: reservation })
    }

    /// What a snapshot of the volume shares with it.
    fn share_with_snapshot(&self, pool: &Pool, volume: &Volume) -> Result<Share> {
        let is = &volume.parameters;
        if is.is_limited_directory() {
            return self.share_of_limited(pool, pool, &self.paths(volume)?);
        }
        let thick = is.provisioning == Provisioning::Thick;
        Ok(match self.may_share(pool, pool, thick)? {
            false => Share::Nothing,
            true if self.paths(volume)?.bytes().shares_whole() => Share::Whole,
            true => Share::Files,
        })
    }

    fn reserve_snapshot(
        &self,
        pool: &Pool,
        volume: &Volume,
        share: Share,
        bytes: u64,
    ) -> Result<Reservation> {
        let kind = volume.parameters.backend;
        match share {
            Share::Whole if volume.parameters.is_limited_directory() => self.reserve_subvolume(pool, volume),
            Share::Whole => match self.reserve(pool, Want::Snapshot(kind, bytes), 0) {
                // Looking at every extent is worth its time only where it decides.
                Err(Error::Exhausted(_)) => {
                    let fresh = self.not_kept_yet(pool, &self.paths(volume)?.data())?;
                    self.reserve(pool, Want::Snapshot(kind, fresh), 0)
                }
                reserved => reserved,
            },
            Share::Files | Share::Nothing => self.reserve(pool, Want::Snapshot(kind, bytes), bytes),
        }
    }

    /// The member of a cut that makes the snapshot.
    pub(crate) fn member<'a>(
        &self,
        draft: &'a Draft,
        group: Option<&'a GroupSnapshot>,
    ) -> Result<Member<'a>> {
        Ok(Member {
            makes: Makes::Snapshot(&draft.snapshot, group),
            volume: &draft.volume,
            to: self.snapshot_paths(&draft.snapshot)?,
            id: draft.snapshot.id.as_str(),
            share: draft.share,
            bytes: draft.bytes,
        })
    }

    /// Records a snapshot whose files are durable as `ready`.
    pub(crate) fn complete(&self, snapshot: &Snapshot, created: Timestamp) -> Result<Arc<Snapshot>> {
        // What it keeps may differ from what was there before the cut: the source was written to.
        let paths = self.snapshot_paths(snapshot)?;
        let bytes = paths.bytes().allocated(&self.os, &paths)?;
        let ready = Snapshot { phase: Phase::Ready, created, allocated_bytes: bytes, ..snapshot.clone() };
        let ready = self.store.put_snapshot(ready)?;
        self.measure_again(&snapshot.pool); // it may share what others keep
        Ok(ready)
    }

    /// Takes the mark away from a snapshot that is recorded as `ready`: nobody is told of it before. That of a member
    /// goes after its group is, too.
    pub(crate) fn acknowledge_snapshot(&self, snapshot: Arc<Snapshot>) -> Result<Arc<Snapshot>> {
        // Where the pool is away, it goes when it is back.
        if let Ok(paths) = self.snapshot_paths(&snapshot) {
            Mark::Making.clear(&self.os, &paths)?;
        }
        Ok(snapshot)
    }

    /// Removes a snapshot's files and its record, in this order: a crash in between is finished by start-up.
    pub(crate) fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        self.remove_files_of_snapshot(snapshot, &self.snapshot_paths(snapshot)?)?;
        self.store.delete_snapshot(&snapshot.id, Durability::Lazy)?;
        self.measure_again(&snapshot.pool);
        Ok(())
    }

    /// The snapshots of a group, of whatever phase.
    pub(crate) fn members_of(&self, group: &GroupSnapshotId) -> Vec<Arc<Snapshot>> {
        let all = self.store.snapshots();
        all.into_iter().filter(|snapshot| snapshot.group.as_ref() == Some(group)).collect()
    }

    /// Removes a group with all members. A group that callers know goes to `deleting` first, from which on it is gone
    /// for them as a whole.
    pub(crate) fn remove_group(&self, group: &crate::model::GroupSnapshot) -> Result<()> {
        if group.phase == Phase::Ready {
            self.store.put_group(crate::model::GroupSnapshot { phase: Phase::Deleting, ..group.clone() })?;
        }
        let members = self.members_of(&group.id);
        if group.phase != Phase::Creating {
            // Of all first: one mark tells of the whole group.
            for member in &members {
                begin_deletion(&self.os, &self.snapshot_paths(member)?)?;
            }
        }
        for member in members {
            self.remove_snapshot(&member)?;
        }
        // The members' records must be gone durably before that of the group is: without it they would be there again.
        Ok(self.store.delete_group(&group.id, Durability::Lazy)?)
    }
}
