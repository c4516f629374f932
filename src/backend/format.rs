//! What the image of a filesystem volume holds: made where nothing is, and looked at before it is mounted.

use super::{Mark, Place, Signature, Stage, Uses, device, inspect, make_filesystem};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{LoopDevice, MakeOptions, OpenLoop};
use crate::model::{Format, FsType, Provisioning};

/// Makes the filesystem. The order is what makes it safe: look, mark that we start, make, write down that it is done,
/// take the mark away. Only an image that was seen blank, or that holds our own unfinished work, is ever written to.
pub(super) fn make(place: Place<'_>, stage: &Stage<'_>, uses: &Uses, fs_type: FsType) -> Result<OpenLoop> {
    let image = place.paths.data();
    let making = || format!("make {fs_type} for {}", place.volume.id);
    if uses.any() {
        let what = format!("{} is not formatted and yet {}", place.volume.id, uses.describe());
        // Without a mount it is the mkfs of a driver that was killed, which will end.
        let unmounted = uses.mounts.is_empty() && uses.partial.is_empty();
        return Err(if unmounted { Error::Unavailable(what) } else { Error::InUse(what) });
    }
    let begun = Mark::Formatting.is_set(place.os, place.paths)?;
    if begun {
        // mkfs was cut off by a crash; the volume was never mounted, so nothing of a user is in the image. The
        // state file may say `formatted` all the same, if that line failed: it must not outlive the erasing.
        (stage.record)(Format::Blank)?;
        match place.volume.parameters.provisioning {
            Provisioning::Thin => place.os.images.erase(&image).doing(making)?,
            // What it gives back for a moment somebody else may take.
            Provisioning::Thick => place.os.images.zero(&image).doing(making)?,
        }
        place.os.files.sync_file(&image).doing(making)?;
    }
    match inspect(place.os.images.as_ref(), &image)? {
        Signature::Blank => {}
        found => {
            let (id, found) = (&place.volume.id, found.describe());
            return Err(Error::InUse(format!(
                "the image of {id} already holds {found}, and hostloop never formats over data"
            )));
        }
    }
    if !begun && !Mark::Blank.becomes(Mark::Formatting, place.os, place.paths)? {
        Mark::Formatting.set(place.os, place.paths)?;
    }
    // Also of one that was there: its own sync may have failed.
    place.os.files.sync_directory(&place.paths.directory).doing(making)?;
    let made = device::attach(place, uses, false, true).and_then(|device| {
        // Seen above: the image is blank, also where its blocks are allocated.
        let options = MakeOptions { extra: place.volume.parameters.mkfs_options.clone(), zeroed: true };
        make_filesystem(place.os, &device::node(place, &device.device).path, fs_type, &options)
            .doing(making)?;
        Ok(device)
    })?;
    (stage.record)(Format::Formatted)?;
    Mark::Formatting.becomes(Mark::Formatted, place.os, place.paths)?;
    Ok(made)
}

/// What the volume's image holds, as far as a filesystem is to be made in it or was. The record may be older than the
/// image: it holds what was made in it where a mark says so.
pub(super) fn format_now(place: Place<'_>, recorded: Format) -> Result<Format> {
    match recorded {
        Format::Formatted | Format::Copied => {
            // A kill or a power cut can leave it behind the record.
            Mark::Formatting.becomes(Mark::Formatted, place.os, place.paths)?;
            Ok(recorded)
        }
        Format::Blank | Format::Formatting if Mark::Formatted.is_set(place.os, place.paths)? => {
            tracing::warn!(
                volume.id = %place.volume.id,
                "the state file is older than the filesystem in the image, which is used as it is"
            );
            Ok(Format::Formatted)
        }
        Format::Blank | Format::Formatting => Ok(recorded),
    }
}

/// Gives a copied filesystem an identity of its own. The record follows: after a crash in between it gets another
/// one, which does no harm, since it was never mounted.
pub(super) fn renew_identity(
    place: Place<'_>,
    stage: &Stage<'_>,
    device: &LoopDevice,
    fs_type: FsType,
) -> Result<()> {
    let renewing = || format!("give the copied filesystem of {} an identity of its own", place.volume.id);
    device::alone(
        place.os.filesystems.renew_identity(fs_type, &device::node(place, device).path),
        place,
        device,
        renewing,
    )?;
    (stage.record)(Format::Formatted)
}

/// Looks at the image before it is mounted: it must hold the volume's filesystem. One that its superblock
/// marks as damaged is repaired first, as far as that needs no decision. Returns the filesystem's size in bytes.
pub(super) fn check(place: Place<'_>, device: &LoopDevice, fs_type: FsType) -> Result<u64> {
    match inspect(place.os.images.as_ref(), &place.paths.data())? {
        Signature::Filesystem { fs_type: found, bytes, errors } if found == fs_type => {
            if errors {
                tracing::warn!(volume.id = %place.volume.id, "the filesystem has recorded errors; checking it before the mount");
                let repaired = place.os.filesystems.repair(fs_type, &device::node(place, device).path);
                device::alone(repaired, place, device, || format!("repair {}", place.volume.id))?;
            }
            Ok(bytes)
        }
        found => {
            let (id, found) = (&place.volume.id, found.describe());
            Err(Error::InUse(format!(
                "the image of {id} holds {found} where {fs_type} was made; it is left as it is"
            )))
        }
    }
}
