//! /proc/self/mountinfo as text (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::super::{MountEntry, Propagation};
use hostloop_model::VfsFlag;

/// Reads the whole table.
///
/// # Errors
/// InvalidData with the line's number where a line is not what the manual page describes.
pub fn parse(table: &[u8]) -> io::Result<Vec<MountEntry>> {
    let lines = table.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines
        .map(|(number, line)| {
            parse_line(line).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("mountinfo line {} is malformed", number + 1),
                )
            })
        })
        .collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: id, parent, device, root,
/// target, per-mount options, any number of optional fields, `-`, type, source, superblock options.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    // Fields are separated by one blank each; a source may be empty, so blanks must not be merged.
    let mut fields = line.split(|byte| *byte == b' ');
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let dev = parse_device(fields.next()?)?;
    let root = path(fields.next()?);
    let target = path(fields.next()?);
    let options = fields.next()?;
    let mut propagation = Propagation::default();
    loop {
        let group = |field: &[u8], name: &[u8]| field.strip_prefix(name).and_then(number);
        match fields.next()? {
            b"-" => break,
            optional => {
                propagation.peers = propagation.peers.or(group(optional, b"shared:"));
                propagation.master = propagation.master.or(group(optional, b"master:"));
                propagation.from = propagation.from.or(group(optional, b"propagate_from:"));
            }
        }
    }
    let fs_type = text(fields.next()?);
    let source = text(fields.next()?);
    let superblock = fields.next()?;
    let has = |options: &[u8], word: &str| options.split(|byte| *byte == b',').any(|o| o == word.as_bytes());
    Some(MountEntry {
        id,
        parent,
        dev,
        root,
        target,
        fs_type,
        source,
        read_only: has(options, "ro"),
        flags: VfsFlag::ALL.into_iter().filter(|flag| has(options, flag.as_str())).collect(),
        superblock_read_only: has(superblock, "ro") || NO_WRITES.iter().any(|word| has(superblock, word)),
        propagation,
    })
}

fn number(field: &[u8]) -> Option<u64> {
    str::from_utf8(field).ok()?.parse().ok()
}

/// What ext4 says of itself, and not that it is read-only, since Linux 6.15: after an error, and after it was shut down.
pub(super) const NO_WRITES: [&str; 2] = ["emergency_ro", "shutdown"];

/// The id of the mount in the `/proc/self/fdinfo` of a descriptor (proc_pid_fdinfo(5)).
pub(super) fn parse_fdinfo(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// `major:minor`
pub(super) fn parse_device(field: &[u8]) -> Option<u64> {
    let (major, minor) = str::from_utf8(field).ok()?.trim().split_once(':')?;
    Some(nix::sys::stat::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// Undoes the kernel's octal escapes of blank, tab, newline, backslash and `#` (fs/proc_namespace.c, mangle).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        match digits.and_then(octal) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::makedev;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    fn one(line: &str) -> MountEntry {
        parse(line.as_bytes()).expect("table").pop().expect("a line")
    }

    #[test]
    fn reads_every_field() {
        let entry = one(
            "36 35 7:300 /a /mnt/x ro,nosuid,nodev,noatime shared:12 master:3 - xfs /dev/loop300 rw,nouuid\n",
        );
        assert_eq!((entry.id, entry.parent), (36, 35));
        assert_eq!(entry.dev, makedev(7, 300));
        assert_eq!((&entry.root, &entry.target), (&PathBuf::from("/a"), &PathBuf::from("/mnt/x")));
        assert_eq!((entry.fs_type.as_str(), entry.source.as_str()), ("xfs", "/dev/loop300"));
        assert!(entry.read_only && !entry.superblock_read_only && entry.is_shared());
        assert_eq!(entry.propagation, Propagation { peers: Some(12), master: Some(3), from: None });
        assert_eq!(entry.flags, [VfsFlag::NoAtime, VfsFlag::NoSuid, VfsFlag::NoDev]);
    }

    #[test]
    fn read_only_is_told_apart_from_the_superblock() {
        let entry = one("1 2 7:0 / /x rw,relatime master:1 propagate_from:2 unbindable - ext4 /dev/loop0 ro");
        assert!(!entry.read_only && entry.superblock_read_only && !entry.is_shared());
        assert_eq!(entry.propagation, Propagation { peers: None, master: Some(1), from: Some(2) });
        assert_eq!(entry.flags, [VfsFlag::RelAtime]);
        for word in NO_WRITES {
            let entry = one(&format!("1 2 7:0 / /x rw - ext4 /dev/loop0 rw,{word}"));
            assert!(!entry.read_only && entry.superblock_read_only, "{word}");
        }
    }

    #[test]
    fn escapes_odd_types_and_empty_sources() {
        let entry = one(r"1 2 0:5 / /a\040b\011c\012d\134e\043f\4x\999 rw - fuse.s3fs\040x my\040disk rw");
        assert_eq!(entry.target, PathBuf::from("/a b\tc\nd\\e#f\\4x\\999"));
        assert_eq!((entry.fs_type.as_str(), entry.source.as_str()), ("fuse.s3fs x", "my disk"));
        assert_eq!(one("1 2 0:5 / / rw - tmpfs  rw").source, "");
        let bytes = parse(b"1 2 0:5 / /\xff rw - tmpfs none rw\n").expect("table");
        assert_eq!(bytes[0].target.as_os_str().as_bytes(), b"/\xff");
    }

    #[test]
    fn a_malformed_line_is_named() {
        let good = "1 2 0:5 / / rw - tmpfs none rw\n";
        for bad in [
            "x",
            "1 x 0:5 / / rw - tmpfs none rw",
            "1 2 0:5 / / rw tmpfs none rw",
            "1 2 05 / / rw - tmpfs none rw",
            "1 2 0:5 / / rw - tmpfs none",
        ] {
            let error = parse(format!("{good}{bad}\n").as_bytes()).expect_err(bad);
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }

    #[test]
    fn the_mount_of_a_descriptor_is_read() {
        let text = "pos:\t0\nflags:\t012100000\nmnt_id:\t29\nino:\t2\n";
        assert_eq!(parse_fdinfo(text), Some(29));
        assert_eq!(parse_fdinfo("pos:\t0\n"), None);
    }

    proptest! {
        #[test]
        fn no_table_panics(table in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&table);
        }
    }
}
