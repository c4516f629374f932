//! PullTree of the protocol between nodes.

use super::{Heard, expect_two_cuts};
use crate::backend::Shape;
use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::model::pull::{Placed, SourceHandle};
use crate::model::tree::{Attributes, Entry, Item, Position};
use crate::model::{Snapshot, format_two};

impl Driver {
    /// Reads the tree of an opened source from a position on, entry by entry, and tells the end; with `base`, an earlier cut
    /// of the same volume, only what it does not have of that. `emit` gets each message and says whether the caller
    /// still listens.
    ///
    /// # Errors
    /// NOT_FOUND where either is gone; INVALID_ARGUMENT for one that is not a directory, and for cuts of different volumes;
    /// FAILED_PRECONDITION for an entry with too many extended attributes.
    pub fn pull_tree(
        &self,
        handle: &SourceHandle,
        base: Option<&SourceHandle>,
        from: Position,
        emit: &mut dyn FnMut(Placed<Position, Item>) -> bool,
    ) -> Result<()> {
        let (guard, snapshot) = self.opened(handle)?;
        let earlier = base.map(|base| self.opened(base)).transpose()?;
        if let Some((_, earlier)) = &earlier {
            expect_two_cuts(earlier, &snapshot)?;
        }
        let tree_of = |snapshot: &Snapshot| match self.snapshot_paths(snapshot)?.shape() {
            Shape::Tree(tree) => Ok(tree),
            Shape::Blocks(_) => Err(Error::Invalid(format!("source {} is not a directory", snapshot.id))),
        };
        let tree = tree_of(&snapshot)?;
        let base_tree = earlier.as_ref().map(|(_, earlier)| tree_of(earlier)).transpose()?;
        let urgency = self.urgency_of(&snapshot);
        let (mut sent_bytes, mut listening, mut at, mut heard) = (0, true, from, Heard::now());
        let mut refused = None;
        let entries = self.os.trees.read(&tree, base_tree.as_deref(), from, &mut |item| {
            if let Item::Data(piece) = &item {
                sent_bytes += piece.data.len() as u64;
                self.stream_rate.spend(piece.data.len() as u64, urgency);
            }
            if let Item::Entry(entry) = &item
                && entry.attributes.extended_bytes() > Attributes::MOST
            {
                refused = Some(too_many_attributes(entry));
                return false;
            }
            if item == Item::Alive && !heard.is_late() {
                return true;
            }
            heard = Heard::now();
            self.cuts.touch(&handle.id);
            base.iter().for_each(|base| self.cuts.touch(&base.id));
            let after = at;
            at = after.behind(&item);
            listening = emit(Placed { after, message: item });
            listening
        });
        let entries = entries.doing(|| format!("read {}", tree.display()))?;
        if let Some(error) = refused {
            return Err(error);
        }
        // Whoever has read the end may close the source.
        drop((guard, earlier));
        if listening {
            emit(Placed { after: at, message: Item::End { entries, sent_bytes } });
        }
        Ok(())
    }
}

fn too_many_attributes(entry: &Entry) -> Error {
    let name = String::from_utf8_lossy(&entry.name);
    let [bytes, most] = [entry.attributes.extended_bytes(), Attributes::MOST].map(|bytes| bytes as u64);
    let [bytes, most] = format_two(bytes, most);
    Error::InUse(format!(
        "{name:?} (entry {}) has {bytes} of extended attributes, and at most {most} can be sent to another node; remove some of them",
        entry.number
    ))
}
