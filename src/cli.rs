//! The command line: every flag, declared once, with its environment variable, its help and the function that reads
//! its value. What several flags mean together is [`crate::config`]'s.

mod admin;
mod adopt;
mod bench;
mod bundle;
mod certs;
mod completions;
mod doctor;
mod inspect;
mod peer;
mod pool;
mod selftest;
mod state;
mod value;
mod wrong;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};

pub use self::admin::{AdminCommand, ClusterArgs, EvacuateArgs, MoveArgs, PromoteArgs, StatusArgs, parse};
pub use self::adopt::AdoptArgs;
pub use self::bench::{BenchArgs, Candidate};
pub use self::bundle::BundleArgs;
pub(crate) use self::certs::{CertsArgs, CertsCommand, InitArgs, IssueArgs};
pub use self::completions::{CompletionsArgs, completions};
pub use self::doctor::{Class, DoctorArgs};
pub use self::inspect::{
    InspectCommand, NodesArgs, Output, ScopeArgs, SnapshotsArgs, SortBy, SourceArgs, ViewArgs, VolumeArgs,
    VolumesArgs,
};
pub use self::peer::StaticPeer;
pub(crate) use self::pool::PoolArg;
pub use self::selftest::{Check, SelftestArgs};
pub use self::state::{AdoptNodeArgs, ChangeArgs, DisksArgs, StateArgs, StateCommand};
use self::value::*;
pub(crate) use self::value::{RoleName, absolute};
use self::wrong::Value;
pub use self::wrong::{ConfigError, one_line};
use crate::model::{BackendKind, MoveLimits, QuotaIds, Reserve};
use crate::server::Endpoint;
use crate::telemetry::{LogFormat, LogLevel};
use crate::version;

const AFTER_HELP: &str = "\
Sizes are bytes or a number with Ki, Mi, Gi, Ti, Pi (powers of 1024) or k, M, G, T, P (powers of 1000), such as 10Gi.
A flag overrides its environment variable.

Examples:
  hostloop serve --node-id node-1
  hostloop serve --data-dir /srv/hostloop --reserve 10% --pool fast=/mnt/nvme,reserve=20Gi,overcommit=2
  hostloop serve --pool copies=/var/lib/hostloop/copies.img,kind=image,size=200Gi,fs=xfs
  hostloop serve --role controller --peer node-1=10.0.0.1:9443 --peer node-2=10.0.0.2:9443
  hostloop selftest --only ext4 --only block
  hostloop bench --dir /var/lib/hostloop
  hostloop move data --to node-2

Exit codes: 0 stopped cleanly, 1 could not start or had to interrupt running calls, 2 wrong flag or value.";

/// A CSI driver that turns a directory on a node's disk into volumes with an enforced size.
#[derive(Debug, Parser)]
#[command(name = "hostloop", version = version::long(), about, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What the process is to do.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one value of it, once")]
pub enum Command {
    /// Serve CSI on a socket until SIGTERM or SIGINT
    #[command(after_help = AFTER_HELP)]
    Serve(ServeArgs),
    /// Check, as root, that this machine can create, mount, fill and remove volumes of every kind
    Selftest(SelftestArgs),
    /// Measure what a volume of each kind gives of the disk's speed, or how fast the RPCs of a CSI driver are
    Bench(BenchArgs),
    /// Compare the state file of this node with its volumes, and make a lost or damaged one anew
    State(StateArgs),
    /// Make and renew a CA and the certificates by which the processes of a cluster identify each other
    Certs(CertsArgs),
    #[command(flatten)]
    Inspect(InspectCommand),
    /// Find what is left over, half made, stale or lost on the nodes, and put it right
    #[command(after_help = doctor::AFTER_DOCTOR)]
    Doctor(DoctorArgs),
    /// Collect what is needed to look into a problem, in one archive without secrets
    #[command(after_help = bundle::AFTER_BUNDLE)]
    SupportBundle(BundleArgs),
    #[command(flatten)]
    Admin(AdminCommand),
    /// Make a volume of an image file, of a directory, or of a claim of another driver
    #[command(after_help = adopt::AFTER_ADOPT)]
    Adopt(AdoptArgs),
    /// Print the script with which a shell completes commands and flags
    #[command(after_help = completions::AFTER)]
    Completions(CompletionsArgs),
    /// Keep a filesystem frozen for the driver that starts this process, and thaw it whatever happens to the driver
    #[command(hide = true)]
    FreezeGuard(FreezeGuardArgs),
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where to serve: unix:///PATH.sock or an absolute path. For tests also tcp://127.0.0.1:PORT (or the IPv6 loopback
    /// address), which everybody on the machine can call
    #[arg(long, env = "CSI_ENDPOINT", value_name = "ENDPOINT", value_parser = Value(str::parse::<Endpoint>))]
    #[arg(default_value = "unix:///run/hostloop/csi.sock")]
    pub endpoint: Endpoint,

    /// Permissions of the socket, octal
    #[arg(long, env = "HOSTLOOP_SOCKET_MODE", value_name = "MODE", default_value = "0600")]
    #[arg(value_parser = Value(socket_mode))]
    pub socket_mode: u32,

    /// What this process serves: all (Identity, Controller and Node for the volumes of this node), node (Identity and
    /// Node on the socket; on --peer-listen, only for controllers, Controller for the volumes of this node) or controller
    /// (Identity and Controller; sends each call to its node and has no volumes of its own)
    #[arg(long, env = "HOSTLOOP_ROLE", value_name = "ROLE", default_value = "all")]
    #[arg(value_parser = Value(role))]
    pub role: RoleName,

    /// Role node: the address for controllers and other nodes, with mutual TLS [default: 0.0.0.0:9443]
    #[arg(long, env = "HOSTLOOP_PEER_LISTEN", value_name = "IP:PORT", value_parser = Value(address(9443)))]
    pub peer_listen: Option<SocketAddr>,

    /// Roles node and controller: absolute path of the directory with ca.crt, tls.crt and tls.key, as in a
    /// Kubernetes TLS Secret [default: /etc/hostloop/tls]
    #[arg(long, env = "HOSTLOOP_TLS_DIR", value_name = "DIR", value_parser = Value(absolute))]
    pub tls_dir: Option<PathBuf>,

    /// Role controller: a node, and the address at which others reach its --peer-listen. Repeat the flag for more nodes;
    /// in the environment variable, separate them with ;
    #[arg(long, env = "HOSTLOOP_PEERS", value_name = "NODE_ID=HOST:PORT", value_parser = Value(peer::peers))]
    pub peer: Vec<List<StaticPeer>>,

    /// Role controller in Kubernetes: the headless Service whose EndpointSlices list the pods of the nodes, with a
    /// port named `peer`; instead of --peer
    #[arg(long, env = "HOSTLOOP_PEER_SERVICE", value_name = "NAMESPACE/NAME")]
    #[arg(value_parser = Value(peer::service))]
    pub peer_service: Option<(String, String)>,

    /// Role controller: this node is gone for good. Deleting its volumes and snapshots succeeds once the node is no
    /// longer part of the cluster. Repeat the flag for more nodes; in the environment variable, separate them with ;
    #[arg(long, env = "HOSTLOOP_FORGET_NODES", value_name = "NODE_ID", value_parser = Value(node_ids))]
    pub forget_node: Vec<List<String>>,

    /// Role controller: an address of the loopback interface at which `hostloop volumes` and the like ask what is on the nodes,
    /// through the API server (pods/portforward). Others than the processes of this pod do not reach it
    #[arg(long, env = "HOSTLOOP_INSPECT_LISTEN", value_name = "IP:PORT", value_parser = Value(maybe(loopback)))]
    pub inspect_listen: Option<Maybe<SocketAddr>>,

    /// Role controller: let --inspect-listen also move snapshots, and have nodes put right what `hostloop doctor --fix` names. A user
    /// who may forward ports to the pods of the controllers can then have volumes deleted that nothing uses
    #[arg(long, env = "HOSTLOOP_INSPECT_FIX", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = ArgAction::Set, value_parser = Value(truth))]
    pub inspect_fix: bool,

    /// Role controller in Kubernetes, with --peer-service: also move volumes as VolumeMoves ask, and keep standby copies. Of
    /// several controllers one does so, by a Lease in the Service's namespace
    #[arg(long = "move", env = "HOSTLOOP_MOVE", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = ArgAction::Set, value_parser = Value(truth))]
    pub moves: bool,

    /// Role controller, with --move: how many copies there may be: in all, for the claims of one namespace, on one node, and
    /// the sizes of the volumes that have a copy on one node. What is left out keeps its default: all=1000,namespace=100,
    /// node=200 and no limit for the sizes. For example all=2000,node-size=2Ti
    #[arg(long, env = "HOSTLOOP_MOVE_LIMITS", value_name = "NAME=VALUE,...")]
    #[arg(value_parser = Value(maybe(MoveLimits::parse)))]
    pub move_limits: Option<Maybe<MoveLimits>>,

    /// Role controller in Kubernetes, with --peer-service: also write Events on claims whose volumes are not healthy, or whose pool is
    /// nearly full. Of several controllers one does so, by a Lease in the Service's namespace
    #[arg(long, env = "HOSTLOOP_EVENTS", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = ArgAction::Set, value_parser = Value(truth))]
    pub events: bool,

    /// CSI driver name, the `provisioner` of StorageClasses. Two drivers in a cluster need two names
    #[arg(long, env = "HOSTLOOP_DRIVER_NAME", value_name = "NAME", default_value = "hostloop.csi.dev")]
    #[arg(value_parser = Value(driver_name))]
    pub driver_name: String,

    /// CSI node id and topology value, at most 63 characters. In Kubernetes, set NODE_ID from spec.nodeName, because a
    /// pod has a host name of its own [default: the host name]
    #[arg(long, env = "NODE_ID", value_name = "ID", value_parser = Value(node_id))]
    pub node_id: Option<String>,

    /// Absolute path of the directory of the state file and the pool `default`; created with mode 0700 if it is missing.
    /// Only one process can use it at a time [default: /var/lib/hostloop]
    #[arg(long, env = "HOSTLOOP_DATA_DIR", value_name = "DIR", value_parser = Value(absolute))]
    pub data_dir: Option<PathBuf>,

    /// Directory of a file which says that --data-dir is in use, so that a start stops if its disk is not mounted. It must
    /// exist even then [default: the directory of --endpoint, or, if that is empty after a reboot, beside the data
    /// directory's mount point]
    #[arg(long, env = "HOSTLOOP_ANCHOR_DIR", value_name = "DIR", value_parser = Value(maybe(absolute)))]
    pub anchor_dir: Option<Maybe<PathBuf>>,

    /// A further pool, which StorageClasses choose with the parameter `pool`: name, absolute path (without , and ;) and
    /// options. The path is an existing directory; with kind=image, an image file in which hostloop makes and mounts a
    /// filesystem of its own (size=SIZE, fs=xfs or btrfs); with kind=device, a blank block device for the same.
    /// reserve=auto|SIZE|PERCENT% and overcommit=RATIO override --reserve and --overcommit. directories=true makes it a
    /// pool for directory volumes without an enforced size, and for nothing else; its filesystem must not be that of
    /// a pool with other volumes. Repeat the flag for more pools; in the environment variable, separate them with ;
    #[arg(long, env = "HOSTLOOP_POOLS", value_name = "NAME=PATH[,OPTION=VALUE]...")]
    #[arg(value_parser = Value(pool::pools))]
    pub pool: Vec<List<PoolArg>>,

    /// What volumes leave free in a pool's filesystem: a size, a part of the filesystem such as 10%, or auto. auto is 20%
    /// if kubelet's directory is on the same filesystem, so that full volumes do not cause kubelet to evict pods;
    /// otherwise 1%, at most 1Gi; and nothing in a filesystem of hostloop's own [default: auto]
    #[arg(long, env = "HOSTLOOP_RESERVE", value_name = "auto|SIZE|PERCENT%")]
    #[arg(value_parser = Value(pool::reserve))]
    pub reserve: Option<Reserve>,

    /// Bytes of thin volumes promised for each byte of space, 1.0 to 1000 [default: 1.0]
    #[arg(long, env = "HOSTLOOP_OVERCOMMIT", value_name = "RATIO", value_parser = Value(pool::overcommit))]
    pub overcommit: Option<f64>,

    /// Use the pool `default` for directory volumes without an enforced size, and for nothing else
    #[arg(long, env = "HOSTLOOP_DIRECTORIES", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = ArgAction::Set, value_parser = Value(truth))]
    pub directories: bool,

    /// Also serve ControllerPublishVolume, for clusters whose CSIDriver object says attachRequired: true
    #[arg(long, env = "HOSTLOOP_ATTACH", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = ArgAction::Set, value_parser = Value(truth))]
    pub attach: bool,

    /// The most volumes attached to this node at a time; 0 for no limit [default: 0]
    #[arg(long, env = "HOSTLOOP_MAX_VOLUMES_PER_NODE", value_name = "NUMBER")]
    #[arg(value_parser = Value(max_volumes))]
    pub max_volumes_per_node: Option<u32>,

    /// The largest size of a volume, at least 1Mi [default: no limit but the room in the pool]
    #[arg(long, env = "HOSTLOOP_MAX_VOLUME_SIZE", value_name = "SIZE", value_parser = Value(largest))]
    pub max_volume_size: Option<u64>,

    /// The largest inline ephemeral volume, at least 1Mi. Everybody who may create a pod can ask for one [default: 10Gi]
    #[arg(long, env = "HOSTLOOP_INLINE_MAX_SIZE", value_name = "SIZE", value_parser = Value(maybe(largest)))]
    pub inline_max_size: Option<Maybe<u64>>,

    /// The pools that inline ephemeral volumes may be in, separated by , [default: default]
    #[arg(long, env = "HOSTLOOP_INLINE_POOLS", value_name = "NAME[,NAME]...", value_parser = Value(names))]
    pub inline_pools: Option<List<String>>,

    /// The backends that inline ephemeral volumes may have, separated by , : loop, whose size is enforced, and directory,
    /// whose size is not [default: loop]
    #[arg(long, env = "HOSTLOOP_INLINE_BACKENDS", value_name = "BACKEND[,BACKEND]...")]
    #[arg(value_parser = Value(backends))]
    pub inline_backends: Option<List<BackendKind>>,

    /// The numbers that directories with an enforced size get on their filesystem: project ids of xfs and ext4, qgroups of
    /// level 1 on btrfs. Neither 0 nor those of kubelet's own quotas, which begin at 1048577. A number that is in
    /// use is passed over. If nodes share a filesystem (kind), give each a range of its own. Volumes keep the numbers that
    /// they have [default: 1073741824-2147483647]
    #[arg(long, env = "HOSTLOOP_QUOTA_IDS", value_name = "FIRST-LAST")]
    #[arg(value_parser = Value(maybe(str::parse::<QuotaIds>)))]
    pub quota_ids: Option<Maybe<QuotaIds>>,

    /// Directories of this node below which `hostloop adopt` may take an image file or a directory to make a volume of it,
    /// separated by ; and as this process sees them. Whoever may call this socket, or a controller, can have that done
    /// [default: none, and nothing is adopted]
    #[arg(long, env = "HOSTLOOP_ADOPT_FROM", value_name = "DIR[;DIR]...", value_parser = Value(directories))]
    pub adopt_from: Vec<List<PathBuf>>,

    /// kubelet's directory, such as /var/lib/kubelet. If set, staging and target paths must be below it
    #[arg(long, env = "HOSTLOOP_KUBELET_DIR", value_name = "DIR", value_parser = Value(maybe(absolute)))]
    pub kubelet_dir: Option<Maybe<PathBuf>>,

    /// Log messages of this level and above: error, warn, info, debug or trace. Logs go to stderr
    #[arg(long, env = "HOSTLOOP_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    #[arg(value_parser = Value(log_level))]
    pub log_level: LogLevel,

    /// Format of the log: text, or json with one object per line
    #[arg(long, env = "HOSTLOOP_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    #[arg(value_parser = Value(log_format))]
    pub log_format: LogFormat,

    /// How long running calls may take after SIGTERM, in seconds. Keep it below the pod's terminationGracePeriodSeconds
    #[arg(long, env = "HOSTLOOP_SHUTDOWN_TIMEOUT", value_name = "SECONDS", default_value = "25")]
    #[arg(value_parser = Value(shutdown_timeout))]
    pub shutdown_timeout: Duration,

    #[command(flatten)]
    pub operation: OperationArgs,
}

/// Flags of `hostloop serve` for operating it: metrics, health, limits, registration with kubelet.
#[derive(Debug, Args)]
pub struct OperationArgs {
    /// Serve /metrics (Prometheus), and /healthz and /readyz like --health-listen, over HTTP at this address, such as
    /// 0.0.0.0:9100. There is no TLS, and everybody who can reach the address can read them [default: off]
    #[arg(long, env = "HOSTLOOP_METRICS_LISTEN", value_name = "IP:PORT")]
    #[arg(value_parser = Value(maybe(address(9808))))]
    pub metrics_listen: Option<Maybe<SocketAddr>>,

    /// With --metrics-listen: the most volumes for which there are metrics of each one, with the name of its claim. A node with more
    /// volumes has none of these metrics; 0 turns them off [default: 1000]
    #[arg(long, env = "HOSTLOOP_VOLUME_METRICS", value_name = "NUMBER", value_parser = Value(maybe(volumes_shown)))]
    pub volume_metrics: Option<Maybe<usize>>,

    /// Serve /healthz (the process is alive) and /readyz (callers are served) over HTTP at this address, such as
    /// 0.0.0.0:9810, for kubelet's probes. Those who can reach only the metrics cannot block the probes here [default: off]
    #[arg(long, env = "HOSTLOOP_HEALTH_LISTEN", value_name = "IP:PORT")]
    #[arg(value_parser = Value(maybe(address(9808))))]
    pub health_listen: Option<Maybe<SocketAddr>>,

    /// The most copies at a time: snapshots, restores, clones and cuts for other nodes. Further ones wait, and then have
    /// to try again (ABORTED) [default: 16]
    #[arg(long, env = "HOSTLOOP_MAX_COPIES", value_name = "NUMBER", value_parser = Value(maybe(at_a_time)))]
    pub max_copies: Option<Maybe<usize>>,

    /// The most streams at a time: data for other nodes, and changed blocks for backup programs. One caller gets at most
    /// half of them. Further ones have to try again (ABORTED) [default: 16]
    #[arg(long, env = "HOSTLOOP_MAX_STREAMS", value_name = "NUMBER", value_parser = Value(maybe(at_a_time)))]
    pub max_streams: Option<Maybe<usize>>,

    /// Bytes per second that all other nodes together may pull from this one, such as 100Mi; 0 for no limit [default: 0]
    #[arg(long, env = "HOSTLOOP_STREAM_RATE", value_name = "SIZE", value_parser = Value(rate))]
    pub stream_rate: Option<Maybe<u64>>,

    /// Register with kubelet, instead of node-driver-registrar
    #[arg(long, env = "HOSTLOOP_REGISTER", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = ArgAction::Set, value_parser = Value(truth))]
    pub register: bool,

    /// With --register: the directory in which kubelet looks for plugins
    #[arg(long, env = "HOSTLOOP_REGISTRATION_DIR", value_name = "DIR")]
    #[arg(default_value = "/var/lib/kubelet/plugins_registry")]
    pub registration_dir: String,

    /// With --register: the path of the driver's socket as kubelet sees it, if it differs from the path in this container
    /// [default: the path of --endpoint]
    #[arg(long, env = "HOSTLOOP_KUBELET_ENDPOINT", value_name = "PATH")]
    pub kubelet_endpoint: Option<String>,
}

/// Flags of `hostloop freeze-guard`, which only the driver itself gives.
#[derive(Debug, Args)]
pub struct FreezeGuardArgs {
    /// How long the filesystem may stay frozen, in milliseconds
    #[arg(long, value_name = "MILLISECONDS")]
    pub limit_ms: u64,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_endpoint_alone_has_a_variable_of_csi() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let names: Vec<_> = serve
            .get_arguments()
            .filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"))
            .map(|arg| arg.get_env().expect("every flag has a variable").to_str().unwrap())
            .collect();
        assert_eq!(
            names.iter().filter(|name| name.starts_with("CSI_")).collect::<Vec<_>>(),
            [&"CSI_ENDPOINT"]
        );
    }

    #[test]
    fn the_helpers_subcommand_is_not_shown() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("selftest") && !help.contains("freeze"), "{help}");
        let cli = Cli::try_parse_from(["hostloop", "freeze-guard", "--limit-ms", "250"]).unwrap();
        assert!(matches!(cli.command, Command::FreezeGuard(FreezeGuardArgs { limit_ms: 250 })));
    }

    #[test]
    fn a_missing_value_is_told_in_one_line() {
        let error = |words: &[&str]| Cli::try_parse_from(words).unwrap_err();
        let line = one_line(&error(&["hostloop", "serve", "--node-id"])).unwrap();
        assert!(line.contains("--node-id") && !line.contains('\n'), "{line}");
        assert_eq!(one_line(&error(&["hostloop", "serve", "--nodeid", "x"])), None);
    }
}
