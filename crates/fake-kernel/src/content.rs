//! What a file holds. It is sparse, so a 1 TiB image costs only what was written to it.

use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher};
use std::sync::Arc;

use super::blocks::{Fresh, Map, Ranges, Run};
use super::tree::FsId;

/// The block size of every filesystem of the fake: what allocation is counted in.
pub(super) const BLOCK: u64 = 4096;

/// The contents of a file. A clone shares the bytes, so that keeping a durable copy is cheap.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Content {
    size: u64,
    written: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Every block that takes space, those of `written` among them, and where on the disk it lies.
    places: Map,
    /// It was prepared to be written in place.
    pub(super) in_place: bool,
    /// The filesystem whose files this image holds. They are a tree of their own and not among the bytes;
    /// kept here so that they come and go with the bytes at a power cut.
    pub(super) image: Option<FsId>,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Hashes the bytes that a reader sees, independent of their place on the disk.
    pub(super) fn hash_bytes(&self, hasher: &mut impl Hasher) {
        (self.size, &self.written).hash(hasher);
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.places.total() * BLOCK
    }

    pub(super) fn places(&self) -> &Map {
        &self.places
    }

    /// Gives `blocks` a place each, and a new one to those that lie in `shared`.
    pub(super) fn place(&mut self, (start, end): (u64, u64), shared: &Ranges, fresh: &mut Fresh) {
        for run in self.places.among(start, end, shared, true) {
            self.places.cut(run.start, run.end);
        }
        self.places.fill(start, end, fresh);
    }

    /// Writes to blocks that have a place.
    pub(super) fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        self.size = self.size.max(offset + bytes.len() as u64);
        while !bytes.is_empty() {
            let (block, within) = (offset / BLOCK, (offset % BLOCK) as usize);
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK as usize - within));
            let data = self.written.entry(block).or_insert_with(|| Arc::new(vec![0; BLOCK as usize]));
            Arc::make_mut(data)[within..within + now.len()].copy_from_slice(now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    /// Gives all blocks of `start..end`, which have a place, the same bytes.
    pub(super) fn stamp(&mut self, (start, end): (u64, u64), bytes: &Arc<Vec<u8>>) {
        self.written.extend((start..end).map(|block| (block, bytes.clone())));
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = offset.saturating_add(len as u64).min(self.size);
        if offset >= end {
            return Vec::new();
        }
        let mut bytes = vec![0; (end - offset) as usize];
        for (block, data) in self.written.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let (start, stop) = ((block * BLOCK).max(offset), ((block + 1) * BLOCK).min(end));
            let within = (start % BLOCK) as usize;
            let source = &data[within..within + (stop - start) as usize];
            bytes[(start - offset) as usize..(stop - offset) as usize].copy_from_slice(source);
        }
        bytes
    }

    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.written.split_off(&size.div_ceil(BLOCK));
            self.places.cut(size.div_ceil(BLOCK), u64::MAX);
            if let Some(data) = self.written.get_mut(&(size / BLOCK)) {
                Arc::make_mut(data)[(size % BLOCK) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    /// Makes the file at least that long.
    pub(super) fn extend(&mut self, len: u64) {
        self.size = self.size.max(len);
    }

    pub(super) fn erase(&mut self) {
        *self = Content { size: self.size, in_place: self.in_place, ..Content::default() };
    }

    /// Makes the bytes of `start..end` read as zeros; whole blocks among them are not allocated any more.
    pub(super) fn erase_range(&mut self, start: u64, end: u64) {
        let end = end.min(self.size);
        let (first, last) = (start.div_ceil(BLOCK), end / BLOCK);
        let mut zero = |from: u64, to: u64| {
            if from < to
                && let Some(data) = self.written.get_mut(&(from / BLOCK))
            {
                Arc::make_mut(data)[(from % BLOCK) as usize..][..(to - from) as usize].fill(0);
            }
        };
        if first > last {
            return zero(start, end); // within one block
        }
        zero(start, first * BLOCK);
        zero(last * BLOCK, end);
        self.written.retain(|block, _| !(first..last).contains(block));
        self.places.cut(first, last);
    }

    /// Makes all of it read as zeros; every block stays allocated.
    pub(super) fn clear(&mut self) {
        self.written.clear();
        self.image = None;
    }

    /// Makes the blocks of `start..end` read as zeros; they stay allocated.
    pub(super) fn zero(&mut self, start: u64, end: u64) {
        self.written.retain(|block, _| !(start / BLOCK..end.div_ceil(BLOCK)).contains(block));
    }

    /// The first run of written blocks at or after `offset`. Blocks that are only allocated are holes, as
    /// SEEK_DATA has it.
    pub(super) fn next_data(&self, offset: u64) -> Option<(u64, u64)> {
        let mut blocks = self.written.range(offset / BLOCK..).map(|(block, _)| *block);
        let first = blocks.next()?;
        let mut end = first + 1;
        while blocks.next() == Some(end) {
            end += 1;
        }
        let start = (first * BLOCK).max(offset);
        let end = (end * BLOCK).min(self.size);
        (start < end).then_some((start, end))
    }

    /// How many blocks of `start..end` were written to.
    pub(super) fn written_among(&self, (start, end): (u64, u64)) -> u64 {
        self.written.range(start..end.max(start)).count() as u64
    }

    /// The runs that take space, and whether each was written to: a block that was not reads as zeros.
    pub(super) fn runs(&self) -> Vec<(Run, bool)> {
        let mut runs: Vec<(Run, bool)> = Vec::new();
        for run in self.places.all() {
            let mut written = Ranges::default();
            self.written.range(run.start..run.end).for_each(|(block, _)| written.insert(*block, *block + 1));
            let pieces = written.pieces(run.start, run.end);
            runs.extend(pieces.into_iter().map(|(start, end, is)| (run.clipped(start, end), is)));
        }
        runs
    }

    /// Whether this block has these bytes since they were written there.
    pub(super) fn holds(&self, block: u64, bytes: &Arc<Vec<u8>>) -> bool {
        self.written.get(&block).is_some_and(|now| Arc::ptr_eq(now, bytes))
    }

    /// The blocks that were written since this was as `old` is.
    pub(super) fn unlike(&self, old: &Content) -> impl Iterator<Item = (u64, Arc<Vec<u8>>)> {
        let written = self.written.iter().filter(|(block, bytes)| !old.holds(**block, bytes));
        written.map(|(block, bytes)| (*block, bytes.clone()))
    }

    /// Gives blocks what they held in `old`, or nothing; they stay allocated.
    pub(super) fn restore<'a>(&mut self, blocks: impl Iterator<Item = &'a u64>, old: &Content) {
        for block in blocks {
            // A tree of files is whole or not there.
            self.image = old.image;
            match old.written.get(block) {
                Some(bytes) => drop(self.written.insert(*block, bytes.clone())),
                None => drop(self.written.remove(block)),
            }
        }
    }

    /// The same content without those blocks.
    pub(super) fn with<'a>(&self, lost: impl Iterator<Item = &'a u64>, old: &Content) -> Content {
        let mut content = self.clone();
        content.restore(lost, old);
        content
    }

    /// Whether this file starts with all of the other's bytes and has none but zeros after them.
    pub(super) fn covers(&self, other: &Content) -> bool {
        let data = |content: &'_ Content| {
            let some = |(_, data): &(&u64, &Arc<Vec<u8>>)| data.iter().any(|byte| *byte != 0);
            content
                .written
                .iter()
                .filter(some)
                .map(|(block, data)| (*block, data.clone()))
                .collect::<Vec<_>>()
        };
        self.size >= other.size && data(self) == data(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;

    fn write(content: &mut Content, offset: u64, bytes: &[u8]) {
        let blocks = (offset / BLOCK, (offset + bytes.len() as u64).div_ceil(BLOCK));
        content.place(blocks, &Ranges::default(), &mut Fresh::new(vec![(1 << 40, 1 << 41)]));
        content.write(offset, bytes);
    }

    fn allocate(content: &mut Content, bytes: u64) {
        let blocks = (0, bytes.div_ceil(BLOCK));
        content.place(blocks, &Ranges::default(), &mut Fresh::new(vec![(1 << 20, 1 << 40)]));
        content.extend(bytes);
    }

    #[test]
    fn allocating_a_tebibyte_costs_nothing() {
        let mut content = Content::default();
        allocate(&mut content, TIB);
        assert_eq!((content.size(), content.allocated_bytes()), (TIB, TIB));
        assert_eq!(content.next_data(0), None);
        write(&mut content, TIB / 2, b"x");
        assert_eq!(content.allocated_bytes(), TIB);
        assert_eq!(content.next_data(1), Some((TIB / 2, TIB / 2 + BLOCK)));
        assert_eq!(
            content.runs().iter().map(|(_, written)| *written).collect::<Vec<_>>(),
            [false, true, false]
        );
        content.erase();
        assert_eq!((content.size(), content.allocated_bytes()), (TIB, 0));
    }

    #[test]
    fn bytes_come_back_and_holes_are_zeros() {
        let mut content = Content::default();
        write(&mut content, 4094, b"abcd");
        assert_eq!(content.read(4093, 10), b"\0abcd");
        content.set_size(4096);
        content.set_size(5000);
        assert_eq!(content.read(4094, 4), b"ab\0\0");
        assert_eq!(content.allocated_bytes(), BLOCK);
        assert!(content.read(5000, 1).is_empty());
    }

    #[test]
    fn a_copy_covers_its_source_once_it_has_all_of_it() {
        let (mut source, mut copy) = (Content::default(), Content::default());
        write(&mut source, 0, b"start");
        write(&mut source, 1 << 20, b"end");
        write(&mut copy, 0, b"start");
        copy.set_size(2 << 20);
        assert!(!copy.covers(&source));
        write(&mut copy, 1 << 20, b"end");
        assert!(copy.covers(&source));
        write(&mut copy, 8192, &[0; 4096]);
        assert!(copy.covers(&source), "zeros are zeros");
        write(&mut copy, 8192, b"x");
        assert!(!copy.covers(&source));
    }
}
