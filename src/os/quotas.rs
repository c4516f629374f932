//! Limits of what a directory with everything below it takes, which its filesystem enforces.
//!
//! On xfs and ext4 these are project quotas: a number that a new file takes on from its directory, with a limit for each
//! number. On btrfs they are simple quotas: the directory is a subvolume in a qgroup of level 1 with that number, which
//! subvolumes that are made inside join by themselves. The number belongs to the whole filesystem.

use std::io;
use std::path::Path;

use crate::model::QuotaId;

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
    Bytes,
    /// Nothing: why, and what to do.
    Nothing(String),
}

/// Each method names a directory of the filesystem that is asked.
pub trait Quotas: Send + Sync {
    /// What the filesystem of a directory can limit now.
    fn enforceable(&self, directory: &Path) -> io::Result<Enforceable>;
    /// Switches on what a filesystem can switch on while it is mounted: simple quotas of btrfs (Linux 6.7), after which
    /// older kernels do not mount it any more. Fine where they are on.
    ///
    /// # Errors
    /// EOPNOTSUPP for other filesystems, and for a kernel that has none; EINVAL where the other kind of qgroups is on.
    fn switch_on(&self, directory: &Path) -> io::Result<()>;
    /// What is in use under a number and what its limits are, however many files there are. Zeros for one that nobody has.
    fn quota(&self, directory: &Path, id: QuotaId) -> io::Result<Quota>;
    /// Gives a number these limits, in place of those that it has. A limit of inodes counts only where
    /// [`Enforceable::BytesAndInodes`] says so. Below what is in use nothing more can be taken. They are in force on return,
    /// and durable when a directory that was made afterwards is synced with its parent; a change of limits may be lost in a
    /// power cut until then.
    ///
    /// # Errors
    /// EOPNOTSUPP where nothing can be limited.
    fn set_limits(&self, directory: &Path, id: QuotaId, limits: QuotaLimits) -> io::Result<()>;
    /// mkdir(2) with this mode, whatever the umask, of a directory that counts under the number with everything that is made
    /// below it. After a crash the directory may be there and not count.
    ///
    /// # Errors
    /// EEXIST where anything is there already.
    fn create_directory(&self, path: &Path, mode: u32, id: QuotaId) -> io::Result<()>;
    /// Removes a directory that [`create_directory`](Quotas::create_directory) has made, with everything in it, in one step
    /// where the filesystem can (a subvolume of btrfs, whose blocks it takes back later). `false` where it is to be removed
    /// entry by entry: on other filesystems, and where a pod has made subvolumes in it. Fine where nothing is there; durable
    /// when the directory above is synced. A link is not followed; what is mounted in it is the caller's affair.
    fn remove_at_once(&self, path: &Path) -> io::Result<bool>;
    /// Whether a directory counts under the number, and so will what is made in it.
    fn counts(&self, path: &Path, id: QuotaId) -> io::Result<bool>;
    /// Takes the limits of a number away, after what counted under it was removed. Fine where nobody has it. What still
    /// counts, such as a removed file that is open, keeps the number from being [free](Quota::is_free).
    fn give_back(&self, directory: &Path, id: QuotaId) -> io::Result<()>;
}
