//! What a system call of a traced process changes, or nothing: its name, and the file, device or mount that it is for.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

/// Where a system call says what it is for.
#[derive(Clone, Copy)]
enum For {
    /// The descriptor in this argument.
    Descriptor(usize),
    /// The path in this argument, from the working directory.
    Path(usize),
    /// The path in the second of these, from the descriptor in the first.
    PathAt(usize, usize),
    /// A device, a mount or a filesystem: the request in argument 1, the descriptor in 0.
    Ioctl,
}

/// System calls that always change something, where their descriptor is not that of a pipe or the like.
const CHANGES: [(i64, &str, For); 47] = [
    (libc::SYS_write, "write", For::Descriptor(0)),
    (libc::SYS_pwrite64, "pwrite64", For::Descriptor(0)),
    (libc::SYS_writev, "writev", For::Descriptor(0)),
    (libc::SYS_pwritev, "pwritev", For::Descriptor(0)),
    (libc::SYS_pwritev2, "pwritev2", For::Descriptor(0)),
    (libc::SYS_copy_file_range, "copy_file_range", For::Descriptor(2)),
    (libc::SYS_sendfile, "sendfile", For::Descriptor(0)),
    (libc::SYS_fallocate, "fallocate", For::Descriptor(0)),
    (libc::SYS_ftruncate, "ftruncate", For::Descriptor(0)),
    (libc::SYS_truncate, "truncate", For::Path(0)),
    (libc::SYS_fsync, "fsync", For::Descriptor(0)),
    (libc::SYS_fdatasync, "fdatasync", For::Descriptor(0)),
    (libc::SYS_sync_file_range, "sync_file_range", For::Descriptor(0)),
    (libc::SYS_syncfs, "syncfs", For::Descriptor(0)),
    (libc::SYS_creat, "creat", For::Path(0)),
    (libc::SYS_mkdir, "mkdir", For::Path(0)),
    (libc::SYS_mkdirat, "mkdirat", For::PathAt(0, 1)),
    (libc::SYS_mknod, "mknod", For::Path(0)),
    (libc::SYS_mknodat, "mknodat", For::PathAt(0, 1)),
    (libc::SYS_rmdir, "rmdir", For::Path(0)),
    (libc::SYS_unlink, "unlink", For::Path(0)),
    (libc::SYS_unlinkat, "unlinkat", For::PathAt(0, 1)),
    (libc::SYS_rename, "rename", For::Path(1)),
    (libc::SYS_renameat, "renameat", For::PathAt(2, 3)),
    (libc::SYS_renameat2, "renameat2", For::PathAt(2, 3)),
    (libc::SYS_link, "link", For::Path(1)),
    (libc::SYS_linkat, "linkat", For::PathAt(2, 3)),
    (libc::SYS_symlink, "symlink", For::Path(1)),
    (libc::SYS_symlinkat, "symlinkat", For::PathAt(1, 2)),
    (libc::SYS_chmod, "chmod", For::Path(0)),
    (libc::SYS_fchmod, "fchmod", For::Descriptor(0)),
    (libc::SYS_fchmodat, "fchmodat", For::PathAt(0, 1)),
    (libc::SYS_chown, "chown", For::Path(0)),
    (libc::SYS_fchown, "fchown", For::Descriptor(0)),
    (libc::SYS_fchownat, "fchownat", For::PathAt(0, 1)),
    (libc::SYS_utimensat, "utimensat", For::PathAt(0, 1)),
    (libc::SYS_setxattr, "setxattr", For::Path(0)),
    (libc::SYS_lsetxattr, "lsetxattr", For::Path(0)),
    (libc::SYS_fsetxattr, "fsetxattr", For::Descriptor(0)),
    (libc::SYS_fremovexattr, "fremovexattr", For::Descriptor(0)),
    (libc::SYS_mount, "mount", For::Path(1)),
    (libc::SYS_umount2, "umount2", For::Path(0)),
    (libc::SYS_move_mount, "move_mount", For::PathAt(2, 3)),
    (libc::SYS_mount_setattr, "mount_setattr", For::PathAt(0, 1)),
    (libc::SYS_fsconfig, "fsconfig", For::Descriptor(0)),
    (libc::SYS_fsmount, "fsmount", For::Descriptor(0)),
    (libc::SYS_ioctl, "ioctl", For::Ioctl),
];

/// Requests of ioctl(2) that only look. All others count as changes.
const LOOKS: [u64; 30] = [
    0x5401,      // TCGETS
    0x541B,      // FIONREAD
    0x5421,      // FIONBIO
    0x5451,      // FIOCLEX
    0x8008_6601, // FS_IOC_GETFLAGS
    0x801C_581F, // FS_IOC_FSGETXATTR
    0xC020_660B, // FS_IOC_FIEMAP
    0x8008_1272, // BLKGETSIZE64
    0x1260,      // BLKGETSIZE
    0x1268,      // BLKSSZGET
    0x1278,      // BLKIOMIN
    0x1279,      // BLKIOOPT
    0x127A,      // BLKALIGNOFF
    0x127B,      // BLKPBSZGET
    0x127C,      // BLKDISCARDZEROES
    0x127E,      // BLKROTATIONAL
    0x125E,      // BLKROGET
    0x8004_1284, // BLKGETZONESZ
    0x8004_1285, // BLKGETNRZONES
    0x4C05,      // LOOP_GET_STATUS64
    0x4C82,      // LOOP_CTL_GET_FREE
    0x8400_941F, // BTRFS_IOC_FS_INFO
    0xD000_941E, // BTRFS_IOC_DEV_INFO
    0xC010_9414, // BTRFS_IOC_SPACE_INFO
    0xD000_9411, // BTRFS_IOC_TREE_SEARCH
    0xD000_9412, // BTRFS_IOC_INO_LOOKUP
    0x8100_587E, // XFS_IOC_FSGEOMETRY
    0x8070_5864, // XFS_IOC_FSGEOMETRY_V1
    0x8070_587C, // XFS_IOC_FSGEOMETRY_V4
    0x0301,      // HDIO_GETGEO
];

/// Names of the requests that change something.
const REQUESTS: [(u64, &str); 26] = [
    (0x4C0A, "LOOP_CONFIGURE"),
    (0x4C01, "LOOP_CLR_FD"),
    (0x4C04, "LOOP_SET_STATUS64"),
    (0x4C07, "LOOP_SET_CAPACITY"),
    (0x4C08, "LOOP_SET_DIRECT_IO"),
    (0x4C09, "LOOP_SET_BLOCK_SIZE"),
    (0x4C80, "LOOP_CTL_ADD"),
    (0x4C81, "LOOP_CTL_REMOVE"),
    (0x4004_9409, "FICLONE"),
    (0x4020_940D, "FICLONERANGE"),
    (0xC004_5877, "FIFREEZE"),
    (0xC004_5878, "FITHAW"),
    (0x4008_6602, "FS_IOC_SETFLAGS"),
    (0x401C_5820, "FS_IOC_FSSETXATTR"),
    (0x1277, "BLKDISCARD"),
    (0x127F, "BLKZEROOUT"),
    (0x1261, "BLKFLSBUF"),
    (0x4008_6610, "EXT4_IOC_RESIZE_FS"),
    (0x4010_586E, "XFS_IOC_FSGROWFSDATA"),
    (0x5000_9403, "BTRFS_IOC_RESIZE"),
    (0x5000_940F, "BTRFS_IOC_SNAP_DESTROY"),
    (0x5000_9418, "BTRFS_IOC_SUBVOL_CREATE_V2"),
    (0xC010_9428, "BTRFS_IOC_QUOTA_CTL"),
    (0x4018_9429, "BTRFS_IOC_QGROUP_ASSIGN"),
    (0x4010_942A, "BTRFS_IOC_QGROUP_CREATE"),
    (0x8030_942B, "BTRFS_IOC_QGROUP_LIMIT"),
];

/// The number and the arguments of a system call.
#[derive(Debug, Clone, Copy)]
pub struct Raw {
    pub number: i64,
    pub arguments: [u64; 6],
}

impl Raw {
    /// Its name and what it is for, where it changes something.
    pub fn change(&self, thread: Pid) -> Option<(String, String)> {
        let memory = Memory { thread };
        if let Some(found) = self.opens(&memory).or_else(|| self.starts(&memory)) {
            return Some(found).filter(|(_, what)| counts(what));
        }
        let (_, name, place) = CHANGES.iter().find(|(number, _, _)| *number == self.number)?;
        let argument = |n: usize| self.arguments[n];
        let what = match *place {
            For::Descriptor(n) => memory.descriptor(argument(n))?,
            For::Path(n) => memory.path(None, argument(n))?,
            For::PathAt(at, n) => memory.path(Some(argument(at)), argument(n))?,
            For::Ioctl => {
                // A request is an unsigned int for the kernel.
                let request = argument(1) & 0xFFFF_FFFF;
                let what = memory.descriptor(argument(0)).filter(|_| !LOOKS.contains(&request))?;
                let known = REQUESTS.iter().find(|(number, _)| *number == request);
                let name =
                    known.map_or_else(|| format!("ioctl {request:#x}"), |(_, name)| (*name).to_owned());
                return Some((name, what)).filter(|(_, what)| counts(what));
            }
        };
        Some(((*name).to_owned(), what)).filter(|(_, what)| counts(what))
    }

    /// open(2) that may make or empty a file, and open_tree(2) that makes a mount.
    fn opens(&self, memory: &Memory) -> Option<(String, String)> {
        let [first, second, third, ..] = self.arguments;
        let (name, at, path, flags) = match self.number {
            libc::SYS_open => ("open", None, first, second),
            libc::SYS_openat => ("openat", Some(first), second, third),
            libc::SYS_openat2 => ("openat2", Some(first), second, memory.word(third)?),
            libc::SYS_open_tree if third & u64::from(libc::OPEN_TREE_CLONE) != 0 => {
                return Some(("open_tree".to_owned(), memory.path(Some(first), second)?));
            }
            _ => return None,
        };
        let changes = libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY);
        let changing = flags & u64::from(changes.cast_unsigned()) != 0;
        changing.then(|| Some((name.to_owned(), memory.path(at, path)?))).flatten()
    }

    /// The start of a process, and of a program.
    fn starts(&self, memory: &Memory) -> Option<(String, String)> {
        let flags = match self.number {
            libc::SYS_execve => return Some(("execve".to_owned(), memory.path(None, self.arguments[0])?)),
            libc::SYS_vfork => return Some(("vfork".to_owned(), "/".to_owned())),
            libc::SYS_clone => self.arguments[0],
            libc::SYS_clone3 => memory.word(self.arguments[0])?,
            _ => return None,
        };
        let thread = flags & u64::from(libc::CLONE_THREAD.cast_unsigned()) != 0;
        (!thread).then(|| ("clone".to_owned(), "/".to_owned()))
    }

    /// Which argument says how many bytes are to be written, and how many fewer the kernel may take.
    pub fn shorter(&self, thread: Pid) -> Option<(usize, u64)> {
        let (descriptor, argument) = match self.number {
            libc::SYS_write | libc::SYS_pwrite64 => (0, 2),
            libc::SYS_copy_file_range => (2, 4),
            libc::SYS_sendfile => (0, 3),
            _ => return None,
        };
        let (count, block) = (self.arguments[argument], 4096);
        if count > block {
            return Some((argument, (count / 2).next_multiple_of(block)));
        }
        let info = format!("/proc/{thread}/fdinfo/{}", self.arguments[descriptor]);
        let info = std::fs::read_to_string(info).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let direct = i32::from_str_radix(flags.trim(), 8).ok()? & libc::O_DIRECT != 0;
        (!direct && count > 1).then_some((argument, count / 2))
    }
}

/// Whether anything but this process sees a change of this.
fn counts(what: &str) -> bool {
    what.starts_with('/') && !["/dev/null", "/dev/pts", "/memfd:"].iter().any(|not| what.starts_with(not))
}

/// What a stopped thread has in its memory, and open.
struct Memory {
    thread: Pid,
}

impl Memory {
    fn bytes(&self, at: u64, buffer: &mut [u8]) -> Option<usize> {
        File::open(format!("/proc/{}/mem", self.thread)).ok()?.read_at(buffer, at).ok()
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        (self.bytes(at, &mut word)? == 8).then(|| u64::from_ne_bytes(word))
    }

    fn text(&self, at: u64) -> Option<String> {
        let mut buffer = [0; 4096];
        let read = self.bytes(at, &mut buffer)?;
        let text = buffer[..read].split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    fn link(&self, name: &str) -> Option<String> {
        let link = std::fs::read_link(format!("/proc/{}/{name}", self.thread)).ok()?;
        Some(link.to_string_lossy().into_owned())
    }

    /// The file of a descriptor; a filesystem that is not mounted yet is one, too.
    fn descriptor(&self, number: u64) -> Option<String> {
        let link = self.link(&format!("fd/{}", number & 0xFFFF_FFFF))?;
        Some(
            link.strip_prefix("anon_inode:[fscontext]")
                .map_or(link.clone(), |_| "/new filesystem".to_owned()),
        )
    }

    /// The file of a path, with the names of descriptors replaced by what they are open on.
    fn path(&self, at: Option<u64>, pointer: u64) -> Option<String> {
        let text = self.text(pointer)?;
        for prefix in ["/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"] {
            if let Some(rest) = text.strip_prefix(prefix) {
                let (number, rest) = rest.split_once('/').unwrap_or((rest, ""));
                return Some(joined(&self.descriptor(number.parse().ok()?)?, rest));
            }
        }
        let from = match at {
            _ if text.starts_with('/') => return Some(text),
            None => self.link("cwd")?,
            // An int for the kernel.
            Some(at) if at as i32 == libc::AT_FDCWD => self.link("cwd")?,
            Some(at) => self.descriptor(at)?,
        };
        Some(joined(&from, &text))
    }
}

fn joined(from: &str, rest: &str) -> String {
    let path: PathBuf = if rest.is_empty() { from.into() } else { Path::new(from).join(rest) };
    path.to_string_lossy().into_owned()
}

/// The same path in every run: `names` are ids and directories, and what to call them; numbers of devices and processes,
/// of files without a name (O_TMPFILE) and of the driver's anchors are left out.
pub fn class_of(what: &str, names: &[(String, String)]) -> String {
    let what = names.iter().fold(what.to_owned(), |what, (id, name)| what.replace(id, name));
    let mut class = String::new();
    let mut rest = what.as_str();
    while let Some(at) = ["/dev/loop", "/block/loop", "/proc/", "/#"].iter().find_map(|before| {
        let at = rest.find(before)? + before.len();
        rest[at..].starts_with(|letter: char| letter.is_ascii_digit()).then_some(at)
    }) {
        class.push_str(&rest[..at]);
        class.push('N');
        rest = rest[at..].trim_start_matches(|letter: char| letter.is_ascii_digit());
    }
    class.push_str(rest);
    // DRIVER-HASH.hostloop-anchor: the hash is that of a path of the bench.
    match class.split_once(".hostloop-anchor") {
        Some((name, rest)) => {
            let name = name.trim_end_matches(|letter: char| letter.is_ascii_hexdigit());
            format!("{name}N.hostloop-anchor{rest}")
        }
        None => class,
    }
}

#[test]
fn a_path_has_one_name_in_every_run() {
    let names = [("/var/tmp/w-1".to_owned(), "~".to_owned()), ("vol-1".to_owned(), "<volume>".to_owned())];
    for (path, class) in [
        ("/var/tmp/w-1/data/volumes/vol-1/disk.img", "~/data/volumes/<volume>/disk.img"),
        ("/dev/loop12", "/dev/loopN"),
        ("/dev/loop-control", "/dev/loop-control"),
        ("/proc/12/mountinfo", "/proc/N/mountinfo"),
        ("/var/tmp/w-1/data/#1017937 (deleted)", "~/data/#N (deleted)"),
        ("/var/tmp/w-1/a.dev-4601e28e.hostloop-anchor.new", "~/a.dev-N.hostloop-anchor.new"),
    ] {
        assert_eq!(class_of(path, &names), class);
    }
}
