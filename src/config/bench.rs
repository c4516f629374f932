//! What the flags of `hostloop bench` mean together.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::{BenchArgs, Candidate, Check, ConfigError};
use crate::model::{FsType, format_bytes};
use crate::server::Endpoint;

/// Size of a measured volume in bytes, where none is asked for: xfs needs 300 MiB.
const DISK_BYTES: u64 = 512 << 20;
/// The same for lives, of which there may be many at once.
const LIFE_BYTES: u64 = 64 << 20;
/// Clients at once.
const CLIENTS: [usize; 4] = [1, 4, 16, 64];

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BenchConfig {
    Disk(DiskConfig),
    Rpc(RpcConfig),
}

/// A disk, and what volumes give of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// An absolute path; the work is done in a new directory below it.
    pub dir: PathBuf,
    /// Of each volume.
    pub bytes: u64,
    /// Each once, and at least one.
    pub candidates: Vec<Candidate>,
    /// For all measurements together.
    pub budget: Duration,
    /// At least 1.
    pub turns: usize,
    pub svg: Option<PathBuf>,
    pub json: bool,
}

/// The RPCs of a driver, or of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcConfig {
    /// An absolute path; staging and target paths are in a new directory below it.
    pub dir: PathBuf,
    /// Of each volume.
    pub bytes: u64,
    /// An empty name leaves it to the driver; `None` is a raw device.
    pub fs_type: Option<String>,
    /// One, or two that are compared.
    pub drivers: Vec<BenchDriver>,
    /// How many work at once: at least one number, in ascending order, each once and at least 1.
    pub clients: Vec<usize>,
    /// Beside how many others lives are measured in addition; 0 for none.
    pub volumes: usize,
    /// For all measurements together.
    pub budget: Duration,
    /// At least 1.
    pub turns: usize,
    pub json: bool,
}

/// A driver that is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BenchDriver {
    /// `unix:///PATH` or `http://IP:PORT`.
    pub uri: String,
    /// Of the StorageClass.
    pub parameters: HashMap<String, String>,
}

impl BenchConfig {
    /// Makes a configuration of flags.
    ///
    /// # Errors
    /// [`ConfigError`] for the first flag that does not go with the others.
    pub fn new(args: &BenchArgs) -> Result<Self, ConfigError> {
        match (&args.endpoint, &args.dir) {
            (Some(endpoint), dir) => rpc(args, endpoint, dir.clone()).map(BenchConfig::Rpc),
            (None, Some(dir)) => disk(args, dir.clone()).map(BenchConfig::Disk),
            (None, None) => Err(wrong(
                "dir",
                "is missing; name a directory on the disk to measure, or a driver with --endpoint",
            )),
        }
    }
}

fn wrong(field: &str, problem: impl std::fmt::Display) -> ConfigError {
    ConfigError::of::<BenchArgs>(field, problem)
}

fn disk(args: &BenchArgs, dir: PathBuf) -> Result<DiskConfig, ConfigError> {
    let of_drivers = [
        ("beside", args.beside.is_some()),
        ("parameters", !args.parameters.is_empty()),
        ("beside_parameters", !args.beside_parameters.is_empty()),
        ("fs_type", args.fs_type.is_some()),
        ("block", args.block),
        ("clients", args.clients.is_some()),
        ("volumes", args.volumes > 0),
    ];
    if let Some((field, _)) = of_drivers.into_iter().find(|(_, given)| *given) {
        return Err(wrong(field, "is for drivers; add --endpoint or leave it out"));
    }
    let only = &args.only;
    let candidates: Vec<_> =
        Candidate::ALL.into_iter().filter(|c| only.is_empty() || only.contains(c)).collect();
    let bytes = args.size.unwrap_or(DISK_BYTES);
    for candidate in &candidates {
        let needed = minimum(*candidate);
        if bytes < needed {
            let (name, needed) = (candidate.as_str(), format_bytes(needed));
            return Err(wrong(
                "size",
                format_args!("{name} needs {needed}; raise it, or leave {name} out with --only"),
            ));
        }
    }
    let (budget, turns, json) = (Duration::from_secs(args.seconds), args.turns, args.json);
    Ok(DiskConfig { dir, bytes, candidates, budget, turns, svg: args.svg.clone(), json })
}

fn minimum(candidate: Candidate) -> u64 {
    match candidate.check() {
        Check::Ext4 | Check::Block | Check::Directory | Check::DirectoryEnforced => 0,
        Check::Xfs => FsType::Xfs.minimum_bytes(),
        Check::Btrfs => FsType::Btrfs.minimum_bytes(),
    }
}

fn rpc(args: &BenchArgs, endpoint: &Endpoint, dir: Option<PathBuf>) -> Result<RpcConfig, ConfigError> {
    if !args.only.is_empty() {
        return Err(wrong(
            "only",
            "is for --dir without --endpoint; choose a volume with --parameters, --fs-type and --block",
        ));
    }
    if args.svg.is_some() {
        return Err(wrong("svg", "is for --dir without --endpoint; use --json for figures of RPCs"));
    }
    if args.beside.is_none() && !args.beside_parameters.is_empty() {
        return Err(wrong("beside_parameters", "needs a second driver; add --beside or leave it out"));
    }
    if args.beside.as_ref() == Some(endpoint) && args.beside_parameters.is_empty() {
        return Err(wrong(
            "beside",
            "is the driver of --endpoint; name another one, or other parameters for it",
        ));
    }
    let parameters: HashMap<_, _> = args.parameters.iter().cloned().collect();
    let mut drivers = vec![BenchDriver { uri: uri(endpoint), parameters: parameters.clone() }];
    if let Some(beside) = &args.beside {
        let own = &args.beside_parameters;
        let parameters = if own.is_empty() { parameters } else { own.iter().cloned().collect() };
        drivers.push(BenchDriver { uri: uri(beside), parameters });
    }
    let mut clients = args.clients.clone().unwrap_or_else(|| CLIENTS.to_vec());
    clients.sort_unstable();
    clients.dedup();
    Ok(RpcConfig {
        dir: dir.unwrap_or_else(|| PathBuf::from("/var/tmp")),
        bytes: args.size.unwrap_or(LIFE_BYTES),
        fs_type: (!args.block).then(|| args.fs_type.clone().unwrap_or_default()),
        drivers,
        clients,
        volumes: args.volumes,
        budget: Duration::from_secs(args.seconds),
        turns: args.turns,
        json: args.json,
    })
}

fn uri(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Unix(path) => format!("unix://{}", path.display()),
        Endpoint::Tcp(address) => format!("http://{address}"),
    }
}
