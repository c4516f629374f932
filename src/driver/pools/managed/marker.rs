//! The file in a managed pool's root that says whose it is.

use super::Managed;
use crate::error::{OsContext, Result};
use crate::os::FileKind;

/// Its name.
const MARKER: &str = "hostloop-pool";
/// Its name while it is written.
const NEW: &str = "hostloop-pool.new";
/// More is not ours.
const MAX_BYTES: u64 = 4096;

/// What to do where there is no marker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    /// Write one, if nothing else is in the filesystem: it was made, and the start ended there.
    Write,
    /// Refuse the filesystem: somebody else uses it.
    Refuse,
}

impl Managed<'_> {
    /// The marker's text: a line for each of the driver, the node and the pool. None of the three can have a line
    /// break.
    fn marker(&self) -> String {
        let (driver, node) = (&self.settings.driver_name, &self.settings.node_id);
        format!("driver={driver}\nnode={node}\npool={}\n", self.name)
    }

    /// Makes sure that the mounted filesystem is this pool's.
    pub(super) fn check_marker(&self, absent: Absent) -> Result<()> {
        let (files, root) = (&self.os.files, self.target());
        let path = root.join(MARKER);
        let reading = || self.doing(&format!("read {}", path.display()));
        let Some(stat) = files.stat(&path).doing(reading)? else {
            return match absent {
                Absent::Write => self.write_marker(),
                Absent::Refuse => Err(self.refuse(
                    "its filesystem is mounted elsewhere, and no file in it says that it is a pool; unmount it there",
                )),
            };
        };
        let readable = stat.kind == FileKind::File && stat.size <= MAX_BYTES;
        let found = if readable { files.read(&path).doing(reading)? } else { Vec::new() };
        if found == self.marker().as_bytes() {
            return Ok(());
        }
        let line = |text: &str| text.lines().collect::<Vec<_>>().join(" ");
        Err(self.refuse(format!(
            "the filesystem is another pool's: its file {MARKER} says \"{}\", not \"{}\"; were disks or images exchanged?",
            line(&String::from_utf8_lossy(&found)),
            line(&self.marker())
        )))
    }

    /// Writes the marker into an empty filesystem; whole and durable, or not there.
    fn write_marker(&self) -> Result<()> {
        let (files, root) = (&self.os.files, self.target());
        let writing = || self.doing("write its marker");
        let names = files.list(&root).doing(writing)?;
        if let Some(name) = names.iter().find(|name| ![NEW, "lost+found"].contains(&name.as_str())) {
            return Err(self.refuse(format!(
                "its filesystem holds {name:?} and no file {MARKER}: it is not a pool of hostloop and is left as it is"
            )));
        }
        let new = root.join(NEW);
        files.remove_file(&new).doing(writing)?;
        let mut log = files.open_log(&new, 0).doing(writing)?;
        log.append(self.marker().as_bytes()).doing(writing)?;
        log.sync().doing(writing)?;
        drop(log);
        files.rename(&new, &root.join(MARKER)).doing(writing)?;
        files.sync_directory(&root).doing(writing)
    }
}
