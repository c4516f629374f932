//! What statmount(2) tells of a mount.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::stat::makedev;

use super::super::super::{MountEntry, Propagation};
use super::super::ioctl;
use super::super::mountinfo::NO_WRITES;
use hostloop_model::VfsFlag;

/// What the kernel told of a mount.
#[derive(Debug)]
pub(super) struct Told {
    /// `None` for one that this process cannot reach.
    pub(super) entry: Option<MountEntry>,
    pub(super) has_source: bool,
}

/// Asks for a mount by its unique id.
///
/// # Errors
/// ENOENT where it has gone; ENOSYS before Linux 6.8.
pub(super) fn ask(id: u64) -> nix::Result<Told> {
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
    pub(super) const PROPAGATE_FROM: u64 = 0x4;
    pub(super) const MNT_OPTS: u64 = 0x80;
    pub(super) const FS_SUBTYPE: u64 = 0x100;
    pub(super) const SB_SOURCE: u64 = 0x200;
    pub(super) const ALL: u64 = SB_BASIC
        | MNT_BASIC
        | PROPAGATE_FROM
        | MNT_ROOT
        | MNT_POINT
        | FS_TYPE
        | MNT_OPTS
        | FS_SUBTYPE
        | SB_SOURCE;
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
    pub(super) const MNT_PEER_GROUP: usize = 80;
    pub(super) const MNT_MASTER: usize = 88;
    pub(super) const PROPAGATE_FROM: usize = 96;
    pub(super) const MNT_ROOT: usize = 104;
    pub(super) const MNT_POINT: usize = 108;
    pub(super) const FS_SUBTYPE: usize = 120;
    pub(super) const SB_SOURCE: usize = 124;
    /// The strings, which the fields above count from here.
    pub(super) const STRINGS: usize = 512;
}

/// `MOUNT_ATTR_*` (linux/mount.h) of the flags that mountinfo shows per mount.
const ATTRIBUTES: [(VfsFlag, u64, u64); 7] = [
    (VfsFlag::NoAtime, ATIME, 0x10),
    (VfsFlag::NoDirAtime, 0x80, 0x80),
    (VfsFlag::RelAtime, ATIME, 0),
    (VfsFlag::NoSuid, 0x2, 0x2),
    (VfsFlag::NoDev, 0x4, 0x4),
    (VfsFlag::NoExec, 0x8, 0x8),
    (VfsFlag::NoSymFollow, 0x20_0000, 0x20_0000),
];
const ATIME: u64 = 0x70;
const READ_ONLY: u64 = 0x1;
const SB_RDONLY: u32 = 0x1;

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
    // A kernel that does not tell leaves 0, which is no group.
    let group = |at: usize| Some(Some(large(at)?).filter(|group| *group != 0));
    let (peers, master) = (group(field::MNT_PEER_GROUP)?, group(field::MNT_MASTER)?);
    let attributes = large(field::MNT_ATTR)?;
    let options = text(told::MNT_OPTS, field::MNT_OPTS)?.unwrap_or_default();
    let takes_no_writes = |option: &[u8]| NO_WRITES.iter().any(|word| word.as_bytes() == option);
    let stopped = options.split(|byte| *byte == b',').any(takes_no_writes);
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
        superblock_read_only: small(field::SB_FLAGS)? & SB_RDONLY != 0 || stopped,
        propagation: Propagation {
            peers,
            master,
            // mountinfo shows it only if it is another one than the master's.
            from: group(field::PROPAGATE_FROM)?.filter(|from| master.is_some_and(|master| master != *from)),
        },
    }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Some mount, as the kernel tells it.
    pub(in super::super) fn some_entry() -> Option<MountEntry> {
        decode(&mount(&usual(), &[])).unwrap().entry
    }

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
            (field::MNT_PEER_GROUP, 12),
            (field::MNT_MASTER, 3),
            (field::PROPAGATE_FROM, 2),
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
            propagation: Propagation { peers: Some(12), master: Some(3), from: Some(2) },
        };
        assert_eq!((told.entry, told.has_source), (Some(expected), true));
    }

    #[test]
    fn unset_fields_are_not_read() {
        let entry = decode(&mount(&usual(), &[])).unwrap().entry.unwrap();
        assert_eq!((entry.fs_type.as_str(), entry.flags), ("fuse", vec![VfsFlag::RelAtime]));
        assert!(!entry.read_only && !entry.superblock_read_only);
        assert_eq!(entry.propagation, Propagation::default());
        let told = decode(&mount(&usual(), &[(field::MNT_MASTER, 3), (field::PROPAGATE_FROM, 3)])).unwrap();
        assert_eq!(told.entry.unwrap().propagation.from, None, "it is the master's");
        let told = decode(&mount(&usual()[..3], &[(field::SB_FLAGS, 1), (field::MNT_ATTR, 0x28)])).unwrap();
        let entry = told.entry.unwrap();
        assert!(!told.has_source && entry.source == "none" && entry.superblock_read_only && !entry.read_only);
        assert_eq!(entry.flags, [VfsFlag::NoExec], "strictatime is not shown");
        assert_eq!(decode(&mount(&usual()[..1], &[])).unwrap().entry, None, "it cannot be reached");
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
