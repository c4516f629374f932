//! A raw device: the image behind a loop device, bound as a device node.
//!
//! NodeStageVolume attaches the device without autoclear (nobody holds it open while it is only bound), and
//! NodeUnstageVolume detaches it. A mount option cannot make a device read-only, so a read-only publish of a writable
//! volume gets a second device on the same image, attached read-only, which exists as long as that publish.

use std::ffi::OsString;
use std::path::Path;

use super::uses::{mounts_where, not_at};
use super::{
    Place, Presence, Publish, Seen, Stage, Stats, Target, Uses, Writers, device, health, target, writers,
};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{FileKind, LoopDevice, MountEntry};
use crate::model::MountFlags;
use crate::model::health::Trouble;

/// See the module.
pub(super) struct Block;

impl Presence for Block {
    fn uses(&self, place: Place<'_>) -> Result<Uses> {
        let mut uses = device::uses(place)?;
        if !uses.any() {
            return Ok(uses);
        }
        let loops: Vec<LoopDevice> = uses.loops.iter().chain(&uses.suspected).cloned().collect();
        let names: Vec<OsString> = loops.iter().filter_map(|device| name_of(place, device)).collect();
        let is_named = |mount: &MountEntry| {
            mount.root.file_name().is_some_and(|name| names.iter().any(|ours| ours == name))
        };
        for mount in mounts_where(place.os, is_named)? {
            if device_of(place, &mount, &loops)?.is_some() {
                uses.mounts.push(mount);
            }
        }
        Ok(uses)
    }

    fn stage(&self, place: Place<'_>, stage: &Stage<'_>, uses: &Uses) -> Result<()> {
        // Devices that were detached while another process had them open. With a second device beside one there would be
        // two caches of one image.
        let Some(first) = uses.loops.first() else {
            return device::attach(place, uses, stage.read_only, false).map(drop);
        };
        let same = |device: &&LoopDevice| device.read_only == stage.read_only;
        match uses.loops.iter().find(same) {
            Some(device) => device::keep(place, device, uses),
            None => Err(device::is_held(place, first)),
        }
    }

    fn finish_stage(&self, place: Place<'_>, _stage: &Stage<'_>, uses: &Uses) -> Result<()> {
        uses.live_loops().try_for_each(|device| device::conform(place, device, uses))
    }

    fn unstage(&self, place: Place<'_>, _staging: &Target, uses: &Uses) -> Result<()> {
        if uses.loops.is_empty() && !uses.suspected.is_empty() {
            // By its name alone it is not taken from whoever else may have it.
            return Err(Error::InUse(format!("volume {} is {}", place.volume.id, uses.describe())));
        }
        uses.loops.iter().try_for_each(|device| device::detach(place, device))
    }

    fn is_staged(&self, uses: &Uses, _staging: &Path) -> bool {
        uses.live_loops().chain(&uses.suspected).next().is_some()
    }

    fn publish(&self, place: Place<'_>, publish: &Publish<'_>, uses: &Uses) -> Result<()> {
        let made = target::make_file(place.os, publish.target)?;
        target::or_remove(place.os, publish.target, made, || {
            if !publish.read_only && uses.live_loops().all(|device| device.read_only) {
                return Err(Error::InUse(format!("{} is staged read-only", place.volume.id)));
            }
            let fresh = uses.live_loops().all(|device| device.read_only != publish.read_only);
            let device = device::attach(place, uses, publish.read_only, false)?.device;
            let binding = || format!("publish {}", place.volume.id);
            let bound = place
                .os
                .mounts
                .bind(&device::node(place, &device).path, publish.target.path(), &MountFlags::default())
                .doing(binding);
            bound.map_err(|cause| match fresh {
                true => cause.after_undo(device::detach(place, &device)),
                false => cause,
            })
        })
    }

    fn is_read_only(&self, place: Place<'_>, mount: &MountEntry, uses: &Uses) -> Result<bool> {
        Ok(device_of(place, mount, &uses.loops)?.is_some_and(|device| device.read_only))
    }

    fn after_unpublish(&self, place: Place<'_>) -> Result<()> {
        let uses = self.uses(place)?;
        // A read-only device beside a writable one was made for a publish; alone it is the staged one.
        let staged_writable = uses.loops.iter().any(|device| !device.read_only);
        for device in uses.loops.iter().filter(|device| device.read_only && staged_writable) {
            let mut published = false;
            for mount in &uses.mounts {
                published |= device_of(place, mount, std::slice::from_ref(device))?.is_some();
            }
            if !published {
                device::detach(place, device)?;
            }
        }
        Ok(())
    }

    fn grow_in_use(&self, place: Place<'_>, uses: &Uses) -> Result<()> {
        let growing = || format!("grow the device of {}", place.volume.id);
        uses.loops.iter().try_for_each(|device| place.os.loops.update_size(device).doing(growing))
    }

    fn stats(&self, place: Place<'_>, path: &Path, uses: &Uses) -> Result<Stats> {
        let stat = place.os.files.stat(path).doing(|| format!("look at {}", path.display()))?;
        let device = stat
            .and_then(|stat| uses.loops.iter().find(|device| device::node(place, device).rdev == stat.rdev));
        let device = device.ok_or_else(|| not_at(place.volume, path))?;
        place
            .os
            .loops
            .size(device)
            .doing(|| format!("read the size of {}", device.path().display()))
            .map(Stats::Device)
    }

    fn troubles(&self, place: Place<'_>, _seen: &Seen) -> Vec<Trouble> {
        health::image(place).err().into_iter().collect()
    }

    fn writers(&self, place: Place<'_>, uses: &Uses) -> Result<Writers> {
        writers::mount(place, uses)?;
        let devices = writers::devices(uses);
        Ok(if devices.is_empty() { Writers::None } else { Writers::Raw(devices) })
    }
}

/// The device, of these, whose node a mount shows. mountinfo gives the node's name within its filesystem
/// (`/loop7`), which another /dev may also have: the device number decides.
fn device_of<'a>(
    place: Place<'_>,
    mount: &MountEntry,
    loops: &'a [LoopDevice],
) -> Result<Option<&'a LoopDevice>> {
    let shown = mount.root.file_name();
    let named = |device: &&LoopDevice| shown.is_some() && name_of(place, device).as_deref() == shown;
    let Some(device) = loops.iter().find(named) else { return Ok(None) };
    if place.os.mounts.mount_at(&mount.target).is_ok_and(|top| top != mount.id) {
        // Hidden by another mount. In devtmpfs the node is what its name says.
        return Ok((mount.fs_type == "devtmpfs").then_some(device));
    }
    let stat = place.os.files.stat(&mount.target).doing(|| format!("look at {}", mount.target.display()))?;
    let is_it = stat.is_some_and(|stat| {
        stat.kind == FileKind::BlockDevice && stat.rdev == device::node(place, device).rdev
    });
    Ok(is_it.then_some(device))
}

/// The name of a device's node in its directory.
fn name_of(place: Place<'_>, device: &LoopDevice) -> Option<OsString> {
    device::node(place, device).path.file_name().map(OsString::from)
}
