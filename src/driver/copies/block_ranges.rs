//! Ranges of blocks for GetMetadataAllocated and GetMetadataDelta: joined, clipped, and sent in messages.

use std::ops::Range;

use crate::model::answer::BlockRanges;

/// Ranges in a message where the caller names no limit.
const DEFAULT_RESULTS: usize = 1024;
/// At most so many, whatever the caller allows: a message stays far below the 4 MiB that gRPC clients take.
const MOST_RESULTS: usize = 50_000;

/// Collects ascending ranges into messages.
pub(crate) struct Messages<'a> {
    capacity: u64,
    start: u64,
    most: usize,
    emit: &'a mut dyn FnMut(BlockRanges) -> bool,
    ranges: Vec<Range<u64>>,
    /// The range that may still grow.
    open: Option<Range<u64>>,
    listening: bool,
}

impl<'a> Messages<'a> {
    /// For a volume of `capacity` bytes, from `start` on.
    pub(crate) fn new(
        capacity: u64,
        start: u64,
        max_results: Option<usize>,
        emit: &'a mut dyn FnMut(BlockRanges) -> bool,
    ) -> Self {
        let most = max_results.unwrap_or(DEFAULT_RESULTS).clamp(1, MOST_RESULTS);
        Messages { capacity, start, most, emit, ranges: Vec::new(), open: None, listening: true }
    }

    /// Adds a range that does not lie before those so far; one that touches the last is joined to it. Says whether the
    /// caller still listens.
    pub(crate) fn push(&mut self, range: Range<u64>) -> bool {
        let range = range.start.max(self.start)..range.end.min(self.capacity);
        if range.is_empty() {
            return self.listening;
        }
        match &mut self.open {
            Some(open) if open.end >= range.start => open.end = open.end.max(range.end),
            open => {
                let done = open.replace(range);
                self.ranges.extend(done);
                if self.ranges.len() >= self.most {
                    self.send();
                }
            }
        }
        self.listening
    }

    /// Sends what is left. A stream has one message at least, so that the caller learns the size.
    pub(crate) fn finish(mut self) {
        self.ranges.extend(self.open.take());
        while self.ranges.len() > self.most && self.listening {
            let rest = self.ranges.split_off(self.most);
            self.send();
            self.ranges = rest;
        }
        self.send();
    }

    fn send(&mut self) {
        let ranges = std::mem::take(&mut self.ranges);
        self.listening = self.listening && (self.emit)(BlockRanges { capacity_bytes: self.capacity, ranges });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(capacity: u64, start: u64, most: Option<usize>, pushed: &[Range<u64>]) -> Vec<BlockRanges> {
        let mut sent = Vec::new();
        let mut emit = |message| {
            sent.push(message);
            true
        };
        let mut messages = Messages::new(capacity, start, most, &mut emit);
        assert!(pushed.iter().all(|range| messages.push(range.clone())));
        messages.finish();
        sent
    }

    #[test]
    fn touching_ranges_are_one_and_all_is_clipped() {
        let sent = run(100, 5, None, &[0..10, 10..20, 30..40, 90..120]);
        assert_eq!(sent, [BlockRanges { capacity_bytes: 100, ranges: vec![5..20, 30..40, 90..100] }]);
    }

    #[test]
    fn an_empty_snapshot_still_tells_its_size() {
        assert_eq!(run(100, 0, None, &[]), [BlockRanges { capacity_bytes: 100, ranges: vec![] }]);
    }

    #[test]
    fn nothing_is_sent_to_a_caller_who_left() {
        let mut calls = 0;
        let mut emit = |_| {
            calls += 1;
            false
        };
        let mut messages = Messages::new(100, 0, Some(1), &mut emit);
        let pushed: Vec<bool> = [0..1, 2..3, 4..5].into_iter().map(|range| messages.push(range)).collect();
        assert_eq!(pushed, [true, false, false]);
        messages.finish();
        assert_eq!(calls, 1);
    }

    proptest! {
        #[test]
        fn every_byte_is_told_once_in_bounded_messages(
            cuts in proptest::collection::btree_set(0u64..1000, 0..60), start in 0u64..1000, most in 1usize..7,
        ) {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let pushed: Vec<Range<u64>> = cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            let sent = run(900, start.min(900), Some(most), &pushed);
            prop_assert!(sent.iter().all(|message| message.ranges.len() <= most && message.capacity_bytes == 900));
            let told: Vec<Range<u64>> = sent.into_iter().flat_map(|message| message.ranges).collect();
            prop_assert!(told.iter().all(|range| !range.is_empty()));
            prop_assert!(told.windows(2).all(|pair| pair[0].end < pair[1].start));
            for byte in 0..1000 {
                let expected = byte >= start && byte < 900 && pushed.iter().any(|range| range.contains(&byte));
                prop_assert_eq!(told.iter().any(|range| range.contains(&byte)), expected, "{}", byte);
            }
        }
    }
}
