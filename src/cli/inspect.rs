//! The command lines of those who look at a cluster: `hostloop volumes`, `volume`, `snapshots` and `nodes`. They change nothing.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::admin::object;
use super::value::{driver_name, every};
use super::wrong::Value;
use crate::server::Endpoint;

const AFTER_VOLUMES: &str = "\
USED is what the filesystem of the volume says while it is mounted. DISK is what is allocated on the disk of the pool; blocks that \
other volumes or snapshots have, too, are told apart if the filesystem of the pool does so. A figure that is not known is ?, and - \
if there is none. Besides the volumes of claims, -A shows those without one: inline volumes, copies of volumes that move or \
stand by, and what a moved volume has left.

HEALTH of a PersistentVolume of which no node has a volume is Missing. If its node did not answer, it is Unknown. No node is \
waited for longer than 5 seconds; each one that did not answer is named on standard error.

Examples:
  hostloop volumes
  hostloop volumes -A --sort-by disk
  hostloop volumes -A -o json | jq '.items[] | select(.health != \"Healthy\")'
  hostloop volumes -A --node node-1 --pool fast --watch --every 10
  hostloop volumes -A --endpoint unix:///run/hostloop/csi.sock

Exit codes: 0 printed, also if some nodes did not answer, 1 nothing can be asked, 2 wrong flag or value.";

const AFTER_VOLUME: &str = "\
NAME is a claim, a PersistentVolume or the CSI id of a volume.

Examples:
  hostloop volume data -n shop
  hostloop volume pvc-5f1c9d0e-6a43-4a51-9a8b-0d6f3b0b6f6a -o yaml

Exit codes: 0 printed, 1 there is no such volume, its node did not answer, or nothing can be asked, 2 wrong flag or value.";

const AFTER_SNAPSHOTS: &str = "\
DISK is what is allocated for the snapshot, with the blocks that it shares with its volume and with other snapshots. Besides \
VolumeSnapshots, -A shows checkpoints that a copy of a volume on another node needs.

Examples:
  hostloop snapshots
  hostloop snapshots -A --sort-by disk

Exit codes: 0 printed, also if some nodes did not answer, 1 nothing can be asked, 2 wrong flag or value.";

const AFTER_NODES: &str = "\
There is a line for each pool of a node. ROOM is the size of the largest volume that can be made. PROMISED is what volumes and \
snapshots may take in all, and OVERCOMMIT what may be promised for each byte. CERTIFICATE is the time until the certificate of \
the node ends, and LAST ANSWER the time since the node answered this controller.

Examples:
  hostloop nodes
  hostloop nodes -o wide --watch

Exit codes: 0 printed, also if some nodes did not answer, 1 nothing can be asked, 2 wrong flag or value.";

/// What administrators ask of the nodes of a cluster.
#[derive(Debug, Clone, Subcommand)]
pub enum InspectCommand {
    /// Show the volumes: where they are, what they take, who uses them and how they are
    #[command(after_help = AFTER_VOLUMES)]
    Volumes(VolumesArgs),
    /// Show all that is known of one volume
    #[command(after_help = AFTER_VOLUME)]
    Volume(VolumeArgs),
    /// Show the snapshots, and what they take
    #[command(after_help = AFTER_SNAPSHOTS)]
    Snapshots(SnapshotsArgs),
    /// Show the nodes and their pools: room, promises, versions and certificates
    #[command(after_help = AFTER_NODES)]
    Nodes(NodesArgs),
}

/// How the answer is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Columns for people
    #[default]
    Table,
    /// More columns
    Wide,
    /// One JSON document, sizes in bytes
    Json,
    /// One YAML document, sizes in bytes
    Yaml,
    /// Names only, as kubectl takes them
    Name,
}

/// The order of the lines. What is not known comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    /// Most allocated bytes first
    Disk,
    /// Most used bytes first
    Used,
    /// Largest first
    Size,
    /// By namespace and name
    Name,
    /// Youngest first
    Age,
}

/// Who is asked, and how.
#[derive(Debug, Clone, Default, Args)]
pub struct SourceArgs {
    /// Ask the process at this socket and no API server: a node answers for itself, a controller for all nodes
    #[arg(long, value_name = "ENDPOINT", value_parser = Value(str::parse::<Endpoint>))]
    #[arg(conflicts_with_all = ["kubeconfig", "context", "driver_namespace"])]
    pub endpoint: Option<Endpoint>,

    /// The kubeconfig file [default: $KUBECONFIG, then ~/.kube/config, then the service account of this pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// The driver whose volumes are meant
    #[arg(long, value_name = "NAME", default_value = "hostloop.csi.dev", value_parser = Value(driver_name))]
    pub driver_name: String,

    /// The namespace of the driver's controllers [default: they are looked for in all namespaces]
    #[arg(long, value_name = "NAMESPACE", value_parser = Value(object))]
    pub driver_namespace: Option<String>,
}

/// What is printed.
#[derive(Debug, Clone, Default, Args)]
pub struct ViewArgs {
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Output,

    /// Ask again and again, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,

    /// How long --watch waits between two answers
    #[arg(long, value_name = "SECONDS", default_value = "2", requires = "watch", value_parser = Value(every))]
    pub every: Duration,
}

/// Which claims are meant.
#[derive(Debug, Clone, Default, Args)]
pub struct ScopeArgs {
    /// The namespace of the claims [default: that of the kubeconfig's context; with --endpoint: all]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = Value(object))]
    pub namespace: Option<String>,

    /// All namespaces, and what is in none
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// Only what is on this node
    #[arg(long, value_name = "NODE", value_parser = Value(object))]
    pub node: Option<String>,

    /// Only what is in pools of this name
    #[arg(long, value_name = "POOL", value_parser = Value(super::admin::pool))]
    pub pool: Option<String>,

    /// The order of the lines [default: by namespace and name]
    #[arg(long, value_name = "COLUMN", value_enum)]
    pub sort_by: Option<SortBy>,
}

#[derive(Debug, Clone, Args)]
pub struct VolumesArgs {
    #[command(flatten)]
    pub scope: ScopeArgs,
    #[command(flatten)]
    pub view: ViewArgs,
    #[command(flatten)]
    pub source: SourceArgs,
}

#[derive(Debug, Clone, Args)]
pub struct SnapshotsArgs {
    #[command(flatten)]
    pub scope: ScopeArgs,
    #[command(flatten)]
    pub view: ViewArgs,
    #[command(flatten)]
    pub source: SourceArgs,
}

#[derive(Debug, Clone, Args)]
pub struct VolumeArgs {
    /// The claim, the PersistentVolume or the CSI id
    #[arg(value_name = "NAME")]
    pub name: String,

    /// The namespace of the claim [default: that of the kubeconfig's context; with --endpoint: any]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = Value(object))]
    pub namespace: Option<String>,

    #[command(flatten)]
    pub view: ViewArgs,
    #[command(flatten)]
    pub source: SourceArgs,
}

#[derive(Debug, Clone, Args)]
pub struct NodesArgs {
    #[command(flatten)]
    pub view: ViewArgs,
    #[command(flatten)]
    pub source: SourceArgs,
}

impl InspectCommand {
    pub fn source(&self) -> &SourceArgs {
        match self {
            InspectCommand::Volumes(args) => &args.source,
            InspectCommand::Volume(args) => &args.source,
            InspectCommand::Snapshots(args) => &args.source,
            InspectCommand::Nodes(args) => &args.source,
        }
    }

    pub fn view(&self) -> &ViewArgs {
        match self {
            InspectCommand::Volumes(args) => &args.view,
            InspectCommand::Volume(args) => &args.view,
            InspectCommand::Snapshots(args) => &args.view,
            InspectCommand::Nodes(args) => &args.view,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, parse};

    fn read(line: &str) -> Result<InspectCommand, clap::Error> {
        match parse(line.split(' ').map(OsString::from))?.0 {
            Command::Inspect(command) => Ok(command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_list_of_volumes_is_read() {
        let line = "kubectl-hostloop volumes -A -o wide --sort-by disk --watch --node node-1 --pool fast";
        let InspectCommand::Volumes(args) = read(line).unwrap() else { panic!("{line}") };
        assert!(args.scope.all_namespaces && args.view.watch);
        assert_eq!((args.view.output, args.scope.sort_by), (Output::Wide, Some(SortBy::Disk)));
        assert_eq!((args.scope.node.as_deref(), args.scope.pool.as_deref()), (Some("node-1"), Some("fast")));
        let InspectCommand::Volume(args) = read("hostloop volume data -n shop -o yaml").unwrap() else {
            panic!("volume")
        };
        assert_eq!((args.name.as_str(), args.namespace.as_deref()), ("data", Some("shop")));
    }

    #[test]
    fn pause_of_a_watch_is_read_in_seconds() {
        let view = |line: &str| read(line).unwrap().view().clone();
        assert_eq!(view("hostloop nodes --watch").every, Duration::from_secs(2));
        assert_eq!(view("hostloop nodes --watch --every 3600").every, Duration::from_secs(3600));
        for line in
            ["nodes --every 10", "nodes --watch --every 0", "nodes -w --every 3601", "nodes -w --every 1.5"]
        {
            assert_eq!(read(&format!("hostloop {line}")).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn a_socket_and_an_api_server_exclude_each_other() {
        assert!(read("hostloop nodes --endpoint unix:///run/hostloop/csi.sock").is_ok());
        for line in
            ["nodes --endpoint /run/x.sock --context a", "volumes -A -n shop", "volumes -o csv", "volume"]
        {
            let error = read(&format!("hostloop {line}")).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
