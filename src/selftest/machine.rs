//! What can be said about the machine before anything is mounted.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::{Check, SelftestConfig};
use crate::kernel::linux::{self, Tools};
use crate::kernel::{AttachOptions, Enforceable, Os, Qgroups, holder};
use crate::model::{FsType, format_bytes, format_two};

/// LOOP_CONFIGURE came with this one, openat2 before it.
const LEAST_KERNEL: (u32, u32) = (5, 8);
/// Capabilities as bits in /proc/PID/status (linux/capability.h).
const SYS_ADMIN: u64 = 1 << 21;
const SYS_RESOURCE: u64 = 1 << 24;
/// Free space beyond the volume: the state file, logs, metadata.
const SLACK: u64 = 64 << 20;

/// How serious it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Something will not be possible, or slower.
    Warn,
    /// Nothing will be possible.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) what: String,
    /// How it is.
    pub(crate) text: String,
    /// What to do, unless all is well.
    pub(crate) advice: Option<String>,
}

fn ok(what: &str, text: impl Into<String>) -> Finding {
    Finding { level: Level::Ok, what: what.to_owned(), text: text.into(), advice: None }
}

fn warn(what: &str, text: impl Into<String>, advice: &str) -> Finding {
    Finding { level: Level::Warn, advice: Some(advice.to_owned()), ..ok(what, text) }
}

fn fail(what: &str, text: impl Into<String>, advice: &str) -> Finding {
    Finding { level: Level::Fail, advice: Some(advice.to_owned()), ..ok(what, text) }
}

/// The filesystem that a check needs.
pub(crate) fn fs_type(check: Check) -> Option<FsType> {
    match check {
        Check::Ext4 => Some(FsType::Ext4),
        Check::Xfs => Some(FsType::Xfs),
        Check::Btrfs => Some(FsType::Btrfs),
        Check::Block | Check::Directory | Check::DirectoryEnforced => None,
    }
}

/// Looks at everything, in the order in which it is told. `dir` is the working directory.
pub(super) fn look(os: &Os, tools: &Tools, dir: &Path, config: &SelftestConfig) -> Vec<Finding> {
    let mut found = vec![kernel(os), privileges(os), loop_devices(os, dir)];
    let wanted = config.checks.iter().filter_map(|check| fs_type(*check));
    found.extend(wanted.map(|fs_type| filesystem(os, tools, fs_type)));
    found.extend([directory(os, dir), limits(os, dir), reflink(dir)]);
    found.extend([direct_io(os, dir), space(os, dir, config.size)]);
    found
}

fn text_of(os: &Os, file: &str) -> String {
    let bytes = os.files.read(Path::new(file)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

pub(crate) fn kernel(os: &Os) -> Finding {
    let release = text_of(os, "/proc/sys/kernel/osrelease");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= LEAST_KERNEL => ok("kernel", release),
        _ => fail("kernel", release, "Linux 5.8 or later is needed (LOOP_CONFIGURE)"),
    }
}

/// The effective capabilities of this process.
fn capabilities(os: &Os) -> u64 {
    let status = text_of(os, "/proc/self/status");
    let field = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    field.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or_default()
}

/// Whether this process, and a driver that it starts, can grow a mounted ext4 (fs/ext4/resize.c).
pub(super) fn can_grow_ext4(os: &Os) -> bool {
    capabilities(os) & SYS_RESOURCE != 0
}

pub(crate) fn privileges(os: &Os) -> Finding {
    let what = "privileges";
    if capabilities(os) & SYS_ADMIN == 0 {
        fail(what, "CAP_SYS_ADMIN is missing", "run it as root (sudo); in a container, privileged")
    } else if !can_grow_ext4(os) {
        warn(
            what,
            "CAP_SYS_ADMIN, but not CAP_SYS_RESOURCE",
            "a mounted ext4 cannot be grown; run it privileged",
        )
    } else {
        ok(what, "CAP_SYS_ADMIN and CAP_SYS_RESOURCE")
    }
}

/// Attaches a loop device to a small file and detaches it again.
pub(crate) fn loop_devices(os: &Os, dir: &Path) -> Finding {
    let advice = "load the module (modprobe loop); in a container mount the host's /dev";
    let image = dir.join("probe.img");
    let attach = || -> io::Result<String> {
        os.files.create_file(&image)?;
        os.images.set_size(&image, 1 << 20)?;
        let alignment = os.images.direct_io_alignment(dir)?;
        let block_size = alignment.unwrap_or(512).clamp(512, 4096);
        let options = AttachOptions {
            read_only: false,
            autoclear: true,
            direct_io: alignment.is_some(),
            block_size,
            discard: true,
        };
        let open = os.loops.attach(&image, options)?;
        let device = open.device.path();
        let direct = if open.device.direct_io { "with direct I/O" } else { "through the page cache" };
        os.loops.detach(&open.device)?;
        Ok(format!("{} attached and detached, {direct}, blocks of {block_size} bytes", device.display()))
    };
    let result = attach();
    let removed = os.files.remove_file(&image);
    match result.and_then(|text| removed.map(|()| text)) {
        Ok(text) => ok("loop devices", text),
        Err(error) => fail("loop devices", error.to_string(), advice),
    }
}

/// Whether the kernel knows a filesystem, and the tools for it.
pub(crate) fn filesystem(os: &Os, tools: &Tools, fs_type: FsType) -> Finding {
    let name = fs_type.as_str();
    let known = text_of(os, "/proc/filesystems").lines().any(|line| line.trim() == name);
    let programs = tools.of(fs_type);
    let missing: Vec<&str> = programs.iter().filter(|(_, path)| path.is_none()).map(|(n, _)| *n).collect();
    let package = Tools::package(fs_type);
    if !missing.is_empty() {
        let advice = format!("install {package}; without it there are no {name} volumes");
        return warn(name, format!("{} missing", missing.join(", ")), &advice);
    }
    let paths: Vec<String> =
        programs.iter().filter_map(|(_, path)| path.map(|p| p.display().to_string())).collect();
    let version = tools.version(fs_type).unwrap_or_else(|| "of unknown version".to_owned());
    let text = format!("{package} {version} ({})", paths.join(", "));
    if known {
        ok(name, text)
    } else {
        let advice = format!("the kernel has not loaded {name} yet; if the mount fails: modprobe {name}");
        warn(name, text, &advice)
    }
}

/// The filesystem that holds the working directory.
fn directory(os: &Os, dir: &Path) -> Finding {
    let what = "directory";
    let mounts = os.mounts.list().unwrap_or_default();
    let Some(mount) = holder(&mounts, dir) else {
        return warn(what, dir.display().to_string(), "mountinfo shows no filesystem for it");
    };
    let text = format!("{} on {} ({})", dir.display(), mount.fs_type, mount.source);
    match mount.fs_type.as_str() {
        "tmpfs" | "ramfs" | "overlay" => {
            warn(what, text, "choose a directory on a disk with --dir, as for --data-dir")
        }
        _ => ok(what, text),
    }
}

/// What the size of a directory can be there. A disk that enforces none is as most disks are, and no fault.
fn limits(os: &Os, dir: &Path) -> Finding {
    let what = "limits";
    match os.quotas.enforceable(dir) {
        Ok(Enforceable::BytesAndInodes) => {
            ok(what, "bytes and inodes: a directory can have an enforced size")
        }
        Ok(Enforceable::Bytes(Qgroups::Full | Qgroups::Simple)) => {
            ok(what, "bytes: a directory can have an enforced size")
        }
        Ok(Enforceable::Bytes(Qgroups::Inconsistent)) => {
            warn(what, "its qgroups are inconsistent", "run: btrfs quota rescan -w DIR")
        }
        Ok(Enforceable::Off(why) | Enforceable::Nothing(why)) => {
            ok(what, format!("nothing, so a directory has no enforced size here: {why}"))
        }
        Err(error) => warn(
            what,
            error.to_string(),
            "the quotas of the filesystem cannot be asked for; see docs/volumes.md",
        ),
    }
}

/// Why a volume of this kind cannot be made in a directory, with what to do; `None` where it can.
pub(crate) fn impossible(os: &Os, dir: &Path, check: Check) -> Option<String> {
    if let Some(missing) = fs_type(check).and_then(|fs_type| os.filesystems.check_tools(fs_type).err()) {
        return Some(missing.to_string());
    }
    if check != Check::DirectoryEnforced {
        return None;
    }
    match os.quotas.enforceable(dir) {
        Ok(Enforceable::BytesAndInodes | Enforceable::Bytes(_)) => None,
        Ok(Enforceable::Off(why) | Enforceable::Nothing(why)) => Some(why),
        Err(error) => Some(error.to_string()),
    }
}

fn reflink(dir: &Path) -> Finding {
    match linux::reflink_works(dir) {
        Ok(true) => ok("reflink", "yes: copies are instant"),
        Ok(false) => ok(
            "reflink",
            "no: copies take as long as their data; a managed pool (docs/pools.md) makes them instant",
        ),
        Err(error) => warn("reflink", error.to_string(), "files cannot be made in the directory"),
    }
}

fn direct_io(os: &Os, dir: &Path) -> Finding {
    match os.images.direct_io_alignment(dir) {
        Ok(Some(alignment)) => ok("direct I/O", format!("aligned to {alignment} bytes")),
        Ok(None) => warn(
            "direct I/O",
            "not possible here",
            "data is cached twice; a disk with ext4 or xfs supports it",
        ),
        Err(error) => warn("direct I/O", error.to_string(), "choose another directory with --dir"),
    }
}

fn space(os: &Os, dir: &Path, size: u64) -> Finding {
    // Promised at once: the volume, the two copies that are volumes, and what the snapshot keeps.
    let needed = size * 3 + size / 4 + SLACK;
    match os.files.space(dir) {
        Ok(space) if space.available >= needed => {
            ok("free space", format!("{}, needed {}", format_bytes(space.available), format_bytes(needed)))
        }
        Ok(space) => {
            let [available, needed] = format_two(space.available, needed);
            let text = format!("{available} of {needed}");
            fail("free space", text, "choose another directory with --dir, or smaller volumes with --size")
        }
        Err(error) => fail("free space", error.to_string(), "choose another directory with --dir"),
    }
}

/// The program that is running.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}
