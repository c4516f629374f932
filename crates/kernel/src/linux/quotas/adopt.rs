//! A tree that is there already gets the project of a quota: what is open keeps being open, and what is made meanwhile is
//! found by looking again.

use std::ffi::CStr;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::fstatat;
use nix::unistd::syncfs;

use super::super::walk::{Visit, open_below, open_directory, walk};
use super::super::{ioctl, kind_bits};
use hostloop_model::QuotaId;

/// So often a tree is looked at again, where files come from directories that had no project yet.
const PASSES: u32 = 16;

pub(super) fn adopt(parent: &Dir, name: &CStr, id: QuotaId) -> nix::Result<()> {
    for _ in 0..PASSES {
        let mut pass = Pass { id: id.number(), changed: false };
        let top = open_directory(parent, name)?;
        walk(top, &mut pass)?;
        if !pass.changed {
            return syncfs(parent);
        }
    }
    Err(Errno::EBUSY)
}

struct Pass {
    id: u32,
    changed: bool,
}

impl Visit for Pass {
    fn entry(&mut self, parent: &Dir, name: &CStr, kind: Option<Type>) -> nix::Result<bool> {
        let kind = match kind {
            Some(kind) => kind,
            None => match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Err(Errno::ENOENT) => return Ok(false),
                stat => match kind_bits(&stat?) {
                    libc::S_IFDIR => Type::Directory,
                    libc::S_IFREG => Type::File,
                    _ => return Ok(false),
                },
            },
        };
        if kind != Type::File {
            return Ok(kind == Type::Directory);
        }
        // The name may be something else by now; a pipe would wait for a writer.
        match open_below(parent, name, OFlag::O_RDONLY | OFlag::O_NOCTTY | OFlag::O_NONBLOCK) {
            Ok(file) if ioctl::project(&file)?.0 != self.id => {
                self.changed = true;
                ioctl::set_project_of_file(&file, self.id)?;
                Ok(false)
            }
            Ok(_) | Err(Errno::ENOENT | Errno::ELOOP | Errno::EXDEV | Errno::ENXIO) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Before its entries are read, so that what is made from here on has the project.
    fn enter(&mut self, directory: &Dir) -> nix::Result<()> {
        if ioctl::project(directory)? != (self.id, true) {
            self.changed = true;
            ioctl::set_project(directory, self.id)?;
        }
        Ok(())
    }

    /// What is mounted inside is on another filesystem, or counts where it is.
    fn refused(&mut self, _: &Dir, _: &CStr, _: Errno) -> nix::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: &Dir, _: &CStr) -> nix::Result<bool> {
        Ok(false)
    }
}
