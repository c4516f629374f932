//! A directory with everything in it: the data of a directory volume. If it has a limit, its filesystem enforces that for the
//! directory of the volume, which the data are in.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::bytes::{GoOn, gone, is_full, remove_beside};
use super::{Bytes, Copy, Mark, OnProgress, Place, Shape, Share, VolumePaths, limit, record};
use crate::error::{Error, OsContext, Result};
use crate::kernel::Os;
use crate::model::{CopyOf, Cut};

/// See the module.
pub(super) struct Tree;

/// The name of the data within the directory.
pub(super) const DATA: &str = "data";

/// What the names of all trees beside the data begin with.
const BESIDE: &str = "data.";

/// Where the tree of a later cut is made.
pub(crate) fn tree_in_the_making(directory: &Path) -> PathBuf {
    directory.join("data.making")
}

/// Its name when it is whole. A record that is older than the tree names another one.
pub(crate) fn staged_tree(directory: &Path, cut: &Cut) -> PathBuf {
    directory.join(format!("{BESIDE}{}", cut.created.as_nanos()))
}

/// Puts the tree of a later cut in the place of that of the earlier one, if it is not there yet. Each step can be the last: as
/// long as there is one of the later cut, what has the name of the data is the earlier one, and that stays until the record
/// says that the later one is in its place. Says whether it is: not so where neither is there, since nobody knows then what
/// the data are of.
pub(crate) fn replace_tree(os: &Os, directory: &Path, cut: &Cut) -> Result<bool> {
    let (data, staged, old) = (directory.join(DATA), staged_tree(directory, cut), directory.join("data.old"));
    let is_there = |path: &PathBuf| {
        let found = os.files.stat(path).doing(|| format!("look at {}", path.display()))?;
        Ok::<_, Error>(found.is_some())
    };
    if !is_there(&staged)? {
        return is_there(&old);
    }
    if is_there(&data)? {
        rename_tree(os, directory, (&data, &old))?;
    }
    rename_tree(os, directory, (&staged, &data)).map(|()| true)
}

/// Durable on return.
pub(crate) fn rename_tree(os: &Os, directory: &Path, (from, to): (&Path, &Path)) -> Result<()> {
    let renaming = || format!("rename {} to {}", from.display(), to.display());
    os.files.rename(from, to).doing(renaming)?;
    os.files.sync_directory(directory).doing(renaming)
}

/// Removes all trees beside the data: what a round that was cut off has left, and the earlier one.
pub(crate) fn remove_trees_beside(os: &Os, directory: &Path) -> Result<()> {
    let names = os.files.list(directory).doing(|| format!("read {}", directory.display()))?;
    names.iter().filter(|name| name.starts_with(BESIDE)).try_for_each(|name| {
        let path = directory.join(name);
        os.trees.remove(&path).doing(|| format!("remove {}", path.display()))
    })
}

impl Bytes for Tree {
    fn name(&self) -> &'static str {
        DATA
    }

    fn shape(&self, data: PathBuf) -> Shape {
        Shape::Tree(data)
    }

    fn shares_whole(&self) -> bool {
        false
    }

    fn create(&self, place: Place<'_>, new_record: &[u8]) -> Result<()> {
        let files = &place.os.files;
        let creating = || format!("create the directory of {}", place.volume.id);
        match place.paths.limit {
            Some(limit) => limit::create(place.os, place.paths, limit)?,
            None => files.create_directory(&place.paths.directory, 0o700).doing(creating)?,
        }
        files.create_directory(&place.paths.data(), 0o755).doing(creating)?;
        files.sync_directory(&place.paths.data()).doing(creating)?;
        files.sync_directory(&place.paths.directory).doing(creating)?;
        record::write_new(place.os, place.paths, new_record)?;
        files.sync_directory(&place.paths.parent).doing(creating)
    }

    /// The tree is made with its top by whoever fills it.
    fn prepare(&self, _os: &Os, _paths: &VolumePaths) -> Result<()> {
        Ok(())
    }

    fn copy(&self, copy: &Copy<'_>, progress: OnProgress<'_>) -> Result<()> {
        if copy.is_subvolume() {
            return copy_subvolume(copy);
        }
        let mut stopped = None;
        let mut report = |done: u64| {
            progress(done).map_err(|error| {
                stopped = Some(error);
                io::Error::from_raw_os_error(Errno::ECANCELED as i32)
            })
        };
        let (from, to) = (copy.from.data(), copy.to.data());
        let copied = copy.os.trees.copy(&from, &to, copy.share == Share::Files, &mut report);
        match stopped {
            Some(error) => Err(error),
            None => copied.doing(|| copy.doing("copy")),
        }
    }

    /// A tree is durable by now.
    fn sync(&self, _os: &Os, _paths: &VolumePaths) -> Result<()> {
        Ok(())
    }

    fn stretch(&self, place: Place<'_>, _bytes: u64) -> Result<()> {
        limit::expect_within(place)
    }

    fn is_blank(&self, os: &Os, paths: &VolumePaths) -> Result<bool> {
        let data = paths.data();
        os.files.list(&data).map(|names| names.is_empty()).doing(|| format!("read {}", data.display()))
    }

    fn allocated(&self, os: &Os, paths: &VolumePaths) -> Result<u64> {
        let looking = || format!("look at {}", paths.directory.display());
        match os.quotas.subvolume(&paths.directory, false).doing(looking)? {
            Some(subvolume) => Ok(subvolume.bytes),
            None => self.to_copy(os, paths),
        }
    }

    fn to_copy(&self, os: &Os, paths: &VolumePaths) -> Result<u64> {
        let looking = || format!("look at {}", paths.directory.display());
        Ok(os.trees.usage(&paths.data()).doing(looking)?.bytes)
    }

    fn expect_whole(&self, _os: &Os, _paths: &VolumePaths, _bytes: u64, _what: &dyn Display) -> Result<()> {
        Ok(())
    }

    fn recover(&self, place: Place<'_>) -> Result<Option<u64>> {
        let data = place.paths.data();
        if let Some(cut) = place.volume.copy_of.as_ref().and_then(CopyOf::staged) {
            replace_tree(place.os, &place.paths.directory, cut)?;
        }
        match place.os.files.stat(&data).doing(|| format!("look at {}", data.display()))? {
            Some(_) => place.paths.limit.map_or(Ok(None), |limit| limit::recover(place, limit)),
            None => Err(gone(&data, "volume")),
        }
    }

    fn grow(&self, place: Place<'_>, bytes: u64) -> Result<u64> {
        match place.paths.limit {
            Some(limit) => limit::grow(place, limit, bytes),
            None => Ok(bytes), // its size is a wish that nothing enforces
        }
    }

    fn ungrow(&self, place: Place<'_>, _before: u64) -> Result<()> {
        place.paths.limit.map_or(Ok(()), |limit| limit::set(place.os, place.paths, limit))
    }

    /// The directory takes the name of the mark itself.
    fn begin_deletion_without_mark(&self, os: &Os, paths: &VolumePaths, _full: Error) -> Result<()> {
        let (from, to) = (paths.data(), Mark::Deleting.path(paths));
        let renamed =
            os.files.rename(&from, &to).doing(|| format!("rename {} to {}", from.display(), to.display()));
        // Room for its data comes first: what a crash then leaves of it is taken for whole until it is deleted again.
        // So does a directory that a pod has made immutable, which is removed all the same.
        let is_protected = |error: &Error| error.errno() == Some(Errno::EPERM);
        renamed.or_else(|error| if is_full(&error) || is_protected(&error) { Ok(()) } else { Err(error) })
    }

    fn remove(&self, os: &Os, paths: &VolumePaths, go_on: GoOn<'_>) -> Result<bool> {
        let removing = || format!("remove {}", paths.directory.display());
        let is_gone = os.quotas.remove_at_once(&paths.directory).doing(removing)?
            || (os.trees.remove_while(&paths.data(), go_on).doing(removing)?
                && os.trees.remove_while(&paths.directory, go_on).doing(removing)?);
        if is_gone {
            remove_beside(os, paths)?;
        }
        Ok(is_gone)
    }

    fn remove_within_limit(&self, os: &Os, paths: &VolumePaths, go_on: GoOn<'_>) -> Result<bool> {
        let removing = || format!("remove {}", paths.directory.display());
        // A subvolume goes with its directory, and what is left of its limit is for what follows.
        Ok(os.quotas.remove_at_once(&paths.directory).doing(removing)?
            || os.trees.remove_while(&paths.data(), go_on).doing(removing)?)
    }
}

/// Makes the directory of the copy as a snapshot of that of the original.
///
/// # Errors
/// UNAVAILABLE where a pod has made a subvolume in it meanwhile, which the copy may lack.
fn copy_subvolume(copy: &Copy<'_>) -> Result<()> {
    let (quotas, from) = (&copy.os.quotas, &copy.from.directory);
    // A snapshot is written to by nobody, and marks have to fit into it.
    let limits = copy.to.limit.map(|limit| limit.limits).unwrap_or_default();
    quotas.snapshot(from, &copy.to.directory, limits).doing(|| copy.doing("make a snapshot"))?;
    let looking = || format!("look at {}", from.display());
    match quotas.subvolume(from, false).doing(looking)? {
        Some(subvolume) if subvolume.has_others => Err(Error::Unavailable(format!(
            "a subvolume was made in {} while it was copied, and the copy would lack it; try again",
            from.display()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BackendKind, NodeKey, VolumeId};
    use hostloop_fake_kernel::FakeKernel;

    #[test]
    fn bytes_to_copy_of_a_tree_are_those_it_takes() {
        let kernel = FakeKernel::new();
        let id = VolumeId::of_name(&NodeKey::of("node-a"), "v");
        let paths = VolumePaths::new(Path::new("/pool"), &id, BackendKind::Directory);
        let data = paths.data();
        kernel.create_directories(&data);
        let os = kernel.os();
        let sizes = || (Tree.allocated(&os, &paths).unwrap(), Tree.to_copy(&os, &paths).unwrap());
        let empty = sizes();
        kernel.write_file(data.join("file"), &[1; 1 << 20]).unwrap();
        assert_eq!(sizes(), (empty.0 + (1 << 20), empty.1 + (1 << 20)));
    }
}
