//! Pulling a directory tree: all of it, or what a tree that is here already lacks.

use std::path::Path;

use nix::errno::Errno;

use super::resume::resumed;
use super::room::Room;
use super::{Broken, Counted, Remote, expect_end, expect_next};
use crate::driver::copies::progress::Progress;
use crate::driver::{Driver, Pool};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{TreeWriter, is_errno};
use crate::model::pull::{Piece, Placed, SourceHandle, Zeros};
use crate::model::tree::{Basis, Entry, Item, Kind, Position};

/// What a tree is made from beside what arrives.
pub(in crate::driver) struct Earlier<'a> {
    /// The earlier cut, at the node of the source.
    pub(in crate::driver) cut: &'a SourceHandle,
    /// All of its data, here.
    pub(in crate::driver) path: &'a Path,
    /// Where both trees are.
    pub(in crate::driver) pool: &'a Pool,
}

/// A tree on its way.
struct Tree<'a> {
    path: &'a Path,
    writer: Box<dyn TreeWriter>,
    progress: &'a mut Progress,
    /// What comes next.
    at: Position,
    /// The size of the file that is the last entry, and of which data may follow; 0 for anything else.
    size: u64,
    counted: Counted,
    room: Option<Room<'a>>,
    /// A file of the earlier tree is not what it is taken for.
    is_damaged: bool,
}

impl Driver {
    /// Makes a directory with all that is in the source's; durable on return, but for its name.
    pub(super) fn pull_tree_to(&self, remote: &Remote, path: &Path, progress: &mut Progress) -> Result<()> {
        self.take_tree(remote, (path, None), progress).map(drop)
    }

    /// The same beside a tree that has everything of an earlier cut: it becomes names of the files there, and copies of them
    /// that share blocks where the filesystem can, with what has changed. The earlier one is to be removed before anybody
    /// writes to it.
    ///
    /// # Errors
    /// As for a pull, NOT_FOUND also where the earlier tree is damaged; RESOURCE_EXHAUSTED without room. What was made by
    /// then is of no use.
    pub(in crate::driver) fn stage_tree(
        &self,
        remote: &Remote,
        earlier: &Earlier<'_>,
        path: &Path,
        progress: &mut Progress,
    ) -> Result<Counted> {
        self.take_tree(remote, (path, Some(earlier)), progress)
    }

    fn take_tree(
        &self,
        remote: &Remote,
        (path, earlier): (&Path, Option<&Earlier<'_>>),
        progress: &mut Progress,
    ) -> Result<Counted> {
        let making = || format!("make {}", path.display());
        let writer = self.os.trees.write(path, earlier.map(|earlier| earlier.path)).doing(making)?;
        let room = earlier.map(|earlier| Room::begin(self, earlier.pool)).transpose()?;
        let (at, counted) = (Position::default(), Counted::default());
        let mut tree = Tree { path, writer, progress, at, size: 0, counted, room, is_damaged: false };
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
        Ok(tree.counted)
    }
}

impl Tree<'_> {
    /// Reads one stream to its end.
    fn stream(&mut self, remote: &Remote, base: Option<&SourceHandle>) -> Result<(), Broken> {
        let (mut received, mut ended) = (0, false);
        remote.opened.tree(base, self.at, &mut |Placed { after, message }| {
            if after != self.at {
                return Err(Broken::Damaged(format!(
                    "what lies between {} and {after} was left out",
                    self.at
                )));
            }
            match message {
                Item::Entry(entry) => self.entry(&entry),
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

    fn entry(&mut self, entry: &Entry) -> Result<(), Broken> {
        let top_is_none = entry.number == 0 && entry.kind != Kind::Directory;
        if entry.number != self.at.entry || top_is_none {
            let (number, wanted) = (entry.number, self.at.entry);
            return Err(Broken::Damaged(format!("entry {number} arrived instead of {wanted}")));
        }
        let size = if let Kind::File { size } = entry.kind { size } else { 0 };
        match (&mut self.room, entry.basis) {
            (None, Basis::Content | Basis::Everything) => {
                return Err(Broken::Damaged(format!(
                    "entry {} is said to be like an earlier one, and there is none",
                    entry.number
                )));
            }
            (Some(room), Basis::Content) => room.take_copy(size)?,
            (_, Basis::Nothing | Basis::Everything) => {}
        }
        let made = self.writer.entry(entry);
        self.is_damaged = made.as_ref().is_err_and(|error| is_errno(error, Errno::EBADMSG));
        made.doing(|| format!("write to {}", self.path.display()))?;
        self.at = Position { entry: entry.number + 1, offset: 0 };
        self.size = if entry.basis == Basis::Everything { 0 } else { size };
        self.progress.report(self.counted.sent_bytes);
        Ok(())
    }

    fn data(&mut self, piece: &Piece) -> Result<(), Broken> {
        let end = expect_next(piece, self.at.offset, self.size, format_args!(" of entry {}", self.last()))?;
        let len = piece.data.len() as u64;
        if let Some(room) = &mut self.room {
            room.take(len)?;
        }
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
        self.writer.zeros(offset, zeros.len).doing(|| format!("write zeros to {}", self.path.display()))?;
        self.at.offset = end;
        self.counted.changed_bytes += zeros.len;
        Ok(())
    }

    /// The number of the last entry.
    fn last(&self) -> u64 {
        self.at.entry.saturating_sub(1)
    }
}
