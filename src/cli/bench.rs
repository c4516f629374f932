//! The command line of `hostloop bench`.

use std::path::PathBuf;

use clap::Args;

use super::selftest::Check;
use super::value::{at_least, named};
use super::wrong::Value;
use crate::server::Endpoint;

const AFTER_HELP: &str = "\
With --dir, a plain directory and a volume of each kind are measured in turns: random reads and writes of 4 KiB, past the \
page cache; a write of 4 KiB and fsync; a new file of 4 KiB and fsync; sequential reads and writes of 1 MiB, past the page \
cache. Each access waits for the one before. A figure is the median of the turns; a bar is its ratio to the plain directory.

With --endpoint, volumes go through their lives: CreateVolume, ControllerPublishVolume if the driver has it, \
NodeStageVolume if it has it, NodePublishVolume, and back to DeleteVolume. One socket must serve Controller and Node.

bench deletes what it made, also after an error and after Ctrl-C.

Examples:
  hostloop bench --dir /var/lib/hostloop --svg disk.svg
  hostloop bench --dir /mnt/nvme --only ext4 --only xfs --size 10Gi --seconds 600
  hostloop bench --endpoint unix:///run/hostloop/csi.sock --volumes 1000
  hostloop bench --endpoint unix:///a/csi.sock --parameters backend=loop --beside unix:///b/csi.sock

Exit codes: 0 measured, 1 could not measure, was interrupted, or left something behind, 2 wrong flag or value.";

/// The smallest size in bytes at which a filesystem and what is measured in it fit.
const MIN_BYTES: u64 = 16 << 20;
/// The most clients at once.
const MOST_CLIENTS: usize = 1024;
/// The most volumes beside which lives are measured.
const MOST_VOLUMES: usize = 10_000;
/// The longest `--seconds`: four hours.
const MOST_SECONDS: u64 = 4 * 3600;
/// The most turns.
const MOST_TURNS: usize = 1000;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct BenchArgs {
    /// Directory on the disk to measure. bench creates a new directory in it and removes that at the end. With
    /// --endpoint, staging and target paths are in it, so the driver must see it under the same path [default: with
    /// --endpoint /var/tmp]
    #[arg(long, value_name = "DIR", value_parser = Value(directory))]
    pub dir: Option<PathBuf>,

    /// Size of the volumes. With --dir, at least 16Mi, and 300Mi for xfs; a quarter of it is written and read
    /// [default: 512Mi; with --endpoint 64Mi]
    #[arg(long, value_name = "SIZE", value_parser = Value(size))]
    pub size: Option<u64>,

    /// How long to measure in all, in seconds. Creating and removing what is measured takes a little longer
    #[arg(long, value_name = "SECONDS", default_value = "90", value_parser = Value(seconds))]
    pub seconds: u64,

    /// How often each figure is measured; all others are measured in between. --dir has one more turn, which is not
    /// counted
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = Value(turns))]
    pub turns: usize,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,

    /// With --dir: measure only this kind of volume: ext4, ext4-thick, xfs, xfs-thick, btrfs, btrfs-thick, block,
    /// block-thick, managed (ext4 in a managed pool with xfs), directory or directory-enforced (with an enforced size).
    /// Repeat the flag for more [default: all that are possible in DIR]
    #[arg(long, value_name = "NAME", value_parser = Value(candidate))]
    pub only: Vec<Candidate>,

    /// With --dir: also draw the result into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Measure the RPCs of the CSI driver at this socket: unix:///PATH.sock or an absolute path
    #[arg(long, value_name = "ENDPOINT", value_parser = Value(str::parse::<Endpoint>))]
    pub endpoint: Option<Endpoint>,

    /// With --endpoint: a parameter of the StorageClass. Repeat the flag for more
    #[arg(long, value_name = "KEY=VALUE", value_parser = Value(parameter))]
    pub parameters: Vec<(String, String)>,

    /// With --endpoint: also measure the driver at this socket, in turns, and compare the two
    #[arg(long, value_name = "ENDPOINT", value_parser = Value(str::parse::<Endpoint>))]
    pub beside: Option<Endpoint>,

    /// With --beside: a parameter for that driver. Repeat the flag for more [default: those of --parameters]
    #[arg(long, value_name = "KEY=VALUE", value_parser = Value(parameter))]
    pub beside_parameters: Vec<(String, String)>,

    /// With --endpoint: filesystem of the volumes [default: the driver's own]
    #[arg(long, value_name = "NAME", conflicts_with = "block")]
    pub fs_type: Option<String>,

    /// With --endpoint: raw block volumes
    #[arg(long)]
    pub block: bool,

    /// With --endpoint: how many clients work at once, separated by , [default: 1,4,16,64]
    #[arg(long, value_name = "NUMBER[,NUMBER]...", value_parser = Value(clients))]
    pub clients: Option<super::value::List<usize>>,

    /// With --endpoint: also measure lives beside so many other volumes, at most 10000, which bench creates (and which
    /// must have room) and deletes
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = Value(volumes))]
    pub volumes: usize,
}

/// A kind of volume that is compared with a plain directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    Ext4,
    Ext4Thick,
    Xfs,
    XfsThick,
    Btrfs,
    BtrfsThick,
    Block,
    BlockThick,
    /// A loop volume with ext4 in a managed pool, which is an image with xfs.
    Managed,
    Directory,
    /// A directory whose size the filesystem enforces.
    DirectoryEnforced,
}

impl Candidate {
    /// Every kind, in the order in which they are shown.
    pub const ALL: [Candidate; 11] = [
        Candidate::Ext4,
        Candidate::Ext4Thick,
        Candidate::Xfs,
        Candidate::XfsThick,
        Candidate::Btrfs,
        Candidate::BtrfsThick,
        Candidate::Block,
        Candidate::BlockThick,
        Candidate::Managed,
        Candidate::DirectoryEnforced,
        Candidate::Directory,
    ];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Candidate::Ext4 => "ext4",
            Candidate::Ext4Thick => "ext4-thick",
            Candidate::Xfs => "xfs",
            Candidate::XfsThick => "xfs-thick",
            Candidate::Btrfs => "btrfs",
            Candidate::BtrfsThick => "btrfs-thick",
            Candidate::Block => "block",
            Candidate::BlockThick => "block-thick",
            Candidate::Managed => "managed",
            Candidate::Directory => "directory",
            Candidate::DirectoryEnforced => "directory-enforced",
        }
    }

    /// What is in it.
    pub const fn check(self) -> Check {
        match self {
            Candidate::Ext4 | Candidate::Ext4Thick | Candidate::Managed => Check::Ext4,
            Candidate::Xfs | Candidate::XfsThick => Check::Xfs,
            Candidate::Btrfs | Candidate::BtrfsThick => Check::Btrfs,
            Candidate::Block | Candidate::BlockThick => Check::Block,
            Candidate::Directory => Check::Directory,
            Candidate::DirectoryEnforced => Check::DirectoryEnforced,
        }
    }

    /// Whether its blocks are its own from the start.
    pub const fn is_thick(self) -> bool {
        matches!(
            self,
            Candidate::Ext4Thick | Candidate::XfsThick | Candidate::BtrfsThick | Candidate::BlockThick
        )
    }
}

fn directory(text: &str) -> Result<PathBuf, String> {
    let dir = PathBuf::from(text);
    if dir.is_absolute() { Ok(dir) } else { Err(format!("{text:?} is not an absolute path")) }
}

fn size(text: &str) -> Result<u64, String> {
    at_least(MIN_BYTES, text)
}

fn candidate(text: &str) -> Result<Candidate, String> {
    named(text, "a kind of volume", &Candidate::ALL, Candidate::as_str)
}

fn seconds(text: &str) -> Result<u64, String> {
    number(text, 1, MOST_SECONDS)
}

fn turns(text: &str) -> Result<usize, String> {
    number(text, 1, MOST_TURNS)
}

fn volumes(text: &str) -> Result<usize, String> {
    number(text, 0, MOST_VOLUMES)
}

fn clients(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(|word| number(word.trim(), 1, MOST_CLIENTS)).collect()
}

fn number<T>(text: &str, least: T, most: T) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    text.parse()
        .ok()
        .filter(|number| (&least..=&most).contains(&number))
        .ok_or_else(|| format!("{text:?} is not a whole number from {least} to {most}"))
}

fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not a parameter; use KEY=VALUE such as provisioning=thick")),
    }
}
