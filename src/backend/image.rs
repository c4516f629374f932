//! An image file: the data of a volume whose size is a hard limit, for both a filesystem and a raw device.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::bytes::{GoOn, gone, is_thick};
use super::copy::copy_extents;
use super::{Bytes, Copy, Mark, OnProgress, Place, Shape, Share, Signature, VolumePaths, label, record};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{FileStat, Os};
use crate::model::format_two;

/// See the module.
pub(super) struct Image;

impl Bytes for Image {
    fn name(&self) -> &'static str {
        "disk.img"
    }

    fn shape(&self, data: PathBuf) -> Shape {
        Shape::Blocks(data)
    }

    fn shares_whole(&self) -> bool {
        true
    }

    /// Sparse for thin and allocated for thick; with its first mark where there will be others.
    fn create(&self, place: Place<'_>, new_record: &[u8]) -> Result<()> {
        let (files, images, image) = (&place.os.files, &place.os.images, place.paths.data());
        let creating = || format!("create the image of {}", place.volume.id);
        files.create_directory(&place.paths.directory, 0o700).doing(creating)?;
        files.create_file(&image).doing(creating)?;
        if place.volume.fs_type().is_some() {
            Mark::Blank.set(place.os, place.paths)?;
        }
        images.write_in_place(&image).doing(creating)?;
        resize(place, &image, place.volume.capacity_bytes).doing(creating)?;
        // First: a journal commits the image with it, so that the next sync has little to do. There are no data yet, and who finds the
        // record without the image knows that the volume was never acknowledged.
        record::write_new(place.os, place.paths, new_record)?;
        files.sync_file(&image).doing(creating)?;
        files.sync_directory(&place.paths.directory).doing(creating)?;
        files.sync_directory(&place.paths.parent).doing(creating)
    }

    fn prepare(&self, os: &Os, paths: &VolumePaths) -> Result<()> {
        let (image, preparing) = (paths.data(), || format!("prepare {}", paths.directory.display()));
        os.files.create_file(&image).doing(preparing)?;
        // A clone becomes as its source is.
        os.images.write_in_place(&image).doing(preparing).map(drop)
    }

    fn copy(&self, copy: &Copy<'_>, progress: OnProgress<'_>) -> Result<()> {
        let (from, to) = (copy.from.data(), copy.to.data());
        match copy.share {
            Share::Files | Share::Whole => copy.os.images.reflink(&from, &to).doing(|| copy.doing("reflink")),
            Share::Nothing => copy_extents(copy.os, &from, &to, || copy.doing("copy"), progress),
        }
    }

    fn sync(&self, os: &Os, paths: &VolumePaths) -> Result<()> {
        os.files.sync_file(&paths.data()).doing(|| format!("sync {}", paths.directory.display()))
    }

    fn stretch(&self, place: Place<'_>, bytes: u64) -> Result<()> {
        let (image, wanted) = (place.paths.data(), place.volume.capacity_bytes);
        let stretching = || format!("give {} its size", place.volume.id);
        if !is_thick(place) && wanted == bytes {
            return Ok(());
        }
        resize(place, &image, wanted).doing(stretching)?;
        place.os.files.sync_file(&image).doing(stretching)
    }

    fn is_blank(&self, os: &Os, paths: &VolumePaths) -> Result<bool> {
        let image = paths.data();
        let first = os.images.next_data(&image, 0).doing(|| format!("read {}", image.display()))?;
        Ok(first.is_none())
    }

    fn allocated(&self, os: &Os, paths: &VolumePaths) -> Result<u64> {
        let stat = os.files.stat(&paths.data()).doing(|| format!("look at {}", paths.directory.display()))?;
        Ok(stat.map_or(0, |stat| stat.allocated))
    }

    fn to_copy(&self, os: &Os, paths: &VolumePaths) -> Result<u64> {
        let (image, mut at, mut bytes) = (paths.data(), 0, 0);
        let reading = || format!("read the extents of {}", image.display());
        while let Some((from, to)) = os.images.next_data(&image, at).doing(reading)? {
            (at, bytes) = (to, bytes + (to - from));
        }
        Ok(bytes)
    }

    fn expect_whole(&self, os: &Os, paths: &VolumePaths, bytes: u64, what: &dyn Display) -> Result<()> {
        let image = paths.data();
        match os.files.stat(&image).doing(|| format!("look at {}", image.display()))? {
            Some(stat) if stat.size < bytes => {
                let [size, bytes] = format_two(stat.size, bytes);
                Err(Error::InUse(format!(
                    "the image {} has {size} and {what} {bytes}: it was truncated; restore it from a backup",
                    image.display(),
                )))
            }
            _ => Ok(()),
        }
    }

    fn recover(&self, place: Place<'_>) -> Result<Option<u64>> {
        let (volume, image) = (place.volume, place.paths.data());
        if let Err(error) = remove_growing(place) {
            // The next NodeStageVolume or DeleteVolume does it.
            tracing::warn!(volume.id = %volume.id, %error, "the copy of a growth that was cut off is still there");
        }
        prepare_existing(place, &image);
        let stat = place.os.files.stat(&image).doing(|| format!("look at {}", image.display()))?;
        let stat = stat.ok_or_else(|| gone(&image, "volume"))?;
        if stat.size <= volume.capacity_bytes {
            // Growing it would hide what is lost.
            return expect_whole(place).map(|()| None);
        }
        // Its sync may have been cut off, and the record must not outlive what it tells of.
        place.os.files.sync_file(&image).doing(|| format!("sync {}", image.display()))?;
        Ok(Some(stat.size))
    }

    fn grow(&self, place: Place<'_>, bytes: u64) -> Result<u64> {
        expect_whole(place)?;
        let image = place.paths.data();
        let growing = || format!("grow {} to {bytes} bytes", place.volume.id);
        let before = stat(place)?.size;
        if before >= bytes {
            return Ok(before); // what a crash left; the record follows
        }
        let grown =
            resize(place, &image, bytes).and_then(|()| place.os.files.sync_file(&image)).doing(growing);
        grown.map(|()| before).map_err(|cause| cause.after_undo(self.ungrow(place, before)))
    }

    /// As far as nobody has taken it on: neither the record, nor a device, which may have been attached or grown behind
    /// our back, nor the filesystem. What they reach may hold data.
    fn ungrow(&self, place: Place<'_>, before: u64) -> Result<()> {
        let undoing = || format!("take back the growth of {}", place.volume.id);
        let (images, loops, image) = (&place.os.images, &place.os.loops, place.paths.data());
        let stat = stat(place)?;
        let mut least = before.max(place.volume.capacity_bytes);
        for device in loops.find(stat.id).doing(undoing)? {
            least = least.max(loops.size(&device).doing(undoing)?);
        }
        if let Some(Signature::Filesystem { bytes, .. }) = label(images.as_ref(), &image).doing(undoing)? {
            least = least.max(bytes);
        }
        match stat.size > least {
            true => images.set_size(&image, least).doing(undoing),
            false => Ok(()),
        }
    }

    fn tool_at_work(&self, os: &Os, paths: &VolumePaths) -> Option<String> {
        for image in [paths.data(), growing_image(paths)] {
            let Some(stat) = os.files.stat(&image).ok()? else { continue };
            let devices = os.loops.find(stat.id).ok()?;
            let told = devices.iter().find_map(|device| os.filesystems.working_on(&device.path()));
            if told.is_some() {
                return told;
            }
        }
        None
    }

    /// The data of an image go in one step even so.
    fn begin_deletion_without_mark(&self, _os: &Os, _paths: &VolumePaths, _full: Error) -> Result<()> {
        Ok(())
    }

    fn remove(&self, os: &Os, paths: &VolumePaths, _go_on: GoOn<'_>) -> Result<bool> {
        let (files, removing) = (&os.files, || format!("remove {}", paths.directory.display()));
        files.remove_file(&paths.data()).doing(removing)?;
        files.remove_file(&growing_image(paths)).doing(removing)?;
        files.remove_file(&staged_changes(paths)).doing(removing)?;
        record::remove(os, paths)?;
        Mark::clear_all(os, paths)?;
        files.remove_directory(&paths.directory).doing(removing).map(|()| true)
    }

    /// No image has a limit.
    fn remove_within_limit(&self, _os: &Os, _paths: &VolumePaths, _go_on: GoOn<'_>) -> Result<bool> {
        Ok(true)
    }
}

/// A copy of the image in which its filesystem grows. Whatever there is of it is of no use without the call that made
/// it.
pub(super) fn growing_image(paths: &VolumePaths) -> PathBuf {
    paths.directory.join("disk.img.growing")
}

/// What changes in a copy, before it is applied.
pub(crate) fn staged_changes(paths: &VolumePaths) -> PathBuf {
    paths.directory.join("disk.img.changes")
}

/// Removes what a growth that was cut off has left, so that it takes no room.
///
/// # Errors
/// UNAVAILABLE where a tool still works on it, whose driver was killed; the kernel's.
pub(super) fn remove_growing(place: Place<'_>) -> Result<()> {
    let (os, path) = (place.os, growing_image(place.paths));
    let removing = || format!("remove {}", path.display());
    let Some(stat) = os.files.stat(&path).doing(removing)? else { return Ok(()) };
    if let Some(device) = os.loops.find(stat.id).doing(|| "find loop devices".to_owned())?.first() {
        let device = device.path();
        return Err(Error::Unavailable(format!(
            "a tool that an earlier driver started still works on {}; try again",
            device.display()
        )));
    }
    os.files.remove_file(&path).doing(removing)
}

/// Prepares an existing image, such as one restored from a backup, for writes in place.
fn prepare_existing(place: Place<'_>, image: &Path) {
    let volume = place.volume;
    match place.os.images.write_in_place(image) {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            volume.id = %volume.id, image = %image.display(),
            "the image is copy-on-write, as after a restore from a backup: writes fail if the pool is full. While the volume is not in use, copy the image into an empty file with chattr +C, and rename that file to the image"
        ),
        // Where the image is gone, what follows says so; on a full disk the next attachment tries again.
        Err(error) => tracing::debug!(volume.id = %volume.id, %error, "the image was not prepared"),
    }
}

pub(super) fn resize(place: Place<'_>, image: &Path, bytes: u64) -> std::io::Result<()> {
    match is_thick(place) {
        false => place.os.images.set_size(image, bytes),
        true => place.os.images.allocate(image, bytes),
    }
}

/// Refuses an image that was cut off.
pub(super) fn expect_whole(place: Place<'_>) -> Result<()> {
    let Place { os, volume, paths } = place;
    Image.expect_whole(os, paths, volume.capacity_bytes, &format_args!("volume {}", volume.id))
}

/// lstat(2) of the image.
///
/// # Errors
/// Where the image of an acknowledged volume is gone: someone else removed it.
pub(super) fn stat(place: Place<'_>) -> Result<FileStat> {
    let image = place.paths.data();
    let stat = place.os.files.stat(&image).doing(|| format!("look at {}", image.display()))?;
    stat.ok_or_else(|| {
        let context = format!(
            "volume {} has lost its image; restore it from a backup or delete the volume",
            place.volume.id
        );
        Error::Os { context, source: crate::kernel::errno_error(Errno::ENOENT, image.display()) }
    })
}
