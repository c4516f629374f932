//! Where data are, and how they get to a pod. There are two traits. `Bytes` is what holds the data of a volume or a
//! snapshot on the pool, an image or a tree. `Presence` is how a pod sees the data of a volume: as a filesystem, a raw
//! device or a directory. Between an image and what is on it is its loop device (`device`). Nothing here caches: the
//! kernel is asked each time what is mounted or attached. The driver decides which calls are allowed when.

mod adopt;
mod bind;
mod block;
mod bytes;
mod content;
mod copy;
mod device;
mod directory;
mod filesystem;
mod format;
mod growth;
mod health;
mod image;
mod inside;
mod limit;
mod mark;
mod propagated;
mod record;
mod signature;
mod target;
#[cfg(test)]
mod tests;
mod tree;
mod uses;
mod writers;

pub(crate) use adopt::{copy_in, expect_same, prepare_place, prepare_renamed};
pub(crate) use bytes::{
    Bytes, GoOn, Shape, VolumePaths, begin_deletion, gone, move_files, prepare_files, remove_files,
    remove_large_files, sync_copied, sync_files,
};
pub(crate) use content::{
    content_converted, content_for, content_of_copy, minimum_bytes, refused_option, unsupported,
};
pub(crate) use copy::{Copy, OnProgress, Share};
pub(crate) use device::why_attached;
pub(crate) use health::{ATTACHED_WITHOUT_MOUNT, LIMIT_REASONS, Seen, refuses_writes, troubles};
pub(crate) use image::staged_changes;
pub(crate) use inside::Inside;
pub(crate) use limit::{
    Allowance, bytes_of_subvolume, counted, expect_all_within, expect_within, narrow, too_small, widen,
};
pub(crate) use mark::Mark;
pub(crate) use record::{read_record, record_path, remove_new_record, replace_record};
pub(crate) use signature::make_filesystem;
pub use signature::{Signature, inspect, inspect_device, label};
pub(crate) use target::{Target, remove as remove_target, resolve, take_away};
pub(crate) use tree::{remove_trees_beside, rename_tree, replace_tree, staged_tree, tree_in_the_making};
pub(crate) use uses::{Uses, hidden, not_at};
pub(crate) use writers::Writers;

use std::path::Path;

use crate::error::Result;
use crate::kernel::{MountEntry, Os, Quota, Usage};
use crate::model::health::Trouble;
use crate::model::{BackendKind, Content, Format, MountFlags, Volume};

/// One volume and the machine it is on.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub os: &'a Os,
    pub volume: &'a Volume,
    pub paths: &'a VolumePaths,
}

/// The room for a copy of an image, as long as the value lives, and how far it is.
pub(crate) trait CopyRoom {
    /// So many bytes are copied.
    fn report(&mut self, done: u64);
}

/// NodeStageVolume, as a presence sees it.
pub(crate) struct Stage<'a> {
    /// Where; resolved.
    pub target: &'a Target,
    pub flags: &'a MountFlags,
    /// Nothing may be written through it.
    pub read_only: bool,
    /// Makes a change of [`Format`] durable before it goes on.
    pub record: &'a dyn Fn(Format) -> Result<()>,
    /// Sets room aside in the volume's pool for a copy of so many bytes.
    pub room: &'a dyn Fn(u64) -> Result<Box<dyn CopyRoom>>,
}

/// NodePublishVolume, as a presence sees it.
pub(crate) struct Publish<'a> {
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
pub(crate) enum Stats {
    /// A filesystem of its own: statvfs(3) says it all.
    Filesystem(crate::kernel::Space),
    /// A directory on a filesystem that it shares: what it takes, and what is there in all.
    Directory(Usage, crate::kernel::Space),
    /// A directory whose size its filesystem enforces: what it takes and may take, and what is there in all.
    Limited(Quota, crate::kernel::Space),
    /// A device of so many bytes.
    Device(u64),
}

/// How the data of a volume are there for a pod.
pub(crate) trait Presence: Send + Sync {
    /// What the kernel says about the volume.
    fn uses(&self, place: Place<'_>) -> Result<Uses>;

    /// Brings the volume to its staging path, where it is not yet.
    fn stage(&self, place: Place<'_>, stage: &Stage<'_>, uses: &Uses) -> Result<()>;

    /// Finishes what a staging that was cut off after its last mount has left undone.
    fn finish_stage(&self, place: Place<'_>, stage: &Stage<'_>, uses: &Uses) -> Result<()>;

    /// Takes the volume's mounts at a path away, see [`take_away`].
    ///
    /// # Errors
    /// FAILED_PRECONDITION if another mount hides them, and EBUSY.
    fn take_away(&self, place: Place<'_>, path: &Path, uses: &Uses) -> Result<()> {
        take_away(place.os, path, uses)
    }

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

    /// Lets a volume in use take on the size of its storage.
    fn grow_in_use(&self, place: Place<'_>, uses: &Uses) -> Result<()>;

    /// Sizes, read at a path where the volume is mounted.
    fn stats(&self, place: Place<'_>, path: &Path, uses: &Uses) -> Result<Stats>;

    /// Whether reading the sizes takes long, so that they are remembered for a while.
    fn has_slow_stats(&self) -> bool {
        false
    }

    /// Whether a staging is a bind mount, which gets its flags in a step of its own on old kernels.
    fn is_staged_by_bind(&self) -> bool {
        false
    }

    /// What is wrong with the volume; nothing where it is as it should be.
    fn troubles(&self, place: Place<'_>, seen: &Seen) -> Vec<Trouble>;

    /// Who may be writing to the volume.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where something else hides its mounts.
    fn writers(&self, place: Place<'_>, uses: &Uses) -> Result<Writers>;
}

/// What holds the data of a backend.
fn bytes_of(kind: BackendKind) -> &'static dyn Bytes {
    match kind {
        BackendKind::Loop => &image::Image,
        BackendKind::Directory => &tree::Tree,
    }
}

/// How a volume with this content is there.
pub(crate) fn presence_of(content: &Content) -> &'static dyn Presence {
    match content {
        Content::Block => &block::Block,
        Content::Filesystem { .. } => &filesystem::Filesystem,
        Content::Directory => &directory::Directory,
    }
}
