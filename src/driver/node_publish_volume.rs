//! CSI NodePublishVolume.

use std::sync::Arc;

use super::publish::{expect_writable, same_or_exists};
use super::{Driver, request::check};
use crate::backend::{Publish, Target, presence_of};
use crate::error::{Error, Result};
use crate::model::request::NodePublishVolume;
use crate::model::{SecondPublish, Volume};

impl Driver {
    /// Makes a staged volume appear at a target path; an inline ephemeral volume is made first.
    ///
    /// # Errors
    /// NOT_FOUND; FAILED_PRECONDITION without a staging path, for a capability that the volume does not have, for a volume
    /// that moves to another node, or for a second target that the access mode forbids; ALREADY_EXISTS if the target
    /// shows it in another way.
    pub fn node_publish_volume(&self, request: NodePublishVolume) -> Result<()> {
        if request.inline.is_some() {
            return self.publish_inline(&request);
        }
        let (_guard, volume) = self.take_at_node(&request.volume_id)?;
        check::context(&volume, &request.context)?;
        check::capability(&volume, &request.capability, Error::InUse)?;
        let staging = request.staging_path.as_deref().ok_or_else(|| {
            Error::InUse(format!(
                "staging_target_path is missing: stage volume {} first and send its path",
                volume.id
            ))
        })?;
        let staging = self.usable_target(staging)?;
        let target = self.usable_target(&request.target_path)?;
        if staging.path() == target.path() {
            return Err(Error::Invalid(
                "target_path is the staging_target_path; choose another path".to_owned(),
            ));
        }
        let granted_read_only = self.granted_read_only(&volume)?;
        self.publish(&volume, &request, granted_read_only, &staging, &target)
    }

    fn publish(
        &self,
        volume: &Arc<Volume>,
        request: &NodePublishVolume,
        granted_read_only: bool,
        staging: &Target,
        target: &Target,
    ) -> Result<()> {
        let flags = request.capability.mount_flags();
        let mode = request.capability.mode;
        let read_only = granted_read_only || request.read_only || flags.read_only || mode.is_read_only();
        let paths = self.paths(volume)?;
        let (place, presence) = (self.place(volume, &paths), presence_of(&volume.content));
        let mut uses = presence.uses(place)?;
        uses.sound(place)?;
        // A move has unstaged it, which its caller does not know; or a publish that was to stage it again has ended early.
        if self.was_staged_at(volume, staging.path()) {
            match check::may_change(volume) {
                Ok(()) => {
                    self.stage_at(volume, &request.capability, staging)?;
                    // Staging may have changed the record.
                    let staged = self.store.get(&volume.id);
                    staged.map(|staged| self.forget_staged_before(&staged, staging.path())).transpose()?;
                    uses = presence.uses(place)?;
                }
                Err(sealed) if !presence.is_staged(&uses, staging.path()) => return Err(sealed),
                Err(_) => {}
            }
        }
        if !presence.is_staged(&uses, staging.path()) {
            let staging = staging.path().display();
            return Err(Error::InUse(format!(
                "volume {} is not staged at {staging}; call NodeStageVolume first",
                volume.id
            )));
        }
        let staged = uses.top_at(&self.os, staging.path())?;
        if let Some(there) = uses.top_at(&self.os, target.path())? {
            let staged_read_only = staged.is_some_and(|mount| mount.read_only || mount.superblock_read_only);
            let is_read_only = presence.is_read_only(place, there, &uses)?;
            let read_only = read_only || staged_read_only;
            if volume.is_block() {
                // The device decides, and no flag of a mount.
                return same_or_exists(is_read_only == read_only, || {
                    format!("{} is published at {}", volume.id, target.path().display())
                });
            }
            return self.settle_bind(&volume.id, there, is_read_only, read_only, &flags);
        }
        // Its last pod may have left while another one came, so that it is still staged.
        check::may_change(volume)?;
        if let Some(staged) = staged.filter(|_| !read_only) {
            expect_writable(place, staged)?;
        }
        self.nothing_else_at(target)?;
        if mode.second_publish() == SecondPublish::Refused
            && let Some(other) = uses.elsewhere(&self.os, Some(staging.path()), target.path())?
        {
            let (mode, other) = (mode.as_str(), other.display());
            return Err(Error::InUse(format!(
                "volume {} is published at {other}, and {mode} allows one target only",
                volume.id
            )));
        }
        presence.publish(
            place,
            &Publish { staging: staging.path(), target, flags: &flags, read_only },
            &uses,
        )?;
        self.bound.remember(target.path());
        Ok(())
    }
}
