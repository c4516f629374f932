//! What holds the data of a volume or a snapshot on its pool, whoever uses them and however. It knows no mount.
//!
//! Volumes and snapshots use the same trait, because they are stored on the disk in the same way.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::target::blame_mounts;
use super::{Copy, Mark, OnProgress, Place, bytes_of, limit, record};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Os, QuotaLimits};
use crate::model::{BackendKind, Provisioning, QuotaId, SnapshotId, Volume, VolumeId};

use nix::errno::Errno;

/// The files of one volume or snapshot: `<pool>/volumes/<id>/` or `<pool>/snapshots/<id>/` and what lies in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePaths {
    /// `<pool>/volumes` or `<pool>/snapshots`
    pub parent: PathBuf,
    /// Below it, named like the id.
    pub directory: PathBuf,
    /// What its filesystem limits it to.
    pub(super) limit: Option<Limit>,
    kind: BackendKind,
}

/// The size of a directory that its filesystem enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub id: QuotaId,
    pub limits: QuotaLimits,
}

impl VolumePaths {
    /// The paths of a volume in the pool at `pool`.
    pub fn of_volume(pool: &Path, volume: &Volume) -> Self {
        let limits = QuotaLimits { bytes: volume.capacity_bytes, inodes: volume.inode_limit() };
        let limit = volume.quota.map(|id| Limit { id, limits });
        VolumePaths { limit, ..Self::new(pool, volume.directory(), volume.parameters.backend) }
    }

    /// Returns the size that the filesystem enforces, in bytes; `None` if it enforces none.
    pub(crate) fn enforced_bytes(&self) -> Option<u64> {
        self.limit.map(|limit| limit.limits.bytes)
    }

    /// The paths of a volume with this directory in the pool at `pool`, without a limit.
    pub fn new(pool: &Path, directory: &VolumeId, kind: BackendKind) -> Self {
        Self::below(pool.join("volumes"), directory.as_str(), kind)
    }

    /// The paths of snapshot `id` in the pool at `pool`: the same shapes.
    pub fn of_snapshot(pool: &Path, id: &SnapshotId, kind: BackendKind) -> Self {
        Self::below(pool.join("snapshots"), id.as_str(), kind)
    }

    fn below(parent: PathBuf, id: &str, kind: BackendKind) -> Self {
        let directory = parent.join(id);
        VolumePaths { parent, directory, limit: None, kind }
    }

    /// What holds the data there.
    pub fn bytes(&self) -> &'static dyn Bytes {
        bytes_of(self.kind)
    }

    /// The file or directory of the data: what a volume or snapshot cannot be without.
    pub fn data(&self) -> PathBuf {
        self.directory.join(self.bytes().name())
    }

    /// How the data can be read by whoever knows nothing of backends.
    pub fn shape(&self) -> Shape {
        self.bytes().shape(self.data())
    }

    /// The image of what has blocks; `None` for a tree.
    pub fn image(&self) -> Option<PathBuf> {
        match self.shape() {
            Shape::Blocks(image) => Some(image),
            Shape::Tree(_) => None,
        }
    }
}

/// How data can be read and written by whoever knows nothing of backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// One file, block by block.
    Blocks(PathBuf),
    /// A directory, entry by entry.
    Tree(PathBuf),
}

/// Asked before each entry of a tree is removed: whether to go on.
pub type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// What holds data on a pool.
pub trait Bytes: Send + Sync {
    /// The name of the data within the directory of the volume or snapshot.
    fn name(&self) -> &'static str;

    /// How they can be read.
    fn shape(&self, data: PathBuf) -> Shape;

    /// Whether a copy that shares blocks is made in one step and takes no room.
    fn shares_whole(&self) -> bool;

    /// Makes a volume's files, with the record beside them; all of it is durable on return. On an error the caller removes what was made.
    fn create(&self, place: Place<'_>, record: &[u8]) -> Result<()>;

    /// Makes what a copy goes into, of which the directory is there. Whatever fails from here on, [`remove_files`]
    /// removes it all.
    fn prepare(&self, os: &Os, paths: &VolumePaths) -> Result<()>;

    /// Copies; the new files were prepared.
    fn copy(&self, copy: &Copy<'_>, progress: OnProgress<'_>) -> Result<()>;

    /// Makes the data of a copy durable.
    fn sync(&self, os: &Os, paths: &VolumePaths) -> Result<()>;

    /// Gives a copy of `bytes` the size of its volume, and a thick one its blocks.
    fn stretch(&self, place: Place<'_>, bytes: u64) -> Result<()>;

    /// Whether nothing was ever written there.
    fn is_blank(&self, os: &Os, paths: &VolumePaths) -> Result<bool>;

    /// What the data have allocated.
    fn allocated(&self, os: &Os, paths: &VolumePaths) -> Result<u64>;

    /// What a copy into blocks of its own takes: the data only, without what a thick image has allocated and nobody
    /// has written to yet.
    fn to_copy(&self, os: &Os, paths: &VolumePaths) -> Result<u64>;

    /// Refuses data that are shorter than `bytes`; what is gone is left to who needs it. They are lengthened before their
    /// record is, so that no crash leaves any that are shorter: somebody else has cut them off, and what was behind is
    /// lost. They are never lengthened again, which would only hide that.
    ///
    /// # Errors
    /// FAILED_PRECONDITION with what to do.
    fn expect_whole(&self, os: &Os, paths: &VolumePaths, bytes: u64, what: &dyn Display) -> Result<()>;

    /// Puts a volume's files in order at the start. Gives the size that the data have where it is more than the record
    /// says, durably: an expansion was cut off.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where data are lost; the kernel's.
    fn recover(&self, place: Place<'_>) -> Result<Option<u64>>;

    /// Makes the volume's storage `bytes` long, unless it is longer; durable on return. Gives the size it had. On an
    /// error it is as long as before.
    fn grow(&self, place: Place<'_>, bytes: u64) -> Result<u64>;

    /// Takes back a `grow` of storage that had `before` bytes, but for what anything has taken on meanwhile.
    fn ungrow(&self, place: Place<'_>, before: u64) -> Result<()>;

    /// How far a tool is that works on the data, if one does.
    fn tool_at_work(&self, _os: &Os, _paths: &VolumePaths) -> Option<String> {
        None
    }

    /// What is done where a full disk leaves no room for the mark of a deletion.
    fn begin_deletion_without_mark(&self, os: &Os, paths: &VolumePaths, full: Error) -> Result<()>;

    /// Removes the data, whatever of them there is, then the marks, since they say what the rest is, then the directory.
    /// Whether nothing is left: entries are removed one by one only as long as `go_on` says so.
    fn remove(&self, os: &Os, paths: &VolumePaths, go_on: GoOn<'_>) -> Result<bool>;

    /// The first part of [`remove`](Bytes::remove) of what has a limit, while that still holds. Whether nothing is left of
    /// what can be removed so.
    fn remove_within_limit(&self, os: &Os, paths: &VolumePaths, go_on: GoOn<'_>) -> Result<bool>;
}

/// Makes the directory of a volume or a snapshot, and what a copy of another one goes into. From here on it carries
/// [`Mark::Making`].
pub fn prepare_files(os: &Os, paths: &VolumePaths) -> Result<()> {
    let preparing = || format!("prepare {}", paths.directory.display());
    match paths.limit {
        Some(limit) => limit::create(os, paths, limit)?,
        None => os.files.create_directory(&paths.directory, 0o700).doing(preparing)?,
    }
    Mark::Making.set(os, paths)?;
    paths.bytes().prepare(os, paths)
}

/// Makes what was copied durable, then writes its record, so that there is none of a copy that is not whole.
pub fn sync_files(os: &Os, paths: &VolumePaths, new_record: &[u8]) -> Result<()> {
    let syncing = || format!("sync {}", paths.directory.display());
    os.files.sync_directory(&paths.directory).doing(syncing)?;
    paths.bytes().sync(os, paths)?;
    record::write_new(os, paths, new_record)?;
    if let Shape::Blocks(_) = paths.shape() {
        os.files.sync_directory(&paths.directory).doing(syncing)?;
    }
    os.files.sync_directory(&paths.parent).doing(syncing)
}

/// Makes what was copied durable.
pub fn sync_copied(os: &Os, paths: &VolumePaths) -> Result<()> {
    let syncing = || format!("sync {}", paths.directory.display());
    // First the mark: on btrfs an image can be durable without its neighbours.
    os.files.sync_directory(&paths.directory).doing(syncing)?;
    paths.bytes().sync(os, paths)?;
    os.files.sync_directory(&paths.parent).doing(syncing)
}

/// Says that the deletion of what is there has begun. A full disk does not stop it.
///
/// # Errors
/// The kernel's others.
pub fn begin_deletion(os: &Os, paths: &VolumePaths) -> Result<()> {
    let looking = || format!("look at {}", paths.directory.display());
    if os.files.stat(&paths.directory).doing(looking)?.is_none() {
        return Ok(());
    }
    match Mark::Deleting.set(os, paths) {
        Err(error) if is_full(&error) => paths.bytes().begin_deletion_without_mark(os, paths, error),
        set => set,
    }
}

/// Whether the disk has no room for it.
pub(super) fn is_full(error: &Error) -> bool {
    matches!(error.errno(), Some(Errno::ENOSPC | Errno::EDQUOT))
}

/// Removes the files of a volume or a snapshot, whatever of them there is, as long as `go_on` says so. Whether nothing is left,
/// durably.
pub fn remove_files(os: &Os, paths: &VolumePaths, go_on: GoOn<'_>) -> Result<bool> {
    // First, so that it is durable with the removal: a limit without a volume would keep its number from everybody. btrfs may
    // also want room for a removal, which a full quota does not have.
    paths.limit.map_or(Ok(()), |limit| limit::lift(os, paths, limit))?;
    let removed = paths.bytes().remove(os, paths, go_on);
    if !removed.map_err(|cause| blame_mounts(os, &paths.directory, cause))? {
        return Ok(false);
    }
    let removing = || format!("remove {}", paths.directory.display());
    os.files.sync_directory(&paths.parent).doing(removing)?;
    // Last: as long as anything is there, its number is nobody else's.
    paths.limit.map_or(Ok(()), |limit| limit::give_back(os, paths, limit)).map(|()| true)
}

/// [`remove_files`] of a large tree, which takes long: as long as there is much of it, its limit holds, so that nobody who still
/// has a file of it open can take more of the pool.
pub fn remove_large_files(os: &Os, paths: &VolumePaths, go_on: GoOn<'_>) -> Result<bool> {
    let removed = match paths.limit {
        Some(_) => paths.bytes().remove_within_limit(os, paths, go_on),
        None => Ok(true),
    };
    match removed {
        Ok(false) => Ok(false),
        Err(error) if !is_full(&error) => Err(error),
        _ => remove_files(os, paths, go_on),
    }
}

/// Moves what is being removed to another place of the same filesystem, with its mark; durable on return.
///
/// # Errors
/// EXDEV where it is not the same filesystem; the kernel's others.
pub fn move_files(os: &Os, from: &VolumePaths, to: &VolumePaths) -> Result<()> {
    let moving = || format!("move {} to {}", from.directory.display(), to.directory.display());
    os.files.sync_directory(&from.directory).doing(moving)?;
    os.files.rename(&from.directory, &to.directory).doing(moving)?;
    os.files.sync_directory(&to.parent).doing(moving)?;
    if from.parent != to.parent {
        os.files.sync_directory(&from.parent).doing(moving)?;
    }
    // What is left of it is being removed, whatever a mark said of its making.
    remove_beside(os, from)
}

/// Removes what lies beside the directory of a tree that is gone from there.
pub(super) fn remove_beside(os: &Os, paths: &VolumePaths) -> Result<()> {
    record::remove(os, paths)?;
    Mark::clear_beside(os, paths)
}

/// What a start says of a volume or a snapshot without data.
pub fn gone(data: &Path, what: &str) -> Error {
    Error::InUse(format!("its {} is gone; restore it or delete the {what}", data.display()))
}

/// Whether blocks are allocated for all of a volume.
pub(super) fn is_thick(place: Place<'_>) -> bool {
    place.volume.parameters.provisioning == Provisioning::Thick
}
