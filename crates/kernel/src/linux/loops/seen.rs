//! What this process has seen of the loop devices. On a node with hundreds of them a look at each costs more than the rest
//! of a call, and most calls are about one that was seen before. Nothing of it is believed: it says which devices to ask,
//! and each is asked.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::super::{FileId, LoopDevice};

/// A device as it was when it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Glimpse {
    backing: Option<FileId>,
    /// The name of the backing file, if the device had one.
    name: Option<PathBuf>,
    /// When: a number that grows.
    at: u64,
}

#[derive(Default)]
struct Glimpses {
    devices: BTreeMap<u32, Glimpse>,
    /// How many there were so far.
    last: u64,
    /// Each device that there was has been looked at.
    complete: bool,
}

/// What this process has seen, whichever thread.
#[derive(Default)]
pub(super) struct Seen(Mutex<Glimpses>);

/// The state at which a look at all devices begins.
pub(super) struct Since(u64);

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Glimpses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device that is attached to this file.
    pub(super) fn put(&self, number: u32, backing: Option<FileId>, name: Option<PathBuf>) {
        let mut glimpses = self.lock();
        glimpses.last += 1;
        let at = glimpses.last;
        glimpses.devices.insert(number, Glimpse { backing, name, at });
    }

    /// Before all devices are looked at.
    pub(super) fn begin(&self) -> Since {
        Since(self.lock().last)
    }

    /// After that: those that were not found have gone, unless they were attached meanwhile.
    ///
    /// # Errors
    /// Those of `name_of`, which tells the name of a backing file.
    pub(super) fn end(
        &self,
        since: Since,
        found: &[LoopDevice],
        name_of: impl Fn(u32) -> io::Result<Option<PathBuf>>,
    ) -> io::Result<()> {
        for device in found.iter().filter(|device| !self.is_known(device, &since)) {
            self.put(device.number, device.backing, name_of(device.number)?);
        }
        let mut glimpses = self.lock();
        let is_found = |number: &u32| found.binary_search_by_key(number, |device| device.number).is_ok();
        glimpses.devices.retain(|number, glimpse| glimpse.at > since.0 || is_found(number));
        glimpses.complete = true;
        Ok(())
    }

    /// Whether there is nothing to learn of a device: it was as it is now, or was attached since the look began.
    fn is_known(&self, device: &LoopDevice, since: &Since) -> bool {
        self.lock().devices.get(&device.number).is_some_and(|glimpse| {
            let is_same = glimpse.backing == device.backing && device.backing.is_some();
            glimpse.at > since.0 || (is_same && glimpse.name.is_some())
        })
    }

    /// The devices to ask for a file, or for files in a directory whose path ends so; `None` where nobody has looked at
    /// all of them yet. Of one whose file had no identity or no name, nobody knows.
    pub(super) fn to_ask(&self, backing: Option<FileId>, directory: &Path) -> Option<Vec<u32>> {
        let glimpses = self.lock();
        let is_named = |name: &PathBuf| name.parent().is_some_and(|parent| parent.ends_with(directory));
        let matches = |glimpse: &Glimpse| {
            glimpse.backing.is_none()
                || glimpse.backing == backing
                || glimpse.name.as_ref().is_none_or(is_named)
        };
        let numbers =
            glimpses.devices.iter().filter(|(_, glimpse)| matches(glimpse)).map(|(number, _)| *number);
        glimpses.complete.then(|| numbers.collect())
    }

    /// A device that has gone; or it was attached again since it was asked, and then it is asked once more.
    pub(super) fn is_gone(&self, number: u32, is_attached: impl FnOnce() -> bool) {
        let mut glimpses = self.lock();
        if !is_attached() {
            glimpses.devices.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(inode: u64) -> FileId {
        FileId { dev: 1, ino: inode }
    }

    fn device(number: u32, inode: u64) -> LoopDevice {
        LoopDevice {
            number,
            backing: Some(id(inode)),
            known_as: None,
            rdev: 0,
            read_only: false,
            autoclear: false,
            direct_io: false,
        }
    }

    fn name(number: u32) -> io::Result<Option<PathBuf>> {
        Ok(Some(format!("/pool/volumes/v{number}/disk.img").into()))
    }

    const NONE: &str = "volumes/none";

    #[test]
    fn nothing_is_known_before_all_were_looked_at() {
        let seen = Seen::default();
        seen.put(3, Some(id(3)), name(3).unwrap());
        assert_eq!(seen.to_ask(Some(id(3)), Path::new(NONE)), None);
        seen.end(seen.begin(), &[device(1, 1), device(3, 3)], name).unwrap();
        assert_eq!(seen.to_ask(Some(id(1)), Path::new(NONE)), Some(vec![1]));
    }

    #[test]
    fn devices_are_found_by_file_and_directory() {
        let seen = Seen::default();
        seen.end(seen.begin(), &[device(1, 1), device(2, 2)], name).unwrap();
        let ask = |backing, directory: &str| seen.to_ask(backing, Path::new(directory)).unwrap();
        assert_eq!(ask(Some(id(2)), NONE), [2]);
        assert_eq!(ask(None, "volumes/v1"), [1], "of an image that is gone or another one");
        assert_eq!(ask(Some(id(2)), "volumes/v1"), [1, 2]);
        assert_eq!(ask(Some(id(9)), "volumes/v"), [0; 0], "a part of a name is another name");
    }

    #[test]
    fn a_device_that_hides_its_file_is_always_asked() {
        let seen = Seen::default();
        seen.end(seen.begin(), &[], name).unwrap();
        seen.put(4, None, Some("/pool/volumes/v4/disk.img".into()));
        seen.put(5, Some(id(5)), None);
        assert_eq!(seen.to_ask(Some(id(9)), Path::new(NONE)), Some(vec![4, 5]));
    }

    #[test]
    fn a_look_at_all_forgets_only_what_has_gone() {
        let seen = Seen::default();
        seen.end(seen.begin(), &[device(1, 1), device(2, 2)], name).unwrap();
        let since = seen.begin();
        seen.put(7, Some(id(7)), name(7).unwrap());
        // Number 7 had another file when it was looked at.
        seen.end(since, &[device(2, 20), device(7, 70)], name).unwrap();
        let ask = |inode| seen.to_ask(Some(id(inode)), Path::new(NONE)).unwrap();
        assert_eq!([ask(1), ask(2), ask(20), ask(7)], [vec![], vec![], vec![2], vec![7]]);
    }

    #[test]
    fn a_device_that_has_gone_is_forgotten() {
        let seen = Seen::default();
        seen.end(seen.begin(), &[device(1, 1), device(2, 2)], name).unwrap();
        seen.is_gone(1, || true);
        seen.is_gone(2, || false);
        assert_eq!(seen.to_ask(Some(id(1)), Path::new(NONE)), Some(vec![1]));
        assert_eq!(seen.to_ask(Some(id(2)), Path::new(NONE)), Some(vec![]));
    }
}
