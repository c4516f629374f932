//! What an image holds, judged by its bytes: the check before every mkfs.

use std::path::Path;

use crate::error::{Error, OsContext, Result};
use crate::kernel::{Images, MakeOptions, Os};
use crate::model::FsType;

/// What was found in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signature {
    /// Nothing: it reads as zeros from end to end.
    Blank,
    /// One of our filesystems.
    Filesystem {
        /// Which.
        fs_type: FsType,
        /// The size in bytes that its superblock gives.
        bytes: u64,
        /// Its superblock says that errors were met and not yet repaired (ext4's `s_state`).
        errors: bool,
    },
    /// Data that is none of our filesystems: never formatted, never mounted.
    Other(&'static str),
}

impl Signature {
    /// For messages.
    pub fn describe(self) -> String {
        match self {
            Signature::Blank => "nothing".to_owned(),
            Signature::Filesystem { fs_type: FsType::Btrfs, .. } => "a btrfs filesystem".to_owned(),
            Signature::Filesystem { fs_type, .. } => format!("an {fs_type} filesystem"),
            Signature::Other(what) => what.to_owned(),
        }
    }
}

/// Bytes from the start that hold every superblock and label we look for: btrfs' superblock ends at 68 KiB.
const HEAD: usize = 68 * 1024;

/// Labels of other owners, by offset (the kernel's and the tools' own headers): named so that the message helps.
const OTHERS: [(usize, &[u8], &str); 12] = [
    (0, b"LUKS\xba\xbe", "a LUKS container"),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (0x200, b"EFI PART", "a GPT partition table"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0x8001, b"CD001", "an ISO 9660 filesystem"),
    (0, b"hsqs", "a squashfs filesystem"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (0x52, b"FAT32   ", "a FAT filesystem"),
    (0x36, b"FAT1", "a FAT filesystem"),
    (0x400, b"\x10\x20\xf5\xf2", "an f2fs filesystem"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache device"),
    (0x1fe, b"\x55\xaa", "a boot sector or partition table"),
];

/// Looks into an image (or device). A blank one costs one lseek(2), since it has no data extent.
pub fn inspect(images: &dyn Images, image: &Path) -> Result<Signature> {
    let reading = || format!("read {}", image.display());
    if images.next_data(image, 0).doing(reading)?.is_none() {
        return Ok(Signature::Blank);
    }
    let head = images.read_at(image, 0, HEAD).doing(reading)?;
    if let Some(found) = labelled(&head) {
        return Ok(found);
    }
    if is_zero(images, image)? {
        Ok(Signature::Blank)
    } else {
        Ok(Signature::Other("data of an unknown kind"))
    }
}

/// Only what a label in the head of an image or device tells; `None` where there is none, whatever else is in it.
pub fn label(images: &dyn Images, image: &Path) -> std::io::Result<Option<Signature>> {
    Ok(labelled(&images.read_at(image, 0, HEAD)?))
}

/// Makes a filesystem on a device that is blank, and looks whether it is there: mkfs.btrfs (6.2) also says that all is well
/// where a write or sync of its superblock failed.
///
/// # Errors
/// The tool's and the kernel's; without errno where the filesystem is not there.
pub fn make_filesystem(
    os: &Os,
    device: &Path,
    fs_type: FsType,
    options: &MakeOptions,
) -> std::io::Result<()> {
    os.filesystems.make(device, fs_type, options)?;
    if holds(label(os.images.as_ref(), device)?.as_ref(), fs_type) {
        return Ok(());
    }
    Err(std::io::Error::other(format!("mkfs reported success, but {} holds no {fs_type}", device.display())))
}

fn holds(label: Option<&Signature>, fs_type: FsType) -> bool {
    matches!(label, Some(Signature::Filesystem { fs_type: found, .. }) if *found == fs_type)
}

/// What the labels in the head of an image or device tell; `None` where there is none.
fn labelled(head: &[u8]) -> Option<Signature> {
    let is = |(at, label, _): &&(usize, &[u8], &str)| head.get(*at..*at + label.len()) == Some(*label);
    superblock(head).or_else(|| OTHERS.iter().find(is).map(|(_, _, name)| Signature::Other(name)))
}

/// Bytes from the start of a device that must be zeros for it to pass for blank: beyond every table and superblock,
/// the second one of btrfs at 64 MiB included.
const DEVICE_HEAD: u64 = 65 << 20;
/// The same from its end, where GPT, ZFS and RAID keep theirs.
const DEVICE_TAIL: u64 = 1 << 20;

/// Looks into a block device of `size` bytes, which may be too large to be read from end to end: blank is one whose
/// first 65 MiB and last 1 MiB are zeros, as after `blkdiscard -z` or on a new disk. `wipefs` alone takes away the
/// labels that it knows, and leaves the data.
pub fn inspect_device(images: &dyn Images, device: &Path, size: u64) -> Result<Signature> {
    let reading = || format!("read {}", device.display());
    let tail_at = size.saturating_sub(DEVICE_TAIL);
    let tail = read_exact(images, device, tail_at, size - tail_at)?;
    if is_raid_member(&tail, size) {
        return Ok(Signature::Other("a member of a RAID"));
    }
    if let Some(found) = labelled(&images.read_at(device, 0, HEAD).doing(reading)?) {
        return Ok(found);
    }
    let mut blank = are_zeros(&tail);
    let (mut at, end) = (0, DEVICE_HEAD.min(size));
    while blank && at < end {
        let len = (end - at).min(1 << 20);
        blank = are_zeros(&read_exact(images, device, at, len)?);
        at += len;
    }
    Ok(if blank { Signature::Blank } else { Signature::Other("data of an unknown kind") })
}

fn read_exact(images: &dyn Images, device: &Path, at: u64, len: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let bytes = images.read_at(device, at, len).doing(|| format!("read {}", device.display()))?;
    match bytes.len() == len {
        true => Ok(bytes),
        false => Err(Error::InUse(format!("{} became shorter while it was read", device.display()))),
    }
}

/// Whether the last MiB of a device of `size` bytes has a superblock of Linux RAID (md(4)) in a version that keeps it
/// at the end: then the filesystem that seems to begin at byte 0 is the array's, and mounting one member breaks the
/// mirror.
fn is_raid_member(tail: &[u8], size: u64) -> bool {
    const MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
    const KIB: u64 = 1024;
    // Version 0.90, and version 1.0.
    let places = [
        (size & !(64 * KIB - 1)).checked_sub(64 * KIB),
        size.checked_sub(8 * KIB).map(|at| at & !(4 * KIB - 1)),
    ];
    let start = size - tail.len() as u64;
    places.into_iter().flatten().any(|place| {
        let at = place.checked_sub(start).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| tail.get(at..at + 4)) == Some(&MAGIC)
    })
}

/// Whether every data extent reads as zeros. Only reached where there are extents without a known label:
/// after blocks were written with zeros, or on a filesystem that cannot tell holes.
fn is_zero(images: &dyn Images, image: &Path) -> Result<bool> {
    const CHUNK: usize = 1 << 20;
    let reading = || format!("read {}", image.display());
    let mut at = 0;
    while let Some((start, end)) = images.next_data(image, at).doing(reading)? {
        at = start;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let bytes = images.read_at(image, at, want).doing(reading)?;
            if !are_zeros(&bytes) {
                return Ok(false);
            }
            if bytes.is_empty() {
                return Err(Error::InUse(format!("{} became shorter while it was read", image.display())));
            }
            at += bytes.len() as u64;
        }
    }
    Ok(true)
}

/// Compares block by block, which is memcmp(3) also where nothing is optimized: tens of MiB are looked at.
fn are_zeros(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| ZEROS.starts_with(chunk))
}

fn bytes<const N: usize>(head: &[u8], at: usize) -> Option<[u8; N]> {
    head.get(at..at + N)?.try_into().ok()
}

/// The superblock of one of our filesystems, if there is one.
fn superblock(head: &[u8]) -> Option<Signature> {
    ext4(head).or_else(|| xfs(head)).or_else(|| btrfs(head))
}

/// linux: fs/ext4/ext4.h, struct ext4_super_block, at byte 1024.
fn ext4(head: &[u8]) -> Option<Signature> {
    const SUPERBLOCK: usize = 1024;
    const ERROR_FS: u16 = 2;
    const INCOMPAT_EXTENTS: u32 = 0x40;
    const INCOMPAT_64BIT: u32 = 0x80;
    let u16_at = |at| bytes(head, SUPERBLOCK + at).map(u16::from_le_bytes);
    let u32_at = |at| bytes(head, SUPERBLOCK + at).map(u32::from_le_bytes);
    if u16_at(0x38)? != 0xEF53 {
        return None;
    }
    let incompat = u32_at(0x60)?;
    if incompat & INCOMPAT_EXTENTS == 0 {
        return Some(Signature::Other("an ext2 or ext3 filesystem"));
    }
    let high = if incompat & INCOMPAT_64BIT == 0 { 0 } else { u32_at(0x150)? };
    let blocks = u64::from(high) << 32 | u64::from(u32_at(0x4)?);
    let block_size = 1024u64.checked_shl(u32_at(0x18)?)?;
    let bytes = blocks.checked_mul(block_size)?;
    Some(Signature::Filesystem { fs_type: FsType::Ext4, bytes, errors: u16_at(0x3A)? & ERROR_FS != 0 })
}

/// linux: fs/xfs/libxfs/xfs_format.h, struct xfs_dsb, at byte 0, big-endian.
fn xfs(head: &[u8]) -> Option<Signature> {
    if head.get(..4)? != b"XFSB" {
        return None;
    }
    let block_size = u32::from_be_bytes(bytes(head, 4)?);
    let blocks = u64::from_be_bytes(bytes(head, 8)?);
    let bytes = blocks.checked_mul(u64::from(block_size))?;
    Some(Signature::Filesystem { fs_type: FsType::Xfs, bytes, errors: false })
}

/// linux: include/uapi/linux/btrfs_tree.h, struct btrfs_super_block, at byte 65536.
fn btrfs(head: &[u8]) -> Option<Signature> {
    const SUPERBLOCK: usize = 65536;
    if head.get(SUPERBLOCK + 0x40..SUPERBLOCK + 0x48)? != b"_BHRfS_M" {
        return None;
    }
    let bytes = u64::from_le_bytes(bytes(head, SUPERBLOCK + 0x70)?);
    Some(Signature::Filesystem { fs_type: FsType::Btrfs, bytes, errors: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ext4_head(state: u16) -> Vec<u8> {
        let mut head = vec![0u8; HEAD];
        head[1024 + 0x38..][..2].copy_from_slice(&0xEF53u16.to_le_bytes());
        head[1024 + 0x3A..][..2].copy_from_slice(&state.to_le_bytes());
        head[1024 + 0x60..][..4].copy_from_slice(&0xC0u32.to_le_bytes());
        head[1024 + 0x18..][..4].copy_from_slice(&2u32.to_le_bytes());
        head[1024 + 0x4..][..4].copy_from_slice(&1000u32.to_le_bytes());
        head
    }

    #[test]
    fn the_filesystem_that_was_asked_for_is_seen() {
        let found = superblock(&ext4_head(1));
        assert!(holds(found.as_ref(), FsType::Ext4));
        assert!(!holds(found.as_ref(), FsType::Xfs), "another one");
        assert!(!holds(Some(&Signature::Other("data")), FsType::Ext4));
        assert!(!holds(None, FsType::Ext4));
    }

    #[test]
    fn signatures_of_others_are_named() {
        for (at, label, name) in OTHERS {
            let mut head = vec![0; HEAD];
            head[at..at + label.len()].copy_from_slice(label);
            assert_eq!(labelled(&head), Some(Signature::Other(name)));
            assert_eq!(labelled(&head[..at + label.len() - 1]), None, "{name}, cut off");
        }
    }

    #[test]
    fn a_device_is_blank_where_its_head_and_its_tail_are() {
        const MIB: u64 = 1 << 20;
        let kernel = hostloop_fake_kernel::FakeKernel::new();
        kernel.write_file("/disk", &[]).unwrap();
        let os = kernel.os();
        let disk = Path::new("/disk");
        os.images.set_size(disk, 70 * MIB).unwrap();
        let device = kernel.attach_foreign(disk, false).unwrap().path();
        let inspected = || inspect_device(os.images.as_ref(), &device, 70 * MIB).unwrap();
        assert_eq!(inspected(), Signature::Blank);
        for (at, is_blank) in [(67 * MIB, true), (64 * MIB, false), (70 * MIB - 512, false)] {
            os.images.write_at(disk, at, b"data").unwrap();
            assert_eq!(inspected() == Signature::Blank, is_blank, "{at}");
            os.images.write_at(disk, at, &[0; 4]).unwrap();
        }
    }

    #[test]
    fn superblocks_say_size_and_errors() {
        let ext4 = |errors| Some(Signature::Filesystem { fs_type: FsType::Ext4, bytes: 4_096_000, errors });
        assert_eq!(superblock(&ext4_head(1)), ext4(false));
        assert_eq!(superblock(&ext4_head(3)), ext4(true));
        let mut xfs = vec![0u8; HEAD];
        xfs[..4].copy_from_slice(b"XFSB");
        xfs[4..8].copy_from_slice(&4096u32.to_be_bytes());
        xfs[8..16].copy_from_slice(&10u64.to_be_bytes());
        assert_eq!(
            superblock(&xfs),
            Some(Signature::Filesystem { fs_type: FsType::Xfs, bytes: 40960, errors: false })
        );
        let mut btrfs = vec![0u8; HEAD];
        btrfs[65536 + 0x40..][..8].copy_from_slice(b"_BHRfS_M");
        btrfs[65536 + 0x70..][..8].copy_from_slice(&77u64.to_le_bytes());
        assert_eq!(
            superblock(&btrfs),
            Some(Signature::Filesystem { fs_type: FsType::Btrfs, bytes: 77, errors: false })
        );
        assert_eq!(superblock(&[0; HEAD]), None);
    }

    #[test]
    fn an_older_filesystem_with_ext4_magic_is_another() {
        for incompat in [0u32, 0x80] {
            let mut head = ext4_head(1);
            head[1024 + 0x60..][..4].copy_from_slice(&incompat.to_le_bytes());
            assert_eq!(superblock(&head), Some(Signature::Other("an ext2 or ext3 filesystem")));
        }
    }

    #[test]
    fn the_upper_half_of_a_size_needs_its_feature() {
        for (incompat, blocks) in [(0xC0u32, (3 << 32) | 1000), (0x40, 1000)] {
            let mut head = ext4_head(1);
            head[1024 + 0x60..][..4].copy_from_slice(&incompat.to_le_bytes());
            head[1024 + 0x150..][..4].copy_from_slice(&3u32.to_le_bytes());
            let expected =
                Signature::Filesystem { fs_type: FsType::Ext4, bytes: blocks * 4096, errors: false };
            assert_eq!(superblock(&head), Some(expected));
        }
    }

    #[test]
    fn a_raid_keeps_its_superblock_at_the_end() {
        const MIB: usize = 1 << 20;
        let size = (10 * MIB + 512) as u64;
        let mut tail = vec![0; MIB];
        assert!(!is_raid_member(&tail, size));
        for at in [10 * MIB - 65536, (10 * MIB + 512 - 8192) & !4095] {
            let at = at - (9 * MIB + 512);
            tail[at..at + 4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
            assert!(is_raid_member(&tail, size));
            tail.fill(0);
        }
        assert!(!is_raid_member(&[0; 512], 512));
    }

    /// Anything where superblocks have their fields, cut off anywhere.
    fn any_head() -> impl Strategy<Value = Vec<u8>> {
        let place = prop_oneof![Just(0), Just(1024), Just(65536), 0..HEAD];
        let piece = (place, proptest::collection::vec(any::<u8>(), 0..0x200));
        let pieces = proptest::collection::vec(piece, 0..6);
        (pieces, 0..=HEAD).prop_map(|(pieces, len)| {
            let mut head = vec![0; HEAD];
            for (at, bytes) in pieces {
                let end = HEAD.min(at + bytes.len());
                head[at..end].copy_from_slice(&bytes[..end - at]);
            }
            head.truncate(len);
            head
        })
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut head in any_head(), ext in any::<bool>()) {
            if ext && head.len() > 1024 + 0x40 {
                head[1024 + 0x38] = 0x53;
                head[1024 + 0x39] = 0xEF;
            }
            let _ = superblock(&head);
        }
    }
}
