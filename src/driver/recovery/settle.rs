//! What an interrupted call has left, or what an older state file takes for that.
//!
//! A record that says `creating` or `deleting` is followed if the disk agrees: the data carry a mark ([`Mark`]), or there
//! is nothing, or nothing in it. Anything else came after the record, which was restored; it is kept and recorded as
//! `ready`. A caller who deletes something by its name has it erased in any case.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::{Mark, VolumePaths, presence_of};
use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::model::{GroupSnapshot, Phase, Snapshot, Volume};
use crate::store::Durability;

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
    /// Nobody can tell: its files are moved away, and its name is free.
    SetAside,
}

/// What becomes of something that is recorded as being made.
fn of_creating(
    left: Left,
    is_copy: bool,
    marked: bool,
    is_blank: impl FnOnce() -> Result<bool>,
) -> Result<Decision> {
    match left {
        Left::Unfinished => Ok(Decision::Erase),
        // A copy of a blank source is blank when it is whole.
        Left::Whole if is_copy && marked => Ok(Decision::Keep),
        Left::Whole if is_blank()? => Ok(Decision::Erase),
        // 0.1.0 left a copy that was cut off without a mark.
        Left::Whole if is_copy => Ok(Decision::SetAside),
        Left::Whole => Ok(Decision::Keep),
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
            Phase::Creating => of_creating(left, volume.source.is_some(), volume.marked, || {
                paths.bytes().is_blank(&self.os, &paths)
            })?,
            Phase::Deleting => of_deleting(left, paths.bytes().goes_whole(), volume.marked, &volume.id)?,
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
        if matches!(decision, Decision::SetAside) {
            self.set_aside(&paths)?;
            self.store.delete(&volume.id, Durability::Synced)?;
            return Ok(None);
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
            Phase::Creating => of_creating(self.left(&paths)?, true, snapshot.marked, || {
                paths.bytes().is_blank(&self.os, &paths)
            })?,
            Phase::Deleting => {
                let goes_whole = paths.bytes().goes_whole();
                of_deleting(self.left(&paths)?, goes_whole, snapshot.marked, &snapshot.id)?
            }
            Phase::Ready => Decision::Keep,
        };
        match decision {
            Decision::Keep => {
                warn_of_older_record(&snapshot.id, snapshot.phase);
                return self.complete(snapshot, snapshot.created).map(Some);
            }
            Decision::Erase => self.remove_snapshot(snapshot)?,
            Decision::SetAside => {
                self.set_aside(&paths)?;
                self.store.delete_snapshot(&snapshot.id, Durability::Synced)?;
            }
        }
        Ok(None)
    }

    /// The same for a group with its members: all are made or none, and all are deleted as soon as one of them is.
    ///
    /// # Errors
    /// As [`settle_volume`](Driver::settle_volume).
    pub(crate) fn settle_group(&self, group: &GroupSnapshot) -> Result<Option<Arc<GroupSnapshot>>> {
        let members = self.members_of(&group.id);
        let (mut whole, mut all_go_whole) = (0, true);
        for member in &members {
            let paths = self.snapshot_paths(member)?;
            whole += usize::from(self.left(&paths)? == Left::Whole);
            all_go_whole &= paths.bytes().goes_whole();
        }
        let complete = members.len() == group.snapshots.len();
        let is_of_0_1_0 = members.iter().any(|member| !member.marked);
        let decision = match group.phase {
            Phase::Ready => Decision::Keep,
            _ if whole == 0 => Decision::Erase,
            Phase::Creating if is_of_0_1_0 => Decision::SetAside,
            // The marks go when the group is ready: one that is gone tells of it.
            Phase::Creating if complete => Decision::Keep,
            Phase::Creating => return Err(undecided(&group.id)),
            Phase::Deleting if whole < group.snapshots.len() => Decision::Erase,
            // It removed half of a directory without a mark.
            Phase::Deleting if is_of_0_1_0 && !all_go_whole => return Err(undecided(&group.id)),
            Phase::Deleting => Decision::Keep,
        };
        match decision {
            Decision::Erase => self.remove_group(group)?,
            Decision::SetAside => {
                for member in &members {
                    self.set_aside(&self.snapshot_paths(member)?)?;
                    self.store.delete_snapshot(&member.id, Durability::Synced)?;
                }
                self.store.delete_group(&group.id, Durability::Synced)?;
            }
            Decision::Keep => {
                warn_of_older_record(&group.id, group.phase);
                for member in members.iter().filter(|member| !member.is_ready()) {
                    self.complete(member, member.created)?;
                }
                let ready = GroupSnapshot { phase: Phase::Ready, ..group.clone() };
                return Ok(Some(self.store.put_group(ready)?));
            }
        }
        Ok(None)
    }

    fn left(&self, paths: &VolumePaths) -> Result<Left> {
        let data = paths.data();
        let there = self.os.files.stat(&data).doing(|| format!("look at {}", data.display()))?.is_some();
        let marked = Mark::Making.is_set(&self.os, paths)? || Mark::Deleting.is_set(&self.os, paths)?;
        Ok(if there && !marked { Left::Whole } else { Left::Unfinished })
    }

    /// Moves files away that may hold data, so that they are in nobody's way.
    fn set_aside(&self, paths: &VolumePaths) -> Result<()> {
        let from = &paths.directory;
        let moving = || format!("move {} aside", from.display());
        if self.os.files.stat(from).doing(moving)?.is_none() {
            return Ok(());
        }
        let mut to = PathBuf::new();
        for number in 1_u64.. {
            let name = from.file_name().unwrap_or_default().display();
            to = from.with_file_name(format!("{name}.set-aside-{number}"));
            if self.os.files.stat(&to).doing(moving)?.is_none() {
                break;
            }
        }
        self.os.files.rename(from, &to).doing(moving)?;
        self.os.files.sync_directory(&paths.parent).doing(moving)?;
        tracing::warn!(
            from = %from.display(), to = %to.display(),
            "0.1.0 was interrupted while it made this, or the state file is older than it: it is moved aside; remove it if you do not need its data"
        );
        Ok(())
    }
}

/// What becomes of something that is recorded as being deleted.
fn of_deleting(left: Left, goes_whole: bool, marked: bool, id: &dyn Display) -> Result<Decision> {
    match left {
        Left::Unfinished => Ok(Decision::Erase),
        Left::Whole if goes_whole || marked => Ok(Decision::Keep),
        // 0.1.0 removed half of a directory without a mark.
        Left::Whole => Err(undecided(id)),
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

    /// What becomes of it: left, a copy, marked, blank.
    fn creating(left: Left, is_copy: bool, marked: bool, is_blank: bool) -> Decision {
        of_creating(left, is_copy, marked, || Ok(is_blank)).unwrap()
    }

    #[test]
    fn what_was_being_made_is_kept_where_it_may_have_data() {
        for (is_copy, marked, is_blank) in [(false, false, false), (true, true, false), (true, false, true)] {
            assert_eq!(creating(Left::Unfinished, is_copy, marked, is_blank), Decision::Erase);
        }
        assert_eq!(creating(Left::Whole, true, true, true), Decision::Keep, "a whole copy of a blank volume");
        assert_eq!(creating(Left::Whole, true, true, false), Decision::Keep);
        assert_eq!(creating(Left::Whole, true, false, true), Decision::Erase);
        assert_eq!(creating(Left::Whole, true, false, false), Decision::SetAside, "of 0.1.0, half or whole");
        for marked in [true, false] {
            assert_eq!(creating(Left::Whole, false, marked, true), Decision::Erase);
            assert_eq!(creating(Left::Whole, false, marked, false), Decision::Keep);
        }
    }

    #[test]
    fn what_was_being_deleted_is_kept_where_it_is_whole() {
        let deleting = |left, goes_whole, marked| of_deleting(left, goes_whole, marked, &"vol-1");
        for goes_whole in [true, false] {
            for marked in [true, false] {
                assert_eq!(deleting(Left::Unfinished, goes_whole, marked).unwrap(), Decision::Erase);
            }
            assert_eq!(deleting(Left::Whole, goes_whole, true).unwrap(), Decision::Keep);
        }
        assert_eq!(deleting(Left::Whole, true, false).unwrap(), Decision::Keep);
        let half = deleting(Left::Whole, false, false).unwrap_err();
        assert!(matches!(&half, Error::InUse(why) if why.contains("vol-1")), "{half}");
    }
}
