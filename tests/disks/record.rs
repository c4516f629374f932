//! What was written to the disks, in its order, and what a loss of power may have left of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FallocateFlags, fallocate};

/// A disk writes at least so much of a write, or nothing: the kernel's filesystems write no less.
const PIECE: u64 = 4096;

/// What changes a disk, or makes it keep what changed before.
pub enum Change<'a> {
    /// Bytes at an offset.
    Write { offset: u64, bytes: &'a [u8] },
    /// A range that reads as zeros from now on.
    Zero { offset: u64, len: u64 },
    /// Whatever this disk has done before stays.
    Flush,
}

/// A change as it is kept.
#[derive(Debug, Clone, Copy)]
struct Entry {
    disk: usize,
    /// Where it changes the disk.
    offset: u64,
    /// By how many bytes; none is a flush.
    len: u64,
    /// Where its bytes are in the log; without them they are zeros.
    bytes: Option<u64>,
}

/// All changes of all disks.
pub struct Recording {
    log: File,
    entries: Mutex<(Vec<Entry>, u64)>,
}

impl Recording {
    /// Without a change so far.
    pub fn new() -> Recording {
        let log = tempfile::tempfile_in("/var/tmp").expect("a file");
        Recording { log, entries: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Entry>, u64)> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a change.
    pub fn add(&self, disk: usize, change: Change<'_>) -> io::Result<()> {
        let mut state = self.lock();
        let (entries, end) = &mut *state;
        let entry = match change {
            Change::Flush => Entry { disk, offset: 0, len: 0, bytes: None },
            Change::Zero { offset, len } => Entry { disk, offset, len, bytes: None },
            Change::Write { offset, bytes } if bytes.iter().all(|byte| *byte == 0) => {
                Entry { disk, offset, len: bytes.len() as u64, bytes: None }
            }
            Change::Write { offset, bytes } => {
                self.log.write_all_at(bytes, *end)?;
                let entry = Entry { disk, offset, len: bytes.len() as u64, bytes: Some(*end) };
                *end += entry.len;
                entry
            }
        };
        entries.push(entry);
        Ok(())
    }

    /// How many changes there are: whatever happens later comes behind them.
    pub fn position(&self) -> usize {
        self.lock().0.len()
    }

    /// The bytes that the record has.
    pub fn bytes(&self) -> u64 {
        self.lock().1
    }

    /// The positions right behind each flush.
    pub fn flushes(&self) -> Vec<usize> {
        let state = self.lock();
        state.0.iter().enumerate().filter(|(_, entry)| entry.len == 0).map(|(index, _)| index + 1).collect()
    }

    /// Makes the disks as the power's loss at a position may leave them: what was flushed is there, and of the rest the
    /// pieces for which `keep` says so. `images` are the disks, which are made anew. Gives how many pieces were lost.
    pub fn leave(
        &self,
        position: usize,
        images: &[&Path],
        size: u64,
        mut keep: impl FnMut() -> bool,
    ) -> usize {
        let images: Vec<File> = images
            .iter()
            .map(|image| {
                let file = File::options().read(true).write(true).create(true).truncate(true).open(image);
                file.and_then(|file| file.set_len(size).map(|()| file)).expect("an image")
            })
            .collect();
        let state = self.lock();
        let mut lost = 0;
        each_piece(&state.0[..position], |entry, safe, from, to| {
            if safe || keep() {
                self.apply(&images[entry.disk], entry, from, to).expect("write an image");
            } else {
                lost += 1;
            }
        });
        lost
    }

    /// How many pieces a loss of power at a position may leave or not.
    pub fn at_stake(&self, position: usize) -> usize {
        let (state, mut count) = (self.lock(), 0);
        each_piece(&state.0[..position], |_, safe, _, _| count += usize::from(!safe));
        count
    }

    fn apply(&self, image: &File, entry: &Entry, from: u64, to: u64) -> io::Result<()> {
        let Some(start) = entry.bytes else { return erase(image, from, to - from) };
        let mut bytes = vec![0; (to - from) as usize];
        self.log.read_exact_at(&mut bytes, start + from - entry.offset)?;
        if bytes.iter().all(|byte| *byte == 0) {
            erase(image, from, to - from)
        } else {
            image.write_all_at(&bytes, from)
        }
    }
}

/// Hands over what these entries write, in their order: each as a whole where it was flushed, else piece by piece.
fn each_piece(entries: &[Entry], mut each: impl FnMut(&Entry, bool, u64, u64)) {
    let mut flushed: BTreeMap<usize, usize> = BTreeMap::new();
    let flushes = entries.iter().enumerate().filter(|(_, entry)| entry.len == 0);
    flushed.extend(flushes.map(|(index, entry)| (entry.disk, index)));
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.len > 0) {
        let safe = flushed.get(&entry.disk).is_some_and(|flush| index < *flush);
        let (mut at, end) = (entry.offset, entry.offset + entry.len);
        while at < end {
            // Pieces end where those of the disk do.
            let next = if safe { end } else { end.min((at / PIECE + 1) * PIECE) };
            each(entry, safe, at, next);
            at = next;
        }
    }
}

/// Makes a range read as zeros.
pub fn erase(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(file, mode, offset as i64, len as i64)?)
}
