//! Mounting with mount(2). A target is opened first (O_PATH, O_NOFOLLOW) and mounted on through /proc/self/fd,
//! so that a link that is put in its place meanwhile is never followed.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "implements os::Mounts")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use super::super::{Frozen, MountEntry, Mounts};
use super::{Tools, at, freeze, id_of, kind_bits, mountinfo};
use crate::model::{FsType, MountFlags, VfsFlag};

/// The mounts of this process's mount namespace.
pub(super) struct LinuxMounts {
    /// The program that guards a freeze.
    helper: PathBuf,
}

impl LinuxMounts {
    pub(super) fn new(tools: &Tools) -> Self {
        LinuxMounts { helper: tools.helper().to_owned() }
    }
}

/// How long a use may keep a mount busy that ends by itself: a process that another thread has just started holds a
/// copy of every descriptor until its exec(2), and a loop device that goes away holds its file a moment longer than
/// anybody can see the device.
const PASSING_USE: Duration = Duration::from_secs(2);

/// A directory or file that stays the same whatever happens to its name.
fn pin(path: &Path, kind: OFlag) -> nix::Result<OwnedFd> {
    let fd = open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | kind, Mode::empty())?;
    // Without O_DIRECTORY, O_PATH opens the link itself.
    if kind_bits(&fstat(&fd)?) == libc::S_IFLNK { Err(Errno::ELOOP) } else { Ok(fd) }
}

/// The name under which the kernel finds exactly what was opened.
fn name_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Bytes of mountinfo on a node with a few hundred mounts.
const TABLE: usize = 64 << 10;

/// No filesystem type or data: a bind.
const NONE: Option<&str> = None;

/// The flag of mount(2).
const fn ms_flag(flag: VfsFlag) -> MsFlags {
    match flag {
        VfsFlag::NoAtime => MsFlags::MS_NOATIME,
        VfsFlag::NoDirAtime => MsFlags::MS_NODIRATIME,
        VfsFlag::RelAtime => MsFlags::MS_RELATIME,
        VfsFlag::StrictAtime => MsFlags::MS_STRICTATIME,
        VfsFlag::LazyTime => MsFlags::MS_LAZYTIME,
        VfsFlag::NoSuid => MsFlags::MS_NOSUID,
        VfsFlag::NoDev => MsFlags::MS_NODEV,
        VfsFlag::NoExec => MsFlags::MS_NOEXEC,
        VfsFlag::Sync => MsFlags::MS_SYNCHRONOUS,
        VfsFlag::DirSync => MsFlags::MS_DIRSYNC,
    }
}

fn ms_flags(flags: &MountFlags) -> MsFlags {
    let read_only = if flags.read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    flags.vfs.iter().fold(read_only, |all, flag| all | ms_flag(*flag))
}

/// What a bind inherited from its source's mount and a remount must name again to keep (mount(2), "Remounting").
/// The times of access are kept by the kernel where the remount names none of their flags.
fn inherited(now: FsFlags, wanted: &MountFlags) -> MsFlags {
    let other_atime = [VfsFlag::RelAtime, VfsFlag::StrictAtime].iter().any(|flag| wanted.vfs.contains(flag));
    let pairs = [
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY, true),
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID, true),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV, true),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC, true),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME, true),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME, !other_atime),
    ];
    pairs
        .into_iter()
        .filter(|(shown, _, keep)| *keep && now.contains(*shown))
        .fold(MsFlags::empty(), |all, (_, flag, _)| all | flag)
}

/// Gives the bind that was just made at `target` its flags. The target is opened again, since what was opened
/// before lies under the new mount; that it is the source now proves that nobody exchanged it.
fn set_bind_flags(source: &OwnedFd, target: &Path, flags: &MountFlags) -> nix::Result<()> {
    let bound = pin(target, OFlag::empty())?;
    if id_of(&fstat(&bound)?) != id_of(&fstat(source)?) {
        return Err(Errno::ESTALE);
    }
    let keep = inherited(fstatvfs(&bound)?.flags(), flags);
    let all = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | ms_flags(flags) | keep;
    mount(NONE, &name_of(&bound), NONE, all, NONE)
}

impl Mounts for LinuxMounts {
    fn list(&self) -> io::Result<Vec<MountEntry>> {
        let path = Path::new("/proc/self/mountinfo");
        // The file tells no size, for which std::fs::read begins with 32 bytes and a pass of the kernel each.
        let mut table = Vec::with_capacity(TABLE);
        let read = File::open(path).and_then(|mut file| file.read_to_end(&mut table));
        read.map_err(at("read", path))?;
        mountinfo::parse(&table)
    }

    fn mount(&self, device: &Path, target: &Path, fs_type: FsType, flags: &MountFlags) -> io::Result<()> {
        let pinned = pin(target, OFlag::O_DIRECTORY).map_err(at("open", target))?;
        let data = Some(flags.data_string()).filter(|data| !data.is_empty());
        // The data may be secret: no message has it.
        mount(Some(device), &name_of(&pinned), Some(fs_type.as_str()), ms_flags(flags), data.as_deref())
            .map_err(at(&format!("mount {} on {} at", fs_type, device.display()), target))
    }

    fn bind(&self, source: &Path, target: &Path, flags: &MountFlags) -> io::Result<()> {
        let from = pin(source, OFlag::empty()).map_err(at("open", source))?;
        let to = pin(target, OFlag::empty()).map_err(at("open", target))?;
        let operation = format!("bind {} at", source.display());
        mount(Some(&name_of(&from)), &name_of(&to), NONE, MsFlags::MS_BIND, NONE)
            .map_err(at(&operation, target))?;
        if !flags.read_only && flags.vfs.is_empty() {
            return Ok(());
        }
        set_bind_flags(&from, target, flags).map_err(|errno| {
            // All or nothing; the first error is the one to report.
            let _ = umount2(target, MntFlags::UMOUNT_NOFOLLOW);
            at(&operation, target)(errno)
        })
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        let last_try = Instant::now() + PASSING_USE;
        loop {
            match umount2(target, MntFlags::UMOUNT_NOFOLLOW) {
                Err(Errno::EBUSY) if Instant::now() < last_try => std::thread::sleep(PASSING_USE / 50),
                done => return done.map_err(at("unmount", target)),
            }
        }
    }

    fn freeze(&self, mount_point: &Path, limit: Duration) -> io::Result<Box<dyn Frozen>> {
        freeze::freeze(&self.helper, mount_point, limit)
    }

    fn thaw(&self, mount_point: &Path) -> io::Result<bool> {
        freeze::thaw(mount_point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(words: &[&str]) -> MountFlags {
        MountFlags::parse(words.iter().copied()).expect("flags")
    }

    #[test]
    fn a_remount_keeps_what_the_source_had() {
        let now = FsFlags::ST_NOSUID | FsFlags::ST_NODEV | FsFlags::ST_NOATIME | FsFlags::ST_RDONLY;
        let all = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME | MsFlags::MS_RDONLY;
        assert_eq!(inherited(now, &flags(&["noexec"])), all);
        assert_eq!(inherited(now, &flags(&["relatime"])), all - MsFlags::MS_NOATIME);
        assert_eq!(inherited(FsFlags::empty(), &flags(&["ro"])), MsFlags::empty());
    }

    #[test]
    fn every_flag_has_a_bit_of_its_own() {
        let all = VfsFlag::ALL.into_iter().fold(MsFlags::empty(), |all, flag| all | ms_flag(flag));
        assert_eq!(all.bits().count_ones() as usize, VfsFlag::ALL.len());
        assert_eq!(ms_flags(&flags(&["ro", "nodev"])), MsFlags::MS_RDONLY | MsFlags::MS_NODEV);
    }
}
