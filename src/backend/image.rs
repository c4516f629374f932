//! The image file of a loop volume: made, grown and removed alike for a filesystem and for a raw device.

use std::path::Path;

use super::{Place, Uses};
use crate::error::{Error, OsContext, Result};
use crate::model::Provisioning;
use crate::os::{AttachOptions, FileStat, OpenLoop};

/// Makes the volume's directory and its image: sparse for thin, allocated for thick. Durable on return.
pub(super) fn create(place: Place<'_>) -> Result<()> {
    let (disks, image) = (&place.os.disks, place.paths.image());
    let creating = || format!("create the image of {}", place.volume.id);
    disks.create_directory(&place.paths.directory, 0o700).doing(creating)?;
    disks.create_file(&image).doing(creating)?;
    resize(place, &image, place.volume.capacity_bytes).doing(creating)?;
    disks.sync_file(&image).doing(creating)?;
    disks.sync_directory(&place.paths.directory).doing(creating)?;
    disks.sync_directory(&place.paths.parent).doing(creating)
}

fn resize(place: Place<'_>, image: &Path, bytes: u64) -> std::io::Result<()> {
    match place.volume.parameters.provisioning {
        Provisioning::Thin => place.os.disks.set_size(image, bytes),
        Provisioning::Thick => place.os.disks.allocate(image, bytes),
    }
}

/// Lengthens the image, or leaves it as it was. Durable on return.
pub(super) fn grow(place: Place<'_>, bytes: u64) -> Result<()> {
    let image = place.paths.image();
    let growing = || format!("grow {} to {bytes} bytes", place.volume.id);
    let before = stat(place)?.size;
    if before >= bytes {
        return Ok(()); // what a crash left; the record follows
    }
    let grown = resize(place, &image, bytes).and_then(|()| place.os.disks.sync_file(&image)).doing(growing);
    grown.map_err(|cause| match ungrow(place, before) {
        Ok(()) => cause,
        Err(undo) => Error::Undo { cause: Box::new(cause), undo: Box::new(undo) },
    })
}

/// Takes back a growth that no device has taken on yet, so that nothing was written beyond `bytes`.
pub(super) fn ungrow(place: Place<'_>, bytes: u64) -> Result<()> {
    place
        .os
        .disks
        .set_size(&place.paths.image(), bytes)
        .doing(|| format!("take back the growth of {}", place.volume.id))
}

/// lstat(2) of the image.
///
/// # Errors
/// Where the image of an acknowledged volume is gone: someone else removed it.
pub(super) fn stat(place: Place<'_>) -> Result<FileStat> {
    let image = place.paths.image();
    let stat = place.os.disks.stat(&image).doing(|| format!("look at {}", image.display()))?;
    stat.ok_or_else(|| lost(place, &image))
}

fn lost(place: Place<'_>, image: &Path) -> Error {
    let context = format!(
        "volume {} has lost its image; restore it from a backup or delete the volume",
        place.volume.id
    );
    Error::Os { context, source: crate::os::errno_error(nix::errno::Errno::ENOENT, image.display()) }
}

/// The volume's loop devices and every mount of them.
pub(super) fn uses(place: Place<'_>) -> Result<Uses> {
    let Some(stat) = place
        .os
        .disks
        .stat(&place.paths.image())
        .doing(|| format!("look at the image of {}", place.volume.id))?
    else {
        return Ok(Uses::default());
    };
    let loops = place.os.loops.find(stat.id).doing(|| "find loop devices".to_owned())?;
    if loops.is_empty() {
        return Ok(Uses::default());
    }
    let mounts = place.os.mounts.list().doing(|| "read mountinfo".to_owned())?;
    Ok(Uses { mounts, partial: Vec::new(), loops })
}

/// Attaches the image, or opens the device that has it already with the same access. Without autoclear only one
/// will do that is not on its way out ([`Uses::live_loops`]); with it, the open descriptor keeps it.
pub(super) fn attach(place: Place<'_>, uses: &Uses, read_only: bool, autoclear: bool) -> Result<OpenLoop> {
    let attaching = || format!("attach {}", place.volume.id);
    if let Some(device) =
        uses.loops.iter().find(|device| device.read_only == read_only && (autoclear || !device.autoclear))
    {
        return place.os.loops.open(device).doing(attaching);
    }
    let thick = place.volume.parameters.provisioning == Provisioning::Thick;
    if thick && !read_only {
        // Mends what a tool of the host may have trimmed. Where nothing is missing the kernel is not asked: on a full
        // disk xfs answers ENOSPC also for blocks that are there.
        let stat = stat(place)?;
        if stat.allocated < stat.size {
            place.os.disks.allocate(&place.paths.image(), stat.size).doing(attaching)?;
        }
    }
    let options = AttachOptions {
        read_only,
        autoclear,
        direct_io: place.volume.parameters.direct_io,
        block_size: place.volume.block_size,
        discard: place.volume.parameters.discards(),
    };
    place.os.loops.attach(&place.paths.image(), options).doing(attaching)
}
