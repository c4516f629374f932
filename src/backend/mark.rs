//! Marks: empty files beside the data of a volume or a snapshot that say how far its creation, its formatting or its
//! deletion is.
//!
//! State files are restored, so a record may be older than what it describes. What a crash has left is therefore erased
//! only if record and mark agree, and what has no mark is kept. So a mark exists before the work that it describes
//! begins, and is removed after the record describes the end. The first needs no sync of its own, because a filesystem
//! with a journal puts no later change on the disk before an earlier one of the same directory. Nor does the second: a
//! mark that a power cut brings back is removed before the data are used.
//!
//! A directory that is made as a snapshot of another one comes with everything in it. [`Mark::Making`] is therefore beside it.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::{Shape, VolumePaths, record};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Os, is_errno};

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It is copied from something, and nobody was told of it.
    Making,
    /// Nothing was made in its image yet. It says nothing by itself: it is there so that the next ones, which it becomes,
    /// need no inode on a full disk.
    Blank,
    /// mkfs(8) has begun, and nobody has mounted it.
    Formatting,
    /// mkfs(8) has made the filesystem in it.
    Formatted,
    /// Its deletion has begun.
    Deleting,
}

impl Mark {
    const ALL: [Mark; 5] = [Mark::Making, Mark::Blank, Mark::Formatting, Mark::Formatted, Mark::Deleting];

    /// The name of its file.
    fn name(self) -> &'static str {
        match self {
            Mark::Making => "making",
            Mark::Blank => "blank",
            Mark::Formatting => "formatting",
            Mark::Formatted => "formatted",
            Mark::Deleting => "deleting",
        }
    }

    pub(super) fn path(self, paths: &VolumePaths) -> PathBuf {
        paths.directory.join(self.name())
    }

    /// Whether it is there.
    pub fn is_set(self, os: &Os, paths: &VolumePaths) -> Result<bool> {
        let is_there = |path: &PathBuf| {
            let found = os.files.stat(path).doing(|| format!("look at {}", path.display()))?;
            Ok::<_, Error>(found.is_some())
        };
        let is_beside = || beside(paths).map_or(Ok(false), |path| is_there(&path));
        Ok(is_there(&self.path(paths))? || (self == Mark::Making && is_beside()?))
    }

    /// Makes it, if it is not there.
    pub fn set(self, os: &Os, paths: &VolumePaths) -> Result<()> {
        make(os, &self.path(paths))
    }

    /// Makes [`Mark::Making`] beside the directory, which is not there yet.
    pub(super) fn set_beside(os: &Os, paths: &VolumePaths) -> Result<()> {
        beside(paths).map_or(Ok(()), |path| make(os, &path))
    }

    /// Takes it away, if it is there.
    pub fn clear(self, os: &Os, paths: &VolumePaths) -> Result<()> {
        remove(os, &self.path(paths))?;
        if self == Mark::Making { Mark::clear_beside(os, paths) } else { Ok(()) }
    }

    /// Whose it is, by the name of a file beside directories.
    pub fn owner_of(name: &str) -> &str {
        let owner = name.strip_suffix(Mark::Making.name()).and_then(|rest| rest.strip_suffix('.'));
        owner.or_else(|| record::owner_of_record(name)).unwrap_or(name)
    }

    /// Takes the one beside the directory away, if it is there.
    pub(super) fn clear_beside(os: &Os, paths: &VolumePaths) -> Result<()> {
        beside(paths).map_or(Ok(()), |path| remove(os, &path))
    }

    /// Makes another one of it, and says whether it was there.
    pub(super) fn becomes(self, next: Mark, os: &Os, paths: &VolumePaths) -> Result<bool> {
        let is_set = self.is_set(os, paths)?;
        if is_set {
            let (from, to) = (self.path(paths), next.path(paths));
            os.files.rename(&from, &to).doing(|| format!("rename {} to {}", from.display(), to.display()))?;
        }
        Ok(is_set)
    }

    /// Takes all of them away.
    pub(super) fn clear_all(os: &Os, paths: &VolumePaths) -> Result<()> {
        Mark::ALL.into_iter().try_for_each(|mark| mark.clear(os, paths))
    }
}

/// Where the mark of a directory is that comes with everything in it; an image never does.
fn beside(paths: &VolumePaths) -> Option<PathBuf> {
    let name = paths.directory.file_name()?.to_str()?;
    matches!(paths.shape(), Shape::Tree(_))
        .then(|| paths.parent.join(format!("{name}.{}", Mark::Making.name())))
}

fn make(os: &Os, path: &Path) -> Result<()> {
    match os.files.create_file(path) {
        Err(error) if is_errno(&error, Errno::EEXIST) => Ok(()),
        set => set.doing(|| format!("make {}", path.display())),
    }
}

fn remove(os: &Os, path: &Path) -> Result<()> {
    let removing = || format!("remove {}", path.display());
    match os.files.stat(path).doing(removing)? {
        Some(_) => os.files.remove_file(path).doing(removing),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_beside_a_directory_has_its_name() {
        let beside = format!("vol-1.{}", Mark::Making.name());
        assert_eq!((Mark::owner_of(&beside), Mark::owner_of("vol-1")), ("vol-1", "vol-1"));
        let unlike = format!("vol-1{}", Mark::Making.name());
        assert_eq!(Mark::owner_of(&unlike), unlike, "without the dot");
    }
}
