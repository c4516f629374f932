//! What is done to a disk.

use serde::Serialize;

/// Bytes of a small access.
pub(super) const SMALL: usize = 4096;
/// Bytes of an access one after the other.
pub(super) const LARGE: usize = 1 << 20;

/// One way to use a disk. One access follows the other: a figure is what a single program sees that waits for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Reads 4 KiB at random positions, past the page cache (O_DIRECT).
    RandomRead,
    /// Overwrites 4 KiB at random positions, past the page cache.
    RandomWrite,
    /// Overwrites 4 KiB at a random position through the page cache, then fsync(2).
    WriteSync,
    /// Makes a file, writes 4 KiB to it, then fsync(2).
    CreateSync,
    /// Reads 1 MiB after 1 MiB, past the page cache.
    Read,
    /// Overwrites 1 MiB after 1 MiB, past the page cache.
    Write,
}

impl Pattern {
    /// Every pattern, in the order in which they are measured and shown.
    pub const ALL: [Pattern; 6] = [
        Pattern::RandomRead,
        Pattern::RandomWrite,
        Pattern::WriteSync,
        Pattern::CreateSync,
        Pattern::Read,
        Pattern::Write,
    ];

    /// Its name in headings.
    pub const fn title(self) -> &'static str {
        match self {
            Pattern::RandomRead => "Random read, 4 KiB",
            Pattern::RandomWrite => "Random write, 4 KiB",
            Pattern::WriteSync => "Write of 4 KiB and fsync",
            Pattern::CreateSync => "New file of 4 KiB and fsync",
            Pattern::Read => "Sequential read, 1 MiB",
            Pattern::Write => "Sequential write, 1 MiB",
        }
    }

    /// The unit of its figures.
    pub const fn unit(self) -> &'static str {
        match self {
            Pattern::Read | Pattern::Write => "MiB/s",
            _ => "per second",
        }
    }

    /// Whether a raw device has it.
    pub const fn is_for_devices(self) -> bool {
        !matches!(self, Pattern::CreateSync)
    }
}
