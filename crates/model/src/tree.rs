//! A directory tree as a stream of entries, with everything that a copy of it keeps.

use super::pull::{Piece, Zeros};

/// A point in time as a filesystem keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileTime {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

/// What an entry has beside its content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Permission bits with setuid, setgid and sticky (`st_mode & 07777`).
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Last access.
    pub atime: FileTime,
    /// Last change of the content.
    pub mtime: FileTime,
    /// Extended attributes, ACLs among them (xattr(7)): name without the final NUL, and value.
    pub extended: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of a regular file or a directory, where its filesystem has them: the flags of ioctl_iflags(2).
    pub flags: Option<u32>,
}

impl Attributes {
    /// The limit for the extended attributes of an entry in bytes, names and values together. An entry
    /// is sent as one message.
    pub const MOST: usize = 1 << 20;

    /// The limit for the number of extended attributes of an entry: more names than fit into XATTR_LIST_MAX
    /// (65536 bytes, xattr(7)), of which the shortest is `user.` with a letter and a NUL.
    pub const MOST_EXTENDED: usize = 10_000;

    /// Returns the size of the extended attributes in bytes, names and values together.
    pub fn extended_bytes(&self) -> usize {
        self.extended.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory; what is in it follows before anything else.
    Directory,
    /// A regular file of so many bytes. Its data follow before the next entry; what is left out is a hole.
    File {
        /// Apparent size in bytes.
        size: u64,
    },
    /// A symbolic link.
    Symlink {
        /// Where it points to, as it is written in it.
        target: Vec<u8>,
    },
    /// A FIFO, a socket or a device node.
    Special {
        /// Its type, as in `st_mode & S_IFMT`.
        file_type: u32,
        /// The number of a device (`st_rdev`).
        rdev: u64,
    },
    /// Another name of an entry before, which has the attributes.
    Link {
        /// That entry's number.
        entry: u64,
    },
}

/// What a file of a later tree has of the file with the same path in an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Basis {
    /// Nothing: it is sent whole.
    #[default]
    Nothing,
    /// Its content, up to its own size: what differs follows.
    Content,
    /// Everything but the time of the last access. No data follow.
    Everything,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Entries are numbered in the order of the walk: a directory comes before what is in it. The top is 0.
    pub number: u64,
    /// The number of the directory that it is in; 0 for the top.
    pub parent: u64,
    /// Its name in that directory; empty for the top.
    pub name: Vec<u8>,
    pub kind: Kind,
    /// It has further names, some of which may follow as links.
    pub linked: bool,
    /// The rest; empty for a link.
    pub attributes: Attributes,
    /// Of a regular file, where the reader has an earlier tree.
    pub basis: Basis,
}

/// Where in the stream of a tree to go on. A tree that does not change always gives the same stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The first entry that is wanted.
    pub entry: u64,
    /// From here on the data of the entry before that one are wanted, if it is a file.
    pub offset: u64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {} before entry {}", self.offset, self.entry)
    }
}

impl Position {
    /// Where the stream is behind this part of it.
    #[must_use]
    pub fn behind(self, item: &Item) -> Self {
        match item {
            Item::Entry(entry) => Position { entry: entry.number.saturating_add(1), offset: 0 },
            Item::Data(piece) => Position { offset: piece.end(), ..self },
            Item::Zeros(zeros) => Position { offset: zeros.end(), ..self },
            Item::Alive | Item::End { .. } => self,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Entry(Entry),
    /// Data of the file that began last, in ascending order.
    Data(Piece),
    /// These bytes of it read as zeros, and not so in the earlier tree.
    Zeros(Zeros),
    /// Files are compared at this moment: so whoever waits hears something.
    Alive,
    /// The tree is whole. Without it the stream was cut off.
    End {
        /// Entries in the whole tree.
        entries: u64,
        /// Bytes of data in this stream.
        sent_bytes: u64,
    },
}
