//! Block devices of any kind.
#![allow(clippy::disallowed_methods, reason = "sysfs is read for Files")]

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat, major, minor};

use super::super::{BlockDevice, errno_error, is_errno};
use super::claim::Claim;
use super::{at, ioctl, kind_bits};

/// Looks at a device. A claim on it is tried, and given up at once.
///
/// # Errors
/// ENOTBLK where something else lies at the path.
pub(super) fn block_device(path: &Path) -> io::Result<BlockDevice> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let device = open(path, flags, Mode::empty()).map_err(at("open", path))?;
    let stat = fstat(&device).map_err(at("stat", path))?;
    if kind_bits(&stat) != libc::S_IFBLK {
        return Err(errno_error(Errno::ENOTBLK, format_args!("look at {}", path.display())));
    }
    let bytes = ioctl::device_size(&device).map_err(at("get the size of", path))?;
    let held = match Claim::new(path) {
        Ok(_) => false,
        Err(error) if is_errno(&error, Errno::EBUSY) => true,
        Err(error) => return Err(error),
    };
    Ok(BlockDevice { rdev: stat.st_rdev, bytes, held, partitioned: is_partitioned(stat.st_rdev)? })
}

/// Returns how many writes and discards the device has completed; `None` if the kernel does not count them.
pub(super) fn written(rdev: u64) -> io::Result<Option<u64>> {
    /// Positions in `stat` (Documentation/block/stat.rst). Kernels before 4.18 have no discards there.
    const WRITES: usize = 4;
    const DISCARDS: usize = 11;
    let directory = PathBuf::from(format!("/sys/dev/block/{}:{}", major(rdev), minor(rdev)));
    let read = |name: &str| {
        let file = directory.join(name);
        std::fs::read_to_string(&file).map_err(at("read", &file))
    };
    if read("queue/iostats")?.trim() != "1" {
        return Ok(None);
    }
    let stat = read("stat")?;
    let number = |position| stat.split_whitespace().nth(position).map(str::parse::<u64>);
    match (number(WRITES), number(DISCARDS)) {
        (Some(Ok(writes)), Some(Ok(discards))) => Ok(Some(writes.saturating_add(discards))),
        _ => Ok(None),
    }
}

/// Whether sysfs shows partitions of the device: directories in its own that have a file `partition`
/// (Documentation/ABI/stable/sysfs-block).
fn is_partitioned(rdev: u64) -> io::Result<bool> {
    let directory = PathBuf::from(format!("/sys/dev/block/{}:{}", major(rdev), minor(rdev)));
    for entry in std::fs::read_dir(&directory).map_err(at("list", &directory))? {
        let child = entry.map_err(at("list", &directory))?.path();
        if child.join("partition").symlink_metadata().is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}
