//! The command line of `hostloop selftest`.

use std::path::PathBuf;

use clap::Args;

use super::value::{at_least, named};
use super::wrong::Value;

#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Directory to work in. selftest creates a new directory in it and removes that at the end
    #[arg(long, env = "TMPDIR", value_name = "DIR", default_value = "/var/tmp")]
    #[arg(value_parser = Value(directory))]
    pub dir: PathBuf,

    /// Size of the volumes, at least 300Mi for xfs
    #[arg(long, value_name = "SIZE", default_value = "512Mi", value_parser = Value(size))]
    pub size: u64,

    /// Check only this: ext4, xfs, btrfs, block, directory or directory-enforced (with an enforced size). Repeat the flag for
    /// more [default: all that this machine can have: xfs and btrfs are left out if their tools are missing]
    #[arg(long, value_name = "NAME", value_parser = Value(check))]
    pub only: Vec<Check>,
}

/// A kind of volume that the self-test goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// A loop volume with ext4.
    Ext4,
    /// A loop volume with xfs.
    Xfs,
    /// A loop volume with btrfs.
    Btrfs,
    /// A raw block volume.
    Block,
    /// A volume of the directory backend.
    Directory,
    /// The same with a size that the filesystem enforces.
    DirectoryEnforced,
}

impl Check {
    /// Every kind, in the order in which they are checked.
    pub const ALL: [Check; 6] =
        [Check::Ext4, Check::Xfs, Check::Btrfs, Check::Block, Check::Directory, Check::DirectoryEnforced];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Check::Ext4 => "ext4",
            Check::Xfs => "xfs",
            Check::Btrfs => "btrfs",
            Check::Block => "block",
            Check::Directory => "directory",
            Check::DirectoryEnforced => "directory-enforced",
        }
    }

    /// Whether it is a directory of the disk, with an enforced size or without.
    pub const fn is_directory(self) -> bool {
        matches!(self, Check::Directory | Check::DirectoryEnforced)
    }
}

/// The smallest size in bytes at which filesystems and the self-test's own files fit.
const MIN_BYTES: u64 = 16 << 20;

fn directory(text: &str) -> Result<PathBuf, String> {
    let dir = PathBuf::from(text);
    if dir.is_absolute() { Ok(dir) } else { Err(format!("{text:?} is not an absolute path")) }
}

fn size(text: &str) -> Result<u64, String> {
    at_least(MIN_BYTES, text)
}

fn check(text: &str) -> Result<Check, String> {
    named(text, "a check", &Check::ALL, Check::as_str)
}
