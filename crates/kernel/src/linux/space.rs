//! What files of a btrfs were given and statvfs(3) still calls available.
//!
//! btrfs counts an extent as used when the transaction runs the change of its extent tree, up to 30 seconds after the file
//! has it (fs/btrfs/block-group.c, btrfs_update_block_group), also after an fsync(2). Until then the extent is reserved, and
//! so is what is written and has no place yet. Neither shows in statvfs(3) or BTRFS_IOC_SPACE_INFO. st_blocks of the file
//! counts both at once, so that they would count twice: in what images have, and in what is free.
#![allow(clippy::disallowed_methods, reason = "sysfs is read for Files")]

use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, statfs};
use uuid::Uuid;

use super::ioctl;
use super::open::open_file;

/// Returns the bytes that files of the filesystem at a path were given since its last commit. 0 for other filesystems, which
/// count them at once, and if they cannot be found out: statvfs(3) then has the last word.
pub(super) fn given(path: &Path) -> u64 {
    let is_btrfs = statfs(path).is_ok_and(|found| found.filesystem_type() == BTRFS_SUPER_MAGIC);
    let fsid = || {
        let file = open_file(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).ok()?;
        ioctl::btrfs_fsid(&file).ok().map(Uuid::from_bytes)
    };
    let fsid = if is_btrfs { fsid() } else { None };
    fsid.map_or(0, |fsid| reserved(&PathBuf::from(format!("/sys/fs/btrfs/{fsid}/allocation"))))
}

/// Returns what is reserved for data, in a directory as sysfs has it (Documentation of btrfs, "sysfs interface").
fn reserved(allocation: &Path) -> u64 {
    let number = |file: PathBuf| {
        std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let of = |kind: &str| {
        let space = allocation.join(kind);
        (number(space.join("bytes_reserved")), number(space.join("bytes_may_use")))
    };
    let ((data, unplaced), (mixed, mixed_unplaced)) = (of("data"), of("mixed"));
    // statvfs(3) leaves out the global reserve of mixed block groups by itself.
    let mixed_unplaced = mixed_unplaced.saturating_sub(number(allocation.join("global_rsv_size")));
    [data, unplaced, mixed, mixed_unplaced].into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_read_of_each_kind() {
        let temp = tempfile::tempdir().expect("tempdir");
        assert_eq!(reserved(temp.path()), 0, "nothing is known");
        let write = |file: &str, text: &str| {
            let path = temp.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
            std::fs::write(path, text).expect("write");
        };
        write("data/bytes_reserved", "4096\n");
        write("data/bytes_may_use", "8192\n");
        write("metadata/bytes_may_use", "1000000\n");
        assert_eq!(reserved(temp.path()), 12288);
        write("mixed/bytes_reserved", "65536\n");
        write("mixed/bytes_may_use", "5000\n");
        write("global_rsv_size", "6000\n");
        assert_eq!(reserved(temp.path()), 12288 + 65536, "the global reserve is no data");
    }
}
