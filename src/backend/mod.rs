//! Where bytes live. A backend knows one kind of volume: how to make and remove it on disk, and how to bring
//! it to a path and take it away again. It keeps no memory: what is mounted or attached is asked of the kernel
//! each time. Which calls are allowed when is the driver's business.

mod block;
mod copy;
mod directory;
mod filesystem;
mod growth;
mod health;
mod image;
mod mark;
mod signature;
mod target;
mod uses;
mod whole;

pub use copy::{Copy, OnProgress, prepare_files, remove_files, sync_files};
pub use health::{Seen, troubles};
pub use mark::{Mark, begin_deletion};
pub use signature::{Found, inspect, inspect_device, label, make_filesystem};
pub use target::{Target, remove as remove_target, resolve, take_away};
pub use uses::{Uses, hidden};
pub use whole::expect_whole;

use std::path::{Path, PathBuf};

use crate::error::{OsContext, Result};
use crate::model::{BackendKind, Content, Format, MountFlags, SnapshotId, Volume, VolumeId};
use crate::os::{MountEntry, Os, Usage};

/// The files of one volume or snapshot: `<pool>/volumes/<id>/` or `<pool>/snapshots/<id>/` and what lies in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePaths {
    /// `<pool>/volumes` or `<pool>/snapshots`
    pub parent: PathBuf,
    /// Below it, named like the id.
    pub directory: PathBuf,
}

impl VolumePaths {
    /// The paths of volume `id` in the pool at `pool`.
    pub fn new(pool: &Path, id: &VolumeId) -> Self {
        let parent = pool.join("volumes");
        let directory = parent.join(id.as_str());
        VolumePaths { parent, directory }
    }

    /// The paths of snapshot `id` in the pool at `pool`: the same shapes.
    pub fn of_snapshot(pool: &Path, id: &SnapshotId) -> Self {
        let parent = pool.join("snapshots");
        let directory = parent.join(id.as_str());
        VolumePaths { parent, directory }
    }

    /// The image of a loop volume.
    pub fn image(&self) -> PathBuf {
        self.directory.join("disk.img")
    }

    /// A copy of the image in which its filesystem grows. Whatever there is of it is of no use without the call that
    /// made it.
    pub fn growing_image(&self) -> PathBuf {
        growth::growing_image(&self.directory)
    }

    /// The directory of a directory volume.
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// The one or the other: what a volume or snapshot of this backend cannot be without.
    pub fn content(&self, kind: BackendKind) -> PathBuf {
        match kind {
            BackendKind::Loop => self.image(),
            BackendKind::Directory => self.data(),
        }
    }
}

/// One volume and the machine it is on.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The machine.
    pub os: &'a Os,
    /// The volume.
    pub volume: &'a Volume,
    /// Its files.
    pub paths: &'a VolumePaths,
}

/// Removes what a growth that was cut off has left, so that it takes no room.
///
/// # Errors
/// UNAVAILABLE where a tool still works on it, whose driver was killed; the kernel's.
pub fn remove_growing(place: Place<'_>) -> Result<()> {
    let (os, path) = (place.os, place.paths.growing_image());
    let removing = || format!("remove {}", path.display());
    let Some(stat) = os.disks.stat(&path).doing(removing)? else { return Ok(()) };
    if let Some(device) = os.loops.find(stat.id).doing(|| "find loop devices".to_owned())?.first() {
        let device = device.path();
        return Err(crate::error::Error::Unavailable(format!(
            "a tool of an earlier driver still works on {}, try again",
            device.display()
        )));
    }
    os.disks.remove_file(&path).doing(removing)
}

/// The room for a copy of an image, as long as the value lives, and how far it is.
pub trait CopyRoom {
    /// So many bytes are copied.
    fn report(&mut self, done: u64);
}

/// NodeStageVolume, as a backend sees it.
pub struct Stage<'a> {
    /// Where; resolved.
    pub target: &'a Target,
    /// Mount flags.
    pub flags: &'a MountFlags,
    /// Nothing may be written through it.
    pub read_only: bool,
    /// Makes a change of [`Format`] durable before it goes on.
    pub record: &'a dyn Fn(Format) -> Result<()>,
    /// Sets room aside in the volume's pool for a copy of so many bytes.
    pub room: &'a dyn Fn(u64) -> Result<Box<dyn CopyRoom>>,
}

/// NodePublishVolume, as a backend sees it.
pub struct Publish<'a> {
    /// Where the volume is staged.
    pub staging: &'a Path,
    /// Where to; resolved.
    pub target: &'a Target,
    /// Mount flags; for a bind mount those of the VFS count.
    pub flags: &'a MountFlags,
    /// Nothing may be written through it.
    pub read_only: bool,
}

/// Sizes for NodeGetVolumeStats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stats {
    /// A filesystem of its own: statvfs(3) says it all.
    Filesystem(crate::os::Space),
    /// A directory on a filesystem that it shares: what it takes, and what is there in all.
    Directory(Usage, crate::os::Space),
    /// A device of so many bytes.
    Device(u64),
}

/// One kind of volume.
pub trait Backend: Send + Sync {
    /// Makes the volume's files; all of it is durable on return. On an error the caller removes what was made.
    fn create(&self, place: Place<'_>) -> Result<()>;

    /// Removes the volume's files, also half-made ones; durable on return; fine if there are none.
    fn remove(&self, place: Place<'_>) -> Result<()>;

    /// What the kernel says about the volume.
    fn uses(&self, place: Place<'_>) -> Result<Uses>;

    /// Brings the volume to its staging path, where it is not yet.
    fn stage(&self, place: Place<'_>, stage: &Stage<'_>, uses: &Uses) -> Result<()>;

    /// Finishes what a staging that was cut off after its last mount has left undone.
    fn finish_stage(&self, place: Place<'_>, stage: &Stage<'_>, uses: &Uses) -> Result<()>;

    /// Takes the volume away from its staging path; nothing else uses it.
    fn unstage(&self, place: Place<'_>, staging: &Target, uses: &Uses) -> Result<()>;

    /// Whether the volume is staged at the path.
    fn is_staged(&self, uses: &Uses, staging: &Path) -> bool;

    /// Makes the staged volume, which is what is seen at its staging path, appear at a target path, where it is not yet.
    fn publish(&self, place: Place<'_>, publish: &Publish<'_>, uses: &Uses) -> Result<()>;

    /// Whether what is mounted at a target path lets nobody write.
    fn is_read_only(&self, place: Place<'_>, mount: &MountEntry, uses: &Uses) -> Result<bool>;

    /// Cleans up what only the publish needed, after its mount is gone.
    fn after_unpublish(&self, place: Place<'_>) -> Result<()>;

    /// Makes the volume's storage `bytes` long, unless it is longer; durable on return. Gives the size it had. On an
    /// error it is as long as before.
    fn grow(&self, place: Place<'_>, bytes: u64) -> Result<u64>;

    /// Takes back a `grow` of storage that had `before` bytes, but for what anything has taken on meanwhile.
    fn ungrow(&self, place: Place<'_>, before: u64) -> Result<()>;

    /// Lets a volume in use take on the size of its storage.
    fn grow_in_use(&self, place: Place<'_>, uses: &Uses) -> Result<()>;

    /// Sizes, read at a path where the volume is mounted.
    fn stats(&self, place: Place<'_>, path: &Path, uses: &Uses) -> Result<Stats>;
}

/// The backend of a volume with this content.
pub fn backend_of(content: &Content) -> &'static dyn Backend {
    match content {
        Content::Block => &block::Block,
        Content::Filesystem { .. } => &filesystem::Filesystem,
        Content::Directory => &directory::Directory,
    }
}
