//! Some of the mounts, without a look at all of them: on a node with hundreds of volumes that takes longer than all the rest
//! of a call. listmount(2) gives the ids of all mounts at once, and none is ever used again (Linux 6.8). So a mount is asked
//! what it is when its id is new (statmount(2)). What was seen of the others says which are worth a look, and each of those
//! is asked anew.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "implements os::Mounts")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::makedev;

use super::super::MountEntry;
use super::{at, ioctl};
use crate::model::VfsFlag;

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

/// What the kernel told of a mount.
#[derive(Debug)]
struct Told {
    entry: Option<MountEntry>,
    has_source: bool,
}

fn ask(id: u64) -> nix::Result<Told> {
    let mut buffer = vec![0; 4096];
    loop {
        match ioctl::stat_mount(id, told::ALL, &mut buffer) {
            Err(Errno::EOVERFLOW) if buffer.len() < 1 << 20 => buffer = vec![0; buffer.len() * 2],
            done => return done.and_then(|()| decode(&buffer).ok_or(Errno::EBADMSG)),
        }
    }
}

/// `STATMOUNT_*` (linux/mount.h): what was asked for and told.
mod told {
    pub(super) const SB_BASIC: u64 = 0x1;
    pub(super) const MNT_BASIC: u64 = 0x2;
    pub(super) const MNT_ROOT: u64 = 0x8;
    pub(super) const MNT_POINT: u64 = 0x10;
    pub(super) const FS_TYPE: u64 = 0x20;
    pub(super) const MNT_OPTS: u64 = 0x80;
    pub(super) const FS_SUBTYPE: u64 = 0x100;
    pub(super) const SB_SOURCE: u64 = 0x200;
    pub(super) const ALL: u64 =
        SB_BASIC | MNT_BASIC | MNT_ROOT | MNT_POINT | FS_TYPE | MNT_OPTS | FS_SUBTYPE | SB_SOURCE;
}

/// Where `struct statmount` (linux/mount.h) has its fields.
mod field {
    pub(super) const MNT_OPTS: usize = 4;
    pub(super) const MASK: usize = 8;
    pub(super) const SB_DEV_MAJOR: usize = 16;
    pub(super) const SB_DEV_MINOR: usize = 20;
    pub(super) const SB_FLAGS: usize = 32;
    pub(super) const FS_TYPE: usize = 36;
    pub(super) const MNT_ID_OLD: usize = 56;
    pub(super) const MNT_PARENT_ID_OLD: usize = 60;
    pub(super) const MNT_ATTR: usize = 64;
    pub(super) const MNT_PROPAGATION: usize = 72;
    pub(super) const MNT_ROOT: usize = 104;
    pub(super) const MNT_POINT: usize = 108;
    pub(super) const FS_SUBTYPE: usize = 120;
    pub(super) const SB_SOURCE: usize = 124;
    /// The strings, which the fields above count from here.
    pub(super) const STRINGS: usize = 512;
}

/// `MOUNT_ATTR_*` (linux/mount.h) of the flags that mountinfo shows per mount.
const ATTRIBUTES: [(VfsFlag, u64, u64); 6] = [
    (VfsFlag::NoAtime, ATIME, 0x10),
    (VfsFlag::NoDirAtime, 0x80, 0x80),
    (VfsFlag::RelAtime, ATIME, 0),
    (VfsFlag::NoSuid, 0x2, 0x2),
    (VfsFlag::NoDev, 0x4, 0x4),
    (VfsFlag::NoExec, 0x8, 0x8),
];
const ATIME: u64 = 0x70;
const READ_ONLY: u64 = 0x1;
const SB_RDONLY: u32 = 0x1;
const MS_SHARED: u64 = 1 << 20;

/// Reads a `struct statmount`; `None` where it is none.
fn decode(bytes: &[u8]) -> Option<Told> {
    let small = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let large = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let mask = large(field::MASK)?;
    let text = |flag: u64, at: usize| -> Option<Option<&[u8]>> {
        if mask & flag == 0 {
            return Some(None);
        }
        let from = field::STRINGS.checked_add(usize::try_from(small(at)?).ok()?)?;
        Some(Some(bytes.get(from..)?.split(|byte| *byte == 0).next()?))
    };
    let lossy = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let path = |text: &[u8]| PathBuf::from(OsStr::from_bytes(text));
    let source = text(told::SB_SOURCE, field::SB_SOURCE)?;
    let told = |entry| Some(Told { entry, has_source: source.is_some() });
    let (root, target) = (text(told::MNT_ROOT, field::MNT_ROOT)?, text(told::MNT_POINT, field::MNT_POINT)?);
    let Some((root, target)) = root.zip(target) else { return told(None) };
    if mask & told::SB_BASIC == 0 || mask & told::MNT_BASIC == 0 {
        return None;
    }
    let mut fs_type = lossy(text(told::FS_TYPE, field::FS_TYPE)??);
    if let Some(subtype) = text(told::FS_SUBTYPE, field::FS_SUBTYPE)? {
        fs_type = format!("{fs_type}.{}", lossy(subtype));
    }
    let attributes = large(field::MNT_ATTR)?;
    let options = text(told::MNT_OPTS, field::MNT_OPTS)?.unwrap_or_default();
    // See `mountinfo`.
    let emergency = options.split(|byte| *byte == b',').any(|option| option == b"emergency_ro");
    told(Some(MountEntry {
        id: small(field::MNT_ID_OLD)?.into(),
        parent: small(field::MNT_PARENT_ID_OLD)?.into(),
        dev: makedev(small(field::SB_DEV_MAJOR)?.into(), small(field::SB_DEV_MINOR)?.into()),
        root: path(root),
        target: path(target),
        fs_type,
        source: source.map_or_else(|| "none".to_owned(), lossy),
        read_only: attributes & READ_ONLY != 0,
        flags: ATTRIBUTES
            .into_iter()
            .filter(|(_, mask, value)| attributes & mask == *value)
            .map(|(flag, ..)| flag)
            .collect(),
        superblock_read_only: small(field::SB_FLAGS)? & SB_RDONLY != 0 || emergency,
        shared: large(field::MNT_PROPAGATION)? & MS_SHARED != 0,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A `struct statmount` of a mount with these strings, in their order, and values.
    fn mount(texts: &[(u64, usize, &str)], values: &[(usize, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; field::STRINGS];
        let mut mask = told::SB_BASIC | told::MNT_BASIC;
        for (flag, at, text) in texts {
            mask |= flag;
            let offset = u32::try_from(bytes.len() - field::STRINGS).unwrap();
            bytes[*at..at + 4].copy_from_slice(&offset.to_ne_bytes());
            bytes.extend(text.bytes().chain([0]));
        }
        bytes[field::MASK..field::MASK + 8].copy_from_slice(&mask.to_ne_bytes());
        for (at, value) in values {
            bytes[*at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    fn usual() -> [(u64, usize, &'static str); 4] {
        [
            (told::MNT_ROOT, field::MNT_ROOT, "/a"),
            (told::MNT_POINT, field::MNT_POINT, "/mnt/x y"),
            (told::FS_TYPE, field::FS_TYPE, "fuse"),
            (told::SB_SOURCE, field::SB_SOURCE, "/dev/loop300"),
        ]
    }

    #[test]
    fn every_field_is_read() {
        let more = [
            (told::FS_SUBTYPE, field::FS_SUBTYPE, "sshfs"),
            (told::MNT_OPTS, field::MNT_OPTS, "a,emergency_ro"),
        ];
        let values = [
            (field::SB_DEV_MAJOR, 7),
            (field::SB_DEV_MINOR, 300),
            (field::MNT_ID_OLD, 36),
            (field::MNT_PARENT_ID_OLD, 35),
            (field::MNT_ATTR, 0x97),
            (field::MNT_PROPAGATION, 1 << 20),
        ];
        let told = decode(&mount(&[&usual()[..], &more].concat(), &values)).unwrap();
        let expected = MountEntry {
            id: 36,
            parent: 35,
            dev: makedev(7, 300),
            root: "/a".into(),
            target: "/mnt/x y".into(),
            fs_type: "fuse.sshfs".to_owned(),
            source: "/dev/loop300".to_owned(),
            read_only: true,
            flags: vec![VfsFlag::NoAtime, VfsFlag::NoDirAtime, VfsFlag::NoSuid, VfsFlag::NoDev],
            superblock_read_only: true,
            shared: true,
        };
        assert_eq!((told.entry, told.has_source), (Some(expected), true));
    }

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
    fn who_tells_too_little_is_not_asked_again() {
        let mut seen = Seen::default();
        assert!(seen.cannot::<()>("statmount", Errno::EIO).is_err() && !seen.tells_too_little);
        assert!(seen.cannot::<()>("listmount", Errno::ENOSYS).unwrap().is_none() && seen.tells_too_little);
        let seen = MountsSeen(Mutex::new(seen));
        assert_eq!(seen.matching(&|_| true).unwrap(), None);
    }

    #[test]
    fn what_is_not_set_is_not_read() {
        let entry = decode(&mount(&usual(), &[])).unwrap().entry.unwrap();
        assert_eq!((entry.fs_type.as_str(), entry.flags), ("fuse", vec![VfsFlag::RelAtime]));
        assert!(!entry.read_only && !entry.superblock_read_only && !entry.shared);
        let told = decode(&mount(&usual()[..3], &[(field::SB_FLAGS, 1), (field::MNT_ATTR, 0x28)])).unwrap();
        let entry = told.entry.unwrap();
        assert!(!told.has_source && entry.source == "none" && entry.superblock_read_only && !entry.read_only);
        assert_eq!(entry.flags, [VfsFlag::NoExec], "strictatime is not shown");
        assert_eq!(decode(&mount(&usual()[..1], &[])).unwrap().entry, None, "it cannot be reached");
    }

    #[test]
    fn what_is_new_is_asked_and_of_the_others_what_may_be_wanted() {
        let entry = decode(&mount(&usual(), &[])).unwrap().entry;
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

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..700), mask in any::<u64>()) {
            let mut bytes = bytes;
            if let Some(at) = bytes.get_mut(field::MASK..field::MASK + 8) {
                at.copy_from_slice(&mask.to_ne_bytes());
            }
            let _ = decode(&bytes);
        }
    }
}
