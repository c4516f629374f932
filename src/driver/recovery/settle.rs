//! What an interrupted call has left, or what an older state file takes for that.
//!
//! A record that says `creating` or `deleting` is followed if the disk agrees: the data carry a mark ([`Mark`]), or there
//! is nothing, or nothing in it. Anything else came after the record, which was restored; it is kept and recorded as
//! `ready`. A caller who deletes something by its name has it erased in any case.

use std::fmt::Display;
use std::sync::Arc;

use crate::backend::{Mark, VolumePaths, presence_of};
use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::model::{GroupSnapshot, Phase, Snapshot, Volume};

/// What lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// No data, or a mark says that they are not whole.
    Unfinished,
    /// Data without such a mark.
    Whole,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// It is erased.
    Erase,
    /// It is recorded as `ready`.
    Keep,
}

/// Decides about a volume whose record says that it is being created.
fn of_creating(left: Left, is_copy: bool, is_blank: impl FnOnce() -> Result<bool>) -> Result<Decision> {
    match left {
        // A copy of a blank source is blank when it is whole.
        Left::Whole if !is_copy && is_blank()? => Ok(Decision::Erase),
        left => Ok(by_mark(left)),
    }
}

/// Decides by its marker file about a copy, or about what is recorded as being deleted.
fn by_mark(left: Left) -> Decision {
    match left {
        Left::Unfinished => Decision::Erase,
        Left::Whole => Decision::Keep,
    }
}

impl Driver {
    /// Finishes a volume that is not recorded as `ready`, which is gone then, or keeps it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where that cannot be decided; the kernel's and the store's.
    pub(crate) fn settle_volume(&self, volume: &Volume) -> Result<Option<Arc<Volume>>> {
        let paths = self.paths(volume)?;
        let left = self.left(&paths)?;
        let decision = match volume.phase {
            Phase::Creating => {
                of_creating(left, volume.is_made_of_something(), || paths.bytes().is_blank(&self.os, &paths))?
            }
            Phase::Deleting => by_mark(left),
            Phase::Ready => Decision::Keep,
        };
        if matches!(decision, Decision::Keep) {
            warn_of_older_record(&volume.id, volume.phase);
            return Ok(Some(self.store.put(Volume { phase: Phase::Ready, ..volume.clone() })?));
        }
        let uses = presence_of(&volume.content).uses(self.place(volume, &paths))?;
        if uses.any() {
            // Cannot be by our own doing: staging needs `ready`, and deleting an unused volume.
            return Err(Error::InUse(format!("it is half made or deleted, and in use: {}", uses.describe())));
        }
        self.remove_volume(volume)?;
        tracing::info!(volume.id = %volume.id, phase = ?volume.phase, "removed what an interrupted call left");
        Ok(None)
    }

    /// The same for a snapshot that is not a member of a group.
    ///
    /// # Errors
    /// As [`settle_volume`](Driver::settle_volume).
    pub(crate) fn settle_snapshot(&self, snapshot: &Snapshot) -> Result<Option<Arc<Snapshot>>> {
        let paths = self.snapshot_paths(snapshot)?;
        let decision = match snapshot.phase {
            // A cut is nobody's data: its volume has them.
            _ if snapshot.pulled_for.is_some() => Decision::Erase,
            Phase::Creating | Phase::Deleting => by_mark(self.left(&paths)?),
            Phase::Ready => Decision::Keep,
        };
        match decision {
            Decision::Keep => {
                warn_of_older_record(&snapshot.id, snapshot.phase);
                self.complete(snapshot, snapshot.created).map(Some)
            }
            Decision::Erase => self.remove_snapshot(snapshot).map(|()| None),
        }
    }

    /// The same for a group with its members: all are made or none, and all are deleted as soon as one of them is.
    ///
    /// # Errors
    /// As [`settle_volume`](Driver::settle_volume).
    pub(crate) fn settle_group(&self, group: &GroupSnapshot) -> Result<Option<Arc<GroupSnapshot>>> {
        let members = self.members_of(&group.id);
        let mut whole = 0;
        for member in &members {
            whole += usize::from(self.left(&self.snapshot_paths(member)?)? == Left::Whole);
        }
        let complete = members.len() == group.snapshots.len();
        let decision = match group.phase {
            Phase::Ready => Decision::Keep,
            _ if whole == 0 => Decision::Erase,
            // The marks go when the group is ready: one that is gone tells of it.
            Phase::Creating if complete => Decision::Keep,
            Phase::Creating => return Err(undecided(&group.id)),
            Phase::Deleting if whole < group.snapshots.len() => Decision::Erase,
            Phase::Deleting => Decision::Keep,
        };
        match decision {
            Decision::Erase => self.remove_group(group).map(|()| None),
            Decision::Keep => {
                warn_of_older_record(&group.id, group.phase);
                for member in members.iter().filter(|member| !member.is_ready()) {
                    self.complete(member, member.created)?;
                }
                let ready = GroupSnapshot { phase: Phase::Ready, ..group.clone() };
                Ok(Some(self.store.put_group(ready)?))
            }
        }
    }

    fn left(&self, paths: &VolumePaths) -> Result<Left> {
        let data = paths.data();
        let there = self.os.files.stat(&data).doing(|| format!("look at {}", data.display()))?.is_some();
        let marked = Mark::Making.is_set(&self.os, paths)? || Mark::Deleting.is_set(&self.os, paths)?;
        Ok(if there && !marked { Left::Whole } else { Left::Unfinished })
    }
}

fn undecided(id: &dyn Display) -> Error {
    Error::InUse(format!(
        "the state file says that {id} is half made or half deleted, but its files do not: they are left as they are. If the state file was restored, restore a newer one; otherwise delete {id} again"
    ))
}

fn warn_of_older_record(id: &dyn Display, phase: Phase) {
    tracing::warn!(
        %id, phase = phase.as_str(),
        "the state file is older than what is on the disk, which is whole and is kept"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_creating_is_kept_if_it_may_have_data() {
        let creating = |left, is_copy, is_blank| of_creating(left, is_copy, || Ok(is_blank)).unwrap();
        for is_copy in [true, false] {
            assert_eq!(creating(Left::Unfinished, is_copy, false), Decision::Erase);
            assert_eq!(creating(Left::Whole, is_copy, false), Decision::Keep);
        }
        assert_eq!(creating(Left::Whole, true, true), Decision::Keep, "a whole copy of a blank volume");
        assert_eq!(creating(Left::Whole, false, true), Decision::Erase);
    }

    #[test]
    fn a_record_of_deleting_is_kept_if_it_is_whole() {
        assert_eq!(by_mark(Left::Unfinished), Decision::Erase);
        assert_eq!(by_mark(Left::Whole), Decision::Keep);
    }
}
