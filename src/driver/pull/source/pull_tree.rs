//! PullTree of the protocol between nodes.

use crate::backend::Shape;
use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::model::pull::{Placed, SourceHandle};
use crate::model::tree::{Item, Position};

impl Driver {
    /// Reads the tree of an opened source from a position on, entry by entry, and tells the end. `emit` gets each
    /// message and says whether the caller still listens.
    ///
    /// # Errors
    /// NOT_FOUND where the source is gone; INVALID_ARGUMENT for one that is not a directory.
    pub fn pull_tree(
        &self,
        handle: &SourceHandle,
        from: Position,
        emit: &mut dyn FnMut(Placed<Position, Item>) -> bool,
    ) -> Result<()> {
        let (guard, snapshot) = self.opened(handle)?;
        let Shape::Tree(tree) = self.snapshot_paths(&snapshot)?.shape() else {
            return Err(Error::Invalid(format!("source {} is not a directory", handle.id)));
        };
        let (mut sent_bytes, mut listening, mut at) = (0, true, from);
        let entries = self.os.trees.read(&tree, from, &mut |item| {
            if let Item::Data(piece) = &item {
                sent_bytes += piece.data.len() as u64;
                self.stream_rate.spend(piece.data.len() as u64);
            }
            self.cuts.touch(&handle.id);
            let after = at;
            at = after.behind(&item);
            listening = emit(Placed { after, message: item });
            listening
        });
        let entries = entries.doing(|| format!("read {}", tree.display()))?;
        // Whoever has read the end may close the source.
        drop(guard);
        if listening {
            emit(Placed { after: at, message: Item::End { entries, sent_bytes } });
        }
        Ok(())
    }
}
