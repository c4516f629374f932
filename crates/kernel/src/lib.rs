//! The kernel boundary: narrow traits, named by intent, that everything else uses to read or change the machine. `linux`
//! is the real one, `fake` a stateful model of it on which every step can fail or be the last.
//!
//! Errors are `std::io::Error` with the kernel's errno and a message that names the operation and the path;
//! callers decide by errno ([`is_errno`]), never by text.

mod differences;
mod error;
mod files;
mod filesystems;
pub mod host;
mod images;
pub mod linux;
mod loops;
mod mounts;
mod quotas;
pub mod report;
mod runs;
mod trees;

use std::sync::Arc;

pub use differences::{Change, Sent, Side, Sides, each_sent};
pub use error::{errno_error, errno_of, is_errno, is_full, with_context};
pub use files::{BlockDevice, FileId, FileKind, FileStat, Files, LogFile, Space, write_whole};
pub use filesystems::{Filesystems, MakeOptions};
pub use images::{Extent, Images, MetadataSpace, Upkeep};
pub use linux::ProcessFigures;
pub use loops::{AttachOptions, LoopDevice, LoopDevices, OpenLoop, SPARE};
pub use mounts::{Frozen, MountEntry, Mounts, Pinned, Propagation, holder};
pub use quotas::{Enforceable, Qgroups, Quota, QuotaLimits, Quotas, Subvolume};
pub use runs::Runs;
pub use trees::{Base, Disks, Reuse, TreeWriter, Trees, Usage};

/// The machine, as handed to everything above: cheap to clone.
#[derive(Clone)]
pub struct Os {
    /// Names, small files and directories.
    pub files: Arc<dyn Files>,
    /// Large files by their blocks.
    pub images: Arc<dyn Images>,
    /// Whole directory trees.
    pub trees: Arc<dyn Trees>,
    /// What is mounted in this mount namespace.
    pub mounts: Arc<dyn Mounts>,
    /// Loop devices, which belong to no namespace.
    pub loops: Arc<dyn LoopDevices>,
    /// The tools of ext4, xfs and btrfs.
    pub filesystems: Arc<dyn Filesystems>,
    /// Limits that filesystems enforce.
    pub quotas: Arc<dyn Quotas>,
}
