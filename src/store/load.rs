//! Reading the state file at start: what is kept, what a crash explains, and what stops the start.

use std::path::Path;

use super::Identity;
use super::error::{ADVICE, StoreError};
use super::memory::Memory;
use super::record::{self, FORMAT, Header};

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
}

impl Loaded {
    /// Whether the file is as the last rewrite by this version left it.
    pub fn is_settled(&self) -> bool {
        self.is_current() && self.torn == 0 && self.settled.saturating_add(1) == self.next
    }

    /// Whether lines of this version may follow: an earlier one reads them by what the header says.
    pub fn is_current(&self) -> bool {
        self.format == FORMAT
    }
}

/// Reads a state file.
///
/// # Errors
/// [`StoreError`] for a file of another owner or format, and for damage that no crash explains (see the
/// [module](super)).
pub(super) fn load(bytes: &[u8], identity: &Identity, file: &Path) -> Result<Loaded, StoreError> {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let header = header(first, identity, file)?;
    let mut loaded = Loaded {
        memory: Memory::default(),
        next: header.first,
        lines: 0,
        len: first.len() as u64,
        torn: 0,
        settled: header.synced,
        format: header.hostloop,
    };
    let mut mark = header.synced;
    let mut bad = None;
    for line in lines.by_ref() {
        let Some(json) = record::intact(line) else {
            bad = Some(line);
            break;
        };
        mark = mark.max(loaded.take(json, file)?);
        loaded.len += line.len() as u64;
    }
    // Lines behind a bad one are not read, but they may prove that it had been acknowledged.
    mark = bad.into_iter().chain(lines).filter_map(record::mark_at_end).fold(mark, u64::max);
    loaded.torn = (bytes.len() as u64).saturating_sub(loaded.len);
    if mark >= loaded.next {
        let what = if loaded.torn == 0 { "is missing" } else { "is not as it was written" };
        let reason = format!("record {} {what}, and record {mark} was once on disk", loaded.next);
        return Err(damaged(file, loaded.lines + 2, reason));
    }
    Ok(loaded)
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
    /// Takes the next intact line and returns its mark. An intact line in the wrong place was put there by
    /// someone else than hostloop: no crash moves lines.
    fn take(&mut self, json: &[u8], file: &Path) -> Result<u64, StoreError> {
        let number = self.lines + 2;
        let line = record::parse(json).map_err(|reason| match record::format_of(json) {
            Some(_) => damaged(file, number, "it is a second header".to_owned()),
            None => StoreError::Unknown { file: file.to_owned(), line: number, reason },
        })?;
        if line.seq != self.next {
            let reason = format!("it has sequence number {}, expected was {}", line.seq, self.next);
            return Err(damaged(file, number, reason));
        }
        self.next =
            line.seq.checked_add(1).ok_or_else(|| damaged(file, number, "no number follows".to_owned()))?;
        self.lines += 1;
        self.memory.apply(&line.change);
        Ok(line.synced)
    }
}

fn damaged(file: &Path, line: u64, reason: String) -> StoreError {
    StoreError::Damaged { file: file.to_owned(), line, reason, advice: ADVICE }
}
