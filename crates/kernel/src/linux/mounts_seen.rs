//! Some of the mounts, without a look at all of them: on a node with hundreds of volumes that takes longer than all the rest
//! of a call. listmount(2) gives the ids of all mounts at once, and none is ever used again (Linux 6.8). So a mount is asked
//! what it is when its id is new (statmount(2)). What was seen of the others says which are worth a look, and each of those
//! is asked anew.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "implements Mounts")]

mod statmount;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::MountEntry;
use super::{at, ioctl};
use statmount::{Told, ask};

/// The mounts that this process has seen.
#[derive(Default)]
pub(super) struct MountsSeen(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// By the ids that are never used again; `None` is one that this process cannot reach, which mountinfo leaves out.
    mounts: BTreeMap<u64, Option<MountEntry>>,
    /// The ids that have come since, and were never asked.
    new: Vec<u64>,
    /// What tells that mounts have changed (proc_pid_mountinfo(5), poll(2)).
    table: Option<File>,
    /// This kernel tells the source of mounts (Linux 6.13): it has told one.
    tells_sources: bool,
    /// It does not, or has no such calls, or a filter of system calls refuses them: that stays so.
    tells_too_little: bool,
}

impl MountsSeen {
    /// The mounts for which `wanted` is true, in mount order; `None` where the kernel does not tell enough.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn matching(
        &self,
        wanted: &dyn Fn(&MountEntry) -> bool,
    ) -> io::Result<Option<Vec<MountEntry>>> {
        Ok(self.find(wanted)?.map(|found| found.into_iter().map(|(_, entry)| entry).collect()))
    }

    /// Where this mount is now; `None` where the kernel does not tell enough. No path is walked, which would take the mark
    /// of MNT_EXPIRE away.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn whereabouts(&self, mount: &MountEntry) -> io::Result<Option<Whereabouts>> {
        // By its id alone: where it was when it was seen may not be where it is.
        let Some(found) = self.find(&|other| other.id == mount.id)? else { return Ok(None) };
        let there = found.iter().find(|(_, other)| other.target == mount.target);
        let Some((id, _)) = there else { return Ok(Some(Whereabouts::Gone)) };
        // What was moved there is not seen by what it was before: so each that is on it is asked.
        for child in ids_below(*id).map_err(failed("listmount"))? {
            match ask(child) {
                Ok(Told { entry: Some(other), .. }) if other.target == mount.target => {
                    return Ok(Some(Whereabouts::Hidden));
                }
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(failed("statmount")(errno)),
            }
        }
        Ok(Some(Whereabouts::OnTop))
    }

    /// The mounts for which `wanted` is true, with their unique ids.
    fn find(&self, wanted: &dyn Fn(&MountEntry) -> bool) -> io::Result<Option<Vec<(u64, MountEntry)>>> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.tells_too_little {
            return Ok(None);
        }
        if seen.have_changed()? {
            // Once they are read, what has changed before is of no interest.
            match ids() {
                Ok(ids) => seen.put(ids),
                Err(errno) => {
                    seen.table = None; // or the change would be forgotten
                    return seen.cannot("listmount", errno);
                }
            }
        }
        let mut found = Vec::new();
        for id in seen.worth_asking(wanted) {
            match ask(id) {
                Ok(told) => {
                    seen.tells_sources |= told.has_source;
                    found.extend(told.entry.clone().filter(wanted).map(|entry| (id, entry)));
                    seen.mounts.insert(id, told.entry);
                }
                // It went since it was listed.
                Err(Errno::ENOENT) => drop(seen.mounts.remove(&id)),
                Err(errno) => return seen.cannot("statmount", errno),
            }
        }
        seen.new.clear();
        seen.tells_too_little = !seen.tells_sources;
        Ok(seen.tells_sources.then_some(found))
    }
}

impl Seen {
    /// `None` where the kernel has no such call, or one that is not allowed.
    fn cannot<T>(&mut self, call: &'static str, errno: Errno) -> io::Result<Option<T>> {
        self.tells_too_little |= matches!(errno, Errno::ENOSYS | Errno::EPERM | Errno::EOPNOTSUPP);
        if self.tells_too_little { Ok(None) } else { Err(failed(call)(errno)) }
    }

    /// Whether mounts have come or gone since the last time that this was asked, or it was never asked.
    fn have_changed(&mut self) -> io::Result<bool> {
        let Some(table) = &self.table else {
            let path = Path::new("/proc/self/mountinfo");
            self.table = Some(File::open(path).map_err(at("open", path))?);
            return Ok(true);
        };
        let mut table = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
        poll(&mut table, PollTimeout::ZERO).map_err(failed("poll mountinfo"))?;
        Ok(table.iter().any(|table| table.any().unwrap_or(true)))
    }

    /// Takes the ids of all mounts, in their order.
    fn put(&mut self, ids: Vec<u64>) {
        self.mounts.retain(|id, _| ids.binary_search(id).is_ok());
        self.new = ids.into_iter().filter(|id| !self.mounts.contains_key(id)).collect();
    }

    /// In mount order: those that may be wanted by what was seen of them, and those of which nothing was seen.
    fn worth_asking(&self, wanted: &dyn Fn(&MountEntry) -> bool) -> Vec<u64> {
        let may_be =
            |(id, before): (&u64, &Option<MountEntry>)| before.as_ref().is_some_and(wanted).then_some(*id);
        let mut worth: Vec<u64> =
            self.mounts.iter().filter_map(may_be).chain(self.new.iter().copied()).collect();
        worth.sort_unstable();
        worth
    }
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> io::Error {
    move |errno| super::super::errno_error(errno, call)
}

/// Where a mount is that was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// At its target, and nothing is mounted over it.
    OnTop,
    /// At its target, under another one.
    Hidden,
    /// Nowhere, or at another target.
    Gone,
}

/// The ids of all mounts of this namespace, in the order in which they were made.
fn ids() -> nix::Result<Vec<u64>> {
    ids_below(ioctl::ALL_MOUNTS)
}

/// The same of those below one.
fn ids_below(id: u64) -> nix::Result<Vec<u64>> {
    const AT_ONCE: usize = 512;
    let mut ids = Vec::new();
    loop {
        let mut more = [0; AT_ONCE];
        let count = ioctl::list_mounts(id, ids.last().copied().unwrap_or(0), &mut more)?;
        ids.extend(more.iter().take(count));
        if count < AT_ONCE {
            ids.sort_unstable();
            return Ok(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::statmount::tests::some_entry;
    use super::*;

    /// Where this kernel tells enough, it is believed.
    #[test]
    fn the_mounts_of_this_process_are_found() {
        let told = ids().and_then(|ids| ids.iter().map(|id| ask(*id)).collect::<nix::Result<Vec<_>>>());
        if told.is_ok_and(|told| told.iter().any(|told| told.has_source)) {
            let seen = MountsSeen::default();
            for _ in 0..2 {
                let found =
                    seen.matching(&|mount| mount.target == Path::new("/proc")).unwrap().expect("told");
                assert!(found.iter().any(|mount| mount.fs_type == "proc"), "{found:?}");
                let [first, ..] = &found[..] else { panic!("it is mounted") };
                assert_ne!(seen.whereabouts(first).unwrap(), Some(Whereabouts::Gone));
            }
        }
    }

    #[test]
    fn a_kernel_that_tells_too_little_is_not_asked_again() {
        let mut seen = Seen::default();
        assert!(seen.cannot::<()>("statmount", Errno::EIO).is_err() && !seen.tells_too_little);
        assert!(seen.cannot::<()>("listmount", Errno::ENOSYS).unwrap().is_none() && seen.tells_too_little);
        let seen = MountsSeen(Mutex::new(seen));
        assert_eq!(seen.matching(&|_| true).unwrap(), None);
    }

    #[test]
    fn new_mounts_are_asked_and_others_if_wanted() {
        let entry = some_entry();
        let mut seen = Seen::default();
        seen.put(vec![3, 5, 9]);
        assert_eq!(seen.worth_asking(&|_| false), [3, 5, 9]);
        seen.mounts = [(3, entry.clone()), (5, None), (9, entry)].into();
        seen.new.clear();
        assert_eq!((seen.worth_asking(&|_| true), seen.worth_asking(&|_| false)), (vec![3, 9], vec![]));
        // One that was made before 9 and is attached now has a smaller id.
        seen.put(vec![3, 7, 9]);
        assert_eq!((seen.worth_asking(&|_| true), seen.worth_asking(&|_| false)), (vec![3, 7, 9], vec![7]));
        assert!(!seen.mounts.contains_key(&5), "it has gone");
    }
}
