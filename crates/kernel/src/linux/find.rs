//! A search for names in a tree.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, readlink};
use nix::sys::stat::Mode;

use super::walk::{Visit, walk};

/// See [`Trees::find`](crate::Trees::find).
pub(super) fn find(directory: &Path, names: &[&str]) -> io::Result<Option<PathBuf>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let top = Dir::from_fd(open(directory, flags, Mode::empty())?)?;
    let mut visit = Search { names, top: path_of(&top), found: None };
    match walk(top, &mut visit) {
        Err(_) if visit.found.is_some() => {}
        walked => walked?,
    }
    Ok(visit.found)
}

/// Where the kernel says that an open directory is.
fn path_of(directory: &Dir) -> Option<PathBuf> {
    readlink(format!("/proc/self/fd/{}", directory.as_raw_fd()).as_str()).ok().map(PathBuf::from)
}

struct Search<'a> {
    names: &'a [&'a str],
    top: Option<PathBuf>,
    found: Option<PathBuf>,
}

impl Visit for Search<'_> {
    fn entry(&mut self, parent: &Dir, name: &CStr, kind: Option<Type>) -> nix::Result<bool> {
        if let Some(name) = self.names.iter().find(|wanted| wanted.as_bytes() == name.to_bytes()) {
            let above = path_of(parent).zip(self.top.as_deref());
            let above = above.and_then(|(parent, top)| Some(parent.strip_prefix(top).ok()?.to_owned()));
            self.found = Some(above.unwrap_or_default().join(name));
            return Err(Errno::ECANCELED);
        }
        // What is no directory is refused when it is opened.
        Ok(matches!(kind, None | Some(Type::Directory)))
    }

    fn enter(&mut self, _: &Dir) -> nix::Result<()> {
        Ok(())
    }

    fn refused(&mut self, _: &Dir, _: &CStr, _: Errno) -> nix::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: &Dir, _: &CStr) -> nix::Result<bool> {
        Ok(false)
    }
}
