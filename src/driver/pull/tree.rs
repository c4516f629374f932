//! Pulling a directory tree: all of it, or what a tree that is here already lacks.

use std::path::Path;

use nix::errno::Errno;

use super::allowed::Allowed;
use super::resume::resumed;
use super::room::Room;
use super::{Broken, Counted, Remote, expect_end, expect_next};
use crate::backend::{Inside, Place, expect_all_within};
use crate::driver::copies::progress::Progress;
use crate::driver::{Driver, Pool};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Reuse, TreeWriter, is_errno};
use crate::model::pull::{Piece, Placed, SourceHandle, Zeros};
use crate::model::tree::{Basis, Entry, Item, Kind, Position};
use crate::model::with_margin;

/// What a tree is made from beside what arrives.
pub(in crate::driver) struct Earlier<'a> {
    /// The earlier cut, at the node of the source.
    pub(in crate::driver) cut: &'a SourceHandle,
    /// All of its data, here.
    pub(in crate::driver) path: &'a Path,
    /// What becomes of its files.
    pub(in crate::driver) reuse: Reuse,
}

/// The tree that is made.
pub(in crate::driver) struct Making<'a> {
    pub(in crate::driver) path: &'a Path,
    pub(in crate::driver) pool: &'a Pool,
    pub(in crate::driver) place: Place<'a>,
    /// The bytes that the caller has reserved for it.
    pub(in crate::driver) reserved: u64,
}

/// The unit in which filesystems give out space, in bytes.
const BLOCK: u64 = 4096;
/// The size of an inode with its name, in bytes: the larger one of the defaults of ext4 and xfs.
const INODE: u64 = 512;
/// The bytes of extended attributes, or of a symbolic link's target, that fit into an inode.
const IN_INODE: u64 = 60;

/// The most that an inode with its name takes, in bytes, on any filesystem.
const MOST_OF_AN_INODE: u64 = 4096;
/// The most that an extended attribute takes in addition to its name and value, in bytes.
const MOST_OF_AN_ATTRIBUTE: u64 = 64;
/// The most that an extent takes in the metadata of its file, in bytes.
const EXTENT: u64 = 256;

/// A tree on its way.
struct Tree<'a> {
    path: &'a Path,
    writer: Box<dyn TreeWriter>,
    progress: &'a mut Progress,
    /// What comes next.
    at: Position,
    /// The size of the file that is the last entry, and of which data may follow; 0 for anything else.
    size: u64,
    /// The end of the blocks of that file that are counted so far.
    taken_to: u64,
    counted: Counted,
    room: Room<'a>,
    allowed: Allowed<'a>,
    /// Whether there is an earlier tree.
    has_earlier: bool,
    /// Its files are changed in place.
    in_place: bool,
    /// What no name at the top may begin with.
    own_names: Option<String>,
    /// A file of the earlier tree is not what it is taken for.
    is_damaged: bool,
}

impl Driver {
    /// Makes a directory with all that is in the source's; durable on return, but for its name.
    ///
    /// # Errors
    /// As for a pull; RESOURCE_EXHAUSTED without room; OUT_OF_RANGE for more than the enforced size.
    pub(in crate::driver) fn pull_tree_to(
        &self,
        remote: &Remote,
        making: &Making<'_>,
        progress: &mut Progress,
    ) -> Result<()> {
        self.take_tree(remote, (making, None), progress).map(drop)
    }

    /// The same beside a tree that has everything of an earlier cut: it becomes names of the files there, and copies of them
    /// that share blocks where the filesystem can, with what has changed. The earlier one is to be removed before anybody
    /// writes to it.
    ///
    /// # Errors
    /// As for a pull, NOT_FOUND also where the earlier tree is damaged; RESOURCE_EXHAUSTED without room; OUT_OF_RANGE for more
    /// than the enforced size. What was made by then is of no use.
    pub(in crate::driver) fn stage_tree(
        &self,
        remote: &Remote,
        earlier: &Earlier<'_>,
        making: &Making<'_>,
        progress: &mut Progress,
    ) -> Result<Counted> {
        let counted = self.take_tree(remote, (making, Some(earlier)), progress)?;
        let Some(enforced) = making.place.paths.enforced_bytes() else { return Ok(counted) };
        // The volume keeps the later tree only, with the blocks that both trees share.
        let measuring = || format!("measure {}", making.path.display());
        let usage = self.os.trees.usage(making.path).doing(measuring)?;
        if usage.bytes > with_margin(enforced) {
            // `usage` counts uncompressed bytes, the quota compressed ones.
            expect_all_within(making.place)?;
        }
        Ok(counted)
    }

    fn take_tree(
        &self,
        remote: &Remote,
        (&Making { path, pool, place, reserved }, earlier): (&Making<'_>, Option<&Earlier<'_>>),
        progress: &mut Progress,
    ) -> Result<Counted> {
        let making = || format!("make {}", path.display());
        let writer =
            self.os.trees.write(path, earlier.map(|earlier| (earlier.path, earlier.reuse))).doing(making)?;
        let is_filled = place.volume.copy_of.as_ref().is_some_and(|copy| copy.filled.is_some());
        let mut tree = Tree {
            path,
            writer,
            progress,
            at: Position::default(),
            size: 0,
            taken_to: 0,
            counted: Counted::default(),
            room: Room::begin(self, pool, reserved)?,
            allowed: Allowed::begin(place, earlier.is_some())?,
            has_earlier: earlier.is_some(),
            in_place: earlier.is_some_and(|earlier| earlier.reuse == Reuse::InPlace),
            own_names: is_filled.then(|| Inside::own_names(&place.volume.id)),
            is_damaged: false,
        };
        let cut = earlier.map(|earlier| earlier.cut);
        let taken = resumed(remote, &mut tree, |tree| tree.at, |tree| tree.stream(remote, cut));
        taken.map_err(|error| match earlier.filter(|_| tree.is_damaged) {
            // Whoever keeps the copy makes another one.
            Some(earlier) => Error::NotFound(format!(
                "{error}; {} is not as cut {} was, so the copy cannot be brought up to date any more; delete it and make another one, and check the disk",
                earlier.path.display(),
                earlier.cut.id
            )),
            None => error,
        })?;
        tree.writer.finish().doing(making)?;
        tree.allowed.expect_kept()?;
        Ok(tree.counted)
    }
}

impl Tree<'_> {
    /// Reads one stream to its end.
    fn stream(&mut self, remote: &Remote, base: Option<&SourceHandle>) -> Result<(), Broken> {
        let (mut received, mut ended) = (0, false);
        remote.opened.tree(base, self.at, &mut |Placed { after, message }| {
            remote.expect_in_time()?;
            if after != self.at {
                return Err(Broken::Damaged(format!(
                    "what lies between {} and {after} was left out",
                    self.at
                )));
            }
            match message {
                Item::Entry(entry) => self.entry(entry),
                Item::Data(piece) => {
                    received += piece.data.len() as u64;
                    self.data(&piece)
                }
                Item::Zeros(zeros) => self.zeros(zeros),
                Item::Alive => Ok(()),
                Item::End { entries, sent_bytes } if (entries, sent_bytes) == (self.at.entry, received) => {
                    ended = true;
                    Ok(())
                }
                Item::End { entries, .. } => Err(Broken::Damaged(format!(
                    "{} entries arrived of {entries} that were sent, or less data",
                    self.at.entry
                ))),
            }
        })?;
        expect_end(ended)
    }

    fn entry(&mut self, entry: Entry) -> Result<(), Broken> {
        let top_is_none = entry.number == 0 && entry.kind != Kind::Directory;
        if entry.number != self.at.entry || top_is_none {
            let (number, wanted) = (entry.number, self.at.entry);
            return Err(Broken::Damaged(format!("entry {number} arrived instead of {wanted}")));
        }
        let is_at_top = entry.number > 0 && entry.parent == 0;
        let is_own = |own: &String| is_at_top && entry.name.starts_with(own.as_bytes());
        if self.own_names.as_ref().is_some_and(is_own) {
            let name = String::from_utf8_lossy(&entry.name);
            return Err(Broken::Ended(Error::InUse(format!(
                "the volume has {name:?}, and the node needs this name while it makes the copy; rename or remove it"
            ))));
        }
        let size = if let Kind::File { size } = entry.kind { size } else { 0 };
        if entry.basis != Basis::Nothing && !self.has_earlier {
            return Err(Broken::Damaged(format!(
                "entry {} is said to be like an earlier one, and there is none",
                entry.number
            )));
        }
        let is_copied = entry.basis == Basis::Content && !self.in_place;
        let unshared = if is_copied { self.room.take_copy(size)? } else { 0 };
        self.room.take(cost(&entry))?;
        self.allowed.entry(most(&entry).saturating_add(unshared))?;
        let copied = self.writer.copied_bytes();
        let next = Position { entry: entry.number + 1, offset: 0 };
        let size = if entry.basis == Basis::Everything { 0 } else { size };
        let made = self.writer.entry(entry);
        self.is_damaged = made.as_ref().is_err_and(|error| is_errno(error, Errno::EBADMSG));
        made.doing(|| format!("write to {}", self.path.display()))?;
        // The kernel refuses to share the blocks of some files, such as one with too many names. The copy is on the disk by now, and
        // shows as less free space.
        self.allowed.bytes((self.writer.copied_bytes() - copied).saturating_sub(unshared))?;
        (self.at, self.size, self.taken_to) = (next, size, 0);
        self.progress.report(self.counted.sent_bytes);
        Ok(())
    }

    fn data(&mut self, piece: &Piece) -> Result<(), Broken> {
        let end = expect_next(piece, self.at.offset, self.size, format_args!(" of entry {}", self.last()))?;
        let len = piece.data.len() as u64;
        self.room.take(len)?;
        let blocks = self.new_blocks(piece.offset, end);
        self.allowed.bytes(blocks + EXTENT)?;
        let writing = || format!("write to {}", self.path.display());
        self.writer.data(piece.offset, &piece.data).doing(writing)?;
        self.at.offset = end;
        self.counted.sent_bytes += len;
        self.counted.changed_bytes += len;
        self.progress.report(self.counted.sent_bytes);
        Ok(())
    }

    fn zeros(&mut self, zeros: Zeros) -> Result<(), Broken> {
        let (offset, end) = (zeros.offset, zeros.end());
        let is_right = zeros.is_intact() && zeros.len > 0 && offset >= self.at.offset && end <= self.size;
        if !is_right {
            let entry = self.last();
            return Err(Broken::Damaged(format!(
                "zeros from {offset} to {end} of entry {entry} arrived out of their place"
            )));
        }
        // The kernel writes a block if only a part of it is erased.
        let mut blocks = if offset.is_multiple_of(BLOCK) { 0 } else { self.new_blocks(offset, offset + 1) };
        blocks += if end.is_multiple_of(BLOCK) { 0 } else { self.new_blocks(end - 1, end) };
        self.room.take(blocks)?;
        self.allowed.bytes(blocks + EXTENT)?;
        self.writer.zeros(offset, zeros.len).doing(|| format!("write zeros to {}", self.path.display()))?;
        self.at.offset = end;
        self.counted.changed_bytes += zeros.len;
        Ok(())
    }

    /// Returns the bytes of the blocks in this range of the file that are not counted yet, and counts them. Ranges come in order.
    fn new_blocks(&mut self, offset: u64, end: u64) -> u64 {
        let from = (offset / BLOCK * BLOCK).max(self.taken_to);
        let blocks = end.next_multiple_of(BLOCK).saturating_sub(from);
        self.taken_to = from + blocks;
        blocks
    }

    /// The number of the last entry.
    fn last(&self) -> u64 {
        self.at.entry.saturating_sub(1)
    }
}

/// Returns the bytes that an entry usually takes in addition to its data.
fn cost(entry: &Entry) -> u64 {
    let beyond = |bytes: u64| if bytes <= IN_INODE { 0 } else { bytes.next_multiple_of(BLOCK) };
    match entry.basis {
        Basis::Everything => INODE,
        Basis::Nothing | Basis::Content => {
            INODE + beyond(entry.attributes.extended_bytes() as u64) + beyond(target_bytes(entry))
        }
    }
}

/// Returns the most that an entry takes in addition to its data, in blocks of 4096 bytes. On btrfs an inode with a long name is
/// in four places, each attribute is an item of its own, and an item larger than half of a leaf leaves the rest of it unused.
fn most(entry: &Entry) -> u64 {
    let attributes = entry.attributes.extended.len() as u64 * MOST_OF_AN_ATTRIBUTE;
    MOST_OF_AN_INODE + 2 * (entry.attributes.extended_bytes() as u64 + attributes + target_bytes(entry))
}

/// Returns the length of the target of a symbolic link.
fn target_bytes(entry: &Entry) -> u64 {
    if let Kind::Symlink { target } = &entry.kind { target.len() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tree::Attributes;

    #[test]
    fn an_entry_counts_for_what_is_beside_its_data() {
        let entry = |kind: Kind, value: usize, basis: Basis| {
            let attributes =
                Attributes { extended: vec![(b"user.a".to_vec(), vec![0; value])], ..Attributes::default() };
            Entry { number: 1, parent: 0, name: b"n".to_vec(), kind, linked: false, attributes, basis }
        };
        let file = || Kind::File { size: 1 << 30 };
        for (entry, expected) in [
            (entry(file(), 0, Basis::Nothing), 512),
            (entry(file(), 54, Basis::Nothing), 512),
            (entry(file(), 55, Basis::Nothing), 512 + 4096),
            (entry(file(), 65536, Basis::Content), 512 + 65536 + 4096),
            (entry(file(), 65536, Basis::Everything), 512),
            (entry(Kind::Symlink { target: vec![b'x'; 60] }, 0, Basis::Nothing), 512),
            (entry(Kind::Symlink { target: vec![b'x'; 61] }, 0, Basis::Nothing), 512 + 4096),
            (entry(Kind::Directory, 4096, Basis::Nothing), 512 + 8192),
        ] {
            assert_eq!(cost(&entry), expected, "{entry:?}");
        }
    }
}
