//! The directories on the way from the root of a tree to the one that is being copied, each with its copy.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;

use super::super::super::FileId;
use super::super::id_of;
use super::super::walk::open_below;
use super::attributes::Attributes;
use super::open_source;
use super::report::{Fault, call};

/// Levels that stay open, with two descriptors each.
const MAX_OPEN: usize = 32;

/// An open directory and its open copy.
pub(super) struct Opened {
    pub(super) source: OwnedFd,
    pub(super) target: OwnedFd,
}

/// A directory that is not finished.
pub(super) struct Level {
    name: CString,
    /// Closed on the way down where it lies deep.
    source: Option<OwnedFd>,
    target: Option<OwnedFd>,
    source_id: FileId,
    target_id: FileId,
    attributes: Attributes,
    /// Directories in it that are still to do.
    pending: Vec<CString>,
    /// Its number among the directories that [`Links`](super::links::Links) knows.
    place: Option<usize>,
}

impl Level {
    /// A directory as it is before its entries are read.
    pub(super) fn new(name: CString, opened: Opened) -> Result<Self, Fault> {
        let Opened { source, target } = opened;
        let stat = fstat(&source).map_err(call("stat"))?;
        let target_id = id_of(&fstat(&target).map_err(call("stat the copy of"))?);
        Ok(Level {
            name,
            source_id: id_of(&stat),
            target_id,
            attributes: Attributes::read(&source, &stat)?,
            source: Some(source),
            target: Some(target),
            pending: Vec::new(),
            place: None,
        })
    }
}

/// A directory that is open by now, as far as it can be reached.
pub(super) struct Here<'a> {
    pub(super) source: &'a OwnedFd,
    pub(super) target: &'a OwnedFd,
}

/// The stack; the last one is the current directory.
pub(super) struct Levels(Vec<Level>);

impl Levels {
    pub(super) fn new(root: Level) -> Self {
        Levels(vec![root])
    }

    /// The current directory; `None` where somebody has moved it out of the tree.
    pub(super) fn here(&self) -> Option<Here<'_>> {
        let level = self.0.last()?;
        Some(Here { source: level.source.as_ref()?, target: level.target.as_ref()? })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &CStr> {
        self.0.iter().map(|level| level.name.as_c_str())
    }

    /// The names from the root to the current directory, and the number that each has among the directories that
    /// [`Links`](super::links::Links) knows.
    pub(super) fn way(&mut self) -> impl Iterator<Item = (&CStr, &mut Option<usize>)> {
        self.0.iter_mut().skip(1).map(|level| (level.name.as_c_str(), &mut level.place))
    }

    pub(super) fn later(&mut self, name: CString) {
        if let Some(level) = self.0.last_mut() {
            level.pending.push(name);
        }
    }

    pub(super) fn next_directory(&mut self) -> Option<CString> {
        self.0.last_mut()?.pending.pop()
    }

    pub(super) fn push(&mut self, level: Level) {
        if self.0.len() > MAX_OPEN
            && let Some(above) = self.0.last_mut()
        {
            (above.source, above.target) = (None, None);
        }
        self.0.push(level);
    }

    /// Gives the current directory's copy its attributes, now that nothing is made in it any more, and goes up.
    /// Whether there is anything above.
    ///
    /// # Errors
    /// Those of the system calls, with the name of the directory that was left.
    pub(super) fn finish(&mut self) -> Result<bool, (CString, Fault)> {
        let Some(done) = self.0.pop() else {
            return Ok(false);
        };
        match self.leave(&done) {
            Ok(()) => Ok(!self.0.is_empty()),
            Err(fault) => Err((done.name, fault)),
        }
    }

    fn leave(&mut self, done: &Level) -> Result<(), Fault> {
        let target = done.target.as_ref().ok_or(Fault::Call("find the copy of", Errno::ESTALE))?;
        done.attributes.apply(target)?;
        let Some(above) = self.0.last_mut() else {
            return Ok(());
        };
        if above.target.is_none() {
            let opened = open_below(target, c"..", OFlag::O_RDONLY | OFlag::O_DIRECTORY);
            let opened = opened.map_err(call("open above the copy of"))?;
            if id_of(&fstat(&opened).map_err(call("stat above the copy of"))?) != above.target_id {
                return Err(Fault::Call("find above the copy of", Errno::ESTALE));
            }
            above.target = Some(opened);
        }
        if above.source.is_none() {
            let up = done.source.as_ref().and_then(|source| open_as(source, c"..", above.source_id));
            let regained = up.or_else(|| self.regain());
            if let Some(above) = self.0.last_mut() {
                if regained.is_none() {
                    // It was moved away: what is left to do in it has vanished.
                    above.pending.clear();
                }
                above.source = regained;
            }
        }
        Ok(())
    }

    /// Opens the current directory of the source by the names on its way, for when somebody has moved the
    /// directories below it about.
    fn regain(&self) -> Option<OwnedFd> {
        let open = self.0.iter().rposition(|level| level.source.is_some())?;
        let (first, below) = self.0.get(open..)?.split_first()?;
        let mut found = first.source.as_ref()?.try_clone().ok()?;
        for level in below {
            found = open_as(&found, &level.name, level.source_id)?;
        }
        Some(found)
    }
}

/// Opens a directory if it is the one that is expected.
fn open_as(from: &OwnedFd, name: &CStr, id: FileId) -> Option<OwnedFd> {
    let opened = open_source(from, name).ok()?;
    (id_of(&fstat(&opened).ok()?) == id).then_some(opened)
}
