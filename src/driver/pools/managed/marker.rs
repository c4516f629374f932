//! The file in a managed pool's root that says whose it is.

use super::Managed;
use crate::driver::pools::marker::{MARKER, line, owner, read};
use crate::error::{OsContext, Result};
use crate::kernel::write_whole;

/// What to do where there is no marker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    /// Write one, if nothing else is in the filesystem: it was made, and the start ended there.
    Write,
    /// Refuse the filesystem: somebody else uses it.
    Refuse,
}

impl Managed<'_> {
    /// Makes sure that the mounted filesystem is this pool's.
    pub(super) fn check_marker(&self, absent: Absent) -> Result<()> {
        let (path, owner) = (self.target().join(MARKER), owner(self.settings, self.name));
        match read(self.os, &path).doing(|| self.doing(&format!("read {}", path.display())))? {
            Some(found) if found == owner => Ok(()),
            Some(found) => Err(self.refuse(format!(
                "the filesystem is another pool's: its file {MARKER} says \"{}\", not \"{}\"; were disks or images exchanged?",
                line(&found),
                line(&owner)
            ))),
            None if absent == Absent::Write => self.write_marker(&owner),
            None => Err(self.refuse(
                "its filesystem is mounted elsewhere, and no file in it says that it is a pool; unmount it there",
            )),
        }
    }

    /// Writes the marker into an empty filesystem; whole and durable, or not there.
    fn write_marker(&self, owner: &str) -> Result<()> {
        let (files, root) = (&self.os.files, self.target());
        let writing = || self.doing("write its marker");
        let begun = format!("{MARKER}.new"); // by a start that ended there
        let names = files.list(&root).doing(writing)?;
        if let Some(name) = names.iter().find(|name| ![&begun, "lost+found"].contains(&name.as_str())) {
            return Err(self.refuse(format!(
                "its filesystem holds {name:?} and no file {MARKER}: it is not a pool of hostloop and is left as it is"
            )));
        }
        write_whole(files.as_ref(), &root.join(MARKER), owner.as_bytes()).doing(writing)
    }
}
