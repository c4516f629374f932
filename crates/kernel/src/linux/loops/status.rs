//! What the kernel tells of loop devices: LOOP_GET_STATUS64 and sysfs.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::super::super::LoopDevice;
use super::super::at;
use super::super::ioctl::{self, LoopStatus};
use super::super::node::{Node, open_node, open_some_node, sysfs};

/// Whether the kernel shows a device as attached: it has the directory `loop` then (drivers/block/loop.c).
pub(super) fn is_attached(number: u32) -> bool {
    sysfs(number, "loop").symlink_metadata().is_ok()
}

/// The device as the kernel describes it; ENXIO if it is attached to nothing.
pub(super) fn describe(number: u32, node: &Node) -> io::Result<LoopDevice> {
    let described = match ioctl::status(&node.fd) {
        Ok(status) => Ok(device_of(number, node, status)),
        Err(errno @ (Errno::ENXIO | Errno::ENODEV)) => Err(errno),
        // LOOP_GET_STATUS64 asks the filesystem of the image (vfs_getattr), and one that has shut down refuses that
        // (xfs_vn_getattr). What needs no filesystem is in sysfs.
        Err(errno) => match described_by_sysfs(number, node)? {
            Some(device) => return Ok(device),
            None => Err(errno),
        },
    };
    described.map_err(at("get the status of", Path::new(&format!("/dev/loop{number}"))))
}

/// `None` where sysfs has nothing of it: it is attached to nothing by now.
fn described_by_sysfs(number: u32, node: &Node) -> io::Result<Option<LoopDevice>> {
    let word = |file: &str| read_sysfs(number, file).map(|text| text.map(|text| text.trim_ascii() == b"1"));
    let (name, read_only) = (backing_name(number)?, word("ro")?);
    let (autoclear, direct_io) = (word("loop/autoclear")?, word("loop/dio")?);
    let all = name.zip(read_only).zip(autoclear).zip(direct_io);
    Ok(all.map(|(((name, read_only), autoclear), direct_io)| LoopDevice {
        number,
        backing: None,
        known_as: Some(name),
        rdev: node.rdev,
        read_only,
        autoclear,
        direct_io,
    }))
}

/// A file of a device in sysfs; `None` where it is not attached.
fn read_sysfs(number: u32, file: &str) -> io::Result<Option<Vec<u8>>> {
    let path = sysfs(number, file);
    match std::fs::read(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => Ok(None),
        Err(e) => Err(at("read", &path)(e)),
    }
}

/// The name of the backing file, as d_path shows it (drivers/block/loop.c, loop_attr_backing_file_show).
pub(super) fn backing_name(number: u32) -> io::Result<Option<PathBuf>> {
    let text = read_sysfs(number, "loop/backing_file")?;
    // The kernel adds the newline; a device that is being detached shows nothing.
    let name = text.map(|text| text.strip_suffix(b"\n").map(<[u8]>::to_vec).unwrap_or(text));
    Ok(name.filter(|name| !name.is_empty()).map(|name| PathBuf::from(OsString::from_vec(name))))
}

fn device_of(number: u32, node: &Node, status: LoopStatus) -> LoopDevice {
    LoopDevice {
        number,
        backing: Some(status.backing),
        known_as: None,
        rdev: node.rdev,
        read_only: status.read_only,
        autoclear: status.autoclear,
        direct_io: status.direct_io,
    }
}

/// An attached device. It knows its own number, so where /dev has the right node, as nearly always, sysfs is not
/// asked: on a node with many volumes this is most of what looking for one costs.
pub(super) fn look_at(number: u32) -> io::Result<LoopDevice> {
    if let Some(node) = open_some_node(number)
        && let Ok(status) = ioctl::status(&node.fd)
        && status.number == number
    {
        return Ok(device_of(number, &node, status));
    }
    let node = open_node(number, OFlag::O_RDONLY)?;
    describe(number, &node)
}

/// The numbers of all devices, in order.
pub(super) fn numbers() -> io::Result<Vec<u32>> {
    let path = Path::new("/sys/block");
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(path).map_err(at("list", path))? {
        let name = entry.map_err(at("list", path))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}
