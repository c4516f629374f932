//! What nodes exchange when a volume is made from another node's snapshot or volume.

use serde::{Deserialize, Serialize};

use super::{
    BackendKind, Consistency, Content, GroupSnapshotId, MovingSnapshot, NodeKey, Permit, SnapshotId,
    Timestamp, VolumeId, VolumeSource,
};

/// The way to a source on another node, as a controller tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The key of that node.
    pub node_key: NodeKey,
    /// Where that node listens (`HOST:PORT`).
    pub address: String,
    /// The permit that the source's node checks before it sends data.
    pub permit: Permit,
}

/// A pull's order to the node that has the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSource {
    pub source: VolumeSource,
    /// The volume that is made from it: a cut of a volume is made for it, and found again by a retry.
    pub target: VolumeId,
    /// How a volume in use is cut.
    pub consistency: Consistency,
    /// When the volume's node began, by its clock; the same in retries as long as it has no answer. What was cut for
    /// another beginning is of an earlier time than the volume is to be.
    pub began: Timestamp,
    /// What stays of a cut when it has been read.
    pub keep: Keep,
    /// The volume is made file by file, whatever the source has. Of a directory in use, the files need not be of one moment. The filesystem
    /// of an image is read by its files, so it has to be of one moment.
    pub by_file: bool,
}

/// What becomes of the cut of a volume when it has been read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Keep {
    /// It is of no use any more.
    #[default]
    Nothing,
    /// It stays: what changes after it will be asked for.
    First,
    /// It stays, and so does this earlier one, whose data the copy has.
    After(SourceHandle),
    /// It is this one, which an earlier call made, and no other.
    Made(SourceHandle),
    /// Of a snapshot: it moves to another node, with the group that it is a member of.
    Moves {
        /// The CSI node id of that node.
        node_id: String,
        /// The group; `None` for a snapshot that is a member of none.
        group: Option<GroupSnapshotId>,
    },
}

/// A source as it is read: a snapshot, or the cut that was made of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceHandle {
    pub id: SnapshotId,
    /// When it was cut: a later one of the same id has other data.
    pub created: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDescription {
    /// By which it is read.
    pub handle: SourceHandle,
    pub content: Content,
    /// Its size in bytes: the least that a volume made from it has.
    pub size_bytes: u64,
    /// The size that was asked for, if it is less.
    pub requested_bytes: Option<u64>,
    /// Logical block size in bytes, which the new volume's loop device must have.
    pub block_size: u32,
    /// About so many bytes are sent.
    pub data_bytes: u64,
    /// It is the cut of a volume that was sealed: nothing was written to that since.
    pub sealed: bool,
    /// How often that volume had moved.
    pub generation: u64,
    /// When that volume was made, if its node knows.
    pub volume_created: Option<Timestamp>,
    /// The rest of its record, if it is a snapshot that moves.
    pub moving: Option<MovingSnapshot>,
}

impl SourceDescription {
    /// The backend of a volume that can be made from it.
    pub fn backend(&self) -> BackendKind {
        self.content.backend()
    }
}

/// A run of bytes, with its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where in the image or the file, in bytes.
    pub offset: u64,
    pub data: Vec<u8>,
    /// [`Piece::checksum`] as it was where they were read.
    pub crc32: u32,
}

impl Piece {
    /// At most so many bytes are in one.
    pub const MOST: usize = 1 << 20;

    /// A piece with its checksum.
    pub fn new(offset: u64, data: Vec<u8>) -> Self {
        let crc32 = Self::checksum(offset, &data);
        Piece { offset, data, crc32 }
    }

    /// CRC-32 (IEEE 802.3) of the offset as 8 bytes, little-endian, and the data: also right bytes in a wrong place are
    /// noticed.
    pub fn checksum(offset: u64, data: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&offset.to_le_bytes());
        hasher.update(data);
        hasher.finalize()
    }

    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.data.len() as u64)
    }

    /// Whether it is as it was where it was read.
    pub fn is_intact(&self) -> bool {
        self.crc32 == Self::checksum(self.offset, &self.data)
    }
}

/// A message of a stream, and where what was sent before it ended. A receiver that is at another place has missed
/// something, however many bytes it has counted: it takes nothing behind a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed<P, M> {
    /// The end of the message before; for the first one what was asked for.
    pub after: P,
    pub message: M,
}

/// A part of an answer that is a stream: an image's data, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocks {
    /// Data; what lies between two pieces is a hole.
    Data(Piece),
    /// Nothing but a hole follows. Without it the stream was cut off.
    End {
        /// Bytes of data in this stream.
        sent_bytes: u64,
    },
}

/// A part of an answer that is a stream: what differs between two cuts, in ascending order. What lies between two
/// messages is the same in both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changes {
    /// Data of the later cut.
    Data(Piece),
    /// These bytes read as zeros in the later cut.
    Zeros(Zeros),
    /// Nothing more has changed up to this byte: so whoever waits hears something.
    Unchanged {
        /// In bytes.
        end: u64,
    },
    /// Nothing more has changed. Without it the stream was cut off.
    End {
        /// Bytes of data in this stream.
        sent_bytes: u64,
    },
}

/// A run of zeros, with its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zeros {
    /// Where in the image, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// [`Zeros::checksum`] as it was where they were read.
    pub crc32: u32,
}

impl Zeros {
    /// A run with its checksum.
    pub fn new(offset: u64, len: u64) -> Self {
        Zeros { offset, len, crc32: Self::checksum(offset, len) }
    }

    /// CRC-32 (IEEE 802.3) of both numbers as 8 bytes each, little-endian.
    pub fn checksum(offset: u64, len: u64) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&offset.to_le_bytes());
        hasher.update(&len.to_le_bytes());
        hasher.finalize()
    }

    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Whether it is as it was where it was read.
    pub fn is_intact(&self) -> bool {
        self.crc32 == Self::checksum(self.offset, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_run_of_zeros_is_noticed() {
        let zeros = Zeros::new(4096, 8192);
        assert!(zeros.is_intact());
        assert_eq!(zeros.end(), 12288);
        assert!(!Zeros { offset: 0, ..zeros }.is_intact());
        assert!(!Zeros { len: 4096, ..zeros }.is_intact());
    }

    #[test]
    fn a_changed_byte_and_a_changed_place_are_noticed() {
        let piece = Piece::new(4096, b"data".to_vec());
        assert!(piece.is_intact());
        assert!(!Piece { offset: 8192, ..piece.clone() }.is_intact());
        assert!(!Piece { data: b"dato".to_vec(), ..piece.clone() }.is_intact());
        assert!(!Piece { data: b"data\0".to_vec(), ..piece }.is_intact());
    }
}
