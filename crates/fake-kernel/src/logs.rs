//! Files that stay open: logs and locks.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::seam::Effect;
use super::tree::{Node, NodeRef};
use super::world::{Open, Opened, Resolved, World, pid_of};
use super::{Descriptor, Outcome, Process};
use hostloop_kernel::{LogFile, errno_error};

/// A log that a process of the driver has open.
struct FakeLog {
    process: Process,
    path: PathBuf,
    file: NodeRef,
    _open: Option<Descriptor>,
}

impl World {
    /// Opens a file for writing, made if need be.
    fn open_or_create(&mut self, file: &Path) -> Outcome<Resolved> {
        match self.writable_file(file) {
            Err(Errno::ENOENT) => {
                self.create(file, Node::file(), 0o600)?;
                self.writable_file(file)
            }
            other => other,
        }
    }

    fn append(&mut self, file: NodeRef, bytes: &[u8], how: Effect) -> Outcome<()> {
        self.unfrozen(file.fs)?;
        let end = self.content(file)?.size();
        let wanted = if how == Effect::Torn { bytes.len() / 2 } else { bytes.len() };
        // A full disk takes what it still can, as write(2) does.
        let fitting = self.fitting(file, end, wanted as u64)? as usize;
        self.write_at(file, end, &bytes[..fitting])?;
        if fitting < wanted { Err(Errno::ENOSPC) } else { Ok(()) }
    }
}

impl Process {
    fn descriptor(&self, id: u64) -> Descriptor {
        Descriptor { kernel: self.kernel.clone(), id }
    }

    pub(super) fn log(&self, path: &Path, len: u64) -> io::Result<Box<dyn LogFile>> {
        let mut opened = None;
        let done = self.step_torn("open_log", path.display(), |world, how| {
            let place = world.open_or_create(path)?;
            if world.content(place.node)?.size() < len {
                return Err(Errno::EINVAL);
            }
            if how == Effect::Whole {
                world.set_size(place.node, len)?;
            }
            let what = Opened::File(place.node);
            let open = Open { generation: Some(self.generation), mount: Some(place.mount), what };
            opened = Some(world.open(open));
            Ok(place.node)
        });
        // Closed again where the file was opened and could not be cut.
        let open = opened.map(|id| self.descriptor(id));
        let (process, path, file) = (self.clone(), path.to_owned(), done?);
        Ok(Box::new(FakeLog { process, path, file, _open: open }))
    }

    pub(super) fn flock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let locked = self.step("lock", path.display(), |world| {
            let place = world.open_or_create(path)?;
            if let Some(holder) = world.holder_of(place.node) {
                return Ok(Err(holder));
            }
            let id = format!("{}\n", pid_of(self.generation));
            match world.write_at(place.node, 0, id.as_bytes()) {
                // The id is only a hint for people.
                Err(Errno::ENOSPC) => world.set_size(place.node, 0)?,
                written => {
                    written?;
                    world.set_size(place.node, id.len() as u64)?;
                }
            }
            let what = Opened::Lock(place.node);
            Ok(Ok(world.open(Open { generation: Some(self.generation), mount: Some(place.mount), what })))
        })?;
        match locked {
            Ok(id) => Ok(Box::new(self.descriptor(id))),
            Err(holder) => {
                let context = format!("lock {}: held by process {holder}", path.display());
                Err(errno_error(Errno::EWOULDBLOCK, context))
            }
        }
    }
}

impl LogFile for FakeLog {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.process
            .step_torn("append", self.path.display(), |world, how| world.append(self.file, bytes, how))
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.process.step("reserve", self.path.display(), |world| {
            let end = world.content(self.file)?.size();
            world.set_aside(self.file, end, bytes)
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.process.step_sync("sync", self.path.display(), |_| Ok(self.file))
    }
}
