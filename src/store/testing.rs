//! A disk for the store's tests: what is cached and what is durable are two things, and any step that changes
//! something can fail.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::os::{BlockDevice, FileId, FileKind, FileStat, Files, LogFile, Space, errno_error};

/// What happens at a step, and to all steps after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The step fails, the next one works.
    Once(Errno),
    /// The step and every one after it fails: the process or the disk is dead.
    Dead,
    /// The step panics.
    Panic,
}

#[derive(Debug, Clone, Default)]
struct Inode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Up to where it owns its bytes.
    reserved: usize,
}

impl Inode {
    fn taken(&self) -> usize {
        self.reserved.max(self.cached.len())
    }
}

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    steps: usize,
    syncs: usize,
    fault: Option<(usize, Fault)>,
    /// Whether a failing step has its effect all the same (an append that fails without it does half).
    effect: bool,
    sync_time: Duration,
    /// Bytes that the disk still has; any number if none is set.
    room: Option<usize>,
}

impl State {
    fn take(&mut self, bytes: usize) {
        self.room = self.room.map(|room| room - bytes);
    }

    /// Files without a name are gone.
    fn give_back(&mut self, bytes: usize) {
        self.room = self.room.map(|room| room + bytes);
    }
}

/// A disk in memory. Clones share it.
#[derive(Clone, Default)]
pub struct MemDisks(Arc<Mutex<State>>);

impl MemDisks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails the step that comes after `skip` further ones.
    pub fn fail(&self, skip: usize, fault: Fault, effect: bool) {
        let mut state = self.state();
        state.fault = Some((state.steps + skip, fault));
        state.effect = effect;
    }

    /// Whether the step that was to fail has been reached.
    pub fn has_failed(&self) -> bool {
        let state = self.state();
        state.fault.is_some_and(|(at, _)| state.steps > at)
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        self.state().fault = None;
    }

    /// Power cut: what was not synced is gone.
    pub fn power_cut(&self) {
        let mut state = self.state();
        state.names = state.durable_names.clone();
        for inode in &mut state.inodes {
            inode.cached = inode.durable.clone();
        }
    }

    /// How often a file was synced.
    pub fn syncs(&self) -> usize {
        self.state().syncs
    }

    /// Steps so far.
    pub fn steps(&self) -> usize {
        self.state().steps
    }

    /// The disk has so many bytes left, or as many as are wished for.
    pub fn set_room(&self, bytes: Option<usize>) {
        self.state().room = bytes;
    }

    /// What an appender of a file owns behind its end.
    pub fn reserved(&self, path: &Path) -> usize {
        let state = self.state();
        let inode = &state.inodes[state.names[path]];
        inode.taken() - inode.cached.len()
    }

    /// How long a sync takes.
    pub fn set_sync_time(&self, time: Duration) {
        self.state().sync_time = time;
    }

    /// A file, cached and durable, by hand.
    pub fn write(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let index = state.inodes.len();
        state.inodes.push(Inode { cached: bytes.to_vec(), durable: bytes.to_vec(), reserved: 0 });
        state.names.insert(path.to_owned(), index);
        state.durable_names.insert(path.to_owned(), index);
    }

    /// The file names.
    pub fn names(&self) -> Vec<PathBuf> {
        self.state().names.keys().cloned().collect()
    }

    /// Does `act` as one step, or fails.
    fn step(&self, act: impl FnOnce(&mut State, bool)) -> io::Result<()> {
        let mut state = self.state();
        let now = state.steps;
        state.steps += 1;
        let errno = match state.fault {
            Some((at, Fault::Once(errno))) if now == at => errno,
            Some((at, Fault::Dead)) if now >= at => Errno::EIO,
            Some((at, Fault::Panic)) if now == at => panic!("the step panics"),
            _ => {
                act(&mut state, true);
                return Ok(());
            }
        };
        // Past its death a process has no effect at all.
        if state.fault.is_some_and(|(at, _)| at == now) {
            let effect = state.effect;
            act(&mut state, effect);
        }
        Err(errno_error(errno, "test step"))
    }
}

struct MemLog {
    disks: MemDisks,
    inode: usize,
}

impl LogFile for MemLog {
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let mut state = self.disks.state();
        let inode = &state.inodes[self.inode];
        let (now, end) = (inode.taken(), inode.cached.len() + bytes as usize);
        if state.room.is_some_and(|room| end.saturating_sub(now) > room) {
            return Err(errno_error(Errno::ENOSPC, "test reserve"));
        }
        state.take(end.saturating_sub(now));
        let inode = &mut state.inodes[self.inode];
        inode.reserved = inode.reserved.max(end);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut full = false;
        self.disks.step(|state, whole| {
            let part = if whole { bytes } else { &bytes[..bytes.len() / 2] };
            let inode = &state.inodes[self.inode];
            let more = (inode.cached.len() + part.len()).saturating_sub(inode.taken());
            // What still fits in is written.
            let fits = state.room.map_or(more, |room| room.min(more));
            full = fits < more;
            state.take(fits);
            let part = &part[..part.len() - (more - fits)];
            state.inodes[self.inode].cached.extend_from_slice(part);
        })?;
        if full { Err(errno_error(Errno::ENOSPC, "test append")) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let time = self.disks.state().sync_time;
        std::thread::sleep(time);
        self.disks.step(|state, whole| {
            state.syncs += 1;
            if whole {
                state.inodes[self.inode].durable = state.inodes[self.inode].cached.clone();
            }
        })
    }
}

fn missing() -> io::Error {
    errno_error(Errno::ENOENT, "test")
}

impl Files for MemDisks {
    fn stat(&self, path: &Path) -> io::Result<Option<FileStat>> {
        let state = self.state();
        Ok(state.names.get(path).map(|inode| {
            let size = state.inodes[*inode].cached.len() as u64;
            let id = FileId { dev: 1, ino: *inode as u64 };
            let allocated = state.inodes[*inode].taken() as u64;
            FileStat { kind: FileKind::File, id, size, allocated, rdev: 0 }
        }))
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        let state = self.state();
        let inode = state.names.get(file).ok_or_else(missing)?;
        Ok(state.inodes[*inode].cached.clone())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.step(|state, whole| {
            if whole {
                state.durable_names = state.names.clone();
            }
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|state, whole| {
            if let Some(inode) = state.names.get(from).copied().filter(|_| whole) {
                state.names.remove(from);
                if let Some(old) = state.names.insert(to.to_owned(), inode) {
                    state.give_back(state.inodes[old].taken());
                }
            }
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step(|state, whole| {
            if let Some(old) = whole.then(|| state.names.remove(path)).flatten() {
                state.give_back(state.inodes[old].taken());
            }
        })
    }

    fn open_log(&self, file: &Path, len: u64) -> io::Result<Box<dyn LogFile>> {
        let mut opened = 0;
        self.step(|state, whole| {
            if whole {
                let fresh = state.inodes.len();
                opened = *state.names.entry(file.to_owned()).or_insert(fresh);
                if opened == fresh {
                    state.inodes.push(Inode::default());
                }
                let before = state.inodes[opened].taken();
                let inode = &mut state.inodes[opened];
                if inode.cached.len() > len as usize {
                    inode.reserved = 0;
                }
                inode.cached.resize(len as usize, 0);
                let now = inode.taken();
                state.give_back(before.saturating_sub(now));
            }
        })?;
        Ok(Box::new(MemLog { disks: self.clone(), inode: opened }))
    }

    fn canonicalize(&self, _: &Path) -> io::Result<PathBuf> {
        Err(missing())
    }
    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Err(missing())
    }
    fn read_through(&self, _: &Path) -> io::Result<()> {
        Err(missing())
    }
    fn space(&self, _: &Path) -> io::Result<Space> {
        Err(missing())
    }
    fn create_directory(&self, _: &Path, _: u32) -> io::Result<()> {
        Err(missing())
    }
    fn create_file(&self, _: &Path) -> io::Result<()> {
        Err(missing())
    }
    fn sync_file(&self, _: &Path) -> io::Result<()> {
        Err(missing())
    }
    fn remove_directory(&self, _: &Path) -> io::Result<()> {
        Err(missing())
    }
    fn lock(&self, _: &Path) -> io::Result<Box<dyn Send + Sync>> {
        Err(missing())
    }
    fn block_device(&self, _: &Path) -> io::Result<BlockDevice> {
        Err(missing())
    }
    fn random_id(&self) -> io::Result<String> {
        Err(missing())
    }
}
