//! Directory trees: removing one, and what one takes; `copy_tree` has the rest.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, readlink};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::super::{Base, FileId, Reuse, TreeWriter, Trees, Usage};
use super::find::find;
use super::fingerprint::fingerprint;
use super::walk::{Visit, open_directory, walk};
use super::{at, copy_tree, id_of, kind_bits, protected};
use hostloop_model::tree::{Item, Position};

/// The trees that this mount namespace shows.
pub(super) struct LinuxTrees;

impl Trees for LinuxTrees {
    fn copy(
        &self,
        source: &Path,
        target: &Path,
        share: bool,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> io::Result<()> {
        copy_tree::copy_tree(source, target, share, progress)
    }

    fn read(
        &self,
        source: &Path,
        base: Option<Base<'_>>,
        from: Position,
        emit: &mut dyn FnMut(Item) -> bool,
    ) -> io::Result<u64> {
        copy_tree::read_tree(source, base, from, emit)
    }

    fn write(&self, target: &Path, base: Option<(&Path, Reuse)>) -> io::Result<Box<dyn TreeWriter>> {
        Ok(Box::new(copy_tree::Writer::new(target, base)?))
    }

    fn lift(&self, directory: &Path) -> io::Result<()> {
        copy_tree::lift(directory)
    }

    fn usage(&self, directory: &Path) -> io::Result<Usage> {
        usage(directory).map_err(at("usage of", directory))
    }

    fn find(&self, directory: &Path, names: &[&str]) -> io::Result<Option<PathBuf>> {
        find(directory, names).map_err(at("search", directory))
    }

    fn fingerprint(&self, path: &Path) -> io::Result<u64> {
        fingerprint(path).map_err(at("look at", path))
    }

    fn remove_while(&self, path: &Path, go_on: &mut dyn FnMut() -> bool) -> io::Result<bool> {
        let mut visit = Remove::new(RETRIES, go_on);
        match remove(path, &mut visit) {
            Err(_) if visit.stopped => Ok(false),
            removed => removed.map(|()| true).map_err(at("remove", visit.failed.as_deref().unwrap_or(path))),
        }
    }
}

/// How often a directory that somebody keeps writing to is emptied again.
const RETRIES: u32 = 16;

/// The parent directory, whose path is trusted, and the last name, which is not.
pub(super) fn split(path: &Path) -> nix::Result<(Dir, CString)> {
    let name = path.file_name().ok_or(Errno::EINVAL)?;
    let name = CString::new(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok((Dir::from_fd(open(parent, flags, Mode::empty())?)?, name))
}

/// Removes whatever is at `path`.
///
/// # Errors
/// EBUSY or EXDEV at a mount, ENOTEMPTY where somebody writes faster than this removes; what was removed by then
/// is gone.
fn remove(path: &Path, visit: &mut Remove<'_>) -> io::Result<()> {
    let (parent, name) = match split(path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
        result => result?,
    };
    while visit.entry(&parent, &name, None)? {
        match open_directory(&parent, &name) {
            Ok(directory) => {
                visit.is_inside = true;
                walk(directory, visit)?;
                visit.is_inside = false;
            }
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno @ (Errno::EXDEV | Errno::ENOTDIR | Errno::ELOOP)) => {
                visit.refused(&parent, &name, errno)?
            }
            Err(errno) => return Err(errno.into()),
        }
        if !visit.leave(&parent, &name)? {
            return Ok(());
        }
    }
    Ok(())
}

struct Remove<'a> {
    retries: u32,
    go_on: &'a mut dyn FnMut() -> bool,
    /// It was told not to go on, which ends the walk with an error.
    stopped: bool,
    /// What is met has a directory of the tree as its parent, not the one that the tree is in.
    is_inside: bool,
    /// What could not be removed.
    failed: Option<PathBuf>,
}

impl<'a> Remove<'a> {
    fn new(retries: u32, go_on: &'a mut dyn FnMut() -> bool) -> Self {
        Remove { retries, go_on, stopped: false, is_inside: false, failed: None }
    }

    /// unlinkat(2), also of what is immutable or append-only, or in such a directory of the tree.
    fn unlink(&self, parent: &Dir, name: &CStr, how: UnlinkatFlags) -> nix::Result<()> {
        match unlinkat(parent, name, how) {
            Err(Errno::EPERM) => {
                // The second attempt reports what cannot be released.
                let _ = protected::release_entry(parent, name);
                if self.is_inside {
                    let _ = protected::release(parent);
                }
                unlinkat(parent, name, how)
            }
            unlinked => unlinked,
        }
    }

    /// Remembers which entry could not be removed.
    fn failed_at(&mut self, parent: &Dir, name: &CStr, errno: Errno) -> Errno {
        let directory = readlink(format!("/proc/self/fd/{}", parent.as_raw_fd()).as_str());
        let name = std::ffi::OsStr::from_bytes(name.to_bytes());
        self.failed = directory.ok().map(|directory| PathBuf::from(directory).join(name));
        errno
    }
}

impl Visit for Remove<'_> {
    fn entry(&mut self, parent: &Dir, name: &CStr, kind: Option<Type>) -> nix::Result<bool> {
        if !(self.go_on)() {
            self.stopped = true;
            return Err(Errno::ECANCELED);
        }
        if kind != Some(Type::Directory) {
            match self.unlink(parent, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(false),
                Err(Errno::EISDIR) => {}
                Err(errno) => return Err(self.failed_at(parent, name, errno)),
            }
        }
        // Most often it is empty, which saves opening it.
        match self.unlink(parent, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(false),
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => Ok(true),
            Err(errno) => Err(self.failed_at(parent, name, errno)),
        }
    }

    fn enter(&mut self, directory: &Dir) -> nix::Result<()> {
        protected::release_subvolume(directory)
    }

    fn refused(&mut self, parent: &Dir, name: &CStr, errno: Errno) -> nix::Result<()> {
        let removed = match errno {
            Errno::EXDEV => Err(errno),
            // It was a directory a moment ago and is a file or link now.
            _ => match self.unlink(parent, name, UnlinkatFlags::NoRemoveDir) {
                Err(Errno::ENOENT) => Ok(()),
                result => result,
            },
        };
        removed.map_err(|errno| self.failed_at(parent, name, errno))
    }

    fn leave(&mut self, parent: &Dir, name: &CStr) -> nix::Result<bool> {
        match self.unlink(parent, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(false),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if self.retries > 0 => {
                self.retries -= 1;
                Ok(true)
            }
            Err(errno) => Err(self.failed_at(parent, name, errno)),
        }
    }
}

/// What a tree takes, the directory itself included.
///
/// # Errors
/// Those of openat2(2) and fstatat(2); what vanishes meanwhile is not counted.
fn usage(directory: &Path) -> io::Result<Usage> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let root = Dir::from_fd(open(directory, flags, Mode::empty())?)?;
    let mut visit = Count::default();
    walk(root, &mut visit)?;
    Ok(visit.total)
}

#[derive(Default)]
struct Count {
    total: Usage,
    /// Device of the directory that is being read.
    device: u64,
    /// Files with several names that were counted.
    linked: HashSet<FileId>,
}

impl Count {
    fn add(&mut self, stat: &FileStat) {
        self.total.inodes += 1;
        self.total.bytes += u64::try_from(stat.st_blocks).unwrap_or_default() * 512;
    }
}

impl Visit for Count {
    fn entry(&mut self, parent: &Dir, name: &CStr, kind: Option<Type>) -> nix::Result<bool> {
        if kind == Some(Type::Directory) {
            return Ok(true); // counted in enter, when it is known not to be a mount point
        }
        let stat = match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(false),
            result => result?,
        };
        if kind_bits(&stat) == libc::S_IFDIR {
            return Ok(true);
        }
        // Another device: a file of elsewhere is bound over it.
        if stat.st_dev == self.device && (stat.st_nlink <= 1 || self.linked.insert(id_of(&stat))) {
            self.add(&stat);
        }
        Ok(false)
    }

    fn enter(&mut self, directory: &Dir) -> nix::Result<()> {
        let stat = fstat(directory)?;
        // Not the root's: a btrfs subvolume has a device number of its own on the same mount.
        self.device = stat.st_dev;
        self.add(&stat);
        Ok(())
    }

    fn refused(&mut self, _: &Dir, _: &CStr, _: Errno) -> nix::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: &Dir, _: &CStr) -> nix::Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files of the test")]
mod tests {
    use super::*;
    use crate::is_errno;

    #[test]
    fn a_directory_that_fills_again_is_emptied_twice() {
        let temp = tempfile::tempdir().expect("tempdir");
        let full = temp.path().join("full");
        std::fs::create_dir_all(full.join("other")).expect("mkdir");
        let (parent, name) = split(&full).expect("open");
        let mut go_on = || true;
        let mut visit = Remove::new(2, &mut go_on);
        assert_eq!([0; 3].map(|_| visit.leave(&parent, &name)), [Ok(true), Ok(true), Err(Errno::ENOTEMPTY)]);
        std::fs::remove_dir(full.join("other")).expect("rmdir");
        assert_eq!([0; 2].map(|_| visit.leave(&parent, &name)), [Ok(false), Ok(false)]);
        assert!(!full.exists());
    }

    /// A pod whose process was not ended in time.
    #[test]
    fn files_written_during_a_removal_go_or_are_told() {
        let temp = tempfile::tempdir().expect("tempdir");
        for round in 0..200 {
            let tree = temp.path().join(format!("tree{round}"));
            std::fs::create_dir(&tree).expect("mkdir");
            std::fs::write(tree.join("first"), b"x").expect("write");
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let files = (0..).map(|number| std::fs::File::create(tree.join(format!("f{number}"))));
                    files.take_while(Result::is_ok).take(200).count()
                });
                let removed = LinuxTrees.remove(&tree);
                match &removed {
                    Ok(()) => assert!(!tree.exists(), "it was said to be gone"),
                    Err(error) => assert!(is_errno(error, Errno::ENOTEMPTY), "{error}"),
                }
                writer.join().expect("the writer");
                LinuxTrees.remove(&tree).expect("remove what is left");
            });
        }
    }
}
