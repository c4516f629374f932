//! A filesystem in an image that is made file by file, since its source has another backend or another filesystem.
//!
//! Until the copy is complete, the files are in a directory of their own in the filesystem. A round makes the tree of the later cut from
//! hard links to the files of the earlier tree, and changes those files in place. An image may not have room for two copies of a large
//! file, and ext4 cannot share blocks.

use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;

use super::{Counted, Earlier, Making, Remote};
use crate::backend::{
    Inside, Place, VolumePaths, remove_trees_beside, rename_tree, replace_tree, staged_tree, sync_copied,
    tree_in_the_making,
};
use crate::driver::Driver;
use crate::driver::copies::progress::Progress;
use crate::error::{Error, OsContext, Result};
use crate::kernel::Reuse;
use crate::model::{CopyOf, Cut, Filled, FsType, Volume, format_bytes};

/// A copy and its paths.
type Copy<'a> = (&'a Volume, &'a VolumePaths);

impl Driver {
    /// Makes the filesystem of a new copy in its image, with all files of its source. After an error the caller removes it.
    ///
    /// # Errors
    /// As for a pull; RESOURCE_EXHAUSTED if the files do not fit into the filesystem.
    pub(super) fn fill_filesystem(
        &self,
        remote: &Remote,
        (volume, paths): Copy<'_>,
        image: &Path,
        progress: &mut Progress,
    ) -> Result<()> {
        let making = || format!("make {}", image.display());
        self.os.images.set_size(image, volume.capacity_bytes).doing(making)?;
        let (place, fs_type) = (self.place(volume, paths), filesystem_of(volume)?);
        let inside = Inside::make(place, fs_type)?;
        let trees = inside.trees(place);
        self.os.files.create_directory(&trees, 0o700).doing(making)?;
        let (path, pool) = (trees.join("data"), self.pool_of(volume)?);
        let making = Making { path: &path, pool: &pool, place, reserved: remote.description().data_bytes };
        self.pull_tree_to(remote, &making, progress)
            .map_err(|error| fitting(error, remote, volume, false))?;
        self.os.files.sync_directory(&trees).doing(|| format!("sync {}", trees.display()))
    }

    /// Brings the files of such a copy from one cut to another. `begin` is called before anything changes.
    ///
    /// # Errors
    /// As for a pull; RESOURCE_EXHAUSTED if the files do not fit into the filesystem; NOT_FOUND if they are not there, or if the same
    /// cut is refused again.
    pub(in crate::driver) fn refill_filesystem(
        &self,
        remote: &Remote,
        (volume, paths): Copy<'_>,
        (base, next): (&Cut, &Cut),
        begin: &dyn Fn() -> Result<()>,
        progress: &mut Progress,
    ) -> Result<Counted> {
        let place = self.place(volume, paths);
        let inside = Inside::of_volume(place, filesystem_of(volume)?)?;
        let trees = inside.trees(place);
        // An interrupted call may have made the tree of this cut.
        let is_begun = volume.copy_of.as_ref().is_some_and(|copy| copy.next.as_ref() == Some(next));
        if is_begun && replace_tree(&self.os, &trees, next)? {
            return remove_trees_beside(&self.os, &trees).map(|()| Counted::default());
        }
        let (data, path) = (trees.join("data"), tree_in_the_making(&trees));
        if self.os.files.stat(&data).doing(|| format!("look at {}", data.display()))?.is_none() {
            return Err(lost(volume));
        }
        remove_trees_beside(&self.os, &trees)?;
        begin()?;
        let earlier = Earlier { cut: &base.handle(), path: &data, reuse: Reuse::InPlace };
        let pool = self.pool_of(volume)?;
        let making = Making { path: &path, pool: &pool, place, reserved: 0 };
        let counted = self
            .stage_tree(remote, &earlier, &making, progress)
            .map_err(|error| fitting(error, remote, volume, is_begun))?;
        rename_tree(&self.os, &trees, (&path, &staged_tree(&trees, next)))?;
        replace_tree(&self.os, &trees, next)?;
        remove_trees_beside(&self.os, &trees)?;
        Ok(counted)
    }

    /// Moves the files of such a copy to the top of its filesystem. Returns any other copy unchanged.
    ///
    /// # Errors
    /// NOT_FOUND if they are not there; UNAVAILABLE if another process uses the image; those of the kernel.
    pub(in crate::driver) fn lift_filled(&self, volume: Arc<Volume>) -> Result<Arc<Volume>> {
        let Some((copy_of, filled)) =
            volume.copy_of.clone().and_then(|copy| Some((copy.clone(), copy.filled?)))
        else {
            return Ok(volume);
        };
        // A tool that an earlier process started can still write to the image.
        self.expect_unused(&volume).map_err(|error| match error {
            Error::InUse(why) => Error::Unavailable(why),
            error => error,
        })?;
        let paths = self.paths(&volume)?;
        let place: Place<'_> = self.place(&volume, &paths);
        let inside = Inside::of_volume(place, filesystem_of(&volume)?)?;
        let recorded = match filled {
            Filled::Lifting => Arc::clone(&volume),
            Filled::Apart => {
                let copy_of = Some(CopyOf { filled: Some(Filled::Lifting), ..copy_of });
                self.record(Volume { copy_of, ..(*volume).clone() })?
            }
        };
        // A crash can follow the last move, but only after the record says `Lifting`.
        if !inside.lift(place)? && filled == Filled::Apart {
            return Err(lost(&volume));
        }
        drop(inside);
        sync_copied(&self.os, &paths)?;
        Ok(recorded)
    }
}

fn filesystem_of(volume: &Volume) -> Result<FsType> {
    volume.fs_type().ok_or_else(|| Error::InUse(format!("copy {} holds no filesystem", volume.id)))
}

/// Returns the error of a pass whose files the filesystem cannot hold. If `is_again`, this cut was refused before. A cut does not change,
/// so the caller has to make another copy.
fn fitting(error: Error, remote: &Remote, volume: &Volume, is_again: bool) -> Error {
    let refused = match (error.errno(), volume.fs_type()) {
        (Some(Errno::ENOSPC | Errno::EDQUOT), Some(fs_type)) => Error::Exhausted(format!(
            "the files of {} do not fit into {fs_type} of {} ({error}); expand the claim, or remove files or \
             large extended attributes",
            remote.source,
            format_bytes(volume.capacity_bytes)
        )),
        (Some(Errno::EMLINK | Errno::ENAMETOOLONG | Errno::E2BIG | Errno::ERANGE), Some(fs_type)) => {
            Error::Exhausted(format!(
                "{fs_type} cannot hold a file of {} ({error}); change the file, or choose another filesystem",
                remote.source
            ))
        }
        _ if matches!(error, Error::InUse(_)) => error,
        _ => return error,
    };
    if is_again {
        Error::NotFound(format!("{refused}; delete the copy and make another one"))
    } else {
        refused
    }
}

fn lost(volume: &Volume) -> Error {
    Error::NotFound(format!(
        "the files of copy {} are missing in its filesystem, so the copy cannot be updated; delete it and make another one",
        volume.id
    ))
}
