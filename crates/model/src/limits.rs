//! How much of a node long work may use.

/// How much of it there may be at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Copies: snapshots, restores, clones and cuts for other nodes.
    pub copies: usize,
    /// Answers that are streams: data for other nodes, and changed blocks.
    pub streams: usize,
    /// Bytes in a second that all streams of data together send; `None` for no limit.
    pub stream_rate: Option<u64>,
}

impl Limits {
    /// The most of either that can be set: each has a thread.
    pub const MOST: usize = 64;
    /// How many last passes have a place while all others are taken: this many copies, and this many streams. One for each
    /// other node.
    pub const LAST_PASSES: usize = 4;

    /// How many streams one caller may have: half of them, so that nobody keeps the others out.
    pub fn streams_each(&self) -> usize {
        self.streams.div_ceil(2)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { copies: 16, streams: 16, stream_rate: None }
    }
}
