//! Whether a loop device may discard: its queue's limit in sysfs (Documentation/ABI/stable/sysfs-block,
//! discard_max_bytes). While the limit is 0, the loop driver refuses to punch holes, also for BLKZEROOUT
//! (drivers/block/loop.c, lo_fallocate), and zeros are written instead.
#![allow(clippy::disallowed_methods, reason = "sysfs is read and written for LoopDevices")]

use std::io;

use nix::errno::Errno;

use super::super::{errno_error, is_errno};
use super::node::sysfs;
use super::{at, own_sysfs};

const LIMIT: &str = "queue/discard_max_bytes";
const HARDWARE_LIMIT: &str = "queue/discard_max_hw_bytes";

/// Takes discard away from an attached device.
///
/// # Errors
/// Those of writing to sysfs; EROFS where that is read-only and the process can have none of its own.
pub(super) fn disable(number: u32) -> io::Result<()> {
    let path = sysfs(number, LIMIT);
    match std::fs::write(&path, "0") {
        Err(error) if is_errno(&error, Errno::EROFS) => {
            own_sysfs::write(&format!("block/loop{number}/{LIMIT}"), "0").map_err(|own| {
                let context = format!("write {}, also through a sysfs of its own ({own})", path.display());
                errno_error(Errno::EROFS, context)
            })
        }
        written => written.map_err(at("write", &path)),
    }
}

/// Whether an attached device cannot discard although its image could: what [`disable`] did to an earlier user
/// of the number. Since Linux 6.9 the limit outlives the attachment (block/blk-settings.c,
/// max_user_discard_sectors), and it cannot be raised again, since with a limit of 0 the granularity is 0 as
/// well and no value passes for a multiple of that (block/blk-sysfs.c, queue_max_discard_sectors_store).
pub(super) fn is_stuck(number: u32) -> bool {
    let is = |file: &str, zero: bool| {
        let text = std::fs::read_to_string(sysfs(number, file));
        // Where it cannot be read there is nothing to do about it either.
        text.is_ok_and(|text| (text.trim() == "0") == zero)
    };
    is(LIMIT, true) && is(HARDWARE_LIMIT, false)
}
