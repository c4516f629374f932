//! Mounts, and freezing what is mounted.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostloop_model::{FsType, MountFlags, OptionName, VfsFlag};

/// One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Its id, which no other mount has while it is there.
    pub id: u64,
    /// The id of the mount that it is mounted on.
    pub parent: u64,
    /// Device number of the files of the mount, as `makedev` encodes it.
    pub dev: u64,
    /// Path within the filesystem that is mounted here.
    pub root: PathBuf,
    /// Where it is mounted, from this process's root.
    pub target: PathBuf,
    /// Such as `ext4`, or `fuse.sshfs` with a subtype.
    pub fs_type: String,
    /// What the filesystem calls its source, such as `/dev/loop3`; any text, for some.
    pub source: String,
    /// This mount is read-only, whatever its superblock is.
    pub read_only: bool,
    /// The per-mount flags that are on.
    pub flags: Vec<VfsFlag>,
    /// The superblock itself is read-only.
    pub superblock_read_only: bool,
    pub propagation: Propagation,
}

impl MountEntry {
    /// Returns whether mounts made below it reach other places, such as those of other mount namespaces.
    pub fn is_shared(&self) -> bool {
        self.propagation.peers.is_some()
    }
}

/// From where mounts come to a mount, and where they go (mount_namespaces(7), "Shared subtrees").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Propagation {
    /// The peer group that it is in (`shared:N`): what is mounted in one peer is mounted in all.
    pub peers: Option<u64>,
    /// The peer group from which it receives, and to which it sends nothing (`master:N`).
    pub master: Option<u64>,
    /// The nearest peer group above its master that this process sees (`propagate_from:N`).
    pub from: Option<u64>,
}

/// A mount that is held by its root, whatever is mounted on top of it; or a file or directory that is held, whatever happens to its
/// name.
pub struct Pinned {
    path: PathBuf,
    _hold: Box<dyn Send + Sync>,
}

impl Pinned {
    /// What is held, at a path that is good as long as `hold` lives.
    pub fn new(path: PathBuf, hold: Box<dyn Send + Sync>) -> Self {
        Pinned { path, _hold: hold }
    }

    /// A path that leads to what is held and nowhere else, in this process only.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The mounts of this process's mount namespace.
pub trait Mounts: Send + Sync {
    /// What is mounted in this mount namespace, in mount order (a later entry at the same target lies on top).
    fn list(&self) -> io::Result<Vec<MountEntry>>;
    /// Those mounts of [`list`](Mounts::list) for which `wanted` is true, as they are now.
    ///
    /// `wanted` is asked what it thinks of a mount as this process saw it first, and again what it thinks of it as it is.
    /// So a mount that came to match afterwards may be left out: one that was moved (mount(8), `--move`), or below whose
    /// mount point or root a directory was renamed. Filesystem, source and id never change. It must not ask for mounts
    /// itself.
    fn matching(&self, wanted: &dyn Fn(&MountEntry) -> bool) -> io::Result<Vec<MountEntry>>;
    /// The id of the mount that whoever opens this path gets to, links on the way followed and not at the end. Asks no
    /// filesystem more than the way to it, so that it also tells of one that has shut down.
    fn mount_at(&self, path: &Path) -> io::Result<u64>;
    /// Holds the root directory of exactly this mount, which keeps it busy.
    ///
    /// # Errors
    /// ESTALE where something else is at its path: it has gone, or another mount hides it.
    fn pin(&self, mount: &MountEntry) -> io::Result<Pinned>;
    /// Returns the first of these words for the filesystem that this kernel refuses on every device. Returns `None` if it
    /// takes each of them, or does not tell without a device. No device is opened, and nothing is mounted.
    fn refused_option(&self, fs_type: FsType, words: &[String]) -> Option<OptionName>;
    /// Mounts the filesystem on `device` at the directory `target`, which is not followed if it is a link.
    fn mount(&self, device: &Path, target: &Path, fs_type: FsType, flags: &MountFlags) -> io::Result<()>;
    /// Mounts the filesystem on `device` for this process alone: at no path, and in no mount namespace (fsopen(2), fsmount(2)). No
    /// program of it runs, and no device node of it works. It ends with the value, and with this process, however that ends. With
    /// `read_only`, the kernel replays the journal, for which the device must be writable, and writes nothing else.
    ///
    /// # Errors
    /// ENOSYS before Linux 5.2; those of mount(2).
    fn mount_apart(&self, device: &Path, fs_type: FsType, read_only: bool) -> io::Result<Pinned>;
    /// Binds `source` (a directory or a file) at `target`, with the per-mount flags of `flags`; with
    /// `read_only` nothing can be written through it. It appears with its flags at once, here and wherever it propagates
    /// to (Linux 5.12); on an older kernel a process that is killed can leave it without them, which
    /// [`tighten`](Mounts::tighten) mends.
    fn bind(&self, source: &Path, target: &Path, flags: &MountFlags) -> io::Result<()>;
    /// Gives exactly this mount more of the per-mount flags, and makes it read-only with `read_only`. It keeps what it
    /// has.
    ///
    /// # Errors
    /// EBUSY where it would become read-only and somebody writes through it; ESTALE where another mount hides it.
    fn tighten(&self, mount: &MountEntry, flags: &MountFlags) -> io::Result<()>;
    /// Unmounts the topmost mount at `target` (umount2(2), UMOUNT_NOFOLLOW, never lazy, never forced). Waits a moment
    /// where it is busy, since a use may be about to end; then EBUSY.
    fn unmount(&self, target: &Path) -> io::Result<()>;
    /// Unmounts exactly this mount, as [`unmount`](Mounts::unmount) does it; fine if it is gone. Another one that is
    /// mounted over it meanwhile stays.
    ///
    /// # Errors
    /// ESTALE where another mount hides it; EBUSY.
    fn unmount_exactly(&self, mount: &MountEntry) -> io::Result<()>;
    /// Takes exactly this mount out of the tree, with all that is mounted below it, also while it is busy: it ends with
    /// its last user (umount2(2), MNT_DETACH).
    ///
    /// # Errors
    /// ESTALE where another mount hides it.
    fn detach(&self, mount: &MountEntry) -> io::Result<()>;
    /// Freezes the filesystem that is mounted at `mount_point` (FIFREEZE, after a syncfs(2) without the freeze): it is
    /// on its device in a consistent state, and whoever writes to it waits, through whichever mount. It thaws when the
    /// value is dropped, when `limit` has passed, and when this process ends, however it ends: a helper process sees to
    /// that. Only what ends both at once leaves it frozen: the end of a container, and any death of this process where
    /// it is the first of its PID namespace (pid_namespaces(7)). See [`thaw`](Mounts::thaw). While it is frozen, the
    /// mount is busy. The filesystem must not be one that this process writes to.
    ///
    /// # Errors
    /// EBUSY where it is frozen already: it stays so. EOPNOTSUPP where the filesystem cannot be frozen, EINVAL where
    /// nothing is mounted at `mount_point`, ETIMEDOUT where freezing takes longer than `limit`, EOWNERDEAD where the
    /// helper was killed. After an error the filesystem is as it was, or, after ETIMEDOUT, as soon as the kernel is
    /// done with it.
    fn freeze(&self, mount_point: &Path, limit: Duration) -> io::Result<Box<dyn Frozen>>;
    /// FITHAW: thaws the filesystem that is mounted at `mount_point`, which a process that is gone has left frozen;
    /// whether it was. A filesystem that was unmounted while it was frozen still is when it is mounted again.
    ///
    /// # Errors
    /// EINVAL where nothing is mounted at `mount_point`.
    fn thaw(&self, mount_point: &Path) -> io::Result<bool>;
}

/// A frozen filesystem; dropping it thaws.
pub trait Frozen: Send {
    /// Thaws now. What was read since the freeze is of one point in time only if this is `Ok`.
    ///
    /// # Errors
    /// ETIMEDOUT where its limit had passed before. EINVAL where somebody else has thawed it. EOWNERDEAD where the
    /// helper was killed, and the filesystem thawed then. Any other error: it may be frozen still, and
    /// [`Mounts::thaw`] may help.
    fn thaw(self: Box<Self>) -> io::Result<()>;
}

/// The mount that holds a path, links resolved.
pub fn holder<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    // The longest target covers the path; of several at one target the last lies on top.
    let covering = mounts.iter().filter(|mount| path.starts_with(&mount.target));
    covering.max_by_key(|mount| mount.target.components().count())
}
