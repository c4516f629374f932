//! What has a loop device open, for the people who have to end it. That nothing shows decides something only if all processes show.
#![allow(
    clippy::disallowed_methods,
    reason = "procfs and sysfs are read to name programs, no volume's files"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

/// A message with more names is hard to read.
const MOST: usize = 5;

/// Returns the processes that have the device open or see a mount of it, and the devices that are built on it.
pub(super) fn holders(rdev: u64) -> Vec<String> {
    let devices = built_on(rdev).into_iter().map(|name| format!("device {name}"));
    devices.chain(processes(rdev)).take(MOST).collect()
}

/// The inode of the initial PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const INITIAL: u64 = 0xEFFF_FFFC;

/// Reports whether the processes of all PID namespaces are seen here: those of inner namespaces are, those of outer ones are not.
pub(super) fn sees_all() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|stat| stat.ino() == INITIAL)
}

/// Device mapper and the like (Documentation/ABI/testing/sysfs-block, `holders`).
fn built_on(rdev: u64) -> Vec<String> {
    let directory = PathBuf::from(format!("/sys/dev/block/{}:{}/holders", major(rdev), minor(rdev)));
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn processes(rdev: u64) -> Vec<String> {
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let (mut found, mut namespaces) = (Vec::new(), BTreeSet::new());
    namespaces.extend(fs::read_link("/proc/self/ns/mnt"));
    for id in ids.filter(|id| *id != own) {
        let directory = PathBuf::from(format!("/proc/{id}"));
        let how = match has_open(&directory, rdev) {
            true => "has it open",
            // One process of each mount namespace is enough.
            false
                if fs::read_link(directory.join("ns/mnt")).is_ok_and(|ns| namespaces.insert(ns))
                    && has_mounted(&directory, rdev) =>
            {
                "has it mounted"
            }
            false => continue,
        };
        let name = fs::read_to_string(directory.join("comm")).unwrap_or_default();
        found.push(format!("process {id} ({}) {how}", name.trim()));
        if found.len() == MOST {
            break;
        }
    }
    found
}

fn has_open(process: &Path, rdev: u64) -> bool {
    let Ok(entries) = fs::read_dir(process.join("fd")) else { return false };
    let is_device = |path: PathBuf| {
        fs::metadata(path).is_ok_and(|stat| stat.file_type().is_block_device() && stat.rdev() == rdev)
    };
    entries.flatten().any(|entry| is_device(entry.path()))
}

fn has_mounted(process: &Path, rdev: u64) -> bool {
    let number = format!("{}:{}", major(rdev), minor(rdev));
    let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(2) == Some(number.as_str()))
}
