//! Moving everything in a directory one level up: see [`Trees::lift`](super::super::super::Trees::lift).

use std::ffi::CStr;
use std::io;
use std::path::Path;

use nix::dir::Dir;
use nix::fcntl::{OFlag, RenameFlags, renameat2};
use nix::sys::stat::fstat;
use nix::unistd::{UnlinkatFlags, syncfs, unlinkat};

use super::super::at;
use super::super::trees::split;
use super::super::walk::open_below;
use super::attributes::{Attributes, remove_acls};
use super::read::names;
use super::report::{Fault, call};

/// Moves what is in a directory to its parent.
///
/// # Errors
/// EEXIST if a name is in use there; those of the system calls.
pub(in super::super) fn lift(directory: &Path) -> io::Result<()> {
    let (parent, name) = split(directory).map_err(at("open the parent of", directory))?;
    lift_to(&parent, &name).map_err(|fault| fault.at(directory))?;
    syncfs(&parent).map_err(at("syncfs", directory))
}

fn lift_to(parent: &Dir, name: &CStr) -> Result<(), Fault> {
    let from = open_below(parent, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(call("open"))?;
    let attributes = Attributes::read(&from, &fstat(&from).map_err(call("stat"))?)?;
    // A rename does not apply the default ACL of the new directory.
    for entry in names(&from).map_err(call("read"))? {
        renameat2(&from, entry.as_c_str(), parent, entry.as_c_str(), RenameFlags::RENAME_NOREPLACE)
            .map_err(call("move what is in"))?;
    }
    let to = open_below(parent, c".", OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(call("open above"))?;
    remove_acls(&to).map_err(call("remove the ACL above"))?;
    attributes.apply(&to)?;
    unlinkat(parent, name, UnlinkatFlags::RemoveDir).map_err(call("remove"))?;
    attributes.apply_access_time(&to)
}
