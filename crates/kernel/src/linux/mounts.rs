//! Mounting with mount(2). A target is opened first (O_PATH, O_NOFOLLOW) and mounted on through /proc/self/fd, so a link
//! that replaces it meanwhile is never followed.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "implements Mounts")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statvfs::FsFlags;

use rustix::mount::{MountAttrFlags, MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::super::{Frozen, MountEntry, Mounts, Pinned, errno_error};
use super::mounts_seen::{MountsSeen, Whereabouts};
use super::{Tools, at, errno, freeze, id_of, ioctl, kind_bits, mount_options, mountinfo};
use hostloop_model::{FsType, MountFlags, OptionName, VfsFlag};

/// The mounts of this process's mount namespace.
pub(super) struct LinuxMounts {
    /// hostloop itself, which guards a freeze as a process of its own.
    helper: PathBuf,
    seen: MountsSeen,
}

impl LinuxMounts {
    pub(super) fn new(tools: &Tools) -> Self {
        LinuxMounts { helper: tools.helper().to_owned(), seen: MountsSeen::default() }
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

/// What lies at a path, and the mount that it is in. Nothing is asked of its filesystem: one that has shut down would
/// not answer.
fn open_at(path: &Path) -> io::Result<(OwnedFd, u64)> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = open(path, flags, Mode::empty()).map_err(at("open", path))?;
    let info = PathBuf::from(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let text = std::fs::read_to_string(&info).map_err(at("read", &info))?;
    let id = mountinfo::parse_fdinfo(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "fdinfo has no mnt_id"))?;
    Ok((fd, id))
}

/// Opens the root of exactly this mount; ESTALE where another one hides it.
fn open_exactly(mount: &MountEntry) -> io::Result<OwnedFd> {
    match open_at(&mount.target)? {
        (fd, id) if id == mount.id => Ok(fd),
        _ => Err(hidden(mount)),
    }
}

fn hidden(mount: &MountEntry) -> io::Error {
    let (id, target) = (mount.id, mount.target.display());
    errno_error(Errno::ESTALE, format_args!("reach mount {id} at {target}: another mount is there"))
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
        VfsFlag::Mand => MsFlags::MS_MANDLOCK,
        VfsFlag::IVersion => MsFlags::MS_I_VERSION,
        VfsFlag::Silent => MsFlags::MS_SILENT,
        VfsFlag::NoSymFollow => NO_SYM_FOLLOW,
    }
}

/// MS_NOSYMFOLLOW (Linux 5.10; ignored before).
const NO_SYM_FOLLOW: MsFlags = MsFlags::from_bits_retain(0x100);
/// ST_NOSYMFOLLOW, by which statfs(2) shows it.
const SHOWN_NO_SYM_FOLLOW: FsFlags = FsFlags::from_bits_retain(0x2000);
/// MOUNT_ATTR_NOSYMFOLLOW (Linux 5.14; EINVAL before).
const ATTR_NO_SYM_FOLLOW: MountAttrFlags = MountAttrFlags::from_bits_retain(0x20_0000);

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
        (SHOWN_NO_SYM_FOLLOW, NO_SYM_FOLLOW, true),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME, !other_atime),
    ];
    pairs
        .into_iter()
        .filter(|(shown, _, keep)| *keep && now.contains(*shown))
        .fold(MsFlags::empty(), |all, (_, flag, _)| all | flag)
}

/// The attributes to set and to clear for these flags (mount_setattr(2)). Those of the superblock have none.
fn attributes(flags: &MountFlags) -> (MountAttrFlags, MountAttrFlags) {
    /// A field, not a bit: to set it, all of it has to be cleared. Its value 0 is `relatime`.
    const ATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR__ATIME;
    let has = |flag: VfsFlag| flags.vfs.contains(&flag);
    let bits = [
        (flags.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (has(VfsFlag::NoSuid), MountAttrFlags::MOUNT_ATTR_NOSUID),
        (has(VfsFlag::NoDev), MountAttrFlags::MOUNT_ATTR_NODEV),
        (has(VfsFlag::NoExec), MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (has(VfsFlag::NoDirAtime), MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        (has(VfsFlag::NoSymFollow), ATTR_NO_SYM_FOLLOW),
    ];
    let set: MountAttrFlags = bits.into_iter().filter_map(|(wanted, bit)| wanted.then_some(bit)).collect();
    // Of several the one counts that does for mount(2).
    match (has(VfsFlag::StrictAtime), has(VfsFlag::NoAtime), has(VfsFlag::RelAtime)) {
        (true, _, _) => (set | MountAttrFlags::MOUNT_ATTR_STRICTATIME, ATIME),
        (_, true, _) => (set | MountAttrFlags::MOUNT_ATTR_NOATIME, ATIME),
        (_, _, true) => (set, ATIME),
        _ => (set, MountAttrFlags::empty()),
    }
}

/// Binds in one step: the new mount gets its flags before it is anywhere (open_tree(2), move_mount(2)). Where this ends
/// in the middle, it goes with its descriptor.
fn bind_at_once(from: &OwnedFd, to: &OwnedFd, flags: &MountFlags) -> nix::Result<()> {
    let is_directory = |fd: &OwnedFd| fstat(fd).map(|stat| kind_bits(&stat) == libc::S_IFDIR);
    if is_directory(from)? != is_directory(to)? {
        return Err(Errno::ENOTDIR); // as mount(2) says it
    }
    let how =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(from, c"", how).map_err(errno)?;
    match attributes(flags) {
        (set, clear) if set.is_empty() && clear.is_empty() => {}
        (set, clear) => ioctl::set_mount_attributes(&tree, set, clear)?,
    }
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree, c"", to, c"", how).map_err(errno)
}

/// Returns whether this kernel may lack what sets these flags in one step: mount_setattr(2), or one of its flags.
fn is_too_new(error: Errno, flags: &MountFlags) -> bool {
    error == Errno::ENOSYS || error == Errno::EINVAL && flags.vfs.contains(&VfsFlag::NoSymFollow)
}

/// The same before Linux 5.12, in two steps.
fn bind_in_two_steps(from: &OwnedFd, to: &OwnedFd, target: &Path, flags: &MountFlags) -> nix::Result<()> {
    mount(Some(&name_of(from)), &name_of(to), NONE, MsFlags::MS_BIND, NONE)?;
    if !flags.read_only && flags.vfs.is_empty() {
        return Ok(());
    }
    set_bind_flags(from, target, flags).inspect_err(|_| {
        // All or nothing; the first error is the one to report.
        let _ = umount2(target, MntFlags::UMOUNT_NOFOLLOW);
    })
}

/// Gives the bind that was just made at `target` its flags. The target is opened again, since what was opened
/// before lies under the new mount; that it is the source now proves that nobody exchanged it.
fn set_bind_flags(source: &OwnedFd, target: &Path, flags: &MountFlags) -> nix::Result<()> {
    let bound = pin(target, OFlag::empty())?;
    if id_of(&fstat(&bound)?) != id_of(&fstat(source)?) {
        return Err(Errno::ESTALE);
    }
    remount(&bound, flags)
}

/// Changes the flags of the mount whose root is open; it keeps what it has.
fn remount(root: &OwnedFd, flags: &MountFlags) -> nix::Result<()> {
    // nix leaves out the bits that it does not know.
    let now = rustix::fs::fstatvfs(root).map_err(errno)?.f_flag.bits();
    let keep = inherited(FsFlags::from_bits_retain(now), flags);
    let all = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | ms_flags(flags) | keep;
    mount(NONE, &name_of(root), NONE, all, NONE)
}

impl LinuxMounts {
    /// Whether the mount is there, from the table alone, since whoever opens a path takes the mark of
    /// [`Mounts::unmount_exactly`] away; ESTALE where another one hides it.
    fn is_on_top(&self, mount: &MountEntry) -> io::Result<bool> {
        match self.seen.whereabouts(mount)? {
            Some(Whereabouts::Hidden) => return Err(hidden(mount)),
            Some(there) => return Ok(there == Whereabouts::OnTop),
            None => {}
        }
        let table = self.list()?;
        let is_it = |other: &MountEntry| other.id == mount.id && other.target == mount.target;
        let hides = |other: &MountEntry| other.parent == mount.id && other.target == mount.target;
        match table.iter().any(is_it) {
            true if table.iter().any(hides) => Err(hidden(mount)),
            there => Ok(there),
        }
    }
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

    fn matching(&self, wanted: &dyn Fn(&MountEntry) -> bool) -> io::Result<Vec<MountEntry>> {
        match self.seen.matching(wanted)? {
            Some(found) => Ok(found),
            None => Ok(self.list()?.into_iter().filter(wanted).collect()),
        }
    }

    fn mount_at(&self, path: &Path) -> io::Result<u64> {
        open_at(path).map(|(_, id)| id)
    }

    fn pin(&self, mount: &MountEntry) -> io::Result<Pinned> {
        let fd = open_exactly(mount)?;
        // With the dot the last component is not a link, which others refuse to follow.
        Ok(Pinned::new(name_of(&fd).join("."), Box::new(fd)))
    }

    fn refused_option(&self, fs_type: FsType, words: &[String]) -> Option<OptionName> {
        mount_options::refused(fs_type, words)
    }

    fn mount(&self, device: &Path, target: &Path, fs_type: FsType, flags: &MountFlags) -> io::Result<()> {
        let pinned = pin(target, OFlag::O_DIRECTORY).map_err(at("open", target))?;
        let data =
            Some(mount_options::without_idle_labels(&flags.data).join(",")).filter(|data| !data.is_empty());
        // The data may be secret: no message has it.
        mount(Some(device), &name_of(&pinned), Some(fs_type.as_str()), ms_flags(flags), data.as_deref())
            .map_err(at(&format!("mount {} on {} at", fs_type, device.display()), target))
    }

    fn mount_apart(&self, device: &Path, fs_type: FsType, read_only: bool) -> io::Result<Pinned> {
        let operation = format!("mount {fs_type} apart from");
        let fd = mount_options::mount_apart(device, fs_type, read_only).map_err(at(&operation, device))?;
        Ok(Pinned::new(name_of(&fd).join("."), Box::new(fd)))
    }

    fn bind(&self, source: &Path, target: &Path, flags: &MountFlags) -> io::Result<()> {
        let from = pin(source, OFlag::empty()).map_err(at("open", source))?;
        let to = pin(target, OFlag::empty()).map_err(at("open", target))?;
        let operation = format!("bind {} at", source.display());
        let bound = match bind_at_once(&from, &to, flags) {
            Err(error) if is_too_new(error, flags) => bind_in_two_steps(&from, &to, target, flags),
            bound => bound,
        };
        bound.map_err(at(&operation, target))
    }

    fn tighten(&self, mount: &MountEntry, flags: &MountFlags) -> io::Result<()> {
        let root = open_exactly(mount)?;
        let (set, clear) = attributes(flags);
        let done = match ioctl::set_mount_attributes(&root, set, clear) {
            Err(error) if is_too_new(error, flags) => remount(&root, flags),
            done => done,
        };
        done.map_err(at("change the flags of", &mount.target))
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

    /// A descriptor would keep the mount busy, and a path may lead to another mount by the time of the call: so it is
    /// marked first (umount2(2), MNT_EXPIRE), and goes only if it is the one that was marked. One that is mounted over it
    /// after the look at the table is not marked.
    fn unmount_exactly(&self, mount: &MountEntry) -> io::Result<()> {
        let last_try = Instant::now() + PASSING_USE;
        let expire = || umount2(&mount.target, MntFlags::MNT_EXPIRE | MntFlags::UMOUNT_NOFOLLOW);
        let failed = |errno| Err(at("unmount", &mount.target)(errno));
        loop {
            if !self.is_on_top(mount)? {
                return Ok(());
            }
            // `Ok`: it was marked by a call that was cut off.
            let done = match expire() {
                Err(Errno::EAGAIN) if self.is_on_top(mount)? => expire(),
                done => done,
            };
            match done {
                Ok(()) => return Ok(()),
                // Somebody uses it, or has just looked at it.
                Err(Errno::EBUSY | Errno::EAGAIN) if Instant::now() < last_try => {
                    std::thread::sleep(PASSING_USE / 50);
                }
                Err(Errno::EAGAIN) => return failed(Errno::EBUSY),
                Err(errno) => return failed(errno),
            }
        }
    }

    fn detach(&self, mount: &MountEntry) -> io::Result<()> {
        let fd = open_exactly(mount)?;
        umount2(&name_of(&fd), MntFlags::MNT_DETACH).map_err(at("detach", &mount.target))
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
        assert_eq!(inherited(SHOWN_NO_SYM_FOLLOW, &flags(&["ro"])), NO_SYM_FOLLOW);
    }

    #[test]
    fn attributes_clear_the_field_of_atime_first() {
        let attributes = |words: &[&str]| {
            let (set, clear) = attributes(&flags(words));
            (set.bits(), clear.bits())
        };
        assert_eq!(attributes(&[]), (0, 0));
        assert_eq!(attributes(&["ro", "nosuid", "nodev", "noexec", "nodiratime"]), (0x8f, 0));
        assert_eq!(attributes(&["noatime"]), (0x10, 0x70));
        assert_eq!(attributes(&["relatime", "sync"]), (0, 0x70));
        assert_eq!(attributes(&["strictatime", "ro"]), (0x21, 0x70));
        assert_eq!(attributes(&["nosymfollow", "silent", "mand", "iversion"]), (0x20_0000, 0));
    }

    #[test]
    fn every_flag_has_a_bit_of_its_own() {
        let all = VfsFlag::ALL.into_iter().fold(MsFlags::empty(), |all, flag| all | ms_flag(flag));
        assert_eq!(all.bits().count_ones() as usize, VfsFlag::ALL.len());
        assert_eq!(ms_flags(&flags(&["ro", "nodev"])), MsFlags::MS_RDONLY | MsFlags::MS_NODEV);
    }
}
