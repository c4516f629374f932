//! The configuration, valid by construction: made only here, from the command line.

mod certs;
mod fields;
mod inline;
mod operation;
mod pools;
mod roles;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use self::roles::{ControllerSettings, Discovery, PeerPort, Role, StaticPeer};
use crate::cli::{SelftestArgs, ServeArgs};

use crate::model::{Limits, Settings, format_bytes, parse_quantity};
use crate::register::Introduction;
use crate::server::Endpoint;
use crate::telemetry::Logging;

pub use self::certs::certs_task;

/// What `hostloop serve` runs with.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Which part of the driver this process is, with what that part needs to know.
    pub role: Role,
    /// How it is reached.
    pub server: ServerConfig,
    /// Who looks after it.
    pub operation: OperationConfig,
    /// What it logs.
    pub logging: Logging,
}

/// How the driver is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Permissions of the socket file.
    pub socket_mode: u32,
    /// How long running calls may take once the process is asked to stop.
    pub shutdown_timeout: Duration,
}

/// How the process can be looked after.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OperationConfig {
    /// Where metrics and health are served.
    pub metrics_listen: Option<SocketAddr>,
    /// Where health alone is served.
    pub health_listen: Option<SocketAddr>,
    /// How much long work there may be.
    pub limits: Limits,
    /// How it introduces itself to kubelet, if it does.
    pub registration: Option<Introduction>,
}

/// What `hostloop selftest` runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelftestConfig {
    /// An absolute path; the work is done in a new directory below it.
    pub dir: PathBuf,
    /// Size of the volumes in bytes.
    pub size: u64,
    /// What to check, each once.
    pub checks: Vec<Check>,
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

/// A flag, with the environment variable that can stand for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag(&'static str, &'static str);

impl Flag {
    fn wrong(self, problem: impl fmt::Display) -> ConfigError {
        // A value may hold anything; the message stays one line.
        ConfigError { flag: self, problem: problem.to_string().replace(['\n', '\r'], " ") }
    }
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            "" => f.write_str(self.0),
            variable => write!(f, "{} ({variable})", self.0),
        }
    }
}

/// A wrong value: one line that names the flag and says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{flag}: {problem}")]
pub struct ConfigError {
    flag: Flag,
    problem: String,
}

impl Config {
    /// Checks the flags. `host_name` is the node id where none is given.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value that cannot be.
    pub fn new(args: &ServeArgs, host_name: Option<String>) -> Result<Self, ConfigError> {
        let role = roles::role(args, host_name)?;
        let server = ServerConfig {
            endpoint: args.endpoint.parse().map_err(|e| Flag("--endpoint", "CSI_ENDPOINT").wrong(e))?,
            socket_mode: fields::socket_mode(&args.socket_mode)?,
            shutdown_timeout: fields::shutdown_timeout(&args.shutdown_timeout)?,
        };
        let operation = operation::operation(&args.operation, &server.endpoint, &role)?;
        let level = fields::log_level(&args.log_level)?;
        let format = fields::log_format(&args.log_format)?;
        Ok(Config { role, server, operation, logging: Logging { level, format } })
    }
}

/// What a process with volumes needs to know.
fn settings(args: &ServeArgs, host_name: Option<String>) -> Result<Settings, ConfigError> {
    let text = |value: &Option<String>, default: &str| value.clone().unwrap_or_else(|| default.to_owned());
    let data_dir = fields::data_dir(&text(&args.data_dir, "/var/lib/hostloop"))?;
    let pools = pools::pools(args, &data_dir)?;
    Ok(Settings {
        driver_name: fields::driver_name(&args.driver_name)?,
        node_id: fields::node_id(args.node_id.clone(), host_name)?,
        inline: inline::inline(args, &pools)?,
        pools,
        data_dir,
        anchor_dir: fields::anchor_dir(args.anchor_dir.as_deref())?,
        attach: fields::attach(&args.attach)?,
        max_volumes_per_node: fields::max_volumes_per_node(&text(&args.max_volumes_per_node, "0"))?,
        max_volume_bytes: fields::max_volume_size(&text(&args.max_volume_size, "1Ti"))?,
        kubelet_dir: fields::kubelet_dir(args.kubelet_dir.as_deref())?,
    })
}

impl SelftestConfig {
    /// The smallest size at which filesystems and the self-test's own files fit.
    const MIN_BYTES: u64 = 16 << 20;

    /// Checks the flags.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value that cannot be.
    pub fn new(args: &SelftestArgs) -> Result<Self, ConfigError> {
        let dir = Flag("--dir", "TMPDIR");
        if !args.dir.is_absolute() {
            return Err(dir.wrong(format_args!("{:?} is not an absolute path", args.dir)));
        }
        let size = parse_quantity(&args.size).map_err(|e| Flag("--size", "").wrong(e))?;
        if size < Self::MIN_BYTES {
            let least = format_bytes(Self::MIN_BYTES);
            return Err(
                Flag("--size", "").wrong(format_args!("{:?} is too small; use at least {least}", args.size))
            );
        }
        let named = |name: &String| {
            let known = Check::ALL.into_iter().find(|check| check.as_str() == name);
            known.ok_or_else(|| {
                let problem = format!("{name:?} is not a check, use ext4, xfs, btrfs, block or directory");
                Flag("--only", "").wrong(problem)
            })
        };
        let only = args.only.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let checks = Check::ALL.into_iter().filter(|c| only.is_empty() || only.contains(c)).collect();
        Ok(SelftestConfig { dir: args.dir.clone(), size, checks })
    }
}
