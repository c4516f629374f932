//! One finding is put right: under the lock of what it is about, and only if everything is as the caller has seen it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::{Seen, presence_of};
use crate::driver::locks::{Key, Mode};
use crate::driver::{Driver, settled};
use crate::error::{Error, OsContext, Result};
use crate::model::copy_of::DeleteCopy;
use crate::model::findings::{
    FROZEN, Finding, Fix, FixFinding, HALF_MADE, MOVED_LEFT, ORPHAN_IMAGE, ORPHAN_RECORD, SIZE_NOT_ENFORCED,
    STALE_DEVICE, STALE_MOUNT,
};
use crate::model::request::{NodeUnpublishVolume, NodeUnstageVolume};
use crate::model::{GroupSnapshotId, SnapshotId, Volume, VolumeId};

use super::print_of;
use super::records::half_made_group;

impl Driver {
    /// Puts a finding right, and returns what was done.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if anything differs from what the caller has seen, if it is in use, and if it cannot be put right;
    /// ABORTED while another operation on it runs; INVALID_ARGUMENT for a class that the node does nothing about.
    pub fn fix_finding(&self, wanted: &FixFinding) -> Result<String> {
        self.expect_this_node(&wanted.node_id)?;
        let done = match wanted.class.as_str() {
            ORPHAN_IMAGE => self.fix_orphan_image(wanted),
            ORPHAN_RECORD => self.fix_orphan_record(wanted),
            HALF_MADE => self.fix_half_made(wanted),
            STALE_DEVICE => self.fix_stale_device(wanted),
            STALE_MOUNT => self.fix_stale_mount(wanted),
            SIZE_NOT_ENFORCED => self.fix_limit(wanted),
            FROZEN => self.fix_frozen(wanted),
            MOVED_LEFT => self.fix_moved_left(wanted),
            class => Err(Error::Invalid(format!(
                "this version does nothing about findings of the class {class:?}"
            ))),
        }?;
        tracing::info!(
            class = wanted.class,
            id = wanted.id,
            path = wanted.path,
            done,
            "put right what hostloop doctor found"
        );
        Ok(done)
    }

    fn fix_orphan_image(&self, wanted: &FixFinding) -> Result<String> {
        if let Ok(id) = wanted.id.parse::<VolumeId>() {
            let _guard = self.lock(&id)?;
            let is_recorded = self.store.get(&id).is_some()
                || self.store.volumes().iter().any(|volume| volume.directory() == &id);
            let found = self.unrecorded_at(&wanted.path, &wanted.id)?.filter(|_| !is_recorded);
            return match expect_same(found, wanted)?.needs_unnamed {
                true => match self.volume_beside(&id)? {
                    Some(volume) => self.delete(&volume).map(|()| format!("deleted {id}")),
                    None => Err(changed(wanted)),
                },
                false => self.remove_empty(wanted),
            };
        }
        let id = wanted.id.parse::<SnapshotId>().map_err(|_| changed(wanted))?;
        let _guard = self.lock(&id)?;
        let found =
            self.unrecorded_at(&wanted.path, &wanted.id)?.filter(|_| self.store.snapshot(&id).is_none());
        match expect_same(found, wanted)?.needs_unnamed {
            true => match self.snapshot_beside(&id)? {
                Some(snapshot) => self.delete_known_snapshot(&snapshot).map(|()| format!("deleted {id}")),
                None => Err(changed(wanted)),
            },
            false => self.remove_empty(wanted),
        }
    }

    /// Removes a directory, if it is empty: the kernel makes sure of that. The path is the one that a pool has for the id.
    fn remove_empty(&self, wanted: &FixFinding) -> Result<String> {
        let path = PathBuf::from(&wanted.path);
        self.os.files.remove_directory(&path).doing(|| format!("remove {}", path.display()))?;
        Ok(format!("removed the empty directory {}", path.display()))
    }

    fn fix_orphan_record(&self, wanted: &FixFinding) -> Result<String> {
        expect_unnamed(wanted)?;
        if let Some(id) = self.controller_id(&wanted.id) {
            let _guard = self.lock(&id)?;
            let volume = self.store.get(&id).filter(|volume| print_of(&**volume) == wanted.seen);
            let volume = volume.ok_or_else(|| changed(wanted))?;
            let is_plain = volume.copy_of.is_none() && volume.retired.is_none() && volume.moved_to.is_none();
            if !is_plain || !volume.is_ready() {
                return Err(changed(wanted));
            }
            return self.delete(&volume).map(|()| format!("deleted {id}"));
        }
        let id = wanted.id.parse::<SnapshotId>().map_err(|_| changed(wanted))?;
        let _guard = self.lock(&id)?;
        let snapshot = self.store.snapshot(&id).filter(|snapshot| print_of(&**snapshot) == wanted.seen);
        let snapshot = snapshot.filter(|it| it.is_ready() && it.group.is_none() && it.pulled_for.is_none());
        let snapshot = snapshot.ok_or_else(|| changed(wanted))?;
        self.delete_known_snapshot(&snapshot).map(|()| format!("deleted {id}"))
    }

    fn fix_half_made(&self, wanted: &FixFinding) -> Result<String> {
        let outcome = |is_kept: bool| match is_kept {
            true => format!("{} is whole, and was kept", wanted.id),
            false => format!("removed {}", wanted.id),
        };
        if let Ok(id) = wanted.id.parse::<VolumeId>() {
            let _guard = self.lock(&id)?;
            let volume = self.store.get(&id).ok_or_else(|| changed(wanted))?;
            expect_same(self.half_made_volume(&volume), wanted)?;
            self.pulls.forget(&id);
            let kept = self.settle_volume(&volume)?;
            kept.iter().try_for_each(|volume| self.reconcile(volume))?;
            return Ok(outcome(kept.is_some()));
        }
        if let Ok(id) = wanted.id.parse::<SnapshotId>() {
            let _guard = self.lock(&id)?;
            let snapshot = self.store.snapshot(&id).ok_or_else(|| changed(wanted))?;
            expect_same(self.half_made_snapshot(&snapshot), wanted)?;
            return Ok(outcome(self.settle_snapshot(&snapshot)?.is_some()));
        }
        let id = wanted.id.parse::<GroupSnapshotId>().map_err(|_| changed(wanted))?;
        let members = self.members_of(&id);
        let keys = members.iter().map(|member| (Key::from(&member.id), Mode::Exclusive));
        let _guard = self.lock_all(keys.chain([(Key::from(&id), Mode::Exclusive)]))?;
        let group = self.store.group(&id).ok_or_else(|| changed(wanted))?;
        expect_same(half_made_group(&group), wanted)?;
        Ok(outcome(self.settle_group(&group)?.is_some()))
    }

    fn fix_stale_device(&self, wanted: &FixFinding) -> Result<String> {
        let (_guard, volume) = self.locked_volume(wanted)?;
        let (_, found) = self.held_volume(&volume);
        expect_same(found, wanted)?;
        let paths = self.paths_of_use(&volume)?;
        let look = || presence_of(&volume.content).uses(self.place(&volume, &paths));
        let uses = look()?;
        if uses.all().next().is_some() {
            return Err(Error::InUse(format!("volume {} is in use: {}", volume.id, uses.describe())));
        }
        for device in &uses.loops {
            self.os.loops.detach(device).doing(|| format!("detach {}", device.path().display()))?;
        }
        let uses = settled(look)?;
        match uses.any() {
            false => Ok(format!("detached {}", wanted.path)),
            true => Err(Error::InUse(format!("volume {} is still {}", volume.id, uses.describe()))),
        }
    }

    fn fix_stale_mount(&self, wanted: &FixFinding) -> Result<String> {
        let id = wanted.id.parse::<VolumeId>().map_err(|_| changed(wanted))?;
        let volume = self.store.get(&id).filter(|id| !id.id.is_inline()).ok_or_else(|| changed(wanted))?;
        let (record, _) = self.held_volume(&volume);
        let mount = record
            .mounts
            .iter()
            .find(|it| it.path == wanted.path && it.seen == wanted.seen && !it.seen.is_empty());
        let mount = mount.ok_or_else(|| changed(wanted))?;
        let (volume_id, path) = (wanted.id.clone(), PathBuf::from(&wanted.path));
        match mount.pod_uid {
            Some(_) => {
                expect_pod_gone(wanted)?;
                self.node_unpublish_volume(NodeUnpublishVolume { volume_id, target_path: path })?;
            }
            None => {
                expect_unnamed(wanted)?;
                self.node_unstage_volume(NodeUnstageVolume { volume_id, staging_path: path })?;
            }
        }
        Ok(format!("unmounted {}", wanted.path))
    }

    fn fix_limit(&self, wanted: &FixFinding) -> Result<String> {
        let (_guard, volume) = self.locked_volume(wanted)?;
        expect_same(self.not_enforced(&volume, &Seen::now(&self.os)?), wanted)?;
        self.reconcile(&volume)?;
        let volume = self.store.get(&volume.id).ok_or_else(|| changed(wanted))?;
        match self.not_enforced(&volume, &Seen::now(&self.os)?) {
            None => Ok(format!("the size of {} is enforced", volume.id)),
            Some(still) => Err(Error::InUse(format!("volume {}: {}", volume.id, still.found))),
        }
    }

    fn fix_frozen(&self, wanted: &FixFinding) -> Result<String> {
        let path = PathBuf::from(&wanted.path);
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| changed(wanted))?;
        let id = self.frozen_volume(name);
        let keys = id.iter().flat_map(|id| [Key::from(id), Key::Freeze(id.clone())]);
        let _guard = self.lock_all(keys.map(|key| (key, Mode::Exclusive)))?;
        // Also the directory of the marks follows from this: what the caller says of the path is compared only.
        expect_same(self.frozen(name), wanted)?;
        self.thaw_if_marked(name)?;
        Ok(match id {
            Some(id) => format!("the filesystem of {id} is not frozen"),
            None => format!("removed the mark {}", path.display()),
        })
    }

    fn fix_moved_left(&self, wanted: &FixFinding) -> Result<String> {
        // An administrator can make a PersistentVolume of what is left, to look at it.
        expect_unnamed(wanted)?;
        let id = wanted.id.parse::<VolumeId>().map_err(|_| changed(wanted))?;
        let volume = self.store.get(&id).filter(|volume| print_of(&**volume) == wanted.seen);
        let volume = volume.ok_or_else(|| changed(wanted))?;
        let retired = volume.retired.clone().ok_or_else(|| changed(wanted))?;
        // It compares id and generation under the lock: the record of another time has others.
        self.delete_copy(&DeleteCopy { volume_id: id.clone(), source: retired.was, generation: retired.by })?;
        Ok(format!("deleted {id}"))
    }

    fn locked_volume(&self, wanted: &FixFinding) -> Result<(crate::driver::Guard, Arc<Volume>)> {
        let id = wanted.id.parse::<VolumeId>().map_err(|_| changed(wanted))?;
        let guard = self.lock(&id)?;
        Ok((guard, self.store.get(&id).ok_or_else(|| changed(wanted))?))
    }
}

/// # Errors
/// FAILED_PRECONDITION if it differs from what the caller has seen, or nothing is done about it.
fn expect_same(found: Option<Finding>, wanted: &FixFinding) -> Result<Finding> {
    let same = |it: &Finding| it.id == wanted.id && it.path == wanted.path && it.seen == wanted.seen;
    let found = found.filter(same).ok_or_else(|| changed(wanted))?;
    if let Fix::Kept(why) = &found.fix {
        return Err(Error::InUse(format!("{} was not changed: {why}", wanted.id)));
    }
    if found.needs_unnamed {
        expect_unnamed(wanted)?;
    }
    Ok(found)
}

/// # Errors
/// FAILED_PRECONDITION if the caller does not know whether a PersistentVolume names it.
fn expect_unnamed(wanted: &FixFinding) -> Result<()> {
    match wanted.unnamed {
        true => Ok(()),
        false => Err(Error::InUse(format!(
            "{} was not changed: this node does not know which PersistentVolumes and VolumeSnapshotContents exist; run hostloop doctor \
             with a kubeconfig",
            wanted.id
        ))),
    }
}

/// # Errors
/// FAILED_PRECONDITION if the caller does not know whether the pod still exists.
fn expect_pod_gone(wanted: &FixFinding) -> Result<()> {
    match wanted.pod_gone {
        true => Ok(()),
        false => Err(Error::InUse(format!(
            "{} stays mounted: this node does not know which pods exist; run hostloop doctor with a kubeconfig",
            wanted.path
        ))),
    }
}

fn changed(wanted: &FixFinding) -> Error {
    Error::InUse(format!("{} has changed since it was found; nothing was done, look again", wanted.id))
}
