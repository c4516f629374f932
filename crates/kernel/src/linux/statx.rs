//! What statx(2) alone tells of an open file.

use std::os::fd::AsFd;

use nix::errno::Errno;
use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags};

use super::errno;

fn statx(file: impl AsFd, wanted: StatxFlags) -> nix::Result<Statx> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).map_err(errno)
}

/// The alignment of direct I/O on a file, 0 where it is not possible, `None` where kernel or filesystem do not
/// tell (STATX_DIOALIGN, Linux 6.1).
pub(super) fn direct_io_alignment(file: impl AsFd) -> nix::Result<Option<u32>> {
    let told = statx(file, StatxFlags::DIOALIGN)?;
    let told_at_all = StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::DIOALIGN);
    Ok(told_at_all.then_some(told.stx_dio_offset_align))
}

/// Whether an open directory is the root of a mount (STATX_ATTR_MOUNT_ROOT); EOPNOTSUPP where the kernel does not tell
/// (before Linux 5.8).
pub(super) fn is_mount_root(directory: impl AsFd) -> nix::Result<bool> {
    let told = statx(directory, StatxFlags::empty())?;
    if !told.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_types, reason = "a test, which opens what it looks at")]
    fn a_mount_root_is_told_from_a_directory() {
        let root = |path: &str| is_mount_root(std::fs::File::open(path).expect("open")).expect("statx");
        assert!(root("/proc") && !root("/proc/self"));
    }
}
