//! Files with several names: the first name is copied, the others become links to that copy.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::hash::Hash;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::unistd::linkat;

use super::super::walk::open_below;
use super::report::{Fault, call};

/// Names are joined to paths up to this length (PATH_MAX is 4096, NAME_MAX 255).
const MAX_PATH: usize = 2048;

/// The target, with where the copies of files with several names are in it.
///
/// A place is kept as a chain of names, since it may lie deeper than a path can tell, and an open descriptor for each
/// file would be too many. Only directories that lead to such a file are in here.
pub(super) struct Links<K> {
    root: OwnedFd,
    /// By the number of a directory: its parent's number and its name. The first is the root.
    directories: Vec<(usize, CString)>,
    /// By the file of the source, or what stands for it: the directory and the name of its copy.
    copies: HashMap<K, (usize, CString)>,
}

impl<K: Eq + Hash> Links<K> {
    pub(super) fn new(root: OwnedFd) -> Self {
        Links { root, directories: vec![(0, CString::default())], copies: HashMap::new() }
    }

    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Notes that the copy of a file is in a directory under this name. `way` leads to the directory: names, and where
    /// to keep the number that each gets here.
    pub(super) fn remember<'a>(
        &mut self,
        way: impl Iterator<Item = (&'a CStr, &'a mut Option<usize>)>,
        file: K,
        name: &CStr,
    ) {
        let mut parent = 0;
        for (directory, number) in way {
            let place = number.unwrap_or(self.directories.len());
            if number.is_none() {
                self.directories.push((parent, directory.to_owned()));
                *number = Some(place);
            }
            parent = place;
        }
        self.copies.insert(file, (parent, name.to_owned()));
    }

    /// Makes `name` in a directory of the target a link to the copy of a file; whether there is a copy.
    pub(super) fn link(&self, target: &OwnedFd, file: &K, name: &CStr) -> Result<bool, Fault> {
        let Some((directory, first)) = self.copies.get(file) else {
            return Ok(false);
        };
        let opened = self.open(*directory).map_err(call("open the directory of the copy of"))?;
        let from = opened.as_ref().map_or(self.root(), |directory| directory.as_fd());
        match linkat(from, first.as_c_str(), target, name, AtFlags::empty()) {
            // The same name was met twice: a file took the place of another while the directory was read.
            Ok(()) | Err(Errno::EEXIST) => Ok(true),
            Err(errno) => Err(Fault::Call("link the copy of", errno)),
        }
    }

    /// Opens a directory of the target; `None` for the root.
    fn open(&self, mut number: usize) -> nix::Result<Option<OwnedFd>> {
        let mut names = Vec::new();
        while number != 0 {
            let (parent, name) = self.directories.get(number).ok_or(Errno::ESTALE)?;
            names.push(name);
            number = *parent;
        }
        let mut found: Option<OwnedFd> = None;
        let mut path = Vec::new();
        while let Some(name) = names.pop() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            if names.is_empty() || path.len() > MAX_PATH {
                let from = found.as_ref().map_or(self.root(), |directory| directory.as_fd());
                let path = CString::new(std::mem::take(&mut path)).map_err(|_| Errno::EINVAL)?;
                found = Some(open_below(from, &path, OFlag::O_PATH | OFlag::O_DIRECTORY)?);
            }
        }
        Ok(found)
    }
}
