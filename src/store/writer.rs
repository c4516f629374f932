//! The end of the state file: appending, and returning to a known end after a failure.

use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Identity;
use super::load::Loaded;
use super::record::{self, Change, Header, Put};
use super::room::Room;
use crate::kernel::{Files, LogFile, errno_error, is_full};
use crate::model::format_bytes;

/// The state file's name in the data directory.
pub(super) const FILE: &str = "state.jsonl";
/// A state file in the making. One that is found at start was never used.
pub(super) const NEW_FILE: &str = "state.jsonl.new";

/// The previous state file.
pub(super) const PREVIOUS_FILE: &str = "state.jsonl.previous";
/// A damaged state file in the place of which another was made.
pub(super) const DAMAGED_FILE: &str = "state.jsonl.damaged";
/// A previous state file that is being written. One that is found at start was never used.
pub(super) const NEW_PREVIOUS: &str = "state.jsonl.previous.new";

/// Bytes of a file's allocation that may be the map of its blocks.
const MAP: u64 = 64 << 10;

/// What is known of the file's end.
enum Tail {
    /// The file ends after the last acknowledged line.
    Open(Box<dyn LogFile>),
    /// Something may follow the first `len` bytes, which are good.
    Cut,
    /// Nothing: the kernel may have lost what it said it would write (fsync(2) reports that only once), or
    /// the name may stand for an older file.
    Rewrite,
}

/// Owns the state file. Used by one thread at a time.
pub(super) struct Writer {
    files: Arc<dyn Files>,
    directory: PathBuf,
    identity: Identity,
    tail: Tail,
    /// Bytes of acknowledged lines, header included.
    len: u64,
    /// Lines after the header.
    lines: u64,
    /// The sequence number of the next line.
    next: u64,
    /// The number up to which all is on disk.
    synced: u64,
    /// Lines that the file may have beyond twice the live records.
    slack: u64,
    /// No compaction below this many lines; above 0 after one failed.
    not_before: u64,
    /// What can be appended to a full disk.
    room: Room,
    /// What the records that are there need of it.
    way_out: u64,
    /// Some lines cannot be read: the file is kept, for what they may still tell.
    damaged: bool,
}

impl Writer {
    /// A writer for a directory that has no state file yet; [`rewrite`](Self::rewrite) makes one.
    pub fn new(files: Arc<dyn Files>, directory: &Path, identity: Identity, slack: u64) -> Self {
        let directory = directory.to_owned();
        let tail = Tail::Rewrite;
        Writer {
            files,
            directory,
            identity,
            tail,
            len: 0,
            lines: 0,
            next: 1,
            synced: 0,
            slack,
            not_before: 0,
            room: Room::Bytes(0),
            way_out: 0,
            damaged: false,
        }
    }

    /// A writer for a file that is to be made anew, whose numbers begin with this one.
    pub fn starting_at(files: Arc<dyn Files>, directory: &Path, identity: Identity, first: u64) -> Self {
        Writer {
            next: first.max(1),
            synced: first.saturating_sub(1),
            ..Self::new(files, directory, identity, 0)
        }
    }

    /// Takes over the file that was loaded and makes all of it durable: lines that an earlier process wrote
    /// and did not sync are read like any other. They are written anew, since the kernel may have lost them
    /// after a sync that failed in that process. If there is no room for a second file, they are synced in place; a file of
    /// an earlier format must be written anew, and without room the start fails.
    pub fn take_over(&mut self, loaded: &Loaded) -> io::Result<()> {
        self.tail = Tail::Cut;
        (self.len, self.lines, self.next) = (loaded.len, loaded.lines, loaded.next);
        self.synced = loaded.settled;
        self.way_out = loaded.memory.way_out();
        self.room = self.room_that_is_there()?;
        if loaded.damage.is_some() {
            self.damaged = true;
            self.keep()?;
            return if loaded.ends_inside { self.end_line() } else { Ok(()) };
        }
        if loaded.is_settled() {
            self.keep()?;
            // A file restored from a backup may have no room reserved behind its end.
            if self.room != Room::Unknown {
                return Ok(());
            }
        }
        match self.succeed(&loaded.memory.records(), Some(PREVIOUS_FILE)) {
            Err(error) if loaded.is_current() && !matches!(self.tail, Tail::Rewrite) => {
                tracing::warn!(%error, "no fresh state file could be written, the present one is kept");
                if self.is_broken() { self.keep() } else { Ok(()) }
            }
            result => result,
        }
    }

    /// Goes on with the file that is there. Its name may be younger than the last sync of the directory.
    fn keep(&mut self) -> io::Result<()> {
        self.files.sync_directory(&self.directory)?;
        self.cut()
    }

    /// Ends a line that has no end, so that the next one does not become a part of it.
    fn end_line(&mut self) -> io::Result<()> {
        if let Tail::Open(log) = &mut self.tail {
            log.append(b"\n")?;
            log.sync()?;
            self.len += 1;
        }
        Ok(())
    }

    /// What an earlier process has set aside.
    fn room_that_is_there(&self) -> io::Result<Room> {
        let stat = self.files.stat(&self.directory.join(FILE))?;
        let behind = stat.map_or(0, |stat| stat.allocated.saturating_sub(stat.size));
        Ok(Room::Bytes(behind.saturating_sub(MAP)))
    }

    /// Returns the number of the last line that is surely on disk.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Whether [`repair`](Self::repair) must come before the next append.
    pub fn is_broken(&self) -> bool {
        !matches!(self.tail, Tail::Open(_))
    }

    /// Makes the file's end known again, after which it holds the `live` records and nothing else. A failed
    /// append is cut off, which needs no room on a full disk; anything else needs a new file.
    ///
    /// # Errors
    /// The kernel's; the end is as unknown as before.
    pub fn repair(&mut self, live: &[Put]) -> io::Result<()> {
        match self.tail {
            Tail::Open(_) => Ok(()),
            Tail::Cut if self.damaged => self.cut(),
            // A new file would say that nothing is lost.
            Tail::Rewrite if self.damaged => Err(io::Error::other(
                "the state file is damaged, and its end is not known; stop the driver and run \"hostloop state repair\"",
            )),
            Tail::Cut => self.cut().or_else(|_| self.rewrite(live)),
            Tail::Rewrite => self.rewrite(live),
        }
    }

    /// Cuts the file to its good lines and syncs it before anything is appended: otherwise a power cut could
    /// bring the rest back behind lines that were written over it.
    fn cut(&mut self) -> io::Result<()> {
        let mut log = self.files.open_log(&self.directory.join(FILE), self.len)?;
        self.tail = Tail::Rewrite;
        // A cut has given back what lay behind it.
        let there = self.room_that_is_there().unwrap_or(Room::Bytes(0)).least(u64::MAX);
        self.room = Room::take(log.as_mut(), self.way_out, there).unwrap_or(Room::Bytes(there));
        log.sync()?;
        self.tail = Tail::Open(log);
        self.warn_of_no_room();
        self.synced = self.next.saturating_sub(1);
        Ok(())
    }

    /// Says so where not every record could be removed on a full disk.
    fn warn_of_no_room(&self) {
        let (file, wanted) = (self.directory.join(FILE), self.way_out);
        match self.room {
            Room::Unknown => {
                tracing::warn!(file = %file.display(), "this filesystem cannot set room aside: when the disk is full, volumes cannot be deleted");
            }
            room if !room.covers(0, wanted) => {
                tracing::warn!(file = %file.display(), needed = %format_bytes(wanted), "the disk has no room to set aside for the deletion of all volumes: free some space");
            }
            Room::Bytes(_) => {}
        }
    }

    /// Makes sure before a batch is appended that the way out of all records is covered after it. `way_out` is that
    /// of the records of then, `bytes` more than the batch's lines take.
    ///
    /// # Errors
    /// ENOSPC where it is not: only what leads out may be appended.
    pub fn make_room(&mut self, bytes: u64, way_out: u64) -> io::Result<()> {
        let mut refused = None;
        self.way_out = way_out;
        if let Tail::Open(log) = &mut self.tail
            && self.room.is_short(bytes, way_out)
        {
            match Room::take(log.as_mut(), bytes.saturating_add(way_out), self.room.least(u64::MAX)) {
                Ok(room) => self.room = room,
                Err(error) => refused = Some(error),
            }
        }
        if self.room.covers(bytes, way_out) {
            return Ok(());
        }
        let file = self.directory.join(FILE);
        Err(refused.filter(|error| !is_full(error)).unwrap_or_else(|| {
            let what = "no room for a further record beside what is set aside for removals";
            errno_error(nix::errno::Errno::ENOSPC, format_args!("{}: {what}", file.display()))
        }))
    }

    /// Appends one line for each change in one write, and syncs if so wished and something needs it.
    ///
    /// # Errors
    /// The kernel's; none of the changes counts, and [`repair`](Self::repair) must be next.
    pub fn append(&mut self, members: &[&str], sync: bool) -> io::Result<()> {
        // Whatever ends this early, even a panic, leaves the end unknown.
        let Tail::Open(mut log) = mem::replace(&mut self.tail, Tail::Rewrite) else {
            return Err(io::Error::other("the end of the state file is not known"));
        };
        let (mut text, mut next) = (String::new(), self.next);
        for members in members {
            text.push_str(&record::line(next, self.synced, members));
            next += 1;
        }
        if !text.is_empty()
            && let Err(error) = log.append(text.as_bytes())
        {
            self.tail = Tail::Cut;
            return Err(error);
        }
        self.next = next;
        if sync && self.synced.saturating_add(1) < next {
            log.sync()?;
            self.synced = next.saturating_sub(1);
        }
        self.len += text.len() as u64;
        self.room = self.room.without(text.len() as u64);
        self.lines += members.len() as u64;
        self.tail = Tail::Open(log);
        Ok(())
    }

    /// Whether the file has so many lines that hold nothing any more that it should be written anew.
    pub fn wants_compaction(&self, live: usize) -> bool {
        let limit = (live as u64).saturating_mul(2).saturating_add(self.slack);
        self.lines > limit.max(self.not_before) && !self.is_broken() && !self.damaged
    }

    /// Writes the file anew. A failure is put off until the file has grown by another `live` lines and slack.
    pub fn compact(&mut self, live: &[Put]) {
        let lines = self.lines;
        if let Err(error) = self.succeed(live, Some(PREVIOUS_FILE)) {
            tracing::warn!(%error, lines, "the state file could not be compacted and keeps growing until it can");
            self.not_before = lines.saturating_add(live.len() as u64).saturating_add(self.slack);
        }
    }

    /// Replaces the file by one that holds the `live` records and nothing else: a new file with the room that the
    /// present one has, synced, renamed, the directory synced. Numbers go on from where they were and are never used twice, so that a block of
    /// an older file that shows up in a later one fits nowhere.
    ///
    /// # Errors
    /// The kernel's. Until the rename the present file stays in use as it was.
    pub fn rewrite(&mut self, live: &[Put]) -> io::Result<()> {
        self.succeed(live, None)
    }

    /// [`rewrite`](Self::rewrite), which first keeps a copy of the present file under the name `keep`.
    ///
    /// # Errors
    /// Those of [`rewrite`](Self::rewrite).
    pub fn succeed(&mut self, live: &[Put], keep: Option<&str>) -> io::Result<()> {
        let count = live.len() as u64;
        let way_out = live.iter().map(Put::way_out).fold(0, u64::saturating_add);
        // Nothing is lost where there is nothing to go on with.
        let least = if matches!(self.tail, Tail::Rewrite) { 0 } else { self.room.least(way_out) };
        let header = Header::new(&self.identity, self.next, count);
        let mut text = header.line()?;
        for (put, seq) in live.iter().zip(self.next..) {
            let members = Change::Put(put.clone()).members()?;
            text.push_str(&record::line(seq, self.next.saturating_sub(1), &members));
        }
        let (new_file, file) = (self.directory.join(NEW_FILE), self.directory.join(FILE));
        let room = self.write_new(&new_file, text.as_bytes(), way_out, least).inspect_err(|_| {
            // It only takes room; the next attempt and the next start remove it as well.
            let _ = self.files.remove_file(&new_file);
        })?;
        if let Some(name) = keep {
            self.keep_as(name);
        }
        self.tail = Tail::Rewrite;
        self.next = header.synced.saturating_add(1);
        if let Err(error) = self.files.rename(&new_file, &file) {
            let _ = self.files.remove_file(&new_file);
            return Err(error);
        }
        self.files.sync_directory(&self.directory)?;
        self.len = text.len() as u64;
        self.tail = Tail::Open(self.files.open_log(&file, self.len)?);
        (self.lines, self.synced, self.not_before) = (count, header.synced, 0);
        (self.room, self.way_out) = (room, way_out);
        self.warn_of_no_room();
        Ok(())
    }

    /// Keeps a copy of the present file, once, before another takes its place: `hostloop state repair` looks for records in it that
    /// are lost. It has no room behind it, and is not worth a failure.
    fn keep_as(&self, name: &str) {
        let [file, previous, new] = [FILE, name, NEW_PREVIOUS].map(|name| self.directory.join(name));
        let copy = || {
            let bytes = self.files.read(&file)?;
            self.files.open_log(&new, 0)?.append(&bytes)?;
            self.files.rename(&new, &previous)
        };
        if let Err(error) = copy() {
            tracing::debug!(%error, "no previous state file is kept");
            let _ = self.files.remove_file(&new);
        }
    }

    /// A whole new file, with as much room behind it.
    fn write_new(&self, new_file: &Path, text: &[u8], way_out: u64, least: u64) -> io::Result<Room> {
        self.files.remove_file(new_file)?;
        let mut log = self.files.open_log(new_file, 0)?;
        log.append(text)?;
        let room = Room::take(log.as_mut(), way_out, least)?;
        log.sync()?;
        Ok(room)
    }
}
