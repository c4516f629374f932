//! A filesystem in an image behind a loop device: the size is a hard limit.
//!
//! The device is attached with autoclear, so it lives exactly as long as its mounts. The filesystem is made on
//! the device (not on the file, which may have another sector size) at the first NodeStageVolume.

use std::path::Path;

use nix::errno::Errno;

use super::bind::{bind_staged, space_at};
use super::format::{check, format_now, make, renew_identity};
use super::uses::mounts_where;
use super::{
    Place, Presence, Publish, Seen, Stage, Stats, Target, Uses, Writers, device, growth, health, target,
    writers,
};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{LoopDevice, MountEntry, OpenLoop, is_errno};
use crate::model::health::Trouble;
use crate::model::{Format, FsType, MountFlags};

/// The option of xfs that mounts it beside another one with its UUID (xfs(5)).
const NO_UUID: &str = "nouuid";

/// See the module.
pub(super) struct Filesystem;

impl Presence for Filesystem {
    fn uses(&self, place: Place<'_>) -> Result<Uses> {
        let mut uses = device::uses(place)?;
        if !uses.any() {
            return Ok(uses);
        }
        let loops: Vec<LoopDevice> = uses.loops.iter().chain(&uses.suspected).cloned().collect();
        let all = mounts_where(place.os, |mount| is_of(mount, &loops, place))?;
        // Of a btrfs with another default subvolume, or one that is mounted with `subvol=`, no mount may show the top.
        let within = |mount: &MountEntry, other: &MountEntry| {
            mount.root != other.root && mount.root.starts_with(&other.root)
        };
        let (mounts, partial) =
            all.iter().cloned().partition(|mount| !all.iter().any(|other| within(mount, other)));
        (uses.mounts, uses.partial) = match place.volume.fs_type() {
            Some(FsType::Btrfs) => (mounts, partial),
            _ => all.into_iter().partition(|mount| mount.root == Path::new("/")),
        };
        Ok(uses)
    }

    fn stage(&self, place: Place<'_>, stage: &Stage<'_>, uses: &Uses) -> Result<()> {
        let (fs_type, recorded) = filesystem_of(place)?;
        let format = format_now(place, recorded)?;
        if format != recorded {
            (stage.record)(format)?;
        }
        let made = target::make_directory(place.os, stage.target)?;
        target::or_remove(place.os, stage.target, made, || {
            match format {
                Format::Formatted | Format::Copied => stage_made(place, stage, uses, fs_type, format),
                Format::Blank | Format::Formatting => {
                    // What mkfs has just made is as large as its device.
                    let device = make(place, stage, uses, fs_type)?;
                    mount(place, stage, &device.device, fs_type)
                }
            }
        })
    }

    fn finish_stage(&self, place: Place<'_>, stage: &Stage<'_>, uses: &Uses) -> Result<()> {
        let (fs_type, _) = filesystem_of(place)?;
        if uses.are_last_at(place.os, stage.target.path())? {
            // No pod has it yet: the call before may have ended after its mount, see `mount_made`.
            thaw(place, stage.target.path(), uses)?;
        }
        for device in &uses.loops {
            device::conform(place, device, uses)?;
            go_with_mounts(place, device)?;
        }
        let Some((device, there)) = uses.loops.first().zip(writable(uses)) else { return Ok(()) };
        match growth::finish(place, device, fs_type, &there.target) {
            Err(refused) if refused.errno() == Some(Errno::EPERM) => {
                let path = stage.target.path();
                let in_use =
                    uses.elsewhere(place.os, Some(path), path)?.is_some() || !uses.partial.is_empty();
                if in_use {
                    tracing::warn!(volume.id = %place.volume.id, error = %refused, "the filesystem stays smaller than its volume until it is staged again");
                    return Ok(());
                }
                // Nobody else has it: what keeps it busy is the resize2fs of a driver that was killed, or will end as well.
                target::take_away(place.os, stage.target.path(), uses).map_err(|error| {
                    match error.errno() {
                        Some(Errno::EBUSY) => device::is_open(place, device),
                        _ => error,
                    }
                })?;
                stage_grown(place, stage, fs_type, &refused)
            }
            grown => grown,
        }
    }

    fn take_away(&self, place: Place<'_>, path: &Path, uses: &Uses) -> Result<()> {
        // A freeze has no owner and outlives the mounts: without one, no program could end it.
        if uses.are_last_at(place.os, path)? {
            thaw(place, path, uses)?;
        }
        target::take_away(place.os, path, uses)
    }

    fn unstage(&self, place: Place<'_>, staging: &Target, uses: &Uses) -> Result<()> {
        self.take_away(place, staging.path(), uses)?;
        device::give_back(place, &uses.loops);
        Ok(())
    }

    fn is_staged(&self, uses: &Uses, staging: &Path) -> bool {
        uses.at(staging).next().is_some()
    }

    fn publish(&self, place: Place<'_>, publish: &Publish<'_>, uses: &Uses) -> Result<()> {
        bind_staged(place, publish, uses)
    }

    fn is_read_only(&self, _place: Place<'_>, mount: &MountEntry, _uses: &Uses) -> Result<bool> {
        Ok(mount.read_only || mount.superblock_read_only)
    }

    fn after_unpublish(&self, _place: Place<'_>) -> Result<()> {
        Ok(()) // autoclear: the device went with its last mount
    }

    fn grow_in_use(&self, place: Place<'_>, uses: &Uses) -> Result<()> {
        // Without a writable mount there is nothing that could grow now; the next writable staging does it.
        let whole = |mount: &MountEntry| is_writable(mount) && uses.mounts.contains(mount);
        let found = match uses.reachable(place.os, whole)? {
            Some(whole) => Some(whole),
            None => uses.reachable(place.os, is_writable)?,
        };
        let Some((device, writable)) = uses.loops.first().zip(found) else { return Ok(()) };
        let growing = || format!("grow the filesystem of {}", place.volume.id);
        place.os.loops.update_size(device).doing(growing)?;
        let (fs_type, _) = filesystem_of(place)?;
        place.os.filesystems.grow(fs_type, &device::node(place, device).path, &writable.target).doing(growing)
    }

    fn stats(&self, place: Place<'_>, path: &Path, uses: &Uses) -> Result<Stats> {
        space_at(place, path, uses).map(Stats::Filesystem)
    }

    fn troubles(&self, place: Place<'_>, seen: &Seen) -> Vec<Trouble> {
        match (health::image(place), filesystem_of(place)) {
            (Ok(image), Ok(filesystem)) => health::of_filesystem(place, filesystem, image, seen),
            (Err(trouble), _) => vec![trouble],
            (_, Err(_)) => Vec::new(),
        }
    }

    fn writers(&self, place: Place<'_>, uses: &Uses) -> Result<Writers> {
        let elsewhere = || !writers::devices(uses).is_empty() && uses.all().next().is_none();
        Ok(match writers::mount(place, uses)? {
            Some(mount) => Writers::Mounted(mount, uses.loops.clone()),
            None if elsewhere() => Writers::Unstoppable(format!(
                "is {}, and mounted where the driver does not see it",
                uses.describe()
            )),
            None => Writers::None,
        })
    }
}

/// A mount through which the filesystem can be written to.
fn writable(uses: &Uses) -> Option<&MountEntry> {
    uses.mounts.iter().chain(&uses.partial).find(|mount| is_writable(mount))
}

fn is_writable(mount: &MountEntry) -> bool {
    !mount.read_only && !mount.superblock_read_only
}

/// Attaches, looks at and mounts a filesystem that was made before.
fn mount_made(
    place: Place<'_>,
    stage: &Stage<'_>,
    uses: &Uses,
    fs_type: FsType,
    format: Format,
) -> Result<(OpenLoop, u64)> {
    let open = device::attach(place, uses, false, true)?;
    let bytes = check(place, &open.device, fs_type)?;
    if format == Format::Copied {
        renew_identity(place, stage, &open.device, fs_type)?;
    }
    mount(place, stage, &open.device, fs_type)?;
    if !uses.loops.is_empty() && uses.all().next().is_none() {
        // Its device was attached without a mount: a freeze that outlived the last one keeps it so.
        let path = stage.target.path();
        match place.os.mounts.thaw(path).doing(|| format!("thaw {}", place.volume.id)) {
            Ok(frozen) => log_thaw(place, frozen),
            Err(cause) => {
                let undone = place.os.mounts.unmount(path).doing(|| format!("unmount {}", path.display()));
                return Err(cause.after_undo(undone));
            }
        }
    }
    go_with_mounts(place, &open.device)?;
    Ok((open, bytes))
}

/// Thaws the volume's filesystem by its mount at a path, if it is frozen there. One that has stopped after an error is
/// left as it is: it can be unmounted without.
///
/// # Errors
/// FAILED_PRECONDITION if something else hides the mount.
fn thaw(place: Place<'_>, path: &Path, uses: &Uses) -> Result<()> {
    let Some(top) = uses.top_at(place.os, path)? else { return Ok(()) };
    let pinned = place.os.mounts.pin(top);
    let frozen = match pinned.and_then(|pinned| place.os.mounts.thaw(pinned.path())) {
        Err(error) if target::has_stopped(&error) => return Ok(()),
        frozen => frozen.doing(|| format!("thaw {}", place.volume.id))?,
    };
    log_thaw(place, frozen);
    Ok(())
}

fn log_thaw(place: Place<'_>, frozen: bool) {
    if frozen {
        tracing::warn!(volume.id = %place.volume.id, "thawed the filesystem, which another program had left frozen");
    }
}

/// Stages a filesystem that was made before, and lets it grow where its image was grown, or copied into a larger one,
/// while it was not in use. A read-only filesystem cannot be grown, the next writable staging does it.
fn stage_made(
    place: Place<'_>,
    stage: &Stage<'_>,
    uses: &Uses,
    fs_type: FsType,
    format: Format,
) -> Result<()> {
    let path = stage.target.path();
    let (open, bytes) = mount_made(place, stage, uses, fs_type, format)?;
    if stage.read_only {
        return Ok(());
    }
    let grown = growth::grow_if_smaller(place, &open.device, fs_type, path, bytes);
    let Err(refused) = grown else { return Ok(()) };
    if let Err(undo) = place.os.mounts.unmount(path).doing(|| "unmount".to_owned()) {
        return Err(refused.after_undo(Err(undo)));
    }
    if refused.errno() != Some(Errno::EPERM) {
        return Err(refused);
    }
    drop(open);
    stage_grown(place, stage, fs_type, &refused)
}

/// Lets a filesystem grow that was just unmounted, since it may not while it is mounted, and mounts it again.
fn stage_grown(place: Place<'_>, stage: &Stage<'_>, fs_type: FsType, refused: &Error) -> Result<()> {
    growth::grow_unmounted(place, stage, fs_type, refused)?;
    mount_made(place, stage, &Uses::default(), fs_type, Format::Formatted).map(drop)
}

/// Mounts the device at the staging path. The message names options without their values, which may be sensitive.
fn mount(place: Place<'_>, stage: &Stage<'_>, device: &LoopDevice, fs_type: FsType) -> Result<()> {
    let mut flags = MountFlags { read_only: stage.read_only, ..stage.flags.clone() };
    // A copy keeps the UUID of its source, and xfs would refuse to mount both. That an image has one device only, and
    // so no second mount of itself, is our own care.
    if fs_type == FsType::Xfs && !flags.data.iter().any(|word| word == NO_UUID) {
        flags.data.push(NO_UUID.to_owned());
    }
    match place.os.mounts.mount(&device::node(place, device).path, stage.target.path(), fs_type, &flags) {
        // The filesystem itself was looked at before, so what is not valid can only be one of its options.
        Err(e) if is_errno(&e, Errno::EINVAL) && !stage.flags.data.is_empty() => {
            let id = &place.volume.id;
            let which = match place.os.mounts.refused_option(fs_type, &stage.flags.data) {
                Some(name) => format!("the mount option {name}"),
                None => format!("one of the mount options {}", stage.flags.data_names()),
            };
            Err(Error::Invalid(format!(
                "mount {id}: {fs_type} refuses {which}; correct mountOptions of the PersistentVolume"
            )))
        }
        mounted => mounted.doing(|| format!("mount {}", place.volume.id)),
    }
}

/// A device that was attached by somebody else, without autoclear, goes with its last mount all the same.
fn go_with_mounts(place: Place<'_>, device: &LoopDevice) -> Result<()> {
    match device.autoclear {
        true => Ok(()),
        false => {
            place.os.loops.detach(device).doing(|| format!("set autoclear of {}", device.path().display()))
        }
    }
}

fn filesystem_of(place: Place<'_>) -> Result<(FsType, Format)> {
    let none = || Error::InUse(format!("{} holds no filesystem", place.volume.id));
    place.volume.content.filesystem().ok_or_else(none)
}

/// Whether a mount is of one of these devices. btrfs shows an anonymous device number, so its source counts.
pub(super) fn is_of(mount: &MountEntry, loops: &[LoopDevice], place: Place<'_>) -> bool {
    let same_type = place.volume.fs_type().is_some_and(|fs| fs.as_str() == mount.fs_type);
    let is_at = |node: device::Node| mount.dev == node.rdev || Path::new(&mount.source) == node.path;
    same_type && loops.iter().any(|device| is_at(device::node(place, device)))
}
