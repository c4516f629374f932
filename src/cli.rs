//! The command line: every flag as text, with its environment variable and its help. [`crate::config`] parses and checks
//! the text, so that a wrong value gives one line that names the flag.

mod certs;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use self::certs::{CertsArgs, CertsCommand, InitArgs, IssueArgs, RenewArgs, ShowArgs};

const AFTER_HELP: &str = "\
Sizes are bytes or a number with Ki, Mi, Gi, Ti, Pi (powers of 1024) or k, M, G, T, P (powers of 1000), such as 10Gi.
A flag overrides its environment variable.

Examples:
  hostloop serve --node-id node-1
  hostloop serve --data-dir /srv/hostloop --reserve 10% --pool fast=/mnt/nvme,reserve=20Gi,overcommit=2
  hostloop serve --pool copies=/var/lib/hostloop/copies.img,kind=image,size=200Gi,fs=xfs
  hostloop serve --role controller --peer node-1=10.0.0.1:9443 --peer node-2=10.0.0.2:9443
  hostloop selftest --only ext4 --only block

Exit codes: 0 stopped cleanly, 1 could not start or had to interrupt running calls, 2 wrong flag or value.";

/// A CSI driver that turns a directory on a node's disk into volumes with an enforced size.
#[derive(Debug, Parser)]
#[command(name = "hostloop", version, about, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
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
    /// Make and renew a CA and the certificates by which the processes of a cluster identify each other
    Certs(CertsArgs),
    /// Keep a filesystem frozen for the driver that starts this process, and thaw it whatever happens to the driver
    #[command(hide = true)]
    FreezeGuard(FreezeGuardArgs),
}

/// Flags of `hostloop serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where to serve: unix:///PATH.sock or an absolute path. For tests also tcp://127.0.0.1:PORT (or the IPv6 loopback
    /// address), which everybody on the machine can call
    #[arg(
        long,
        env = "CSI_ENDPOINT",
        value_name = "ENDPOINT",
        default_value = "unix:///run/hostloop/csi.sock"
    )]
    pub endpoint: String,

    /// Permissions of the socket, octal
    #[arg(long, env = "HOSTLOOP_SOCKET_MODE", value_name = "MODE", default_value = "0600")]
    pub socket_mode: String,

    /// What this process serves: all (Identity, Controller and Node for the volumes of this node), node (Identity and
    /// Node on the socket; on --peer-listen, only for controllers, Controller for the volumes of this node) or controller
    /// (Identity and Controller; sends each call to its node and has no volumes of its own)
    #[arg(long, env = "HOSTLOOP_ROLE", value_name = "ROLE", default_value = "all")]
    pub role: String,

    /// Role node: the address for controllers and other nodes, with mutual TLS [default: 0.0.0.0:9443]
    #[arg(long, env = "HOSTLOOP_PEER_LISTEN", value_name = "IP:PORT")]
    pub peer_listen: Option<String>,

    /// Roles node and controller: absolute path of the directory with ca.crt, tls.crt and tls.key, as in a
    /// Kubernetes TLS Secret [default: /etc/hostloop/tls]
    #[arg(long, env = "HOSTLOOP_TLS_DIR", value_name = "DIR")]
    pub tls_dir: Option<String>,

    /// Role controller: a node, and the address at which others reach its --peer-listen. Repeat the flag for more nodes;
    /// in the environment variable, separate them with ;
    #[arg(long, env = "HOSTLOOP_PEERS", value_name = "NODE_ID=HOST:PORT")]
    pub peer: Vec<String>,

    /// Role controller in Kubernetes: the headless Service whose EndpointSlices list the pods of the nodes, with a
    /// port named `peer`; instead of --peer
    #[arg(long, env = "HOSTLOOP_PEER_SERVICE", value_name = "NAMESPACE/NAME")]
    pub peer_service: Option<String>,

    /// Role controller: this node is gone for good. Deleting its volumes and snapshots succeeds once the node is no
    /// longer part of the cluster. Repeat the flag for more nodes; in the environment variable, separate them with ;
    #[arg(long, env = "HOSTLOOP_FORGET_NODES", value_name = "NODE_ID")]
    pub forget_node: Vec<String>,

    /// CSI driver name, the `provisioner` of StorageClasses. Two drivers in a cluster need two names
    #[arg(long, env = "HOSTLOOP_DRIVER_NAME", value_name = "NAME", default_value = "hostloop.csi.dev")]
    pub driver_name: String,

    /// CSI node id and topology value, at most 63 characters. In Kubernetes, set NODE_ID from spec.nodeName, because a
    /// pod has a host name of its own [default: the host name]
    #[arg(long, env = "NODE_ID", value_name = "ID")]
    pub node_id: Option<String>,

    /// Absolute path of the directory of the state file and the pool `default`; created with mode 0700 if it is missing.
    /// Only one process can use it at a time [default: /var/lib/hostloop]
    #[arg(long, env = "HOSTLOOP_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<String>,

    /// Directory of a file which says that --data-dir is in use, so that a start stops if its disk is not mounted. It must
    /// exist even then [default: the directory of --endpoint, or, if that is empty after a reboot, beside the data
    /// directory's mount point]
    #[arg(long, env = "HOSTLOOP_ANCHOR_DIR", value_name = "DIR")]
    pub anchor_dir: Option<String>,

    /// A further pool, which StorageClasses choose with the parameter `pool`: name, absolute path (without , and ;) and
    /// options. The path is an existing directory; with kind=image, an image file in which hostloop makes and mounts a
    /// filesystem of its own (size=SIZE, fs=xfs or btrfs); with kind=device, a blank block device for the same.
    /// reserve=auto|SIZE|PERCENT% and overcommit=RATIO override --reserve and --overcommit. directories=true makes it a
    /// pool for directory volumes, which have no enforced size, and for nothing else; its filesystem must not be that of
    /// a pool with other volumes. Repeat the flag for more pools; in the environment variable, separate them with ;
    #[arg(long, env = "HOSTLOOP_POOLS", value_name = "NAME=PATH[,OPTION=VALUE]...")]
    pub pool: Vec<String>,

    /// What volumes leave free in a pool's filesystem: a size, a part of the filesystem such as 10%, or auto. auto is 20%
    /// if kubelet's directory is on the same filesystem, so that full volumes do not cause kubelet to evict pods;
    /// otherwise 1%, at most 1Gi; and nothing in a filesystem of hostloop's own [default: auto]
    #[arg(long, env = "HOSTLOOP_RESERVE", value_name = "auto|SIZE|PERCENT%")]
    pub reserve: Option<String>,

    /// Bytes of thin volumes promised for each byte of space, 1.0 to 1000 [default: 1.0]
    #[arg(long, env = "HOSTLOOP_OVERCOMMIT", value_name = "RATIO")]
    pub overcommit: Option<String>,

    /// Use the pool `default` for directory volumes, which have no enforced size, and for nothing else
    #[arg(long, env = "HOSTLOOP_DIRECTORIES", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub directories: String,

    /// Also serve ControllerPublishVolume, for clusters whose CSIDriver object says attachRequired: true
    #[arg(long, env = "HOSTLOOP_ATTACH", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub attach: String,

    /// The most volumes attached to this node at a time; 0 for no limit [default: 0]
    #[arg(long, env = "HOSTLOOP_MAX_VOLUMES_PER_NODE", value_name = "NUMBER")]
    pub max_volumes_per_node: Option<String>,

    /// The largest size of a volume, at least 1Mi [default: 1Ti]
    #[arg(long, env = "HOSTLOOP_MAX_VOLUME_SIZE", value_name = "SIZE")]
    pub max_volume_size: Option<String>,

    /// The largest inline ephemeral volume, at least 1Mi. Everybody who may create a pod can ask for one [default: 10Gi]
    #[arg(long, env = "HOSTLOOP_INLINE_MAX_SIZE", value_name = "SIZE")]
    pub inline_max_size: Option<String>,

    /// The pools that inline ephemeral volumes may be in, separated by , [default: default]
    #[arg(long, env = "HOSTLOOP_INLINE_POOLS", value_name = "NAME[,NAME]...")]
    pub inline_pools: Option<String>,

    /// The backends that inline ephemeral volumes may have, separated by , : loop, whose size is enforced, and directory,
    /// whose size is not [default: loop]
    #[arg(long, env = "HOSTLOOP_INLINE_BACKENDS", value_name = "BACKEND[,BACKEND]...")]
    pub inline_backends: Option<String>,

    /// kubelet's directory, such as /var/lib/kubelet. If set, staging and target paths must be below it
    #[arg(long, env = "HOSTLOOP_KUBELET_DIR", value_name = "DIR")]
    pub kubelet_dir: Option<String>,

    /// Log messages of this level and above: error, warn, info, debug or trace. Logs go to stderr
    #[arg(long, env = "HOSTLOOP_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,

    /// Format of the log: text, or json with one object per line
    #[arg(long, env = "HOSTLOOP_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: String,

    /// How long running calls may take after SIGTERM, in seconds. Keep it below the pod's terminationGracePeriodSeconds
    #[arg(long, env = "HOSTLOOP_SHUTDOWN_TIMEOUT", value_name = "SECONDS", default_value = "25")]
    pub shutdown_timeout: String,

    /// Flags for operating it.
    #[command(flatten)]
    pub operation: OperationArgs,
}

/// Flags of `hostloop serve` for operating it: metrics, health, limits, registration with kubelet.
#[derive(Debug, Args)]
pub struct OperationArgs {
    /// Serve /metrics (Prometheus), and /healthz and /readyz like --health-listen, over HTTP at this address, such as
    /// 0.0.0.0:9100. There is no TLS, and everybody who can reach the address can read them [default: off]
    #[arg(long, env = "HOSTLOOP_METRICS_LISTEN", value_name = "IP:PORT")]
    pub metrics_listen: Option<String>,

    /// Serve /healthz (the process is alive) and /readyz (callers are served) over HTTP at this address, such as
    /// 0.0.0.0:9810, for kubelet's probes. Those who can reach only the metrics cannot block the probes here [default: off]
    #[arg(long, env = "HOSTLOOP_HEALTH_LISTEN", value_name = "IP:PORT")]
    pub health_listen: Option<String>,

    /// The most copies at a time: snapshots, restores, clones and cuts for other nodes. Further ones wait, and then have
    /// to try again (ABORTED) [default: 16]
    #[arg(long, env = "HOSTLOOP_MAX_COPIES", value_name = "NUMBER")]
    pub max_copies: Option<String>,

    /// The most streams at a time: data for other nodes, and changed blocks for backup programs. One caller gets at most
    /// half of them. Further ones have to try again (ABORTED) [default: 16]
    #[arg(long, env = "HOSTLOOP_MAX_STREAMS", value_name = "NUMBER")]
    pub max_streams: Option<String>,

    /// Bytes per second that all other nodes together may pull from this one, such as 100Mi; 0 for no limit [default: 0]
    #[arg(long, env = "HOSTLOOP_STREAM_RATE", value_name = "SIZE")]
    pub stream_rate: Option<String>,

    /// Register with kubelet, instead of node-driver-registrar
    #[arg(long, env = "HOSTLOOP_REGISTER", value_name = "true|false", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub register: String,

    /// With --register: the directory in which kubelet looks for plugins
    #[arg(
        long,
        env = "HOSTLOOP_REGISTRATION_DIR",
        value_name = "DIR",
        default_value = "/var/lib/kubelet/plugins_registry"
    )]
    pub registration_dir: String,

    /// With --register: the path of the driver's socket as kubelet sees it, if it differs from the path in this container
    /// [default: the path of --endpoint]
    #[arg(long, env = "HOSTLOOP_KUBELET_ENDPOINT", value_name = "PATH")]
    pub kubelet_endpoint: Option<String>,
}

/// Flags of `hostloop selftest`.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Directory to work in. selftest creates a new directory in it and removes that at the end
    #[arg(long, env = "TMPDIR", value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,

    /// Size of the volumes, at least 300Mi for xfs
    #[arg(long, value_name = "SIZE", default_value = "512Mi")]
    pub size: String,

    /// Check only this: ext4, xfs, btrfs, block or directory. Repeat the flag for more [default: all]
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
}

/// Flags of `hostloop freeze-guard`, which only the driver itself gives.
#[derive(Debug, Args)]
pub struct FreezeGuardArgs {
    /// How long the filesystem may stay frozen, in milliseconds
    #[arg(long, value_name = "MILLISECONDS")]
    pub limit_ms: u64,
}

/// What to print for an error of the command line: one line for a wrong value, `None` for an unknown flag, where clap's
/// own answer helps more because it names similar ones.
pub fn one_line(error: &clap::Error) -> Option<String> {
    use clap::error::ErrorKind as Kind;
    let about_a_value = matches!(
        error.kind(),
        Kind::InvalidValue
            | Kind::ValueValidation
            | Kind::InvalidUtf8
            | Kind::NoEquals
            | Kind::TooManyValues
            | Kind::TooFewValues
            | Kind::WrongNumberOfValues
            | Kind::ArgumentConflict
    );
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    about_a_value.then(|| format!("hostloop: {first}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn only_the_endpoint_has_a_variable_of_csi() {
        use clap::CommandFactory;
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
        use clap::CommandFactory;
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("selftest") && !help.contains("freeze"), "{help}");
        let cli = Cli::try_parse_from(["hostloop", "freeze-guard", "--limit-ms", "250"]).unwrap();
        assert!(matches!(cli.command, Command::FreezeGuard(FreezeGuardArgs { limit_ms: 250 })));
    }

    #[test]
    fn a_missing_value_is_one_line_and_an_unknown_flag_is_not_cut() {
        let error = |words: &[&str]| Cli::try_parse_from(words).unwrap_err();
        let line = one_line(&error(&["hostloop", "serve", "--node-id"])).unwrap();
        assert!(line.contains("--node-id") && !line.contains('\n'), "{line}");
        assert_eq!(one_line(&error(&["hostloop", "serve", "--nodeid", "x"])), None);
    }
}
