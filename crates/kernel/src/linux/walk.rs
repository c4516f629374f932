//! A walk over a directory tree that no depth, link or mount can lead astray.
//!
//! Each directory is opened relative to its parent with openat2(2) and RESOLVE_NO_XDEV. So a mount point, also a bind
//! mount of the same filesystem, is never entered, and a name that turns into a link is not followed. The walk keeps its
//! own stack on the heap. Beyond [`MAX_OPEN`] levels, directories are closed on the way down and opened again through
//! `..` on the way up, which is checked by device and inode number.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::fstat;

use super::super::FileId;
use super::id_of;

/// Levels that stay open.
const MAX_OPEN: usize = 64;

/// What is done on the way. Every call gets the open parent and the entry's name in it.
pub(super) trait Visit {
    /// An entry; `kind` as readdir(3) tells it. Whether it is a directory to descend into.
    fn entry(&mut self, parent: &Dir, name: &CStr, kind: Option<Type>) -> nix::Result<bool>;
    /// A directory was opened, before its entries are read.
    fn enter(&mut self, directory: &Dir) -> nix::Result<()>;
    /// A directory could not be opened: it is a mount point (EXDEV), or not a directory any more. Ok to go on.
    fn refused(&mut self, parent: &Dir, name: &CStr, errno: Errno) -> nix::Result<()>;
    /// A directory is done. Whether it has to be walked again.
    fn leave(&mut self, parent: &Dir, name: &CStr) -> nix::Result<bool>;
}

/// A directory whose entries were read.
struct Level {
    directory: Dir,
    name: CString,
    id: FileId,
    /// Directories in it that are still to do.
    pending: Vec<CString>,
}

/// A directory above the current one, closed if it lies deep.
struct Above {
    directory: Option<Dir>,
    name: CString,
    id: FileId,
    pending: Vec<CString>,
}

/// Opens what is below (or with `..` above) an open directory, on the same mount and through no link.
pub(super) fn open_below(parent: impl AsFd, name: &CStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS;
    openat2(parent, name, OpenHow::new().flags(flags).resolve(resolve))
}

/// Opens a directory or file to read it, without leaving a trace in its access time where that is allowed (open(2):
/// EPERM for O_NOATIME).
pub(super) fn open_to_read(open: impl Fn(OFlag) -> nix::Result<OwnedFd>) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    match open(flags | OFlag::O_NOATIME) {
        Err(Errno::EPERM) => open(flags),
        result => result,
    }
}

/// Opens a directory below (or with `..` above) an open one, on the same mount. Reading it leaves no trace, so that
/// what is measured can be copied as it was.
pub(super) fn open_directory(parent: impl AsFd, name: &CStr) -> nix::Result<Dir> {
    Dir::from_fd(open_to_read(|flags| open_below(&parent, name, flags | OFlag::O_DIRECTORY))?)
}

impl Level {
    fn read(directory: Dir, name: CString, visit: &mut impl Visit) -> nix::Result<Self> {
        visit.enter(&directory)?;
        let id = id_of(&fstat(&directory)?);
        // The entries are read through a second description: the iterator borrows its own.
        let mut reader = open_directory(&directory, c".")?;
        let mut pending = Vec::new();
        for entry in reader.iter() {
            let entry = entry?;
            let entry_name = entry.file_name();
            if entry_name == c"." || entry_name == c".." {
                continue;
            }
            if visit.entry(&directory, entry_name, entry.file_type())? {
                pending.push(entry_name.to_owned());
            }
        }
        Ok(Level { directory, name, id, pending })
    }

    fn into_above(self, keep_open: bool) -> Above {
        let Level { directory, name, id, pending } = self;
        Above { directory: keep_open.then_some(directory), name, id, pending }
    }
}

/// Walks the tree below an open directory, children before their parent; `leave` is not called for the root.
///
/// # Errors
/// What `visit` returns, and the errors of openat2(2) but ENOENT: what vanishes meanwhile is not an error.
pub(super) fn walk(root: Dir, visit: &mut impl Visit) -> nix::Result<()> {
    let mut here = Level::read(root, CString::default(), visit)?;
    let mut above: Vec<Above> = Vec::new();
    loop {
        if let Some(name) = here.pending.pop() {
            match open_directory(&here.directory, &name) {
                Ok(directory) => {
                    let child = Level::read(directory, name, visit)?;
                    above.push(here.into_above(above.len() < MAX_OPEN));
                    here = child;
                }
                Err(Errno::ENOENT) => {}
                Err(errno @ (Errno::EXDEV | Errno::ENOTDIR | Errno::ELOOP)) => {
                    visit.refused(&here.directory, &name, errno)?;
                }
                Err(errno) => return Err(errno),
            }
            continue;
        }
        let Some(mut parent) = ascend(&here, &mut above) else {
            return Ok(());
        };
        if let Some(name) = parent.1.then_some(here.name)
            && visit.leave(&parent.0.directory, &name)?
        {
            parent.0.pending.push(name);
        }
        here = parent.0;
    }
}

/// The next directory on the way up, and whether it is the parent of `here`. Somebody who moves directories of a
/// deep tree about can cut the way up; then it is the deepest one that is still open.
fn ascend(here: &Level, above: &mut Vec<Above>) -> Option<(Level, bool)> {
    let mut direct = true;
    while let Some(Above { directory, name, id, pending }) = above.pop() {
        let directory = directory.or_else(|| {
            let opened = direct.then(|| open_directory(&here.directory, c"..").ok()).flatten()?;
            (fstat(&opened).ok().map(|stat| id_of(&stat)) == Some(id)).then_some(opened)
        });
        if let Some(directory) = directory {
            return Some((Level { directory, name, id, pending }, direct));
        }
        direct = false;
    }
    None
}
