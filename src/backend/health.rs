//! What is wrong with a volume, judged by its files and by what the kernel shows. Nothing is changed, and a guess does
//! not count as a trouble.

use std::io;
use std::path::Path;

use super::bytes::Limit;
use super::target::has_stopped;
use super::{Place, Signature, filesystem, label, limit, presence_of};
use crate::error::{OsContext, Result};
use crate::kernel::{FileKind, FileStat, LoopDevice, MountEntry, Os, holder};
use crate::model::health::Trouble;
use crate::model::{Format, FsType, format_two};

/// The reason of a device without a mount. It also is so for a moment in the middle of a call.
pub(crate) const ATTACHED_WITHOUT_MOUNT: &str = "AttachedWithoutMount";

/// The reasons of a directory whose limit is not what its record says.
pub(crate) const LIMIT_REASONS: [&str; 2] = [SIZE_NOT_ENFORCED, LIMIT_CHANGED];
const SIZE_NOT_ENFORCED: &str = "SizeNotEnforced";
const LIMIT_CHANGED: &str = "LimitChanged";

/// One look at the kernel, which serves for every volume.
#[derive(Debug)]
pub struct Seen {
    mounts: Vec<MountEntry>,
    loops: Vec<LoopDevice>,
}

impl Seen {
    /// Looks now. The devices come first: a mount that is on none of them was made later.
    pub fn now(os: &Os) -> Result<Self> {
        let loops = os.loops.list().doing(|| "list the loop devices".to_owned())?;
        let mounts = os.mounts.list().doing(|| "read mountinfo".to_owned())?;
        Ok(Seen { mounts, loops })
    }

    /// The mount that holds a path, links resolved.
    pub fn holder(&self, path: &Path) -> Option<&MountEntry> {
        holder(&self.mounts, path)
    }
}

/// The troubles of a volume.
pub(crate) fn troubles(place: Place<'_>, seen: &Seen) -> Vec<Trouble> {
    presence_of(&place.volume.content).troubles(place, seen)
}

/// The directory of a directory volume.
pub(super) fn directory(place: Place<'_>) -> std::result::Result<(), Trouble> {
    let data = place.paths.data();
    match place.os.files.stat(&data) {
        Ok(Some(stat)) if stat.kind == FileKind::Directory => Ok(()),
        Ok(_) => Err(missing(place, &data, "DirectoryMissing")),
        Err(error) => Err(unreadable(&data, &error)),
    }
}

/// The limit of a directory that is there.
pub(super) fn limit(place: Place<'_>, limit: Limit) -> Option<Trouble> {
    let not_enforced = || match limit::not_enforced(place, limit)? {
        Some(why) => Ok(Some(why)),
        None => limit::escapes(place),
    };
    let seen = not_enforced().and_then(|not_enforced| {
        Ok(match not_enforced {
            Some(why) => Some((SIZE_NOT_ENFORCED, format!("its size is not enforced: {why}"))),
            None => limit::differs(place, limit)?.map(|how| (LIMIT_CHANGED, how)),
        })
    });
    match seen {
        Ok(seen) => seen.map(|(reason, message)| Trouble::degraded(reason, message)),
        Err(error) => Some(Trouble::inaccessible("PoolUnreadable", error.to_string())),
    }
}

/// The image of a loop volume. It may be longer than the record says, as in the middle of an expansion, and is never
/// shorter.
pub(super) fn image(place: Place<'_>) -> std::result::Result<FileStat, Trouble> {
    let (image, wanted) = (place.paths.data(), place.volume.capacity_bytes);
    match place.os.files.stat(&image) {
        Ok(Some(stat)) if stat.kind == FileKind::File && stat.size >= wanted => Ok(stat),
        Ok(Some(stat)) if stat.kind == FileKind::File => {
            let (image, [size, wanted]) = (image.display(), format_two(stat.size, wanted));
            let message = format!(
                "the image {image} has {size} and the volume {wanted}: it was truncated; restore it from a backup"
            );
            Err(Trouble::data_loss("ImageTruncated", message))
        }
        Ok(_) => Err(missing(place, &image, "ImageMissing")),
        Err(error) => Err(unreadable(&image, &error)),
    }
}

/// Where the directory of all volumes is gone too, the disk is more likely not mounted than empty.
fn missing(place: Place<'_>, file: &Path, reason: &'static str) -> Trouble {
    let (file, parent) = (file.display(), &place.paths.parent);
    match place.os.files.stat(parent) {
        Ok(Some(_)) => Trouble::data_loss(
            reason,
            format!("{file} is gone: restore it from a backup or delete the volume"),
        ),
        Ok(None) => Trouble::inaccessible(
            "PoolMissing",
            format!("{} is not there: is the disk of the pool mounted?", parent.display()),
        ),
        Err(error) => unreadable(parent, &error),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Trouble {
    Trouble::inaccessible(
        "PoolUnreadable",
        format!("the disk does not let {} be read: {error}", path.display()),
    )
}

/// The filesystem in an image.
pub(super) fn of_filesystem(
    place: Place<'_>,
    (fs_type, format): (FsType, Format),
    image: FileStat,
    seen: &Seen,
) -> Vec<Trouble> {
    let mut found = Vec::new();
    // Before the first staging nothing has to be there, and a copy is looked at when it is staged.
    if format == Format::Formatted {
        found.extend(in_superblock(place, fs_type));
    }
    let loops: Vec<LoopDevice> =
        seen.loops.iter().filter(|device| device.backing == Some(image.id)).cloned().collect();
    let mounts = seen.mounts.iter().filter(|mount| filesystem::is_of(mount, &loops, place));
    let mounts: Vec<&MountEntry> = mounts.collect();
    if let Some(device) = loops.first().filter(|_| mounts.is_empty()) {
        let message = format!(
            "it is attached as {} and no mount of it is seen: a program has the device open, or the filesystem was frozen when it was unmounted; a pod that uses the volume thaws it",
            device.path().display()
        );
        found.push(Trouble::degraded(ATTACHED_WITHOUT_MOUNT, message));
    }
    found.extend(mounts.iter().find_map(|mount| read_only(mount)));
    found.extend(mounts.iter().find_map(|mount| stopped(place, mount)));
    found
}

/// Returns what is wrong with a mounted filesystem that takes no writes although its mount would let them through;
/// `None` if it takes them.
pub(crate) fn refuses_writes(place: Place<'_>, mount: &MountEntry) -> Option<Trouble> {
    stopped(place, mount).or_else(|| read_only(mount))
}

/// A program that mounts it read-only makes each mount so. If the superblock alone is, the filesystem itself did it.
fn read_only(mount: &MountEntry) -> Option<Trouble> {
    (mount.superblock_read_only && !mount.read_only).then(|| {
        let message = format!(
            "the filesystem at {} became read-only after an error: see the kernel's log, and stage the volume again",
            mount.target.display()
        );
        Trouble::degraded("FilesystemReadOnly", message)
    })
}

fn stopped(place: Place<'_>, mount: &MountEntry) -> Option<Trouble> {
    let error = failed(place, mount)?;
    let message = format!(
        "the filesystem at {} stopped after an error ({error}): see the kernel's log, and stage the volume again",
        mount.target.display()
    );
    Some(Trouble::inaccessible("FilesystemStopped", message))
}

/// What the superblock in the image says of the filesystem.
fn in_superblock(place: Place<'_>, fs_type: FsType) -> Option<Trouble> {
    let image = place.paths.data();
    match label(place.os.images.as_ref(), &image) {
        Ok(Some(Signature::Filesystem { fs_type: found, errors: false, .. })) if found == fs_type => None,
        Ok(Some(Signature::Filesystem { fs_type: found, .. })) if found == fs_type => {
            let message = format!(
                "the {fs_type} filesystem has recorded errors; it is checked when the volume is staged next, after its pods have ended"
            );
            Some(Trouble::degraded("FilesystemErrors", message))
        }
        Ok(found) => {
            let found = found.map_or_else(|| "nothing that is known".to_owned(), Signature::describe);
            let message = format!(
                "{} holds {found} where {fs_type} was made: it was overwritten; restore it from a backup",
                image.display()
            );
            Some(Trouble::data_loss("FilesystemMissing", message))
        }
        Err(error) => Some(unreadable(&image, &error)),
    }
}

/// Why a mounted filesystem does not answer any more. That the mount has gone meanwhile is no reason.
fn failed(place: Place<'_>, mount: &MountEntry) -> Option<io::Error> {
    place.os.files.stat(&mount.target).err().filter(has_stopped)
}
