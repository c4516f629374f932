//! The trees that other nodes read: those of directories, and those in images of cuts, which are mounted while they are read.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::backend::{Inside, Shape, Signature, inspect};
use crate::driver::Driver;
use crate::driver::copies::changes::Change;
use crate::driver::locks::guarded::Guarded;
use crate::error::{Error, Result};
use crate::kernel::{Base, Disks};
use crate::model::{Format, FsType, Snapshot, SnapshotId};

/// The cuts that are mounted now. All streams of a cut share one mount.
#[derive(Default)]
pub(crate) struct Mounted(Guarded<HashMap<SnapshotId, Arc<Mutex<Weak<Inside>>>>>);

/// The top of a tree.
pub(super) enum Top {
    Directory(PathBuf),
    /// In an image. The mount ends with the last reader.
    Inside(Arc<Inside>, FsType),
    /// No filesystem was ever made in the image.
    Nothing,
}

/// A tree, and the earlier tree that it is compared with.
pub(super) struct Compared {
    pub(super) top: Top,
    earlier: Option<Top>,
    /// Where the two images differ.
    changed: Option<Vec<Range<u64>>>,
}

impl Top {
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Top::Directory(path) => Some(path),
            Top::Inside(inside, _) => Some(inside.path()),
            Top::Nothing => None,
        }
    }
}

impl Compared {
    /// Returns the earlier tree; `None` if there is none, or if its filesystem was never made.
    pub(super) fn base(&self) -> Option<Base<'_>> {
        let path = self.earlier.as_ref()?.path()?;
        let disks = match (&self.earlier, &self.changed) {
            (Some(Top::Directory(_)), _) => Disks::One,
            (_, Some(changed)) => Disks::Images(changed),
            (_, None) => Disks::Unrelated,
        };
        Some(Base { path, disks })
    }
}

impl Driver {
    /// Opens the tree of a source, and that of an earlier cut.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a raw device, and for the image of a snapshot. Only images of cuts are mounted, because a mount
    /// can change an image.
    pub(super) fn compared(&self, snapshot: &Snapshot, earlier: Option<&Snapshot>) -> Result<Compared> {
        let (top, earlier_top) = (self.top(snapshot)?, earlier.map(|cut| self.top(cut)).transpose()?);
        // After both mounts: replaying a journal changes an image.
        let changed = match (&top, &earlier_top, earlier) {
            // btrfs reports logical addresses, not places on the disk.
            (Top::Inside(_, FsType::Ext4 | FsType::Xfs), Some(Top::Inside(..)), Some(earlier)) => {
                Some(self.changed_ranges(earlier, snapshot)?)
            }
            _ => None,
        };
        Ok(Compared { top, earlier: earlier_top, changed })
    }

    fn top(&self, snapshot: &Snapshot) -> Result<Top> {
        let not_a_tree = || Error::Invalid(format!("source {} is not a directory", snapshot.id));
        let image = match self.snapshot_paths(snapshot)?.shape() {
            Shape::Tree(tree) => return Ok(Top::Directory(tree)),
            Shape::Blocks(image) => image,
        };
        let filesystem = snapshot.content.filesystem().filter(|_| snapshot.pulled_for.is_some());
        match filesystem.ok_or_else(not_a_tree)? {
            // A record that is older than the filesystem must not make an empty volume of it.
            (_, Format::Blank) => match inspect(self.os.images.as_ref(), &image)? {
                Signature::Blank => Ok(Top::Nothing),
                found => Err(Error::InUse(format!(
                    "{} holds {}, and the record says that nothing was made there; start a pod with the volume, or check it",
                    image.display(),
                    found.describe()
                ))),
            },
            (_, Format::Formatting) => Ok(Top::Nothing),
            (fs_type, Format::Copied | Format::Formatted) => {
                let kind = (fs_type, snapshot.block_size);
                self.mounted
                    .of(&snapshot.id, || Inside::of_cut(&self.os, &image, kind))
                    .map(|inside| Top::Inside(inside, fs_type))
            }
        }
    }

    fn changed_ranges(&self, earlier: &Snapshot, later: &Snapshot) -> Result<Vec<Range<u64>>> {
        let mut changed: Vec<Range<u64>> = Vec::new();
        self.sides(earlier, later)?.each_change(0, &mut |change| {
            self.cuts.touch(&earlier.id);
            self.cuts.touch(&later.id);
            if let Change::Differs { range, .. } = change {
                match changed.last_mut().filter(|last| last.end == range.start) {
                    Some(last) => last.end = range.end,
                    None => changed.push(range),
                }
            }
            Ok(true)
        })?;
        Ok(changed)
    }
}

impl Mounted {
    /// Returns the mount of a cut. Calls `mount` if no stream reads the cut now.
    fn of(&self, id: &SnapshotId, mount: impl FnOnce() -> Result<Inside>) -> Result<Arc<Inside>> {
        let slot = {
            let mut all = self.0.lock();
            all.retain(|_, slot| {
                Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|slot| slot.strong_count() > 0)
            });
            Arc::clone(all.entry(id.clone()).or_default())
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inside) = slot.upgrade() {
            return Ok(inside);
        }
        let inside = Arc::new(mount()?);
        *slot = Arc::downgrade(&inside);
        Ok(inside)
    }
}
