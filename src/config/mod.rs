//! The configuration, valid by construction: made only here, from the command line.

mod bench;
mod certs;
mod inline;
mod operation;
mod pools;
mod roles;
mod state;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use self::bench::{BenchConfig, BenchDriver, DiskConfig, RpcConfig};
pub use self::certs::certs_task;
pub use self::roles::{ControllerSettings, Discovery, PeerPort, Role};
pub use self::state::state_task;
pub use crate::cli::{Candidate, Check, ConfigError, StaticPeer};

use clap::Args;

use crate::cli::{SelftestArgs, ServeArgs};
use crate::model::{GRANULARITY, Limits, Settings, check_topology_value, rounded};
use crate::register::Introduction;
use crate::server::Endpoint;
use crate::telemetry::Logging;

/// The largest size of a volume in bytes if the administrator sets none: all that CSI can ask for.
const DEFAULT_MAX_VOLUME: u64 = i64::MAX as u64 / GRANULARITY * GRANULARITY;

#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Which part of the driver this process is, with what that part needs to know.
    pub role: Role,
    pub server: ServerConfig,
    pub operation: OperationConfig,
    pub logging: Logging,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    pub endpoint: Endpoint,
    /// Permissions of the socket file.
    pub socket_mode: u32,
    /// How long running calls may take once the process is asked to stop.
    pub shutdown_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OperationConfig {
    pub metrics_listen: Option<SocketAddr>,
    pub health_listen: Option<SocketAddr>,
    /// With more volumes than this there are no metrics of each volume.
    pub volume_metrics: usize,
    /// How much long work there may be.
    pub limits: Limits,
    /// How it introduces itself to kubelet, if it does.
    pub registration: Option<Introduction>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelftestConfig {
    /// An absolute path; the work is done in a new directory below it.
    pub dir: PathBuf,
    /// Size of the volumes in bytes.
    pub size: u64,
    /// What to check, each once.
    pub checks: Vec<Check>,
    /// Whether `--only` named them. Then each must be possible on this machine.
    pub named: bool,
}

impl Config {
    /// Makes a configuration of flags. `host_name` is the node id where none is given.
    ///
    /// # Errors
    /// [`ConfigError`] for the first flag that does not go with the others.
    pub fn new(args: &ServeArgs, host_name: Option<String>) -> Result<Self, ConfigError> {
        let role = roles::role(args, host_name)?;
        let operation = operation::operation(&args.operation, &args.endpoint, role.settings())?;
        let server = ServerConfig {
            endpoint: args.endpoint.clone(),
            socket_mode: args.socket_mode,
            shutdown_timeout: args.shutdown_timeout,
        };
        let logging = Logging { level: args.log_level, format: args.log_format };
        Ok(Config { role, server, operation, logging })
    }
}

/// Where the state file and the pool `default` are.
const DEFAULT_DATA_DIR: &str = "/var/lib/hostloop";

/// What a process with volumes needs to know.
fn settings(args: &ServeArgs, host_name: Option<String>) -> Result<Settings, ConfigError> {
    let data_dir = args.data_dir.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR));
    let pools = pools::pools(args, &data_dir)?;
    Ok(Settings {
        driver_name: args.driver_name.clone(),
        node_id: node_id::<ServeArgs>(args.node_id.clone(), host_name)?,
        inline: inline::inline(args, &pools)?,
        pools,
        data_dir,
        anchor_dir: args.anchor_dir.clone().flatten(),
        attach: args.attach,
        max_volumes_per_node: args.max_volumes_per_node.unwrap_or(0),
        // A volume of that size is in whole blocks.
        max_volume_bytes: rounded(args.max_volume_size.unwrap_or(DEFAULT_MAX_VOLUME), 0),
        kubelet_dir: args.kubelet_dir.clone().flatten(),
        quota_ids: args.quota_ids.flatten().unwrap_or_default(),
        adopt_from: args.adopt_from.iter().flatten().cloned().collect(),
    })
}

fn node_id<A: Args>(given: Option<String>, host_name: Option<String>) -> Result<String, ConfigError> {
    let wrong = |problem: String| ConfigError::of::<A>("node_id", problem);
    match (given, host_name) {
        (Some(id), _) => Ok(id),
        (None, Some(name)) => match check_topology_value(&name) {
            Ok(()) => Ok(name),
            Err(error) => Err(wrong(format!("the host name {error}"))),
        },
        (None, None) => Err(wrong("the host has no name; set the node's id".to_owned())),
    }
}

impl From<&SelftestArgs> for SelftestConfig {
    fn from(args: &SelftestArgs) -> Self {
        let only = &args.only;
        let checks = Check::ALL.into_iter().filter(|c| only.is_empty() || only.contains(c)).collect();
        SelftestConfig { dir: args.dir.clone(), size: args.size, checks, named: !only.is_empty() }
    }
}
