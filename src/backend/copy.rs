//! Copies of the files of a volume or a snapshot: by sharing blocks where that is possible, otherwise of the data
//! only, holes kept.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::VolumePaths;
use super::mark::Mark;
use crate::error::{Error, OsContext, Result};
use crate::model::BackendKind;
use crate::os::{Os, errno_error};

/// Bytes between two reports of progress.
const CHUNK: u64 = 16 << 20;

/// Gets the bytes copied so far; its error ends the copy.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// One copy to be made.
#[derive(Clone, Copy)]
pub struct Copy<'a> {
    /// The machine.
    pub os: &'a Os,
    /// Whose files.
    pub from: &'a VolumePaths,
    /// The new files; nothing is there yet.
    pub to: &'a VolumePaths,
    /// What lies there.
    pub kind: BackendKind,
    /// The copy may share blocks with the original.
    pub share: bool,
}

impl Copy<'_> {
    /// Makes what the bytes go into. Whatever fails from here on, [`remove_files`] removes it all.
    ///
    /// # Errors
    /// The kernel's.
    pub fn prepare(&self) -> Result<()> {
        prepare_files(self.os, self.to, self.kind)
    }

    /// Copies.
    ///
    /// # Errors
    /// The kernel's, and those of `progress`.
    pub fn run(&self, progress: OnProgress<'_>) -> Result<()> {
        match (self.kind, self.share) {
            (BackendKind::Directory, _) => self.tree(progress),
            (BackendKind::Loop, false) => self.extents(progress),
            (BackendKind::Loop, true) => {
                let (from, to) = (self.from.image(), self.to.image());
                self.os.disks.reflink(&from, &to).doing(|| self.doing("reflink"))
            }
        }
    }

    fn extents(&self, progress: OnProgress<'_>) -> Result<()> {
        copy_extents(self.os, &self.from.image(), &self.to.image(), || self.doing("copy"), progress)
    }

    fn tree(&self, progress: OnProgress<'_>) -> Result<()> {
        let mut stopped = None;
        let mut report = |done: u64| {
            progress(done).map_err(|error| {
                stopped = Some(error);
                io::Error::from_raw_os_error(Errno::ECANCELED as i32)
            })
        };
        let copied = self.os.disks.copy_tree(&self.from.data(), &self.to.data(), self.share, &mut report);
        match stopped {
            Some(error) => Err(error),
            None => copied.doing(|| self.doing("copy")),
        }
    }

    /// Makes the copy durable.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sync(&self) -> Result<()> {
        sync_files(self.os, self.to, self.kind)
    }

    fn doing(&self, verb: &str) -> String {
        format!("{verb} {} from {}", self.to.directory.display(), self.from.directory.display())
    }
}

/// Copies the data of an image into an empty file, holes kept.
pub(super) fn copy_extents(
    os: &Os,
    from: &Path,
    to: &Path,
    copying: impl Fn() -> String + std::marker::Copy,
    progress: OnProgress<'_>,
) -> Result<()> {
    let disks = &os.disks;
    let gone = || Error::Os { context: copying(), source: errno_error(Errno::ENOENT, from.display()) };
    let size = disks.stat(from).doing(copying)?.ok_or_else(gone)?.size;
    disks.set_size(to, size).doing(copying)?;
    let (mut at, mut done) = (0, 0);
    while let Some((start, end)) = disks.next_data(from, at).doing(copying)? {
        at = start;
        while at < end {
            let len = (end - at).min(CHUNK);
            disks.copy_range(from, to, at, len).doing(copying)?;
            (at, done) = (at + len, done + len);
            progress(done)?;
        }
    }
    Ok(())
}

/// Makes the directory of a volume or a snapshot, and the image that a copy of another one goes into. The tree of a
/// directory volume is made with its top by whoever fills it. From here on it carries [`Mark::Making`].
///
/// # Errors
/// The kernel's.
pub fn prepare_files(os: &Os, paths: &VolumePaths, kind: BackendKind) -> Result<()> {
    let (disks, preparing) = (&os.disks, || format!("prepare {}", paths.directory.display()));
    disks.create_directory(&paths.directory, 0o700).doing(preparing)?;
    Mark::Making.set(os, paths)?;
    match kind {
        BackendKind::Loop => {
            disks.create_file(&paths.image()).doing(preparing)?;
            // A clone becomes as its source is.
            disks.write_in_place(&paths.image()).doing(preparing).map(drop)
        }
        BackendKind::Directory => Ok(()),
    }
}

/// Makes what was copied durable. A tree is by now.
///
/// # Errors
/// The kernel's.
pub fn sync_files(os: &Os, paths: &VolumePaths, kind: BackendKind) -> Result<()> {
    let (disks, syncing) = (&os.disks, || format!("sync {}", paths.directory.display()));
    // First the mark: on btrfs an image can be durable without its neighbours.
    disks.sync_directory(&paths.directory).doing(syncing)?;
    if kind == BackendKind::Loop {
        disks.sync_file(&paths.image()).doing(syncing)?;
    }
    disks.sync_directory(&paths.parent).doing(syncing)
}

/// Removes the files of a volume or a snapshot, whatever of them there is. Durable on return.
///
/// # Errors
/// The kernel's.
pub fn remove_files(os: &Os, paths: &VolumePaths, kind: BackendKind) -> Result<()> {
    let (disks, removing) = (&os.disks, || format!("remove {}", paths.directory.display()));
    // The marks last, since they say what the rest is.
    match kind {
        BackendKind::Directory => {
            disks.remove_tree(&paths.data()).doing(removing)?;
            disks.remove_tree(&paths.directory).doing(removing)?;
        }
        BackendKind::Loop => {
            disks.remove_file(&paths.image()).doing(removing)?;
            disks.remove_file(&paths.growing_image()).doing(removing)?;
            Mark::clear_all(os, paths)?;
            disks.remove_directory(&paths.directory).doing(removing)?;
        }
    }
    disks.sync_directory(&paths.parent).doing(removing)
}
