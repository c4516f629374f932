//! What differs between two snapshots of a volume.
//!
//! Two snapshots that share an extent on the disk hold the same bytes there, because nobody writes to it while both
//! exist. So the extent maps prove equality without a read. Where they do not (a block was rewritten, the pool cannot
//! share, btrfs has compressed it), the bytes are compared (docs/decisions/0007).

use std::ops::Range;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::model::Snapshot;
use crate::os::{Extent, Images, is_errno};

/// Bytes read from each side at a time.
const CHUNK: u64 = 1 << 20;
/// Bytes that are told as changed together.
const BLOCK: u64 = 4096;
/// Extents asked for at a time.
const BATCH: usize = 1024;

/// Two snapshots of one volume, while nobody changes either.
pub(crate) struct Sides<'a> {
    images: &'a dyn Images,
    base: Map,
    target: Map,
    size: u64,
    bytes_read: u64,
}

/// A range, from the end of the one before.
pub(crate) enum Change<'a> {
    /// Its bytes differ, in whole blocks, and are these in the target.
    Differs { range: Range<u64>, bytes: &'a [u8] },
    /// Up to here they are the same. Not told of everything that is.
    None { end: u64 },
}

/// Takes a change, and says whether it wants more.
type Take<'a> = &'a mut dyn FnMut(Change<'_>) -> Result<bool>;

impl<'a> Sides<'a> {
    pub(crate) fn new(driver: &'a Driver, base: &Snapshot, target: &Snapshot) -> Result<Self> {
        let images = driver.os.images.as_ref();
        let map = |snapshot: &Snapshot| {
            let not_tracked = || {
                Error::InUse(format!(
                    "snapshot {} is of a directory, whose changes are not tracked",
                    snapshot.id
                ))
            };
            let image = driver.snapshot_paths(snapshot)?.image().ok_or_else(not_tracked)?;
            Ok::<_, Error>(Map::new(image, snapshot.size_bytes))
        };
        Ok(Sides { images, base: map(base)?, target: map(target)?, size: target.size_bytes, bytes_read: 0 })
    }

    /// How much was read of both.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Tells what differs from `start` on, ascending, in pieces of at most [`CHUNK`]. Says whether `take` wanted all.
    pub(crate) fn each_change(&mut self, start: u64, take: Take<'_>) -> Result<bool> {
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
    fn proof_at(&mut self, at: u64) -> Result<(u64, bool)> {
        let (base, target) = (self.base.run_at(self.images, at)?, self.target.run_at(self.images, at)?);
        let end = base.end.min(target.end).min(self.size);
        let equal = match (base.location, target.location) {
            (Location::Zeros, Location::Zeros) => true,
            (Location::Disk(one), Location::Disk(other)) => one == other,
            _ => false,
        };
        Ok((end, equal))
    }

    /// Reads both sides of a range and tells the blocks that differ. Says whether `take` wants more.
    fn compare(&mut self, range: Range<u64>, take: Take<'_>) -> Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / CHUNK + 1) * CHUNK);
            let base = read(self.images, &self.base.image, at, end)?;
            let target = read(self.images, &self.target.image, at, end)?;
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
fn read(images: &dyn Images, image: &Path, from: u64, to: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(to - from).unwrap_or(usize::MAX);
    let mut bytes = images.read_at(image, from, len).doing(|| format!("read {}", image.display()))?;
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

/// The extent map of one image, read in batches while it is walked from start to end.
struct Map {
    image: PathBuf,
    size: u64,
    batch: Vec<Extent>,
    /// The extents up to here are in `batch`, or lie before what was asked for.
    known: Range<u64>,
    mapped: bool,
}

impl Map {
    fn new(image: PathBuf, size: u64) -> Self {
        Map { image, size, batch: Vec::new(), known: 0..0, mapped: true }
    }

    fn run_at(&mut self, images: &dyn Images, at: u64) -> Result<Run> {
        if at >= self.size {
            return Ok(Run { end: u64::MAX, location: Location::Zeros });
        }
        if !self.known.contains(&at) {
            self.load(images, at)?;
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

    fn load(&mut self, images: &dyn Images, at: u64) -> Result<()> {
        match images.extents(&self.image, at, BATCH, true) {
            Ok(batch) => {
                // Only an empty batch says that nothing follows.
                let end = batch.last().map_or(self.size, |last| last.logical.saturating_add(last.length));
                (self.known, self.batch) = (at..end.max(at + 1), batch);
                Ok(())
            }
            Err(error) if is_errno(&error, Errno::EOPNOTSUPP) => {
                (self.known, self.mapped) = (0..self.size, false);
                Ok(())
            }
            Err(error) => Err(error).doing(|| format!("read the extents of {}", self.image.display())),
        }
    }
}
