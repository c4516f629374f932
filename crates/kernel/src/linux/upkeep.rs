//! What filesystems take for themselves, and how images are written without taking more than that.
#![allow(clippy::disallowed_types, reason = "implements Images")]

use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, fstatfs};
use nix::sys::statvfs;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::super::{MetadataSpace, Upkeep};
use super::at;
use super::ioctl::{self, SpaceInfo, btrfs_spaces};
use super::open::{open_file, open_to_change};

/// `f_type` of statfs(2), which libc lacks with musl.
const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// In an extent tree each block holds 340 extents of 12 bytes (ext4 disk layout, "Extent Tree"), at least half of them
/// where it was split: 4096 / 170. The most that was seen is 12.6.
const EXT4_PER_BLOCK: u64 = 25;

/// A block of the tree of a file's extents holds 251 records of 16 bytes (`struct xfs_bmbt_rec`), and never less than
/// half: 4096 / 125, and as much of that for the levels above. The most that was seen is 24.5. The trees of reverse
/// mappings and of reference counts have reservations that are not available (fs/xfs/libxfs/xfs_ag_resv.c).
const XFS_PER_BLOCK: u64 = 34;

/// What btrfs takes of a leaf for an extent of its own: its item in the file (25 bytes and
/// `struct btrfs_file_extent_item`) and the one in the extent tree (25 bytes, `struct btrfs_extent_item` and an inline
/// reference): 156 bytes in full leaves. Up to 197 were seen, and a quarter of metadata stays free before more is
/// allocated for them.
const BTRFS_PER_EXTENT: u64 = 200;
const BTRFS_PER_BLOCK: u64 = 256;

/// What transactions ask for before they know that they need it, several at once.
const EXT4_UNUSABLE: u64 = MIB;
const XFS_UNUSABLE: u64 = 4 * MIB;
const BTRFS_UNUSABLE: u64 = 4 * MIB;

/// BTRFS_BLOCK_GROUP_*, and the global reserve of BTRFS_IOC_SPACE_INFO.
const DATA: u64 = 1;
const METADATA: u64 = 1 << 2;
const TWICE: u64 = 1 << 4 | 1 << 5 | 1 << 6;
const THRICE: u64 = 1 << 9;
const FOUR_TIMES: u64 = 1 << 10;
const GLOBAL_RESERVE: u64 = 1 << 49;

/// [`Images::upkeep`](super::super::Images::upkeep)
pub(super) fn upkeep(directory: &Path) -> io::Result<Upkeep> {
    let file = open_file(directory, OFlag::O_RDONLY)?;
    Ok(match magic(&file, directory)? {
        EXT4_SUPER_MAGIC => {
            Upkeep { per_block: EXT4_PER_BLOCK, unusable: EXT4_UNUSABLE, ..Upkeep::default() }
        }
        XFS_SUPER_MAGIC => Upkeep { per_block: XFS_PER_BLOCK, unusable: XFS_UNUSABLE, ..Upkeep::default() },
        BTRFS_SUPER_MAGIC => {
            let vfs = statvfs::fstatvfs(&file).map_err(at("statvfs", directory))?;
            let unit = vfs.fragment_size();
            let spaces = btrfs_spaces(&file).map_err(at("space info of", directory))?;
            of_btrfs(&spaces, vfs.blocks() * unit, vfs.blocks_available() * unit)
        }
        _ => Upkeep::default(),
    })
}

fn magic(file: &File, path: &Path) -> io::Result<FsType> {
    Ok(fstatfs(file).map_err(at("statfs", path))?.filesystem_type())
}

/// Copies of each block in block groups of this profile.
fn copies(flags: u64) -> u64 {
    match flags {
        _ if flags & FOUR_TIMES != 0 => 4,
        _ if flags & THRICE != 0 => 3,
        _ if flags & TWICE != 0 => 2,
        _ => 1,
    }
}

/// Data and metadata have block groups of their own, which are made of what nobody has, and are not taken back in a
/// hurry. So the last one for data can be larger than what comes into it, and then metadata lack it.
fn of_btrfs(spaces: &[SpaceInfo], total: u64, available: u64) -> Upkeep {
    let is = |flags: u64, kind: u64| flags & kind != 0;
    let data = spaces.iter().filter(|space| is(space.flags, DATA));
    let (data_total, data_used) =
        data.fold((0, 0), |(total, used), space| (total + space.total, used + space.used));
    let metadata =
        || spaces.iter().filter(|space| is(space.flags, METADATA) && !is(space.flags, GLOBAL_RESERVE));
    let copies = metadata().map(|space| copies(space.flags)).max().unwrap_or(1);
    let reserve: u64 =
        spaces.iter().filter(|space| is(space.flags, GLOBAL_RESERVE)).map(|space| space.total).sum();
    let mixed = metadata().any(|space| is(space.flags, DATA));
    let per_block = BTRFS_PER_BLOCK * copies;
    if mixed {
        let unusable = available.min(reserve.saturating_add(16 * MIB));
        return Upkeep { per_block, unusable, metadata: None, whole_extents: true };
    }
    // fs/btrfs/volumes.c, init_alloc_chunk_ctl_policy_regular: the sizes of new block groups.
    let unallocated = available.saturating_sub(data_total.saturating_sub(data_used));
    let largest = if total > 50 * GIB { GIB } else { 256 * MIB };
    let metadata = MetadataSpace {
        total: metadata().map(|space| space.total * copies).sum(),
        used: metadata().map(|space| space.used * copies).sum::<u64>() + reserve * copies,
        per_extent: BTRFS_PER_EXTENT * copies,
        growth: unallocated,
        data: data_total + unallocated,
        rounding: unallocated.min(GIB.min(total / 10) + copies * largest.min(total / 10)),
    };
    Upkeep { per_block, unusable: BTRFS_UNUSABLE, metadata: Some(metadata), whole_extents: true }
}

/// [`Images::write_in_place`](super::super::Images::write_in_place)
pub(super) fn write_in_place(path: &Path) -> io::Result<bool> {
    let file = open_to_change(path)?;
    match magic(&file, path)? {
        BTRFS_SUPER_MAGIC if no_cow(&file, path)? => Ok(true),
        BTRFS_SUPER_MAGIC if file.metadata().map_err(at("stat", path))?.len() != 0 => Ok(false),
        BTRFS_SUPER_MAGIC => set_no_cow(&file, path, true).map(|()| true),
        XFS_SUPER_MAGIC => one_block(&file, path).map(|()| true),
        _ => Ok(true),
    }
}

/// [`Images::is_in_place`](super::super::Images::is_in_place)
pub(super) fn is_in_place(path: &Path) -> io::Result<bool> {
    let file = open_file(path, OFlag::O_RDONLY | OFlag::O_NOFOLLOW)?;
    match magic(&file, path)? {
        BTRFS_SUPER_MAGIC => no_cow(&file, path),
        _ => Ok(true),
    }
}

/// Gives the target of a clone the attributes without which it cannot be one, or cannot be written to as its source.
/// The target is empty.
pub(super) fn match_flags(source: &File, target: &File, path: &Path) -> io::Result<()> {
    if magic(target, path)? != BTRFS_SUPER_MAGIC {
        return Ok(());
    }
    match (no_cow(source, path)?, no_cow(target, path)?) {
        (from, to) if from == to => Ok(()),
        (from, _) => set_no_cow(target, path, from),
    }
}

/// After a clone: FICLONE does not carry a copy-on-write extent size over.
pub(super) fn finish_clone(target: &File, path: &Path) -> io::Result<()> {
    if magic(target, path)? == XFS_SUPER_MAGIC { one_block(target, path) } else { Ok(()) }
}

fn no_cow(file: &File, path: &Path) -> io::Result<bool> {
    let flags = ioctl_getflags(file).map_err(|errno| at("flags of", path)(io::Error::from(errno)))?;
    Ok(flags.contains(IFlags::NOCOW))
}

fn set_no_cow(file: &File, path: &Path, on: bool) -> io::Result<()> {
    let wrong = |errno| at("flags of", path)(io::Error::from(errno));
    let mut flags = ioctl_getflags(file).map_err(wrong)?;
    flags.set(IFlags::NOCOW, on);
    if on {
        flags.remove(IFlags::COMPRESSED);
    }
    ioctl_setflags(file, flags).map_err(wrong)
}

fn block_size(file: &File, path: &Path) -> io::Result<u64> {
    Ok(statvfs::fstatvfs(file).map_err(at("statvfs", path))?.block_size())
}

fn one_block(file: &File, path: &Path) -> io::Result<()> {
    let bytes = u32::try_from(block_size(file, path)?).unwrap_or(4096);
    let setting = at("set the extent size of", path);
    if ioctl::cow_extent_size(file).map_err(at("attributes of", path))? == bytes {
        return Ok(());
    }
    match ioctl::set_cow_extent_size(file, bytes) {
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(()), // made without reflinks
        result => result.map_err(setting),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files of the test")]
mod tests {
    use super::*;
    use crate::is_errno;

    const SYSTEM: u64 = 1 << 1;
    const TWO_COPIES: u64 = 1 << 5;

    fn space(flags: u64, total: u64, used: u64) -> SpaceInfo {
        SpaceInfo { flags, total, used }
    }

    /// Data of 8 GiB, metadata of 1 GiB in two copies, and what is no part of either.
    fn spaces() -> [SpaceInfo; 4] {
        [
            space(DATA, 8 * GIB, 3 * GIB),
            space(METADATA | TWO_COPIES, GIB, 100 * MIB),
            space(SYSTEM | TWO_COPIES, 8 * MIB, MIB),
            space(METADATA | GLOBAL_RESERVE, 64 * MIB, 7 * MIB),
        ]
    }

    #[test]
    fn profiles_have_copies() {
        let single_stripe_and_parity = [0, 1 << 3, 1 << 7, 1 << 8];
        assert_eq!(single_stripe_and_parity.map(|profile| copies(METADATA | profile)), [1; 4]);
        assert_eq!(
            [1 << 4, 1 << 5, 1 << 6, 1 << 9, 1 << 10].map(|profile| copies(DATA | profile)),
            [2, 2, 2, 3, 4]
        );
    }

    #[test]
    fn btrfs_keeps_metadata_apart() {
        let Upkeep { per_block, unusable, metadata, whole_extents } = of_btrfs(&spaces(), 40 * GIB, 30 * GIB);
        assert_eq!((per_block, unusable, whole_extents), (2 * BTRFS_PER_BLOCK, BTRFS_UNUSABLE, true));
        let found = metadata.unwrap();
        assert_eq!((found.total, found.used), (2 * GIB, 200 * MIB + 128 * MIB));
        assert_eq!((found.per_extent, found.growth, found.data), (2 * BTRFS_PER_EXTENT, 25 * GIB, 33 * GIB));
        assert_eq!(found.rounding, GIB + 2 * 256 * MIB);
    }

    #[test]
    fn block_groups_of_btrfs_follow_its_size() {
        let rounding = |total, available| of_btrfs(&spaces(), total, available).metadata.unwrap().rounding;
        assert_eq!(rounding(50 * GIB, 30 * GIB), GIB + 2 * 256 * MIB);
        assert_eq!(rounding(50 * GIB + 1, 30 * GIB), GIB + 2 * GIB);
        assert_eq!(rounding(2000 * MIB, 30 * GIB), 3 * 200 * MIB, "a tenth");
        assert_eq!(rounding(40 * GIB, 5 * GIB + 17), 17, "what nobody has");
        assert_eq!(rounding(40 * GIB, GIB), 0);
    }

    #[test]
    fn data_and_metadata_may_be_mixed() {
        let mixed = [space(DATA | METADATA, GIB, 1), space(METADATA | GLOBAL_RESERVE, 8 * MIB, 0)];
        let expected =
            |unusable| Upkeep { per_block: BTRFS_PER_BLOCK, unusable, metadata: None, whole_extents: true };
        assert_eq!(of_btrfs(&mixed, 2 * GIB, GIB), expected(24 * MIB));
        assert_eq!(of_btrfs(&mixed, 2 * GIB, 5 * MIB), expected(5 * MIB), "all there is");
    }

    #[test]
    fn a_link_is_not_followed() {
        let temp = tempfile::tempdir().expect("tempdir");
        let [file, link] = ["file", "link"].map(|name| temp.path().join(name));
        std::fs::write(&file, b"content").expect("write");
        std::os::unix::fs::symlink(&file, &link).expect("link");
        assert!(is_in_place(&file).is_ok());
        for refused in [is_in_place(&link), write_in_place(&link)] {
            assert!(is_errno(&refused.expect_err("a link"), Errno::ELOOP));
        }
    }
}
