//! Sets of block numbers, and maps from a file's blocks to those of its disk. Both are kept as runs, so the cost of a
//! huge file depends on its runs, not its size.

use std::collections::{BTreeMap, VecDeque};

/// Disjoint ranges of block numbers that do not touch, start to end.
#[derive(Clone, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
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

    /// Cuts `start..end` where it goes in or out of here: the pieces, and whether each is in.
    pub(super) fn pieces(&self, start: u64, end: u64) -> Vec<(u64, u64, bool)> {
        let (mut pieces, mut at) = (Vec::new(), start);
        let before = self.0.range(..=start).next_back().map(|(s, _)| *s).unwrap_or(start);
        for (s, e) in self.0.range(before..end.max(before)) {
            let (s, e) = ((*s).clamp(at, end), (*e).clamp(at, end));
            pieces.extend([(at, s, false), (s, e, true)]);
            at = e;
        }
        pieces.push((at, end, false));
        pieces.retain(|(start, end, _)| start < end);
        pieces
    }

    /// The lowest `count` blocks that are not in here.
    pub(super) fn lowest_free(&self, mut count: u64) -> Vec<(u64, u64)> {
        let (mut gaps, mut at) = (Vec::new(), 0);
        for (start, end) in &self.0 {
            let take = (start - at).min(count);
            gaps.push((at, at + take));
            count -= take;
            at = *end;
        }
        gaps.push((at, at + count));
        gaps.retain(|(start, end)| start < end);
        gaps
    }
}

/// Blocks of a disk that nobody has, to be given out.
#[derive(Clone)]
pub(super) struct Fresh(VecDeque<(u64, u64)>);

impl Fresh {
    pub(super) fn new(runs: Vec<(u64, u64)>) -> Self {
        Fresh(runs.into())
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// The next run, of at most `most` blocks: where it starts and how long it is.
    fn take(&mut self, most: u64) -> (u64, u64) {
        let (start, end) = self.0.pop_front().expect("enough blocks were counted beforehand");
        let length = most.min(end - start);
        if start + length < end {
            self.0.push_front((start + length, end));
        }
        (start, length)
    }
}

/// A run of a file's blocks that lie side by side on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Where the first one lies.
    pub(super) physical: u64,
}

impl Run {
    fn length(&self) -> u64 {
        self.end - self.start
    }

    /// The part within these bounds, which overlap with it.
    pub(super) fn clipped(&self, start: u64, end: u64) -> Run {
        let from = self.start.max(start);
        Run { start: from, end: self.end.min(end), physical: self.physical + (from - self.start) }
    }
}

/// Where the blocks of a file lie: runs by their start.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Map(BTreeMap<u64, Run>);

impl Map {
    pub(super) fn total(&self) -> u64 {
        self.0.values().map(Run::length).sum()
    }

    /// How many runs there are: what their map takes metadata for.
    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The runs within `start..end`.
    pub(super) fn runs(&self, start: u64, end: u64) -> impl Iterator<Item = Run> {
        let before = self.0.range(..start).next_back().map(|(_, run)| *run).filter(|run| run.end > start);
        let inside = self.0.range(start..end.max(start)).map(|(_, run)| *run);
        before
            .into_iter()
            .chain(inside)
            .filter(move |run| run.start < end)
            .map(move |run| run.clipped(start, end))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Run> {
        self.0.values().copied()
    }

    /// How many blocks of `start..end` lie nowhere.
    pub(super) fn missing(&self, start: u64, end: u64) -> u64 {
        end.saturating_sub(start) - self.runs(start, end).map(|run| run.length()).sum::<u64>()
    }

    /// The runs of `start..end` that lie in these blocks of the disk, or that do not.
    pub(super) fn among(&self, start: u64, end: u64, blocks: &Ranges, wanted: bool) -> Vec<Run> {
        let of_run = |run: Run| {
            let pieces = blocks.pieces(run.physical, run.physical + run.length());
            pieces.into_iter().filter(move |(_, _, inside)| *inside == wanted).map(move |(from, to, _)| Run {
                start: run.start + (from - run.physical),
                end: run.start + (to - run.physical),
                physical: from,
            })
        };
        self.runs(start, end).flat_map(of_run).collect()
    }

    fn put(&mut self, run: Run) {
        if let Some((_, last)) = self.0.range_mut(..run.start).next_back()
            && last.end == run.start
            && last.physical + last.length() == run.physical
        {
            last.end = run.end;
            return;
        }
        self.0.insert(run.start, run);
    }

    /// Gives `start..end` a place wherever it has none.
    pub(super) fn fill(&mut self, start: u64, end: u64, fresh: &mut Fresh) {
        let mut mapped = Ranges::default();
        self.runs(start, end).for_each(|run| mapped.insert(run.start, run.end));
        for (mut from, to, inside) in mapped.pieces(start, end) {
            while !inside && from < to {
                let (physical, length) = fresh.take(to - from);
                self.put(Run { start: from, end: from + length, physical });
                from += length;
            }
        }
    }

    /// Takes the places of `start..end` away.
    pub(super) fn cut(&mut self, start: u64, end: u64) {
        let touched: Vec<Run> = self.runs(start, end).collect();
        for piece in touched {
            let (_, whole) = self.0.range(..=piece.start).next_back().map(|(s, run)| (*s, *run)).unwrap();
            self.0.remove(&whole.start);
            for (from, to) in [(whole.start, piece.start), (piece.end, whole.end)] {
                if from < to {
                    let rest = whole.clipped(from, to);
                    self.0.insert(rest.start, rest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_split() {
        let mut ranges = Ranges::default();
        ranges.insert(10, 20);
        ranges.insert(30, 40);
        assert_eq!(ranges.pieces(15, 35), [(15, 20, true), (20, 30, false), (30, 35, true)]);
        assert_eq!(ranges.pieces(0, 5), [(0, 5, false)]);
        assert_eq!(ranges.pieces(12, 13), [(12, 13, true)]);
        assert_eq!(ranges.pieces(20, 50), [(20, 30, false), (30, 40, true), (40, 50, false)]);
        assert_eq!(ranges.lowest_free(15), [(0, 10), (20, 25)]);
        ranges.insert(20, 30);
        assert_eq!((ranges.0.len(), ranges.total()), (1, 30));
    }

    #[test]
    fn a_map_fills_holes_and_gives_up_places() {
        let mut map = Map::default();
        map.fill(4, 8, &mut Fresh::new(vec![(100, 104)]));
        map.fill(0, 10, &mut Fresh::new(vec![(200, 203), (300, 303)]));
        assert_eq!((map.total(), map.missing(0, 20), map.missing(5, 6)), (10, 10, 0));
        let of = |map: &Map| map.all().map(|run| (run.start, run.end, run.physical)).collect::<Vec<_>>();
        assert_eq!(of(&map), [(0, 3, 200), (3, 4, 300), (4, 8, 100), (8, 10, 301)]);
        let mut shared = Ranges::default();
        shared.insert(101, 103);
        let among = map.among(0, 10, &shared, true);
        assert_eq!(among, [Run { start: 5, end: 7, physical: 101 }]);
        map.cut(5, 7);
        assert_eq!(of(&map), [(0, 3, 200), (3, 4, 300), (4, 5, 100), (7, 8, 103), (8, 10, 301)]);
        map.cut(2, 100);
        assert_eq!(of(&map), [(0, 2, 200)]);
        map.fill(2, 4, &mut Fresh::new(vec![(202, 204)]));
        assert_eq!(of(&map), [(0, 4, 200)]);
    }
}
