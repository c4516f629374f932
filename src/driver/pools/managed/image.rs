//! The image file of a managed pool: made, found attached, attached, grown.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::{Lock, Managed, Medium};
use crate::backend::{Signature, inspect};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{AttachOptions, FileId, FileKind, LoopDevice, OpenLoop, errno_of, is_errno};
use crate::model::{GRANULARITY, format_bytes, format_exactly, format_two};

/// The logical block size of the device in bytes. The filesystem takes its sector size from the device that it is made
/// on and cannot be mounted on one of larger blocks: with the largest that there is, the image can move to any disk,
/// and all of its I/O is aligned to the blocks of the filesystem below, which direct I/O needs to be fast.
const BLOCK_SIZE: u32 = 4096;

/// How long a device of a half-made image may take to go: under the mkfs of a driver that was killed.
const LEFTOVER: Duration = Duration::from_secs(5);

/// How often a device that goes away while it is opened is looked for again.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The image's path with something added to its name.
fn beside(image: &Path, end: &str) -> PathBuf {
    let mut path = OsString::from(image);
    path.push(end);
    PathBuf::from(path)
}

impl Managed<'_> {
    /// Takes the image for this process alone.
    pub(super) fn lock(&self, image: &Path) -> Result<Lock> {
        match self.os.files.lock(&beside(image, ".hostloop-lock")) {
            Err(error) if is_errno(&error, Errno::EWOULDBLOCK) => {
                Err(self.refuse(format!("{} is in use by another driver: {error}", image.display())))
            }
            locked => locked.doing(|| self.doing("lock its image")),
        }
    }

    /// The image's loop device: the one that there is, or a new one, on an image that is made if it is missing.
    pub(super) fn attach(&self, image: &Path, bytes: u64) -> Result<Medium> {
        match self.os.files.stat(image).doing(|| self.doing("look at its image"))? {
            None => self.make_image(image, bytes),
            Some(stat) if stat.kind == FileKind::File => {
                let found = inspect(self.os.images.as_ref(), image)?;
                let filesystem_bytes = self.expect_filesystem(image, found)?;
                self.warn_of_copy_on_write(image)?;
                let open = self.device_of(image, stat.id)?;
                self.check_size(&open.device, stat.size)?;
                Ok(Medium::of(image, open, filesystem_bytes, false))
            }
            Some(_) => Err(self.refuse(format!("{} is not a regular file", image.display()))),
        }
    }

    /// Warns of a copy-on-write image, such as one restored from a backup: btrfs allocates new blocks for each write, and
    /// its disk may have no room for them.
    fn warn_of_copy_on_write(&self, image: &Path) -> Result<()> {
        let looking = || self.doing("look at its image");
        if !self.os.images.is_in_place(image).doing(looking)? {
            tracing::warn!(
                pool = %self.name, image = %image.display(),
                "the pool's image is copy-on-write, as after a restore from a backup: its volumes fail if the disk is full. Stop the driver, unmount the pool, copy the image into an empty file with chattr +C, and rename that file to the image"
            );
        }
        Ok(())
    }

    /// Makes the image with its filesystem. It gets its name when it is whole and durable: one that has the name is
    /// never half made.
    fn make_image(&self, image: &Path, bytes: u64) -> Result<Medium> {
        self.refuse_if_in_use(image, "is missing")?;
        self.refuse_if_covered()?;
        let started = Instant::now();
        let fs_type = self.fs_type;
        self.os.filesystems.check_tools(fs_type).doing(|| self.doing(&format!("make {fs_type}")))?;
        let new = beside(image, ".hostloop-new");
        self.remove_leftover(&new)?;
        let made = self.make_new(&new, bytes).and_then(|open| {
            let naming = || self.doing("give the new image its name");
            let parent = image.parent().unwrap_or(image);
            self.os.files.rename(&new, image).doing(naming)?;
            self.os.files.sync_directory(parent).doing(naming)?;
            Ok(open)
        });
        // Its space is not kept from others; the next start makes it anew.
        let removing = || self.doing("remove the half-made image");
        let made = made.map_err(|cause| cause.after_undo(self.os.files.remove_file(&new).doing(removing)))?;
        tracing::info!(
            pool = %self.name, image = %image.display(), size = %format_bytes(bytes), %fs_type, ms = started.elapsed().as_millis() as u64,
            "made the pool's image"
        );
        Ok(Medium::of(image, made, bytes, true))
    }

    /// Removes what a start left that was ended while it made the image. A mkfs that outlived its driver may still
    /// write to it: it keeps the loop device, and with that the space, as long as it runs.
    fn remove_leftover(&self, new: &Path) -> Result<()> {
        let removing = || self.doing("remove a half-made image");
        let Some(stat) = self.os.files.stat(new).doing(removing)? else { return Ok(()) };
        let until = Instant::now() + LEFTOVER;
        while let Some(device) = self.os.loops.find(stat.id).doing(removing)?.first() {
            if Instant::now() >= until {
                return Err(Error::Unavailable(self.doing(&format!(
                    "the mkfs of an earlier start still runs: {} is attached as {}; the pool is made when it has ended",
                    new.display(),
                    device.path().display()
                ))));
            }
            std::thread::sleep(PAUSE);
        }
        self.os.files.remove_file(new).doing(removing)?;
        tracing::info!(pool = %self.name, path = %new.display(), "removed what an interrupted start left");
        Ok(())
    }

    fn make_new(&self, new: &Path, bytes: u64) -> Result<OpenLoop> {
        let (files, images) = (&self.os.files, &self.os.images);
        let making = || self.doing(&format!("make {}", new.display()));
        files.create_file(new).doing(making)?;
        images.write_in_place(new).doing(making)?;
        self.allocate(new, bytes)?;
        files.sync_file(new).doing(making)?;
        let device = self.attach_new(new)?;
        // It was made above, with a name that only the driver gives: but nothing is formatted unseen.
        match inspect(images.as_ref(), new)? {
            Signature::Blank => {}
            found => return Err(self.refuse(format!("{} holds {}", new.display(), found.describe()))),
        }
        self.make_filesystem(&device.device.path(), true)?;
        files.sync_file(new).doing(making)?;
        Ok(device)
    }

    /// Allocates all of the image, so that no write in the pool can ever meet a full disk.
    fn allocate(&self, image: &Path, bytes: u64) -> Result<()> {
        let image_name = image.display();
        match self.os.images.allocate(image, bytes) {
            Err(error) if matches!(errno_of(&error), Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)) => {
                let size = format_bytes(bytes);
                Err(self.refuse(format!("its disk has no room for {image_name} of {size}; choose a smaller size=: {error}")))
            }
            Err(error) if is_errno(&error, Errno::EOPNOTSUPP) => Err(self.refuse(format!(
                "the filesystem of {image_name} cannot allocate files (fallocate): use ext4, xfs or btrfs, or kind=device"
            ))),
            allocated => allocated.doing(|| self.doing(&format!("allocate {image_name}"))),
        }
    }

    /// The image's only device, opened.
    fn device_of(&self, image: &Path, id: FileId) -> Result<OpenLoop> {
        for _ in 0..ATTEMPTS {
            let Some(device) = self.only_device(image, id)? else { return self.attach_new(image) };
            match self.os.loops.open(&device) {
                // It went away meanwhile, with its last user.
                Err(error) if matches!(errno_of(&error), Some(Errno::ENXIO | Errno::ENODEV)) => {
                    std::thread::sleep(PAUSE);
                }
                opened => return opened.doing(|| self.doing("open its loop device")),
            }
        }
        Err(Error::Unavailable(self.doing("its loop device comes and goes; start again")))
    }

    /// Makes a device what ours are, whoever attached it: with direct I/O, and without discard, since the image is
    /// allocated and stays so.
    fn adopt(&self, device: &LoopDevice) -> Result<()> {
        let adopting = || self.doing("adopt its loop device");
        if !device.direct_io {
            match self.os.loops.set_direct_io(device, true) {
                Err(error) if is_errno(&error, Errno::EINVAL) => tracing::warn!(
                    pool = %self.name, device = %device.path().display(),
                    "no direct I/O on the disk of the pool's image: its data is cached twice"
                ),
                set => set.doing(adopting)?,
            }
        }
        self.os.loops.stop_discard(device).doing(adopting)
    }

    /// The image's device, if it has one.
    ///
    /// # Errors
    /// Where it has several: whatever is written now can destroy the filesystem. And where the one cannot be written to.
    fn only_device(&self, image: &Path, id: FileId) -> Result<Option<LoopDevice>> {
        let mut found = self.os.loops.find(id).doing(|| self.doing("find its loop devices"))?;
        if found.len() > 1 {
            let names: Vec<_> = found.iter().map(|device| device.path().display().to_string()).collect();
            return Err(self.refuse(format!(
                "{} is attached {} times ({}), which destroys its filesystem when two of them are used: find out why, unmount and detach all but the one that is mounted, and start again",
                image.display(),
                names.len(),
                names.join(", ")
            )));
        }
        match found.pop() {
            Some(device) if device.read_only => {
                let device = device.path();
                Err(self.refuse(format!(
                    "{} is attached read-only as {}; detach it",
                    image.display(),
                    device.display()
                )))
            }
            found => Ok(found),
        }
    }

    /// Attaches the image, which has no device, and makes sure that nobody else has done the same meanwhile.
    fn attach_new(&self, image: &Path) -> Result<OpenLoop> {
        let options = AttachOptions {
            read_only: false,
            autoclear: true,
            direct_io: true,
            block_size: BLOCK_SIZE,
            discard: false,
        };
        let open = self.os.loops.attach(image, options).doing(|| self.doing("attach its image"))?;
        let looking = || self.doing("look at its image");
        let stat = self.os.files.stat(image).doing(looking)?;
        let id = stat.map(|stat| stat.id).filter(|id| open.device.backing == Some(*id));
        self.only_device(image, id.ok_or_else(|| self.refuse("its image was exchanged".to_owned()))?)?;
        Ok(open)
    }

    /// Makes sure that the device shows all of the image: a growth that was cut off is finished, and a device that
    /// somebody attached with an offset or a limit is not ours.
    fn check_size(&self, device: &LoopDevice, image_bytes: u64) -> Result<()> {
        let measuring = || self.doing("measure its loop device");
        let expected = image_bytes / 512 * 512;
        if self.os.loops.size(device).doing(measuring)? == expected {
            return Ok(());
        }
        self.os.loops.update_size(device).doing(measuring)?;
        match self.os.loops.size(device).doing(measuring)? {
            size if size == expected => Ok(()),
            size => {
                let [shown, size] = format_two(size, image_bytes);
                Err(self.refuse(format!(
                    "{} shows {shown} of the image's {size}: another program attached it; detach it",
                    device.path().display()
                )))
            }
        }
    }

    /// Brings image, device and filesystem of the mounted pool to the configured size, and mends an image that has
    /// holes. Never shrinks.
    pub(super) fn grow_image(&self, image: &Path, bytes: u64, medium: &Medium) -> Result<()> {
        let growing = || self.doing(&format!("grow {}", image.display()));
        let Some(before) = self.os.files.stat(image).doing(growing)?.map(|stat| stat.size) else {
            return Err(self.refuse(format!("{} was removed", image.display())));
        };
        if bytes < before {
            tracing::warn!(
                pool = %self.name, image = %image.display(), size = %format_exactly(before),
                configured = %format_exactly(bytes),
                "the pool is larger than its size= says and stays so: nothing is ever shrunk"
            );
        }
        let wanted = bytes.max(before);
        // Costs nothing where all is allocated; mends what a tool of the host may have trimmed.
        self.allocate(image, wanted)?;
        if wanted > before {
            self.os.files.sync_file(image).doing(growing)?;
            tracing::info!(pool = %self.name, image = %image.display(), from = %format_bytes(before), to = %format_bytes(wanted), "grew the pool's image");
        }
        if let Some(open) = &medium.device {
            self.adopt(&open.device)?;
            self.check_size(&open.device, wanted)?;
        }
        self.grow_filesystem(medium, wanted)
    }

    /// Grows the mounted filesystem to its device. One that has the size, but for less than a block, stays as it is.
    pub(super) fn grow_filesystem(&self, medium: &Medium, device_bytes: u64) -> Result<()> {
        if medium.filesystem_bytes >= device_bytes / GRANULARITY * GRANULARITY {
            return Ok(());
        }
        let growing = || self.doing(&format!("grow its {} filesystem", self.fs_type));
        self.os.filesystems.grow(self.fs_type, &medium.path, &self.target()).doing(growing)?;
        tracing::info!(pool = %self.name, size = %format_bytes(device_bytes), "grew the pool's filesystem to its device");
        Ok(())
    }
}

impl Medium {
    fn of(image: &Path, open: OpenLoop, filesystem_bytes: u64, made: bool) -> Self {
        let (path, rdev) = (open.device.path(), open.device.rdev);
        Medium { known_as: image.to_owned(), path, rdev, filesystem_bytes, made, device: Some(open) }
    }
}
