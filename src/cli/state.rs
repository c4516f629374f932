//! The command line of `hostloop state`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::value::{List, absolute, driver_name, node_id};
use super::wrong::Value;
use super::{PoolArg, pool};

const AFTER_HELP: &str = "\
Beside its data, each volume and each snapshot has its record. If the state file is lost, damaged or older than the volumes,
these commands make it anew from the records. They change no volume. Give them the flags of the driver; where they change
something, stop the driver first.

Examples:
  hostloop state check --node-id node-1
  hostloop state repair --node-id node-1 --yes
  hostloop state rebuild --node-id node-1 --data-dir /srv/hostloop --pool fast=/mnt/nvme
  hostloop state rebuild --node-id node-1 --keep vol-ID --yes
  hostloop state adopt-node --from node-1 --node-id node-2 --yes

Exit codes: 0 nothing is left to do, 1 failed, something is left to decide, or (without --yes) to do, 2 wrong flag or value.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct StateArgs {
    #[command(subcommand)]
    pub command: StateCommand,
}

/// What to do with a state file.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Compare the state file with what lies in the pools. Changes nothing
    Check(DisksArgs),
    /// Mend a damaged state file: records that are lost are taken from beside the data. Changes nothing without --yes
    Repair(ChangeArgs),
    /// Make the state file from what lies in the pools, also if it is gone or older than that. Changes nothing without --yes
    Rebuild(ChangeArgs),
    /// Take over the volumes of a node that has another name now, or whose disk is in this machine now. Changes nothing without --yes
    AdoptNode(AdoptNodeArgs),
}

/// The disks of a driver, by the flags of `hostloop serve`.
#[derive(Debug, Clone, Args)]
pub struct DisksArgs {
    /// CSI driver name
    #[arg(long, env = "HOSTLOOP_DRIVER_NAME", value_name = "NAME", default_value = "hostloop.csi.dev")]
    #[arg(value_parser = Value(driver_name))]
    pub driver_name: String,

    /// CSI node id [default: the host name]
    #[arg(long, env = "NODE_ID", value_name = "ID", value_parser = Value(node_id))]
    pub node_id: Option<String>,

    /// Absolute path of the data directory [default: /var/lib/hostloop]
    #[arg(long, env = "HOSTLOOP_DATA_DIR", value_name = "DIR", value_parser = Value(absolute))]
    pub data_dir: Option<PathBuf>,

    /// A further pool, as hostloop serve has it. A pool that is left out is not looked at
    #[arg(long, env = "HOSTLOOP_POOLS", value_name = "NAME=PATH[,OPTION=VALUE]...")]
    #[arg(value_parser = Value(pool::pools))]
    pub pool: Vec<List<PoolArg>>,
}

/// A change of a state file.
#[derive(Debug, Clone, Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    pub disks: DisksArgs,

    /// Do it; without this flag, the command only says what it would do
    #[arg(long)]
    pub yes: bool,

    /// Record this volume or snapshot as the record beside its data says, although something contradicts it. Repeat the flag
    /// for more
    #[arg(long, value_name = "ID")]
    pub keep: Vec<String>,

    /// Record nothing of this volume or snapshot. Its files stay. Repeat the flag for more
    #[arg(long, value_name = "ID")]
    pub drop: Vec<String>,
}

/// Whose volumes are taken over.
#[derive(Debug, Clone, Args)]
pub struct AdoptNodeArgs {
    /// CSI node id that the volumes were on. --node-id is the one that has them from now on
    #[arg(long, value_name = "ID", value_parser = Value(node_id))]
    pub from: String,

    #[command(flatten)]
    pub change: ChangeArgs,
}
