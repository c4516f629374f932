//! The real kernel: the only place with system calls. nix makes those that it has, rustix the others, and `ioctl`, with the
//! only `unsafe`, what neither has (docs/decisions/0014). `exec` starts the only child processes.

mod block;
mod btrfs;
mod check;
mod claim;
mod copy;
mod copy_tree;
mod discard;
mod exec;
mod files;
mod filesystems;
mod find;
mod fingerprint;
mod freeze;
mod holders;
mod images;
mod ioctl;
mod lock;
mod log;
mod loops;
mod mount_options;
mod mountinfo;
mod mounts;
mod mounts_seen;
mod node;
mod open;
mod own_sysfs;
mod probe;
mod process;
mod protected;
mod quotas;
mod space;
mod statx;
mod tools;
mod trees;
mod upkeep;
mod walk;
mod watch;

use std::io;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;

use super::{FileId, Os, with_context};

pub use freeze::guard as freeze_guard;
/// For the fuzz targets.
#[doc(hidden)]
pub use mountinfo::parse as parse_mountinfo;
pub use probe::reflink_works;
pub use process::{ProcessFigures, own_process, share_memory_among_threads};
pub use tools::Tools;

/// The machine that this process runs on.
pub fn os(tools: Tools) -> Os {
    Os {
        files: Arc::new(files::LinuxFiles),
        images: Arc::new(images::LinuxImages),
        trees: Arc::new(trees::LinuxTrees),
        mounts: Arc::new(mounts::LinuxMounts::new(&tools)),
        loops: Arc::new(loops::LinuxLoops::default()),
        filesystems: Arc::new(filesystems::LinuxFilesystems::new(tools)),
        quotas: Arc::new(quotas::LinuxQuotas),
    }
}

/// For `map_err`: names the operation and the path that met an error.
fn at<E: Into<io::Error>>(operation: &str, path: &Path) -> impl FnOnce(E) -> io::Error {
    move |error| with_context(error.into(), format_args!("{operation} {}", path.display()))
}

/// An error of rustix as one of nix.
fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// What stat(2) says a file's identity is.
fn id_of(stat: &nix::sys::stat::FileStat) -> FileId {
    FileId { dev: stat.st_dev, ino: stat.st_ino }
}

/// The bits of `st_mode` that tell the kind of file (inode(7), S_IFMT).
fn kind_bits(stat: &nix::sys::stat::FileStat) -> libc::mode_t {
    stat.st_mode & libc::S_IFMT
}
