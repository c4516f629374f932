//! What a file holds: sparse, so that a 1 TiB image costs what was written to it and no more.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tree::FsId;

/// The block size of every filesystem of the fake: what allocation is counted in.
pub(super) const BLOCK: u64 = 4096;

/// Disjoint ranges of block numbers that do not touch, start to end.
#[derive(Clone, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// How many blocks of `start..end` are not in here.
    fn missing(&self, start: u64, end: u64) -> u64 {
        let before =
            self.0.range(..start).next_back().map(|(_, e)| (*e).clamp(start, end) - start).unwrap_or(0);
        let inside: u64 = self.0.range(start..end).map(|(s, e)| (*e).min(end) - s).sum();
        (end - start) - before - inside
    }

    fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        let touching: Vec<u64> =
            self.0.range(..=end).rev().take_while(|(_, e)| **e >= start).map(|(s, _)| *s).collect();
        for key in touching {
            let old_end = self.0.remove(&key).unwrap();
            (start, end) = (start.min(key), end.max(old_end));
        }
        self.0.insert(start, end);
    }

    /// Drops everything from block `from` on.
    fn cut(&mut self, from: u64) {
        self.0.retain(|start, _| *start < from);
        if let Some((_, end)) = self.0.iter_mut().next_back() {
            *end = (*end).min(from);
        }
    }

    /// Adds the lowest `count` blocks that are not in here.
    fn fill(&mut self, mut count: u64) {
        let (mut gaps, mut at) = (Vec::new(), 0);
        for (start, end) in &self.0 {
            let take = (start - at).min(count);
            gaps.push((at, at + take));
            count -= take;
            at = *end;
        }
        gaps.push((at, at + count));
        for (start, end) in gaps {
            self.insert(start, end);
        }
    }
}

/// The contents of a file. A clone shares the blocks, so that keeping a durable copy is cheap.
#[derive(Clone, Default)]
pub(super) struct Content {
    size: u64,
    written: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Every block that takes space, those of `written` among them.
    allocated: Ranges,
    /// The filesystem whose files this image holds. They are a tree of their own and not among the bytes;
    /// kept here so that they come and go with the bytes at a power cut.
    pub(super) image: Option<FsId>,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated.total() * BLOCK
    }

    /// What it would take to have all of `offset..offset + len` allocated.
    pub(super) fn missing_bytes(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            0
        } else {
            self.allocated.missing(offset / BLOCK, (offset + len).div_ceil(BLOCK)) * BLOCK
        }
    }

    pub(super) fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        self.size = self.size.max(offset + bytes.len() as u64);
        while !bytes.is_empty() {
            let (block, within) = (offset / BLOCK, (offset % BLOCK) as usize);
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK as usize - within));
            let data = self.written.entry(block).or_insert_with(|| Arc::new(vec![0; BLOCK as usize]));
            Arc::make_mut(data)[within..within + now.len()].copy_from_slice(now);
            self.allocated.insert(block, block + 1);
            offset += now.len() as u64;
            bytes = later;
        }
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
            self.allocated.cut(size.div_ceil(BLOCK));
            if let Some(data) = self.written.get_mut(&(size / BLOCK)) {
                Arc::make_mut(data)[(size % BLOCK) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    /// Allocates `0..len` without writing to it, and makes the file at least that long.
    pub(super) fn allocate(&mut self, len: u64) {
        self.allocated.insert(0, len.div_ceil(BLOCK));
        self.size = self.size.max(len);
    }

    /// Allocates this many more bytes wherever there is a hole.
    pub(super) fn allocate_more(&mut self, bytes: u64) {
        self.allocated.fill(bytes / BLOCK);
    }

    pub(super) fn erase(&mut self) {
        *self = Content { size: self.size, ..Content::default() };
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;

    #[test]
    fn allocating_a_tebibyte_costs_nothing() {
        let mut content = Content::default();
        content.allocate(TIB);
        assert_eq!((content.size(), content.allocated_bytes()), (TIB, TIB));
        assert_eq!(content.next_data(0), None);
        content.write(TIB / 2, b"x");
        assert_eq!(content.allocated_bytes(), TIB);
        assert_eq!(content.next_data(1), Some((TIB / 2, TIB / 2 + BLOCK)));
        content.erase();
        assert_eq!((content.size(), content.allocated_bytes()), (TIB, 0));
    }

    #[test]
    fn bytes_come_back_and_holes_are_zeros() {
        let mut content = Content::default();
        content.write(4094, b"abcd");
        assert_eq!(content.read(4093, 10), b"\0abcd");
        content.set_size(4096);
        content.set_size(5000);
        assert_eq!(content.read(4094, 4), b"ab\0\0");
        assert_eq!(content.allocated_bytes(), BLOCK);
        assert!(content.read(5000, 1).is_empty());
    }

    #[test]
    fn ranges_merge_and_count() {
        let mut ranges = Ranges::default();
        ranges.insert(10, 20);
        ranges.insert(30, 40);
        assert_eq!((ranges.missing(0, 50), ranges.missing(15, 35), ranges.missing(12, 13)), (30, 10, 0));
        ranges.fill(15);
        assert_eq!(ranges.0.clone().into_iter().collect::<Vec<_>>(), [(0, 25), (30, 40)]);
        ranges.insert(25, 30);
        assert_eq!((ranges.0.len(), ranges.total()), (1, 40));
        ranges.cut(7);
        assert_eq!(ranges.total(), 7);
    }
}
