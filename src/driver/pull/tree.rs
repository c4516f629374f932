//! Pulling a directory tree.

use std::path::Path;

use super::resume::resumed;
use super::{Broken, Remote, expect_end, expect_next};
use crate::driver::Driver;
use crate::driver::copies::progress::Progress;
use crate::error::{OsContext, Result};
use crate::model::pull::{Piece, Placed};
use crate::model::tree::{Entry, Item, Kind, Position};
use crate::os::TreeWriter;

/// A tree on its way.
struct Tree<'a> {
    path: &'a Path,
    writer: Box<dyn TreeWriter>,
    progress: &'a mut Progress,
    /// What comes next.
    at: Position,
    /// The size of the file that is the last entry; 0 for anything else.
    size: u64,
    /// Bytes of data so far.
    done: u64,
}

impl Driver {
    /// Makes a directory with all that is in the source's; durable on return, but for its name.
    pub(super) fn pull_tree_to(&self, remote: &Remote, path: &Path, progress: &mut Progress) -> Result<()> {
        let making = || format!("make {}", path.display());
        let writer = self.os.trees.write(path).doing(making)?;
        let mut tree = Tree { path, writer, progress, at: Position::default(), size: 0, done: 0 };
        resumed(remote, &mut tree, |tree| tree.at, |tree| tree.stream(remote))?;
        tree.writer.finish().doing(making)
    }
}

impl Tree<'_> {
    /// Reads one stream to its end.
    fn stream(&mut self, remote: &Remote) -> Result<(), Broken> {
        let (mut received, mut ended) = (0, false);
        remote.opened.tree(self.at, &mut |Placed { after, message }| {
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
        self.writer.entry(entry).doing(|| format!("write to {}", self.path.display()))?;
        self.at = Position { entry: entry.number + 1, offset: 0 };
        self.size = if let Kind::File { size } = entry.kind { size } else { 0 };
        self.progress.report(self.done);
        Ok(())
    }

    fn data(&mut self, piece: &Piece) -> Result<(), Broken> {
        let entry = self.at.entry.saturating_sub(1);
        let end = expect_next(piece, self.at.offset, self.size, format_args!(" of entry {entry}"))?;
        let writing = || format!("write to {}", self.path.display());
        self.writer.data(piece.offset, &piece.data).doing(writing)?;
        self.at.offset = end;
        self.done += piece.data.len() as u64;
        self.progress.report(self.done);
        Ok(())
    }
}
