//! What differs between two files that hold what one file held at two times, while nobody changes either.
//!
//! Two files that share an extent on the disk hold the same bytes there. So the extent maps prove equality without a read.
//! Where they do not (a block was rewritten, the filesystem cannot share, btrfs has compressed it), the bytes are compared
//! (docs/decisions/0007).

use std::ops::Range;

use super::Extent;
use hostloop_model::pull::{Piece, Zeros};
use hostloop_model::tree::Item;

/// Bytes read from each side at a time.
const CHUNK: u64 = 1 << 20;
/// Bytes that are told as changed together.
const BLOCK: u64 = 4096;
/// Extents asked for at a time.
const BATCH: usize = 1024;

/// One of the two files.
pub trait Side {
    /// Why it cannot be read.
    type Error;
    /// Its extents as [`Images::extents`](super::Images::extents) tells them with `sync`; `None` where its filesystem cannot.
    fn extents(&self, at: u64, most: usize) -> Result<Option<Vec<Extent>>, Self::Error>;
    /// Up to `len` bytes, less only at its end.
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Self::Error>;
}

/// Both files.
pub struct Sides<S> {
    base: Map<S>,
    target: Map<S>,
    size: u64,
    bytes_read: u64,
}

/// A range, from the end of the one before.
pub enum Change<'a> {
    /// Its bytes differ, in whole blocks, and are these in the target.
    Differs { range: Range<u64>, bytes: &'a [u8] },
    /// Up to here they are the same. Not told of everything that is.
    None { end: u64 },
}

/// Takes a change, and says whether it wants more.
type Take<'a, E> = &'a mut dyn FnMut(Change<'_>) -> Result<bool, E>;

impl<S: Side> Sides<S> {
    /// Each with its size in bytes.
    pub fn new((base, base_size): (S, u64), (target, size): (S, u64)) -> Self {
        Sides { base: Map::new(base, base_size), target: Map::new(target, size), size, bytes_read: 0 }
    }

    /// How much was read of both.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Tells what differs from `start` on, ascending, in pieces of at most 1 MiB. Says whether `take` wanted all.
    pub fn each_change(&mut self, start: u64, take: Take<'_, S::Error>) -> Result<bool, S::Error> {
        let mut at = start;
        while at < self.size {
            let (end, equal) = self.proof_at(at)?;
            if !equal && !self.compare(at..end, take)? {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    /// Whether the maps prove that the bytes from `at` on are equal, and up to where that is known.
    fn proof_at(&mut self, at: u64) -> Result<(u64, bool), S::Error> {
        let (base, target) = (self.base.run_at(at)?, self.target.run_at(at)?);
        let end = base.end.min(target.end).min(self.size);
        let equal = match (base.location, target.location) {
            (Location::Zeros, Location::Zeros) => true,
            (Location::Disk(one), Location::Disk(other)) => one == other,
            _ => false,
        };
        Ok((end, equal))
    }

    /// Reads both sides of a range and tells the blocks that differ. Says whether `take` wants more.
    fn compare(&mut self, range: Range<u64>, take: Take<'_, S::Error>) -> Result<bool, S::Error> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / CHUNK + 1) * CHUNK);
            let base = read(&self.base.file, at, end)?;
            let target = read(&self.target.file, at, end)?;
            self.bytes_read += (base.len() + target.len()) as u64;
            let within = |bytes: u64| (bytes - at) as usize;
            let (mut block, mut open) = (at, None);
            while block < end {
                let next = end.min((block / BLOCK + 1) * BLOCK);
                let part = within(block)..within(next);
                if base.get(part.clone()) != target.get(part) {
                    open = Some(open.map_or(block, |from: u64| from));
                } else if let Some(from) = open.take()
                    && !take(differs(&target, at, from..block))?
                {
                    return Ok(false);
                }
                block = next;
            }
            let last = match open {
                Some(from) => differs(&target, at, from..end),
                None => Change::None { end },
            };
            if !take(last)? {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }
}

/// A range that differs, of the bytes that were read from `at` on.
fn differs(bytes: &[u8], at: u64, range: Range<u64>) -> Change<'_> {
    let bytes = bytes.get((range.start - at) as usize..(range.end - at) as usize).unwrap_or_default();
    Change::Differs { range, bytes }
}

/// The bytes of a range; zeros beyond the end of a side that is shorter.
fn read<S: Side>(file: &S, from: u64, to: u64) -> Result<Vec<u8>, S::Error> {
    let len = usize::try_from(to - from).unwrap_or(usize::MAX);
    let mut bytes = file.read(from, len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Where a byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    /// Nowhere: it reads as zero.
    Zeros,
    /// At this byte of the disk.
    Disk(u64),
    /// The map does not tell.
    Unknown,
}

/// Bytes from some offset on that are in one place.
struct Run {
    end: u64,
    location: Location,
}

/// The extent map of one file, read in batches while it is walked from start to end.
struct Map<S> {
    file: S,
    size: u64,
    batch: Vec<Extent>,
    /// The extents up to here are in `batch`, or lie before what was asked for.
    known: Range<u64>,
    mapped: bool,
}

impl<S: Side> Map<S> {
    fn new(file: S, size: u64) -> Self {
        Map { file, size, batch: Vec::new(), known: 0..0, mapped: true }
    }

    fn run_at(&mut self, at: u64) -> Result<Run, S::Error> {
        if at >= self.size {
            return Ok(Run { end: u64::MAX, location: Location::Zeros });
        }
        if !self.known.contains(&at) {
            self.load(at)?;
        }
        if !self.mapped {
            return Ok(Run { end: self.size, location: Location::Unknown });
        }
        let index = self.batch.partition_point(|extent| extent.logical.saturating_add(extent.length) <= at);
        Ok(match self.batch.get(index) {
            None => Run { end: self.known.end, location: Location::Zeros },
            Some(extent) if extent.logical > at => Run { end: extent.logical, location: Location::Zeros },
            Some(extent) => {
                let end = extent.logical.saturating_add(extent.length);
                let location = match extent {
                    Extent { unwritten: true, .. } => Location::Zeros,
                    Extent { located: true, physical, .. } => {
                        Location::Disk(physical.saturating_add(at - extent.logical))
                    }
                    _ => Location::Unknown,
                };
                Run { end, location }
            }
        })
    }

    fn load(&mut self, at: u64) -> Result<(), S::Error> {
        let most = usize::try_from(self.size / BLOCK + 1).unwrap_or(BATCH).min(BATCH);
        match self.file.extents(at, most)? {
            Some(batch) => {
                // Only an empty batch says that nothing follows.
                let end = batch.last().map_or(self.size, |last| last.logical.saturating_add(last.length));
                (self.known, self.batch) = (at..end.max(at + 1), batch);
            }
            None => (self.known, self.mapped) = (0..self.size, false),
        }
        Ok(())
    }
}

/// Bytes that differ, as they are sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// At most [`Piece::MOST`] bytes.
    Data(Piece),
    /// Whole blocks of zeros.
    Zeros(Zeros),
}

impl From<Sent> for Item {
    fn from(sent: Sent) -> Self {
        match sent {
            Sent::Data(piece) => Item::Data(piece),
            Sent::Zeros(zeros) => Item::Zeros(zeros),
        }
    }
}

/// The bytes from `start` on, as they were told of as [`Change::Differs`], with runs of zeros as such. Says whether `take`
/// wanted all.
pub fn each_sent(start: u64, bytes: &[u8], take: &mut dyn FnMut(Sent) -> bool) -> bool {
    let is_zeros = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let blocks: Vec<&[u8]> = bytes.chunks(BLOCK as usize).collect();
    let mut at = start;
    blocks.chunk_by(|one, other| is_zeros(one) == is_zeros(other)).all(|run| {
        let (begin, len) = (at, run.iter().map(|block| block.len() as u64).sum());
        at += len;
        take(match run.first().is_some_and(|block| is_zeros(block)) {
            true => Sent::Zeros(Zeros::new(begin, len)),
            false => Sent::Data(Piece::new(begin, run.concat())),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zeros_are_told_as_such() {
        let block = BLOCK as usize;
        let mut bytes = vec![1; 3 * block];
        bytes.extend_from_slice(&vec![0; 2 * block]);
        bytes.extend_from_slice(&[2; 100]);
        let mut told = Vec::new();
        let all = each_sent(BLOCK, &bytes, &mut |sent| {
            told.push(sent);
            true
        });
        assert!(all);
        assert_eq!(
            told,
            [
                Sent::Data(Piece::new(BLOCK, vec![1; 3 * block])),
                Sent::Zeros(Zeros::new(4 * BLOCK, 2 * BLOCK)),
                Sent::Data(Piece::new(6 * BLOCK, vec![2; 100])),
            ]
        );
        assert!(!each_sent(0, &bytes, &mut |sent| !matches!(sent, Sent::Zeros(_))), "nobody waits any more");
    }
}
