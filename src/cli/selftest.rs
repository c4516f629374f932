//! The command line of `hostloop selftest`.

use std::path::PathBuf;

use clap::Args;

use super::value::{at_least, named};
use super::wrong::Value;

#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Where to work: in a new directory below this one, which is removed at the end
    #[arg(long, env = "TMPDIR", value_name = "DIR", default_value = "/var/tmp")]
    #[arg(value_parser = Value(directory))]
    pub dir: PathBuf,

    /// Size of the volumes, at least 300Mi for xfs
    #[arg(long, value_name = "SIZE", default_value = "512Mi", value_parser = Value(size))]
    pub size: u64,

    /// Check only this: ext4, xfs, btrfs, block or directory. Repeat the flag for more [default: all]
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
}

impl Check {
    /// Every kind, in the order in which they are checked.
    pub const ALL: [Check; 5] = [Check::Ext4, Check::Xfs, Check::Btrfs, Check::Block, Check::Directory];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Check::Ext4 => "ext4",
            Check::Xfs => "xfs",
            Check::Btrfs => "btrfs",
            Check::Block => "block",
            Check::Directory => "directory",
        }
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
