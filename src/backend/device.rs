//! The loop device of an image, which presents the data to a filesystem or a pod as a block device. The image itself is
//! in `image`, and what is on the device in `filesystem` and `block`.

use std::path::PathBuf;

use nix::errno::Errno;

use super::bytes::is_thick;
use super::image::{expect_whole, stat};
use super::uses::{Evidence, evidence, last_two};
use super::{Place, Uses};
use crate::error::{Busy, Error, OsContext, Result};
use crate::kernel::{AttachOptions, LoopDevice, OpenLoop, Os, is_errno};

/// The block device that holds the volume's data in the clear: what gets a filesystem, is mounted, or is bound for a pod.
pub(super) struct Node {
    pub(super) path: PathBuf,
    /// Its number, as stat(2) and mountinfo have it.
    pub(super) rdev: u64,
}

/// The node of a volume that is attached to this device. It is the loop device's own: nothing lies between. What does one day
/// is put there here, and by [`attach`].
pub(super) fn node(_place: Place<'_>, device: &LoopDevice) -> Node {
    Node { path: device.path(), rdev: device.rdev }
}

/// What a tool did on a volume's device that is not mounted. Where another program has the device, such as the tool of a
/// driver that was killed, the caller has nothing to do but to come again.
pub(super) fn alone(
    done: std::io::Result<()>,
    place: Place<'_>,
    device: &LoopDevice,
    doing: impl FnOnce() -> String,
) -> Result<()> {
    match done {
        Err(error) if is_errno(&error, Errno::EBUSY) => Err(is_open(place, device)),
        done => done.doing(doing),
    }
}

/// UNAVAILABLE, since somebody has the volume's device open.
pub(super) fn is_open(place: Place<'_>, device: &LoopDevice) -> Error {
    Error::Unavailable(format!(
        "{} of volume {} is open; try again. A tool that an earlier driver started ends by itself; end any other program",
        device.path().display(),
        place.volume.id
    ))
}

/// Prepares an image for writes in place. The start has not done so if the image was restored from a backup since then,
/// or if its pool was unavailable. A full disk is no reason to refuse the volume: an unprepared image endangers only the
/// promises of its pool.
fn prepare(place: Place<'_>) -> std::io::Result<()> {
    match place.os.images.write_in_place(&place.paths.data()) {
        Err(error) if is_errno(&error, Errno::ENOSPC) => {
            tracing::warn!(volume.id = %place.volume.id, %error, "the image cannot be prepared for writing in place");
            Ok(())
        }
        prepared => prepared.map(drop),
    }
}

/// The volume's loop devices: those of the image that lies there, or of what was there before.
///
/// The ones that this process knows are asked first, whatever there is besides: on a node with many volumes a look at all
/// devices takes longer than all the rest. That there is none has to be seen: nobody has the image open, or every device
/// has another file.
pub(super) fn uses(place: Place<'_>) -> Result<Uses> {
    let (image, loops) = (place.paths.data(), &place.os.loops);
    let finding = || "find loop devices".to_owned();
    let stat = place.os.files.stat(&image);
    let id = stat.as_ref().ok().and_then(|stat| stat.map(|stat| stat.id));
    let of_image = |devices: Vec<LoopDevice>| -> (Vec<LoopDevice>, Vec<LoopDevice>) {
        devices.into_iter().partition(|device| id.is_some() && device.backing == id)
    };
    let (found, others) = of_image(loops.seen(id, &last_two(&place.paths.directory)).doing(finding)?);
    let is_closed = || id.is_some() && place.os.files.seen_closed(&image).unwrap_or(false);
    let (found, others) = match found.is_empty() {
        true if !is_closed() => of_image(loops.list().doing(finding)?),
        _ => (found, others),
    };
    let mut uses = Uses { loops: found, ..Uses::default() };
    if !uses.loops.is_empty() {
        return Ok(uses);
    }
    for device in others {
        let looking = || format!("look at the file of {}", device.path().display());
        let Some(shown) = place.os.loops.backing_path(&device).doing(looking)? else { continue };
        match evidence(place, &shown)? {
            Evidence::Foreign => {}
            Evidence::Suspected => uses.suspected.push(device),
            Evidence::Proven => uses.loops.push(device),
        }
    }
    if uses.any() {
        let image = image.display();
        uses.astray = Some(match stat {
            Ok(Some(_)) => format!("{image} is another file than the one in use"),
            Ok(None) => format!("{image} is gone"),
            Err(error) => format!("the disk does not let {image} be read ({error})"),
        });
    }
    Ok(uses)
}

/// Attaches the image, or opens the device that has it already with the same access and brings it to what the record
/// says. Without autoclear only one will do that is not on its way out ([`Uses::live_loops`]); with it, the open
/// descriptor keeps it.
pub(super) fn attach(place: Place<'_>, uses: &Uses, read_only: bool, autoclear: bool) -> Result<OpenLoop> {
    expect_whole(place)?;
    let attaching = || format!("attach {}", place.volume.id);
    if let Some(device) =
        uses.loops.iter().find(|device| device.read_only == read_only && (autoclear || !device.autoclear))
    {
        let open = place.os.loops.open(device).doing(attaching)?;
        conform(place, &open.device, uses)?;
        return Ok(open);
    }
    if !read_only {
        prepare(place).doing(attaching)?;
        mend(place)?;
    }
    place.os.loops.attach(&place.paths.data(), options(place, read_only, autoclear)).doing(attaching)
}

/// Takes back a device that ends with its last user, and sets what the record says.
///
/// # Errors
/// ABORTED if it has just gone: the retry attaches another one.
pub(super) fn keep(place: Place<'_>, device: &LoopDevice, uses: &Uses) -> Result<()> {
    expect_whole(place)?;
    let open = match place.os.loops.keep(device) {
        Err(error) if is_errno(&error, Errno::ENXIO) => {
            let detaching = format!("detaching {}", device.path().display());
            return Err(Busy::on(&place.volume.id).because(detaching).into());
        }
        kept => kept.doing(|| format!("attach {}", place.volume.id))?,
    };
    tracing::info!(
        volume.id = %place.volume.id, device = %device.path().display(),
        "another process kept the device of an earlier use open, using it again"
    );
    conform(place, &open.device, uses)
}

/// FAILED_PRECONDITION that names what has a device of the volume open.
pub(super) fn is_held(place: Place<'_>, device: &LoopDevice) -> Error {
    let (id, path) = (&place.volume.id, device.path());
    let access = if device.read_only { "read-only" } else { "writable" };
    let who = held_by(place.os, device);
    Error::InUse(format!(
        "volume {id} is still attached as {} ({access}) from an earlier use, because {who}; end that first",
        path.display()
    ))
}

/// Returns why a volume is attached that is mounted nowhere, and what to do; empty if it is mounted.
pub(crate) fn why_attached(os: &Os, uses: &Uses, is_filesystem: bool) -> String {
    let Some(device) = uses.loops.first().filter(|_| uses.all().next().is_none()) else {
        return String::new();
    };
    let who = held_by(os, device);
    match is_filesystem {
        // A mount alone can thaw it, and NodeStageVolume makes one.
        true => format!(
            "; no mount of it is seen here: {who}, or its filesystem was frozen when it was unmounted. End the program, or start a pod with the volume, which thaws it"
        ),
        false => format!("; {who}"),
    }
}

/// Returns what has a device open, for people.
pub(super) fn held_by(os: &Os, device: &LoopDevice) -> String {
    match os.loops.holders(device) {
        Ok(holders) if !holders.is_empty() => holders.join(", "),
        Ok(_) => "a program that the driver does not see has it open".to_owned(),
        Err(error) => format!("a program has it open, and looking for it failed ({error})"),
    }
}

/// Detaches a device that nobody else has open; one that somebody has goes with its last use.
pub(super) fn detach(place: Place<'_>, device: &LoopDevice) -> Result<()> {
    place.os.loops.detach(device).doing(|| format!("detach {}", place.volume.id))
}

/// What a new device of the volume is to be.
pub(super) fn options(place: Place<'_>, read_only: bool, autoclear: bool) -> AttachOptions {
    let (parameters, block_size) = (&place.volume.parameters, place.volume.block_size);
    let (direct_io, discard) = (parameters.direct_io, parameters.discards());
    AttachOptions { read_only, autoclear, direct_io, block_size, discard }
}

/// Brings a device that was there already to what the volume's record says. It may be as LOOP_CONFIGURE left it in a
/// driver that was killed then, as an earlier record wanted it, or attached by somebody else.
pub(super) fn conform(place: Place<'_>, device: &LoopDevice, uses: &Uses) -> Result<()> {
    let (loops, parameters) = (&place.os.loops, &place.volume.parameters);
    let conforming = || format!("bring {} to what {} is", device.path().display(), place.volume.id);
    if !device.read_only {
        // First, so that nothing is discarded after it was mended.
        if !parameters.discards() {
            loops.stop_discard(device).doing(conforming)?;
        }
        mend(place)?;
    }
    if uses.mounts.is_empty() && uses.partial.is_empty() {
        let bytes = place.volume.block_size;
        if let Err(error) = loops.set_block_size(device, bytes) {
            // What cannot live with the other size says so, such as xfs when it is mounted.
            tracing::warn!(volume.id = %place.volume.id, device = %device.path().display(), bytes, %error, "the device keeps another block size");
        }
    }
    if device.direct_io != parameters.direct_io {
        match loops.set_direct_io(device, parameters.direct_io) {
            // It is a wish, as with a new device.
            Err(error) if parameters.direct_io && is_errno(&error, Errno::EINVAL) => {}
            set => set.doing(conforming)?,
        }
    }
    take_on_size(place, device)
}

/// Lets a device take on the size of the image, where that is longer.
pub(super) fn take_on_size(place: Place<'_>, device: &LoopDevice) -> Result<()> {
    let growing = || format!("grow the device of {}", place.volume.id);
    match stat(place)?.size > place.os.loops.size(device).doing(growing)? {
        true => place.os.loops.update_size(device).doing(growing),
        false => Ok(()),
    }
}

/// Allocates what a thick image lacks, such as what a tool of the host has trimmed. Where nothing is missing the kernel
/// is not asked: on a full disk xfs answers ENOSPC also for blocks that are there.
fn mend(place: Place<'_>) -> Result<()> {
    if !is_thick(place) {
        return Ok(());
    }
    let stat = stat(place)?;
    if stat.allocated >= stat.size {
        return Ok(());
    }
    let mending = || format!("allocate what the thick volume {} lacks", place.volume.id);
    place.os.images.allocate(&place.paths.data(), stat.size).doing(mending)
}

/// Gives the numbers of devices back that went with their last use, so that others can discard with them. What becomes
/// of a number is no reason to fail.
pub(super) fn give_back(place: Place<'_>, devices: &[LoopDevice]) {
    for device in devices {
        if let Err(error) = place.os.loops.give_back(device) {
            tracing::warn!(device = %device.path().display(), %error, "the next user of this device cannot discard with it");
        }
    }
}
