//! Reading the state file at start: what is kept, what a crash explains, and what stops the start.

use std::collections::BTreeSet;
use std::path::Path;

use super::Identity;
use super::error::{ADVICE, StoreError};
use super::memory::Memory;
use super::record::{self, Change, FORMAT, Header, Line, Put, Rename};
use crate::model::{Handover, NodeKey, Side, Volume};

/// What a state file holds.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The records.
    pub memory: Memory,
    /// The sequence number after the last good line.
    pub next: u64,
    /// Good lines after the header.
    pub lines: u64,
    /// Bytes of good lines, header included; what follows was never acknowledged.
    pub len: u64,
    /// Bytes that follow.
    pub torn: u64,
    /// The number up to which all was on disk before the file got its name.
    pub settled: u64,
    /// The format of the file.
    pub format: u64,
    /// It is damaged, and its last line has no end.
    pub ends_inside: bool,
    /// What cannot be read.
    pub damage: Option<Damage>,
}

impl Loaded {
    /// Whether the file is as the last rewrite by this version left it.
    pub fn is_settled(&self) -> bool {
        self.is_current()
            && self.damage.is_none()
            && self.torn == 0
            && self.settled.saturating_add(1) == self.next
    }

    /// Whether lines of this version may follow: an earlier one reads them by what the header says.
    pub fn is_current(&self) -> bool {
        self.format == FORMAT
    }
}

/// What a state file has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The first damaged line, counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
    /// How many records cannot be read.
    pub lost: u64,
    /// The words of the lines that cannot be read, where they are text: among them may be ids.
    pub words: BTreeSet<String>,
}

/// Reads a state file. If it is damaged, returns the records that are whole, and the damage. `previous` returns the state file that this
/// one has replaced, if there is one. It is called only if neither the header nor a record says whose the file is.
///
/// # Errors
/// [`StoreError`] for a file of another owner or format, and for lines that no crash and no damage to a few bytes explain (see the
/// [module](super)).
pub(super) fn load(
    bytes: &[u8],
    identity: &Identity,
    file: &Path,
    previous: impl FnOnce() -> Option<Vec<u8>>,
) -> Result<Loaded, StoreError> {
    let all: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let (mut first, mut lines) = all.split_first().map_or((&[][..], &[][..]), |(first, rest)| (*first, rest));
    let (header, damage) = match header(first, identity, file) {
        Err(StoreError::Damaged { reason, .. })
            if is_ours(lines, identity) || has_replaced_ours(lines, previous, identity, file) =>
        {
            // A record without a header before it, or behind one that has lost its newline.
            if record::intact_at_end(first).is_some() {
                (first, lines) = (&[], &all);
            }
            let header = header_before(lines, identity);
            (header, Some(Damage { line: 1, reason, lost: 0, words: BTreeSet::new() }))
        }
        header => (header?, None),
    };
    let mut loaded = Loaded {
        memory: Memory::default(),
        next: header.first,
        lines: 0,
        len: first.len() as u64,
        torn: 0,
        settled: header.synced,
        format: header.hostloop,
        ends_inside: false,
        damage,
    };
    // What was on disk once. A line behind a bad one may say so.
    let mark = lines.iter().filter_map(|line| record::mark_at_end(line)).fold(header.synced, u64::max);
    // A bad header does not say what was on disk before the file got its name: nothing behind it is taken for torn.
    let is_headless = loaded.damage.is_some();
    for line in lines {
        match record::intact(line) {
            Some(json) => loaded.take(json, file)?,
            // Nothing says that it was acknowledged, nor anything after it.
            None if mark < loaded.next && !is_headless => break,
            None => {
                loaded.skip(line);
                // Behind a line that has lost its end, or without its own: it gets one before anything is appended.
                let ended = if line.ends_with(b"\n") { line.to_vec() } else { [line, &b"\n"[..]].concat() };
                record::intact_at_end(&ended).map_or(Ok(()), |json| loaded.take(json, file))?;
                loaded.ends_inside = !line.ends_with(b"\n");
            }
        }
        loaded.lines += 1;
        loaded.len += line.len() as u64;
    }
    loaded.reach(mark.saturating_add(1), || format!("record {mark} was once on disk"));
    loaded.torn = (bytes.len() as u64).saturating_sub(loaded.len);
    match &loaded.damage {
        Some(damage) if !loaded.is_current() => Err(damaged(file, damage.line, damage.reason.clone())),
        _ => Ok(loaded),
    }
}

/// Reports whether lines behind a bad header are of this node, by the ids of what was made on it. What has moved here keeps the id that it
/// got on another node.
fn is_ours(lines: &[&[u8]], identity: &Identity) -> bool {
    let node = NodeKey::of(&identity.node_id);
    let is_here =
        |volume: &Volume| volume.directory().node_key() == node.as_str() || !volume.adopted_from.is_empty();
    intact(lines).any(|line| match line.change {
        Change::Put(Put::Volume(volume)) => is_here(&volume),
        Change::Rename(Rename { to, .. }) => is_here(&to),
        // A snapshot that was taken from this node has its key, and is on another one. Of a member, the record of the
        // group says that.
        Change::Put(Put::Snapshot(snapshot)) => {
            let is_alone = snapshot.group.is_none() && !is_taken(snapshot.handover.as_ref());
            is_alone && snapshot.id.node_key() == node.as_str()
        }
        Change::Put(Put::GroupSnapshot(group)) => {
            group.id.node_key() == node.as_str() && !is_taken(group.handover.as_ref())
        }
        // What a volume leaves gets an id of the node that it has left.
        Change::Put(Put::Moved(moved)) => {
            moved.deleted_here.is_none() && moved.left.node_key() == node.as_str()
        }
        Change::Delete(_) => false,
    })
}

fn is_taken(handover: Option<&Handover>) -> bool {
    handover.is_some_and(|handover| handover.side == Side::Taken)
}

/// Reports whether the previous state file of the directory is of this node. Ids say nothing if all records are of what has moved here. A
/// previous file of another node says nothing either: `hostloop state adopt-node` leaves one. A file without any record is not read on:
/// there is nothing in it to lose.
fn has_replaced_ours(
    lines: &[&[u8]],
    previous: impl FnOnce() -> Option<Vec<u8>>,
    identity: &Identity,
    file: &Path,
) -> bool {
    if intact(lines).next().is_none() {
        return false;
    }
    let Some(previous) = previous() else { return false };
    let first = previous.split_inclusive(|byte| *byte == b'\n').next();
    first.is_some_and(|first| header(first, identity, file).is_ok())
}

/// Returns the records of the lines that are whole and that this version knows.
fn intact(lines: &[&[u8]]) -> impl Iterator<Item = Line> {
    lines.iter().filter_map(|line| record::parse(record::intact(line)?).ok())
}

/// Returns the header that the lines behind a bad one can have had.
fn header_before(lines: &[&[u8]], identity: &Identity) -> Header {
    let numbered = lines.iter().zip(0..).find_map(|(line, at)| {
        let line = record::parse(record::intact(line)?).ok()?;
        Some(line.seq.saturating_sub(at))
    });
    Header { synced: 0, ..Header::new(identity, numbered.unwrap_or(1), 0) }
}

/// Checks the first line. It was on disk before the file got its name, so that no crash explains a bad one.
fn header(line: &[u8], identity: &Identity, file: &Path) -> Result<Header, StoreError> {
    let bad = |reason: &str| damaged(file, 1, reason.to_owned());
    let format =
        record::format_of(line).ok_or_else(|| bad("it is not the header of a hostloop state file"))?;
    if format > FORMAT {
        return Err(StoreError::Version { file: file.to_owned(), found: format, supported: FORMAT });
    }
    let json = record::intact(line).ok_or_else(|| bad("the checksum does not fit"))?;
    let header: Header = serde_json::from_slice(json).map_err(|e| bad(&e.to_string()))?;
    if header.hostloop == 0 || header.synced == u64::MAX || header.synced.saturating_add(1) < header.first {
        return Err(bad("its numbers make no sense"));
    }
    let foreign = |what, found: &str, expected: &str, flag| StoreError::Foreign {
        file: file.to_owned(),
        what,
        found: found.to_owned(),
        expected: expected.to_owned(),
        flag,
    };
    if header.driver != identity.driver {
        return Err(foreign("driver", &header.driver, &identity.driver, "--driver-name"));
    }
    if header.node != identity.node_id {
        return Err(foreign("node", &header.node, &identity.node_id, "--node-id"));
    }
    Ok(header)
}

impl Loaded {
    /// Takes the next intact line. A line with an earlier number was not written there by hostloop: no crash moves lines.
    fn take(&mut self, json: &[u8], file: &Path) -> Result<(), StoreError> {
        let number = self.lines + 2;
        let line = record::parse(json).map_err(|reason| match record::format_of(json) {
            Some(_) => damaged(file, number, "it is a second header".to_owned()),
            None => StoreError::Unknown { file: file.to_owned(), line: number, reason },
        })?;
        if line.seq < self.next {
            let reason = format!("it has sequence number {}, expected was {}", line.seq, self.next);
            return Err(damaged(file, number, reason));
        }
        let seq = line.seq;
        self.reach(seq, || format!("record {seq} follows"));
        self.next =
            line.seq.checked_add(1).ok_or_else(|| damaged(file, number, "no number follows".to_owned()))?;
        self.memory.apply(&line.change);
        Ok(())
    }

    /// Passes over a line that cannot be read and was acknowledged once.
    fn skip(&mut self, line: &[u8]) {
        let number = self.lines + 2;
        let reason = format!("record {} is not as it was written", self.next);
        let damage = self.damage.get_or_insert_with(|| Damage {
            line: number,
            reason,
            lost: 0,
            words: BTreeSet::new(),
        });
        let text = String::from_utf8_lossy(line);
        damage.words.extend(text.split('"').map(str::to_owned));
    }

    /// Goes on with this number. If it is not the next one, what is in between is lost.
    fn reach(&mut self, number: u64, proof: impl FnOnce() -> String) {
        if number > self.next {
            let (line, missing) = (self.lines + 2, self.next);
            let damage = self.damage.get_or_insert_with(|| Damage {
                line,
                reason: format!("record {missing} is missing, and {}", proof()),
                lost: 0,
                words: BTreeSet::new(),
            });
            damage.lost += number - self.next;
            self.next = number;
        }
    }
}

fn damaged(file: &Path, line: u64, reason: String) -> StoreError {
    StoreError::Damaged { file: file.to_owned(), line, reason, advice: ADVICE }
}
