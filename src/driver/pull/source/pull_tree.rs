//! PullTree of the protocol between nodes.

use super::{Heard, expect_two_cuts};
use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::model::format_two;
use crate::model::pull::{Placed, SourceHandle};
use crate::model::tree::{Attributes, Basis, Entry, Item, Kind, Position};

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
        let compared = self.compared(&snapshot, earlier.as_ref().map(|(_, earlier)| &**earlier))?;
        let urgency = self.urgency_of(&snapshot);
        let (mut sent_bytes, mut listening, mut at, mut heard) = (0, true, from, Heard::now());
        let mut refused = None;
        let mut take = |item| {
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
        };
        let entries = match compared.top.path() {
            Some(tree) => {
                let entries = self.os.trees.read(tree, compared.base(), from, &mut take);
                entries.doing(|| format!("read {}", tree.display()))?
            }
            None => empty_tree(from, &mut take),
        };
        if let Some(error) = refused {
            return Err(error);
        }
        // Whoever has read the end may close the source.
        drop(compared);
        drop((guard, earlier));
        if listening {
            emit(Placed { after: at, message: Item::End { entries, sent_bytes } });
        }
        Ok(())
    }
}

/// Reads the tree that a filesystem has which was never made. Returns how many entries there are.
fn empty_tree(from: Position, take: &mut dyn FnMut(Item) -> bool) -> u64 {
    let attributes = Attributes { mode: 0o755, ..Attributes::default() };
    let (kind, name, linked, basis) = (Kind::Directory, Vec::new(), false, Basis::Nothing);
    if from.entry == 0 {
        take(Item::Entry(Entry { number: 0, parent: 0, name, kind, linked, attributes, basis }));
    }
    1
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
