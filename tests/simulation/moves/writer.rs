//! What a pod writes into its volume, as a database does: records with numbers and checksums, one after the other, each
//! synced, and then the number of the last one, synced too. Then the record is acknowledged. A pod that starts reads all.

use std::io;

use hostloop_fake_kernel::FakeKernel;

use crate::harness::DATA_DIR;
use crate::random::Random;
use crate::requests::Kind;

/// Where things are in a block device, and the size of a record there.
const BLOCK: u64 = 4096;
/// The size of a record in a file, and how many are in one.
const SMALL: u64 = 512;
const TOGETHER: u64 = 16;
/// The head says whose volume it is, the foot what the number of the last record is.
const HEAD: u64 = 0;
const FOOT: u64 = 1;
const FIRST: u64 = 2;

/// What a copy has that takes the volume's place although it may lack records, or what the volume has that is taken back.
#[derive(Debug, Clone, Default)]
pub(super) struct Loss {
    /// The number of the last record that has to be there, and of the last one that can be.
    pub(super) least: u64,
    pub(super) most: u64,
    /// As that of the log at that time.
    pub(super) lines: Vec<Line>,
}

/// From which record on the records are of another line, which a loss has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub(super) first: u64,
    pub(super) number: u64,
}

/// What is known outside of the volume of what a pod has written.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    /// Whose volume it is.
    pub(super) owner: u64,
    /// Whether the head is there.
    pub(super) begun: bool,
    /// The last record that was acknowledged, and the last one that may be there.
    pub(super) acknowledged: u64,
    pub(super) written: u64,
    /// The lines of records, and how many there have ever been.
    pub(super) lines: Vec<Line>,
    pub(super) count: u64,
    /// What the next pod may find instead of all records.
    pub(super) loss: Option<Loss>,
}

impl Log {
    /// What the volume has, and nothing that was acknowledged is missing.
    pub(super) fn all(&self) -> Loss {
        Loss { least: self.acknowledged, most: self.written, lines: self.lines.clone() }
    }

    /// The value of a record: its number, and that of its line, so that one that was lost and one that was written instead differ.
    fn value(lines: &[Line], record: u64) -> u64 {
        let line = lines.iter().rev().find(|line| line.first <= record);
        record + (line.map_or(0, |line| line.number) << 32)
    }
}

/// What is wrong with a volume, or with the way to it.
pub(super) enum Trouble {
    /// The volume is not what it has to be.
    Wrong(String),
    /// The pod ends there; the next one reads again.
    Lost,
}

impl From<io::Error> for Trouble {
    fn from(_: io::Error) -> Trouble {
        Trouble::Lost
    }
}

/// A volume where a pod sees it.
pub(super) struct Place<'a> {
    pub(super) kernel: &'a FakeKernel,
    pub(super) target: &'a str,
    pub(super) kind: Kind,
}

/// A piece of a volume: its owner, its number and a value, with a checksum and what fills it.
fn piece(owner: u64, number: u64, value: u64, size: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = [owner, number, value].iter().flat_map(|part| part.to_le_bytes()).collect();
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    let head = bytes.len();
    bytes.resize(usize::try_from(size).unwrap(), 0);
    let mut random = Random::new(owner ^ number << 20 ^ value);
    random.fill(&mut bytes[head..]);
    bytes
}

impl Place<'_> {
    fn is_block(&self) -> bool {
        self.kind == Kind::Block
    }

    fn size(&self) -> u64 {
        if self.is_block() { BLOCK } else { SMALL }
    }

    fn file(&self, at: u64) -> String {
        match at {
            HEAD => format!("{}/head", self.target),
            FOOT => format!("{}/foot", self.target),
            record => format!("{}/log{}", self.target, (record - FIRST) / TOGETHER),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_block() {
            return self.kernel.write(self.target, at * BLOCK * 3, bytes);
        }
        let file = self.file(at);
        match at {
            record if record >= FIRST && !(record - FIRST).is_multiple_of(TOGETHER) => {
                self.kernel.write(file, (record - FIRST) % TOGETHER * SMALL, bytes)
            }
            _ => self.kernel.write_file(file, bytes),
        }
    }

    /// What is there; `None` where nothing was ever written.
    fn read(&self, at: u64) -> io::Result<Option<Vec<u8>>> {
        let (from, size) = (at.saturating_sub(FIRST) % TOGETHER * SMALL, self.size() as usize);
        let found = match self.is_block() {
            true => self.kernel.read(self.target, at * BLOCK * 3, size),
            false if !self.kernel.exists(self.file(at)) => return Ok(None),
            false => self.kernel.read(self.file(at), from, size),
        }?;
        let blank = found.len() < size || found.iter().all(|byte| *byte == 0);
        Ok((!blank).then_some(found))
    }

    /// The value of a piece, which has to be one of this owner.
    fn value(&self, owner: u64, at: u64) -> Result<Option<u64>, Trouble> {
        let Some(found) = self.read(at)? else { return Ok(None) };
        let value = u64::from_le_bytes(found[16..24].try_into().unwrap());
        if found == piece(owner, at, value, self.size()) {
            return Ok(Some(value));
        }
        let [whose, number] =
            [0, 8].map(|from| u64::from_le_bytes(found[from..from + 8].try_into().unwrap()));
        Err(Trouble::Wrong(match whose == owner {
            true => format!("piece {at} is damaged, or another one: it says that it is {number}"),
            false => format!("piece {at} is of volume {whose:x} and not of {owner:x}"),
        }))
    }

    fn put(&self, owner: u64, at: u64, value: u64) -> io::Result<()> {
        self.write(at, &piece(owner, at, value, self.size()))
    }

    /// Has what was written on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        if !self.is_block() {
            self.kernel.sync(self.target)?;
        }
        self.kernel.sync(DATA_DIR)
    }

    /// Reads all, and compares it with what is known. A volume of which nothing is known is begun.
    pub(super) fn open(&self, log: &mut Log) -> Result<(), Trouble> {
        let owner = log.owner;
        match self.value(owner, HEAD)? {
            Some(_) => {}
            // Its copy may have been made before the first pod ran.
            None if log.begun && log.loss.as_ref().is_none_or(|loss| loss.least > 0) => {
                return Err(Trouble::Wrong("it is empty".to_owned()));
            }
            None => {
                self.put(owner, HEAD, 1)?;
                self.put(owner, FOOT, 0)?;
                self.sync()?;
            }
        }
        log.begun = true;
        let Loss { least, most, lines } = log.loss.clone().unwrap_or_else(|| log.all());
        let foot = self.value(owner, FOOT)?.unwrap_or_default();
        let mut last = 0;
        while let Some(value) = self.value(owner, FIRST + last)? {
            last += 1;
            if value != Log::value(&lines, last) {
                return Err(Trouble::Wrong(format!("record {last} says that it is {value:x} of {lines:?}")));
            }
        }
        // No more than one is under way.
        for after in [1, 2, 3] {
            if self.value(owner, FIRST + last + after)?.is_some() {
                return Err(Trouble::Wrong(format!("record {} is missing", last + 1)));
            }
        }
        if last < least || last > most || foot > last || foot < least {
            return Err(Trouble::Wrong(format!(
                "it ends with record {last} and says {foot}, but {least} have to be there, of {most}; known is {log:?}"
            )));
        }
        self.sync()?;
        if log.loss.take().is_some() {
            log.count += 1;
            log.lines = lines;
            log.lines.push(Line { first: last + 1, number: log.count });
            log.acknowledged = foot;
        }
        log.written = last;
        Ok(())
    }

    /// Writes the next record.
    pub(super) fn append(&self, log: &mut Log) -> io::Result<()> {
        let number = log.written + 1;
        self.put(log.owner, FIRST + number - 1, Log::value(&log.lines, number))?;
        log.written = number;
        Ok(())
    }

    /// Writes down, when they are on the disk, that all records are, and acknowledges them when that is on the disk too.
    pub(super) fn commit(&self, log: &mut Log) -> io::Result<()> {
        self.sync()?;
        self.put(log.owner, FOOT, log.written)?;
        self.sync()?;
        log.acknowledged = log.written;
        Ok(())
    }
}
