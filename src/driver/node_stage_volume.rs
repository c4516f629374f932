//! CSI NodeStageVolume.

use std::sync::Arc;

use super::capacity::{Reservation, Want};
use super::copies::progress::Progress;
use super::publish::{expect_writable, has_flags, same_or_exists};
use super::{Driver, not_found, request::check, settled};
use crate::backend::{CopyRoom, Stage, Target, presence_of};
use crate::error::{Error, Result};
use crate::model::request::NodeStageVolume;
use crate::model::{Capability, Format, Volume};

impl Driver {
    /// Attaches and mounts a volume at its staging path; formats it if it never was.
    ///
    /// # Errors
    /// NOT_FOUND; FAILED_PRECONDITION for a capability that the volume does not have, or while it is not
    /// published to this node (`--attach`); ALREADY_EXISTS where it is staged there in another way.
    pub fn node_stage_volume(&self, request: NodeStageVolume) -> Result<()> {
        let (_guard, volume) = self.take_at_node(&request.volume_id)?;
        check::may_change(&volume)?;
        check::context(&volume, &request.context)?;
        check::capability(&volume, &request.capability, Error::InUse)?;
        let target = self.usable_target(&request.staging_path)?;
        let volume = self.forget_staged_before(&volume, target.path())?;
        self.stage_at(&volume, &request.capability, &target)
    }

    /// Mounts or attaches a volume at its staging path, if it is not there yet. The caller holds its lock.
    ///
    /// # Errors
    /// Those of NodeStageVolume.
    pub(super) fn stage_at(
        &self,
        volume: &Arc<Volume>,
        capability: &Capability,
        target: &Target,
    ) -> Result<()> {
        let flags = capability.mount_flags();
        let granted_read_only = self.granted_read_only(volume)?;
        let read_only = granted_read_only || flags.read_only || capability.mode.is_read_only();
        let paths = self.paths(volume)?;
        let (place, presence) = (self.place(volume, &paths), presence_of(&volume.content));
        let uses = settled(|| presence.uses(place))?;
        uses.sound(place)?;
        let record = |format| self.record_format(volume, format);
        let room = |bytes| self.room_for_copy(volume, bytes);
        let stage = Stage { target, flags: &flags, read_only, record: &record, room: &room };
        if volume.is_block() {
            if let Some(device) = uses.live_loops().next() {
                let writable = uses.live_loops().any(|device| !device.read_only);
                same_or_exists(read_only != writable, || {
                    format!("{} is attached as {}", volume.id, device.path().display())
                })?;
                return presence.finish_stage(place, &stage, &uses);
            }
        } else if let Some(there) = uses.top_at(&self.os, target.path())? {
            if !read_only {
                expect_writable(place, there)?;
            }
            let is_read_only = presence.is_read_only(place, there, &uses)?;
            if presence.is_staged_by_bind() {
                return self.settle_bind(&volume.id, there, is_read_only, read_only, &flags);
            }
            let same = is_read_only == read_only && has_flags(there, &flags);
            same_or_exists(same, || format!("{} is staged at {}", volume.id, target.path().display()))?;
            return presence.finish_stage(place, &stage, &uses);
        }
        self.nothing_else_at(target)?;
        // A power cut brings the mark of a copy back, and its data come from here on.
        self.acknowledge_volume(Arc::clone(volume))?;
        self.end_adoption(volume)?;
        presence.stage(place, &stage, &uses)?;
        self.bound.remember(target.path());
        Ok(())
    }

    /// Pods use the volume here from now on. If a copy of its disk is used elsewhere later, this node's word must not bring that volume back
    /// to what it was.
    fn end_adoption(&self, volume: &Volume) -> Result<()> {
        match volume.adopted_from.is_empty() {
            true => Ok(()),
            false => self.record(Volume { adopted_from: Vec::new(), ..volume.clone() }).map(drop),
        }
    }

    /// Sets room aside for a copy of a volume's image, which then takes its place. The copies of other volumes know of
    /// it, and whoever calls again hears how far it is.
    pub(super) fn room_for_copy(&self, volume: &Volume, bytes: u64) -> Result<Box<dyn CopyRoom>> {
        let pool = self.pool_of(volume)?;
        let reservation = self.reserve(&pool, Want::Snapshot(volume.parameters.backend, bytes), bytes)?;
        let progress = self.copies.begin(volume.id.as_str(), bytes);
        Ok(Box::new(Room { _reservation: reservation, progress }))
    }

    /// Makes the state of the filesystem durable before work goes on.
    pub(super) fn record_format(&self, volume: &Volume, format: Format) -> Result<()> {
        // The record is read again: this volume's lock is held, so only this call changes it.
        let stored = self.store.get(&volume.id).ok_or_else(|| not_found(volume.id.as_str()))?;
        if stored.content.format().is_some() {
            // Also where it says so already: its sync may have failed.
            let content = stored.content.with_format(format);
            self.record(Volume { content, ..(*stored).clone() })?;
        }
        Ok(())
    }
}

/// See [`Driver::room_for_copy`].
struct Room {
    _reservation: Reservation,
    progress: Progress,
}

impl CopyRoom for Room {
    fn report(&mut self, done: u64) {
        self.progress.report(done);
    }
}
