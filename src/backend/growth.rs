//! Growing the filesystem of a volume to the size of its image.
//!
//! A mounted filesystem grows through its journal, so a kill or a power cut leaves it whole. For ext4, the kernel allows
//! that only with CAP_SYS_RESOURCE (fs/ext4/resize.c, ext4_resize_begin). Without it, resize2fs(8) can grow it while it
//! is not mounted, and nothing protects what it rewrites: if it is interrupted, e2fsck may not be able to repair it, and
//! its own undo file is not written in time to help. So it grows a copy of the image, which then replaces the image.
//! Whatever ends this, the volume is as before or grown. If the pool's filesystem shares blocks, such a copy is instant
//! and takes no room; otherwise it takes time and room while this runs.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use super::copy::copy_extents;
use super::image::{growing_image, remove_growing};
use super::{Place, Signature, Stage, device, image, inspect};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{FileId, LoopDevice, is_errno};
use crate::model::{FsType, Provisioning};

/// How often and after which pause a device is looked at again that goes with its last user.
const PATIENCE: (u32, Duration) = (50, Duration::from_millis(10));

/// Grows a mounted filesystem of `bytes` whose image is longer.
///
/// # Errors
/// EPERM where ext4 would have to grow and this process lacks CAP_SYS_RESOURCE.
pub(super) fn grow_if_smaller(
    place: Place<'_>,
    device: &LoopDevice,
    fs_type: FsType,
    mount_point: &Path,
    bytes: u64,
) -> Result<()> {
    device::take_on_size(place, device)?;
    if bytes >= image::stat(place)?.size {
        return Ok(());
    }
    let growing = || format!("grow the filesystem of {}", place.volume.id);
    place.os.filesystems.grow(fs_type, &device::node(place, device).path, mount_point).doing(growing)
}

/// Grows the mounted filesystem of a volume that is staged, where its growth was cut off.
///
/// # Errors
/// Those of [`grow_if_smaller`].
pub(super) fn finish(
    place: Place<'_>,
    device: &LoopDevice,
    fs_type: FsType,
    mount_point: &Path,
) -> Result<()> {
    // As the superblock was last written, which is never larger than what is mounted.
    let Signature::Filesystem { bytes, .. } = inspect(place.os.images.as_ref(), &place.paths.data())? else {
        return Ok(());
    };
    grow_if_smaller(place, device, fs_type, mount_point, bytes)
}

/// Grows a filesystem that is not mounted, in a copy of its image that takes its place. `refused` is why it could not
/// grow while it was mounted.
pub(super) fn grow_unmounted(
    place: Place<'_>,
    stage: &Stage<'_>,
    fs_type: FsType,
    refused: &Error,
) -> Result<()> {
    let id = &place.volume.id;
    tracing::info!(volume.id = %id, %refused, "growing a copy of the filesystem, which then replaces it");
    let grown = remove_growing(place).and_then(|()| {
        let copied = copy(place, stage).and_then(|()| grow_copy(place, fs_type));
        copied.and_then(|()| exchange(place)).map_err(|cause| cause.after_undo(remove_growing(place)))
    });
    grown.map_err(|cause| match cause {
        Error::Busy(_) | Error::Unavailable(_) => cause,
        cause => {
            let message = format!(
                "the filesystem of {id} is smaller than its volume. It cannot grow while it is mounted ({refused}): give the driver CAP_SYS_RESOURCE. It could not grow before the mount either: {cause}"
            );
            let no_room = matches!(cause, Error::Exhausted(_))
                || matches!(cause.errno(), Some(Errno::ENOSPC | Errno::EDQUOT));
            if no_room { Error::Exhausted(message) } else { Error::InUse(message) }
        }
    })
}

fn copy(place: Place<'_>, stage: &Stage<'_>) -> Result<()> {
    let (images, from, to) = (&place.os.images, place.paths.data(), growing_image(place.paths));
    let copying = || format!("copy the image of {}", place.volume.id);
    let stat = image::stat(place)?;
    wait_until_detached(place, stat.id)?;
    place.os.files.create_file(&to).doing(copying)?;
    match images.reflink(&from, &to) {
        Err(error)
            if [Errno::EOPNOTSUPP, Errno::EINVAL, Errno::EXDEV].iter().any(|e| is_errno(&error, *e)) =>
        {
            let mut room = (stage.room)(stat.allocated)?;
            copy_extents(place.os, &from, &to, copying, &mut |done| {
                room.report(done);
                Ok(())
            })?;
        }
        shared => shared.doing(copying)?,
    }
    if place.volume.parameters.provisioning == Provisioning::Thick {
        images.allocate(&to, stat.size).doing(copying)?;
    }
    Ok(())
}

fn grow_copy(place: Place<'_>, fs_type: FsType) -> Result<()> {
    let (os, growing_image) = (place.os, growing_image(place.paths));
    let growing = || format!("grow a copy of the filesystem of {}", place.volume.id);
    let open = os.loops.attach(&growing_image, device::options(place, false, true)).doing(growing)?;
    let device = device::node(place, &open.device).path;
    os.filesystems.grow_unmounted(fs_type, &device).doing(growing)?;
    // It is the user's data: nothing but a whole filesystem takes their place.
    os.filesystems.check(fs_type, &device).doing(growing)?;
    os.loops.flush(&open.device).doing(growing)?;
    let backing = open.device.backing;
    drop(open);
    // The kernel tells it of every filesystem that has not shut down, which one that was just written to has not.
    backing.map_or(Ok(()), |backing| wait_until_detached(place, backing))
}

/// Puts the grown copy where the image was.
fn exchange(place: Place<'_>) -> Result<()> {
    let (files, paths) = (&place.os.files, place.paths);
    let exchanging = || format!("put the grown filesystem of {} in its place", place.volume.id);
    files.sync_file(&growing_image(paths)).doing(exchanging)?;
    files.rename(&growing_image(paths), &paths.data()).doing(exchanging)?;
    files.sync_directory(&paths.directory).doing(exchanging)
}

/// Waits until an image has no device any more: what somebody wrote through it later would be lost.
///
/// # Errors
/// UNAVAILABLE where it keeps one; the kernel's.
fn wait_until_detached(place: Place<'_>, backing: FileId) -> Result<()> {
    let (tries, pause) = PATIENCE;
    let find = || place.os.loops.find(backing).doing(|| "find loop devices".to_owned());
    for _ in 1..tries {
        if find()?.is_empty() {
            return Ok(());
        }
        std::thread::sleep(pause);
    }
    match find()?.first() {
        None => Ok(()),
        Some(device) => Err(device::is_open(place, device)),
    }
}
