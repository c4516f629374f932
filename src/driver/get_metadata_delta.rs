//! CSI GetMetadataDelta.
//!
//! Two snapshots that share an extent on the disk hold the same bytes there, because nobody writes to it while both
//! exist. So the extent maps prove equality without a read. Where they do not (a block was rewritten, the pool cannot
//! share, btrfs has compressed it), the bytes are compared.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::Driver;
use super::copies::block_ranges::Messages;
use super::get_metadata_allocated::offset;
use super::locks::Mode;
use crate::error::{Error, OsContext, Result};
use crate::model::Snapshot;
use crate::model::answer::BlockRanges;
use crate::model::request::GetMetadataDelta;
use crate::os::{Extent, Images, is_errno};
use nix::errno::Errno;

/// Bytes read from each side at a time.
const CHUNK: u64 = 1 << 20;
/// Bytes that are told as changed together.
const BLOCK: u64 = 4096;
/// Extents asked for at a time.
const BATCH: usize = 1024;

impl Driver {
    /// Tells in which ranges the target differs from the base. `emit` gets each message and says whether the caller
    /// still listens.
    ///
    /// # Errors
    /// NOT_FOUND; INVALID_ARGUMENT for snapshots of different volumes; OUT_OF_RANGE for an offset that is negative or
    /// beyond the target's end; FAILED_PRECONDITION for snapshots of a directory, whose changes are not tracked.
    pub fn get_metadata_delta(
        &self,
        request: GetMetadataDelta,
        emit: &mut dyn FnMut(BlockRanges) -> bool,
    ) -> Result<()> {
        let find = |id: &str| self.ready_snapshot(id);
        let (base, target) = (find(&request.base_snapshot_id)?, find(&request.target_snapshot_id)?);
        let _guard = self.lock_all([&base, &target].map(|snapshot| ((&snapshot.id).into(), Mode::Shared)))?;
        let (base, target) = (find(&request.base_snapshot_id)?, find(&request.target_snapshot_id)?);
        check(&base, &target)?;
        let start = offset(request.starting_offset, &target)?;
        let mut sides = Sides::new(self, &base, &target)?;
        let mut messages = Messages::new(target.size_bytes, start, request.max_results, emit);
        let (mut at, mut listening) = (start, true);
        while at < target.size_bytes && listening {
            let (end, equal) = sides.proof_at(at, target.size_bytes)?;
            if !equal {
                listening = sides.compare(at..end, &mut messages)?;
            }
            at = end;
        }
        if listening {
            messages.finish();
        }
        tracing::info!(base = %base.id, target = %target.id, bytes_read = sides.bytes_read, "delta");
        Ok(())
    }
}

fn check(base: &Snapshot, target: &Snapshot) -> Result<()> {
    if base.source != target.source {
        return Err(Error::Invalid(format!(
            "snapshots {} and {} are of different volumes: only those of one volume can be compared",
            base.id, target.id
        )));
    }
    Ok(())
}

struct Sides<'a> {
    images: &'a dyn Images,
    base: Map,
    target: Map,
    bytes_read: u64,
}

impl<'a> Sides<'a> {
    fn new(driver: &'a Driver, base: &Snapshot, target: &Snapshot) -> Result<Self> {
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
        Ok(Sides { images, base: map(base)?, target: map(target)?, bytes_read: 0 })
    }

    /// Whether the maps prove that the bytes from `at` on are equal, and up to where that is known.
    fn proof_at(&mut self, at: u64, limit: u64) -> Result<(u64, bool)> {
        let (base, target) = (self.base.run_at(self.images, at)?, self.target.run_at(self.images, at)?);
        let end = base.end.min(target.end).min(limit);
        let equal = match (base.location, target.location) {
            (Location::Zeros, Location::Zeros) => true,
            (Location::Disk(one), Location::Disk(other)) => one == other,
            _ => false,
        };
        Ok((end, equal))
    }

    /// Reads both sides of a range and tells the blocks that differ. Says whether the caller still listens.
    fn compare(&mut self, range: Range<u64>, messages: &mut Messages<'_>) -> Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / CHUNK + 1) * CHUNK);
            let base = read(self.images, &self.base.image, at, end)?;
            let target = read(self.images, &self.target.image, at, end)?;
            self.count(&base);
            self.count(&target);
            let mut block = at;
            while block < end {
                let next = end.min((block / BLOCK + 1) * BLOCK);
                let slice =
                    |bytes: &[u8]| bytes.get((block - at) as usize..(next - at) as usize).map(<[u8]>::to_vec);
                if slice(&base) != slice(&target) && !messages.push(block..next) {
                    return Ok(false);
                }
                block = next;
            }
            at = end;
        }
        Ok(true)
    }

    /// How much was read goes into the log.
    fn count(&mut self, bytes: &[u8]) {
        self.bytes_read += bytes.len() as u64;
    }
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
