//! Limits of what a directory with everything below it takes, which its filesystem enforces.
//!
//! On xfs and ext4 these are project quotas: a number that a new file takes on from its directory, with a limit for each
//! number. On btrfs with simple quotas the directory is a subvolume in a qgroup of level 1 with that number, which
//! subvolumes that are made inside join by themselves. The number belongs to the whole filesystem.
//!
//! On btrfs with full qgroups the directory is a subvolume with a limit of its own, and nothing has a number. What it counts
//! is what the subvolume refers to, whoever else has the same blocks, so that it can be copied in one step. A subvolume that
//! is made inside does not count for it.

use std::io;
use std::path::Path;

use hostloop_model::QuotaId;

/// What limits there can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaLimits {
    /// Bytes of blocks; 0 for no limit.
    pub bytes: u64,
    /// Files and directories; 0 for no limit.
    pub inodes: u64,
}

/// What the filesystem knows of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Bytes of blocks that are in use. btrfs knows of what is written when its transaction is committed, which takes up to
    /// half a minute.
    pub bytes: u64,
    /// The bytes of that which nobody else has, so that they are free without it: all of them, but with full qgroups.
    pub own_bytes: u64,
    /// Files and directories; 0 where the filesystem does not count them (btrfs).
    pub inodes: u64,
    pub limits: QuotaLimits,
}

impl Quota {
    /// Whether nobody has the number: it limits nothing, and nothing counts for it.
    pub fn is_free(&self) -> bool {
        *self == Quota::default()
    }
}

/// What a filesystem can limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforceable {
    BytesAndInodes,
    /// Not the number of files (btrfs).
    Bytes(Qgroups),
    /// Nothing, but it can be [switched on](Quotas::switch_on) while it is mounted (btrfs): what to do.
    Off(String),
    /// Nothing: why, and what to do.
    Nothing(String),
}

/// What btrfs counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qgroups {
    /// For each subvolume what it refers to.
    Full,
    /// The same, but what it says is not to be relied on until everything is counted anew, and nothing may be limited.
    Inconsistent,
    /// Each extent for the subvolume that wrote it (Linux 6.7).
    Simple,
}

/// A directory that can be copied in one step: a subvolume, where full qgroups count what it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Subvolume {
    /// Bytes of blocks that it has.
    pub bytes: u64,
    /// The bytes of that which nobody else has.
    pub own_bytes: u64,
    /// Other subvolumes lie in it, which its limit does not count and a copy leaves out.
    pub has_others: bool,
}

/// The path is that of a directory with a number, which has to be there only for full qgroups: without them its filesystem is
/// asked by the number.
pub trait Quotas: Send + Sync {
    /// What the filesystem of a directory, of whatever kind, can limit now.
    fn enforceable(&self, directory: &Path) -> io::Result<Enforceable>;
    /// Switches quotas of btrfs on for the filesystem of a directory, of whatever kind, and returns when they count. Simple
    /// quotas keep kernels before Linux 6.7 from mounting it. Fine where the same are on.
    ///
    /// # Errors
    /// EOPNOTSUPP for other filesystems, and for a kernel that has none; EINVAL where the other kind is on.
    fn switch_on(&self, directory: &Path, qgroups: Qgroups) -> io::Result<()>;
    /// Has everything counted anew, in the background, where [`Qgroups::Inconsistent`] says so and it is not done yet. Fine
    /// elsewhere.
    fn recount(&self, directory: &Path) -> io::Result<()>;
    /// What is in use under a number and what its limits are, however many files there are. Zeros for one that nobody has.
    fn quota(&self, directory: &Path, id: QuotaId) -> io::Result<Quota>;
    /// Makes [`Quota::bytes`] include everything that was written before: with syncfs(2) on btrfs, which counts when it
    /// commits. Does nothing on other filesystems, which count at once.
    fn count_written(&self, directory: &Path) -> io::Result<()>;
    /// Gives a number these limits, in place of those that it has. A limit of inodes counts only where
    /// [`Enforceable::BytesAndInodes`] says so. Below what is in use nothing more can be taken. They are in force on return,
    /// and durable when a directory that was made afterwards is synced with its parent; a change of limits may be lost in a
    /// power cut until then. With full qgroups it is fine to lift the limits of what is not there.
    ///
    /// # Errors
    /// EOPNOTSUPP where nothing can be limited.
    fn set_limits(&self, directory: &Path, id: QuotaId, limits: QuotaLimits) -> io::Result<()>;
    /// mkdir(2) with this mode, whatever the umask, of a directory that counts under the number with everything that is made
    /// below it, and has these limits from the start. After a crash the number may have its limits and the directory not be
    /// there, or be there and not count.
    ///
    /// # Errors
    /// EEXIST where anything is there already.
    fn create_directory(
        &self,
        directory: &Path,
        mode: u32,
        id: QuotaId,
        limits: QuotaLimits,
    ) -> io::Result<()>;
    /// Has a directory that is there already count under a number, with everything in it and whatever is made in it from here
    /// on; durable on return. Links, devices, sockets and pipes do not count, and nothing in what is mounted inside. Files may
    /// be in use. After an error or a crash some of it counts.
    ///
    /// # Errors
    /// EOPNOTSUPP on btrfs, where only what is made as a subvolume has a limit; EBUSY where files come faster than they are
    /// counted.
    fn adopt(&self, directory: &Path, id: QuotaId) -> io::Result<()>;
    /// Removes a directory that [`create_directory`](Quotas::create_directory) has made, with everything in it, in one step
    /// where the filesystem can (a subvolume of btrfs, whose blocks it takes back later). `false` where it is to be removed
    /// entry by entry: on other filesystems, and where a pod has made subvolumes in it. Fine where nothing is there; durable
    /// when the directory above is synced. A link is not followed; what is mounted in it is the caller's affair.
    fn remove_at_once(&self, directory: &Path) -> io::Result<bool>;
    /// Whether a directory counts under the number, and so will what is made in `inside`, which is the directory or lies in it.
    fn counts(&self, directory: &Path, inside: &Path, id: QuotaId) -> io::Result<bool>;
    /// The directory as one that can be [copied in one step](Quotas::snapshot); nothing where it cannot, and where full
    /// qgroups are [inconsistent](Qgroups::Inconsistent). With `sync` what was written a moment ago counts too.
    fn subvolume(&self, directory: &Path, sync: bool) -> io::Result<Option<Subvolume>>;
    /// Makes a directory with what a [`subvolume`](Quotas::subvolume) has at one moment, without the subvolumes in that. It
    /// shares all blocks. Whoever writes to the original waits for no longer than it takes. On return it has these limits,
    /// and it is durable with everything that was made before it; after a crash it is whole or not there, perhaps with the
    /// limits of its original.
    ///
    /// # Errors
    /// EEXIST where anything is there already; EOPNOTSUPP for what is no subvolume.
    fn snapshot(&self, original: &Path, directory: &Path, limits: QuotaLimits) -> io::Result<()>;
    /// Takes the limits of a number away, after what counted under it was removed. Fine where nobody has it. What still
    /// counts, such as a removed file that is open, keeps the number from being [free](Quota::is_free).
    fn give_back(&self, directory: &Path, id: QuotaId) -> io::Result<()>;
}
