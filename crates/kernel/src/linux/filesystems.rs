//! Making, growing, repairing and checking filesystems with the tools that belong to them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statvfs::statvfs;

use super::super::{Filesystems, MakeOptions, errno_error, errno_of, with_context};
use super::claim::Claim;
use super::exec::{run, run_ok};
use super::tools::{Program, Tools};
use super::watch::PATIENCE;
use super::{at, btrfs, check, ioctl};
use hostloop_model::FsType;

/// capabilities(7), by its number in linux/capability.h.
const CAP_SYS_RESOURCE: u32 = 24;

/// After which waits mkfs.btrfs and btrfstune are tried again. They ask every loop device that is mounted anywhere what it has,
/// and fail where one has been detached since it was listed (btrfs-progs, check_mounted_where), which is no fault of this device.
const BTRFS_AGAIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];

/// Runs the tools that were found on this machine, as root.
pub(super) struct LinuxFilesystems {
    tools: Tools,
    /// Version of e2fsprogs, asked for once.
    e2fsprogs: OnceLock<(u32, u32)>,
    /// What there is to say about the tool that works on a device, by the device.
    working: Mutex<HashMap<PathBuf, String>>,
}

/// A device while a tool works on it.
struct Working<'a> {
    on: &'a LinuxFilesystems,
    device: &'a Path,
}

impl Working<'_> {
    fn say(&self, line: String) {
        self.on.lines().insert(self.device.to_owned(), line);
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.on.lines().remove(self.device);
    }
}

impl LinuxFilesystems {
    pub(super) fn new(tools: Tools) -> Self {
        LinuxFilesystems { tools, e2fsprogs: OnceLock::new(), working: Mutex::default() }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<PathBuf, String>> {
        self.working.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a tool on a device. The tool holds the device open from its first moment to its last: were this process
    /// killed meanwhile, the device would otherwise be free, and might be another volume's when the tool opens it.
    fn run<A: AsRef<OsStr>>(
        &self,
        program: Program,
        device: &Path,
        args: &[A],
        codes: &[i32],
    ) -> io::Result<()> {
        let path = self.tools.path(program)?;
        let held = hold(device)?;
        let working = Working { on: self, device };
        run_ok(path, args, Some(held), PATIENCE, codes, &mut |line| working.say(line))
            .map(drop)
            .map_err(|e| with_context(e, format_args!("run {}", path.display())))
    }

    /// The same with a tool that other loop devices can make fail ([`BTRFS_AGAIN`]).
    fn run_beside_others<A: AsRef<OsStr>>(
        &self,
        program: Program,
        device: &Path,
        args: &[A],
    ) -> io::Result<()> {
        let mut done = self.run(program, device, args, &[0]);
        for wait in BTRFS_AGAIN {
            if done.is_err() {
                std::thread::sleep(wait);
                done = self.run(program, device, args, &[0]);
            }
        }
        done
    }

    /// The version of mke2fs; 0.0 where it does not tell.
    fn e2fsprogs_version(&self) -> (u32, u32) {
        *self.e2fsprogs.get_or_init(|| {
            let output = self
                .tools
                .path(Program::MkfsExt4)
                .and_then(|path| run(path, &["-V"], None, PATIENCE, &mut drop));
            output.ok().and_then(|done| parse_version(&done.output)).unwrap_or_default()
        })
    }
}

/// Opens a device for a tool to hold.
fn hold(device: &Path) -> io::Result<OwnedFd> {
    open(device, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map_err(at("open", device))
}

/// The version in `mke2fs 1.47.0 (5-Feb-2023)`.
fn parse_version(output: &str) -> Option<(u32, u32)> {
    let mut numbers = output.split_whitespace().nth(1)?.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Arguments of mkfs.ext4 before the device. mke2fs takes the last `-E` only (misc/mke2fs.c, PRS), so the
/// user's are merged into ours: after our defaults, which they may change, and before `nodiscard`, which they
/// may not, since a discard would give a thick image's blocks back.
///
/// A device that reads as zeros needs neither its inode tables nor its journal zeroed: since 1.47
/// `assume_storage_prezeroed` says so; before, that is left to the kernel (tables) and left out (journal).
fn ext4_args(options: &MakeOptions, version: (u32, u32)) -> Vec<String> {
    let mut extended = Vec::new();
    match options.zeroed {
        true if version >= (1, 47) => extended.push("assume_storage_prezeroed=1"),
        true => extended.push("lazy_itable_init=1,lazy_journal_init=1"),
        false => {}
    }
    let mut args = vec!["-q".to_owned(), "-F".to_owned()];
    let mut words = options.extra.iter();
    while let Some(word) = words.next() {
        match word.strip_prefix("-E") {
            Some("") => extended.extend(words.next().map(String::as_str)),
            Some(value) => extended.push(value),
            None => args.push(word.clone()),
        }
    }
    extended.push("nodiscard");
    args.extend(["-E".to_owned(), extended.join(",")]);
    args
}

/// Arguments of mkfs.xfs or mkfs.btrfs before the device: quiet, over whatever is there (the caller has looked),
/// and without discard.
fn other_args(options: &MakeOptions) -> Vec<String> {
    let ours = ["-q", "-f", "-K"].into_iter().map(str::to_owned);
    ours.chain(options.extra.iter().cloned()).collect()
}

/// Refuses options that name a file: a second device would be overwritten, or made part of the filesystem.
fn check_extra(extra: &[String]) -> io::Result<()> {
    match extra.iter().find(|word| word.contains('/')) {
        Some(word) => Err(errno_error(Errno::EINVAL, format_args!("mkfs option {word:?} names a file"))),
        None => Ok(()),
    }
}

/// Whether a mounted btrfs, as statvfs(3) shows it, is as large as its device, but for less than a block. With
/// data kept twice it shows half of that, and is resized to the size it has.
fn btrfs_has_size_of(device: &Path, mount_point: &Path) -> io::Result<bool> {
    const BLOCK: u64 = 4096;
    let node = open(device, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map_err(at("open", device))?;
    let device_bytes = ioctl::device_size(&node).map_err(at("get the size of", device))?;
    let shown = statvfs(mount_point).map_err(at("statvfs", mount_point))?;
    Ok(shown.blocks() * shown.fragment_size() >= device_bytes / BLOCK * BLOCK)
}

/// Why resize2fs failed on a mounted filesystem: the kernel asks for CAP_SYS_RESOURCE (fs/ext4/resize.c,
/// ext4_resize_begin), which even root may be without. Only then EPERM: an answer that no retry changes.
fn why_not_ext4(error: io::Error) -> io::Error {
    match errno_of(&error) {
        None if may_resize_ext4() == Some(false) => errno_error(
            Errno::EPERM,
            format_args!(
                "grow ext4 while it is mounted: CAP_SYS_RESOURCE is missing (a privileged container has it), \
                 it grows when it is staged next; {error}"
            ),
        ),
        _ => error,
    }
}

/// Whether this process has CAP_SYS_RESOURCE; `None` where the kernel does not tell.
fn may_resize_ext4() -> Option<bool> {
    #[allow(clippy::disallowed_methods, reason = "the kernel's word on this process, not a file")]
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    has_capability(&status, CAP_SYS_RESOURCE)
}

/// Whether a capability is in the mask that `/proc/self/status` shows in hex as `CapEff` (proc_pid_status(5)).
fn has_capability(status: &str, number: u32) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> number & 1 == 1)
}

impl Filesystems for LinuxFilesystems {
    // Each of the tools syncs the device before it ends (seen with strace: e2fsprogs 1.47, xfsprogs 6.1,
    // btrfs-progs 6.2), and the loop driver turns that into an fsync of the image.
    fn make(&self, device: &Path, fs_type: FsType, options: &MakeOptions) -> io::Result<()> {
        check_extra(&options.extra)?;
        let (program, args) = match fs_type {
            FsType::Ext4 => {
                // The version matters for a zeroed device only: otherwise nobody needs to ask.
                let version = if options.zeroed { self.e2fsprogs_version() } else { (0, 0) };
                (Program::MkfsExt4, ext4_args(options, version))
            }
            FsType::Xfs => (Program::MkfsXfs, other_args(options)),
            FsType::Btrfs => (Program::MkfsBtrfs, other_args(options)),
        };
        let mut args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        args.push(device.as_os_str());
        match fs_type {
            FsType::Ext4 | FsType::Xfs => self.run(program, device, &args, &[0]),
            FsType::Btrfs => self.run_beside_others(program, device, &args),
        }
    }

    fn grow(&self, fs_type: FsType, device: &Path, mount_point: &Path) -> io::Result<()> {
        match fs_type {
            FsType::Ext4 => {
                self.run(Program::Resize2fs, device, &[device.as_os_str()], &[0]).map_err(why_not_ext4)
            }
            FsType::Xfs => {
                self.run(Program::XfsGrowfs, device, &[OsStr::new("-d"), mount_point.as_os_str()], &[0])
            }
            // The kernel refuses to resize to less than 256 MiB, also to the same size (fs/btrfs/ioctl.c,
            // btrfs_ioctl_resize): it must not be asked without need.
            FsType::Btrfs if btrfs_has_size_of(device, mount_point)? => Ok(()),
            FsType::Btrfs => {
                let words = ["filesystem", "resize", "max"].map(OsStr::new);
                self.run(
                    Program::Btrfs,
                    device,
                    &[words.as_slice(), &[mount_point.as_os_str()]].concat(),
                    &[0],
                )
            }
        }
    }

    fn grow_unmounted(&self, fs_type: FsType, device: &Path) -> io::Result<()> {
        if fs_type != FsType::Ext4 {
            let context = format!("grow {fs_type} that is not mounted");
            return Err(errno_error(Errno::EOPNOTSUPP, context));
        }
        drop(Claim::new(device)?);
        // resize2fs wants a filesystem that was checked after its last mount (resize2fs(8)).
        let words = ["-f", "-p"].map(OsStr::new);
        self.run(Program::E2fsck, device, &[words.as_slice(), &[device.as_os_str()]].concat(), &[0, 1])?;
        self.run(Program::Resize2fs, device, &[device.as_os_str()], &[0])
    }

    fn repair(&self, fs_type: FsType, device: &Path) -> io::Result<()> {
        match fs_type {
            // 1: errors were found and all of them corrected (e2fsck(8), EXIT CODE).
            FsType::Ext4 => {
                self.run(Program::E2fsck, device, &[OsStr::new("-p"), device.as_os_str()], &[0, 1])
            }
            // They replay their log when they are mounted, and have no repair without a question.
            FsType::Xfs | FsType::Btrfs => Ok(()),
        }
    }

    fn renew_identity(&self, fs_type: FsType, device: &Path) -> io::Result<()> {
        match fs_type {
            FsType::Ext4 | FsType::Xfs => Ok(()),
            FsType::Btrfs if btrfs::renew_identity(device)? => Ok(()),
            // What a user may have chosen with mkfsOptions.
            FsType::Btrfs => {
                let args = [OsStr::new("-f"), OsStr::new("-m"), device.as_os_str()];
                self.run_beside_others(Program::Btrfstune, device, &args)
            }
        }
    }

    fn check(&self, fs_type: FsType, device: &Path) -> io::Result<()> {
        let (program, words) = check::checker(fs_type);
        let path = self.tools.path(program)?;
        // The tools end on a mounted device as they do on a damaged one: EBUSY tells them apart.
        drop(Claim::new(device)?);
        let mut args: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        args.push(device.as_os_str());
        let working = Working { on: self, device };
        let held = Some(hold(device)?);
        let finished = run(path, &args, held, PATIENCE, &mut |line| working.say(line))
            .map_err(|e| with_context(e, format_args!("run {}", path.display())))?;
        check::judge(fs_type, path, &finished)
    }

    fn working_on(&self, device: &Path) -> Option<String> {
        self.lines().get(device).cloned()
    }

    fn check_tools(&self, fs_type: FsType) -> io::Result<()> {
        Program::of(fs_type).iter().try_for_each(|program| self.tools.path(*program).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_errno;

    fn options(extra: &[&str], zeroed: bool) -> MakeOptions {
        MakeOptions { extra: extra.iter().map(|w| (*w).to_owned()).collect(), zeroed }
    }

    #[test]
    fn extended_options_are_merged_and_never_discard() {
        let args =
            ext4_args(&options(&["-E", "discard,stride=4", "-m", "0", "-Eroot_owner=1:1"], true), (1, 47));
        let expected = "assume_storage_prezeroed=1,discard,stride=4,root_owner=1:1,nodiscard";
        assert_eq!(args, ["-q", "-F", "-m", "0", "-E", expected]);
        let args = ext4_args(&options(&["-E"], true), (1, 46));
        assert_eq!(args.last().map(String::as_str), Some("lazy_itable_init=1,lazy_journal_init=1,nodiscard"));
        assert_eq!(ext4_args(&options(&[], false), (1, 47)), ["-q", "-F", "-E", "nodiscard"]);
    }

    #[test]
    fn versions_of_e2fsprogs_are_read() {
        assert_eq!(parse_version("mke2fs 1.47.0 (5-Feb-2023)\n\tUsing EXT2FS"), Some((1, 47)));
        assert_eq!(parse_version("mke2fs 1.48-WIP (1-Jan-2030)"), Some((1, 48)));
        assert_eq!(parse_version("unknown"), None);
    }

    #[test]
    fn capabilities_are_read_from_the_status() {
        let without = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\nCapBnd:\t0\n";
        assert_eq!(has_capability(without, CAP_SYS_RESOURCE), Some(false));
        assert_eq!(has_capability(without, 21), Some(true));
        assert_eq!(has_capability("CapEff:\t000001ffffffffff", CAP_SYS_RESOURCE), Some(true));
        assert_eq!(has_capability("Name:\tx\nCapEff:\tx", CAP_SYS_RESOURCE), None);
        assert!(may_resize_ext4().is_some());
    }

    #[test]
    fn an_exit_code_is_put_down_to_the_capability() {
        let late = why_not_ext4(errno_error(Errno::ETIMEDOUT, "resize2fs"));
        assert!(is_errno(&late, Errno::ETIMEDOUT));
        let failed = why_not_ext4(io::Error::other("resize2fs: exit status: 1: Permission denied"));
        assert_eq!(is_errno(&failed, Errno::EPERM), may_resize_ext4() == Some(false), "{failed}");
        assert!(failed.to_string().contains("Permission denied"), "{failed}");
    }

    #[test]
    fn options_name_no_file() {
        let filesystems = LinuxFilesystems::new(Tools::find());
        for word in ["/dev/sdb", "logdev=/dev/sdb", "--rootdir=../x"] {
            let made = filesystems.make(Path::new("/nonexistent"), FsType::Xfs, &options(&[word], true));
            assert!(is_errno(&made.expect_err(word), Errno::EINVAL));
        }
    }
}
