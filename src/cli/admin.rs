//! The command lines of those who administer a cluster: `hostloop move`, `evacuate`, `status` and `promote`, which are also
//! those of the kubectl plug-in.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use super::adopt::{AFTER_ADOPT, AdoptArgs};
use super::bundle::{AFTER_BUNDLE, BundleArgs};
use super::doctor::{AFTER_DOCTOR, DoctorArgs};
use super::inspect::InspectCommand;
use super::value::{driver_name, truth};
use super::wrong::Value;
use super::{Cli, Command};
use crate::model::PoolName;
use crate::version;

/// The name of the binary by which kubectl finds it as a plug-in.
const PLUGIN: &str = "kubectl-hostloop";
/// How its users call it.
const AS_PLUGIN: &str = "kubectl hostloop";

const AFTER_MOVE: &str = "\
A VolumeMove is created for each claim. The volume is copied while pods use it, and changes its node when they have left: \
drain the node or delete the pods, or let --now evict them. Ctrl-C ends only this command, not the move. The same command \
again follows it further. A VolumeMove cannot change: to move a claim in another way, give its move up first. A refused one is \
looked at again every 30 seconds until it is given up.

Examples:
  hostloop move data --to node-2
  hostloop move -n shop db-0 db-1 --to any --now
  hostloop move data --to node-2 --wait=false && kubectl delete pod app-0
  hostloop move data --cancel

Exit codes: 0 every volume is where it was to be (with --wait=false: or its copy is ready; with --cancel: the move is given \
up), 1 refused, given up, failed or interrupted, 2 wrong flag or value.";

const AFTER_EVACUATE: &str = "\
Every volume of the driver on the node gets a copy on another one. Without --now the command ends when all copies are ready: \
then drain the node, and each volume changes its node when its pods have left. evacuate does not cordon the node. \
Ctrl-C ends only this command; the same command again follows the moves further. Volumes that are refused are listed at the \
end; the others are moved. Snapshots stay on the node, unless --with-snapshots moves them too: their VolumeSnapshots stay what they \
are. A group of snapshots moves as a whole.

Examples:
  kubectl cordon node-1
  hostloop evacuate node-1 && kubectl drain node-1 --ignore-daemonsets --delete-emptydir-data
  hostloop evacuate node-1 --to node-2 --now
  hostloop evacuate node-1 --with-snapshots --now
  hostloop evacuate node-1 --cancel

Exit codes: 0 all copies are ready (with --now: no volume is on the node any more; with --with-snapshots: and no snapshot; with \
--cancel: all moves are given up), 1 some were refused, given up or failed, or the command was interrupted, 2 wrong flag or value.";

const AFTER_STATUS: &str = "\
It says the same as `kubectl get volumemoves,volumereplicas`: a line for each VolumeMove, and for each VolumeReplica without \
one, such as a standby copy. LAST PASS is the age of the copy: what was written in this time may not be in it yet. A copy that \
is older than three intervals is late.

Examples:
  hostloop status
  hostloop status -A
  hostloop status -A --json | jq 'select(.phase == \"Refused\")'

Exit codes: 0 printed, 1 the API server did not answer or refused, 2 wrong flag or value.";

const AFTER_PROMOTE: &str = "\
A claim gets its standby copy as its volume, although the node of the volume is lost. What was written after the last pass \
is lost. Without --yes the command only says what would be lost.

Examples:
  hostloop promote data
  hostloop promote -n shop db-0 db-1 --yes

Exit codes: 0 the claims have their copies, 1 no copy, refused, failed or interrupted, 2 wrong flag or value, or --yes was \
missing.";

/// What administrators do with the volumes of a cluster.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Move the volumes of claims to another node while pods use them
    #[command(after_help = AFTER_MOVE)]
    Move(MoveArgs),
    /// Move all volumes of a node to other nodes, ahead of kubectl drain
    #[command(after_help = AFTER_EVACUATE)]
    Evacuate(EvacuateArgs),
    /// Show the moves of a cluster and the standby copies
    #[command(after_help = AFTER_STATUS)]
    Status(StatusArgs),
    /// Let claims go on with their standby copies, because their node is lost
    #[command(after_help = AFTER_PROMOTE)]
    Promote(PromoteArgs),
}

/// Which cluster, and how its state is shown.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// The kubeconfig file [default: $KUBECONFIG, then ~/.kube/config, then the service account of this pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// The driver whose volumes are meant
    #[arg(long, value_name = "NAME", default_value = "hostloop.csi.dev", value_parser = Value(driver_name))]
    pub driver_name: String,

    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct MoveArgs {
    /// Names of PersistentVolumeClaims
    #[arg(value_name = "CLAIM", required = true, value_parser = Value(claim))]
    pub claims: Vec<String>,

    /// The node, or any: the one with the most room to which the pods can follow [default with --pool: the node that it is on]
    #[arg(long, value_name = "NODE|any", required_unless_present_any = ["cancel", "pool"], value_parser = Value(object))]
    pub to: Option<String>,

    /// Evict the pods when the copy is nearly up to date, within their PodDisruptionBudgets
    #[arg(long)]
    pub now: bool,

    /// Keep the data on the earlier node, until the VolumeReplica is deleted
    #[arg(long)]
    pub keep_source: bool,

    /// Evict pods that no controller creates again as well: you do that
    #[arg(long)]
    pub evict_bare_pods: bool,

    /// The pool on the node [default: as the StorageClass says]. Without --to: another pool of the same node
    #[arg(long, value_name = "POOL", value_parser = Value(pool))]
    pub pool: Option<String>,

    /// The StorageClass whose parameters, backend and filesystem the volume gets; the claim keeps its own [default: that of the claim]
    #[arg(long, value_name = "CLASS", value_parser = Value(object))]
    pub class: Option<String>,

    /// Cancel the moves. The volumes stay on their nodes, unless their copies have already taken their place
    #[arg(long, conflicts_with_all = ["to", "now", "keep_source", "evict_bare_pods", "pool", "class"])]
    pub cancel: bool,

    /// With false: end when the copies are ready for the pods to leave
    #[arg(long, value_name = "true|false", default_value = "true", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", conflicts_with = "cancel")]
    #[arg(action = ArgAction::Set, value_parser = Value(truth))]
    pub wait: bool,

    /// The namespace of the claims [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = Value(object))]
    pub namespace: Option<String>,

    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Clone, Args)]
pub struct EvacuateArgs {
    /// The node that is to be emptied
    #[arg(value_name = "NODE", value_parser = Value(object))]
    pub node: String,

    /// The node that gets the volumes, or any: for each one that with the most room to which its pods can follow
    #[arg(long, value_name = "NODE|any", default_value = "any", value_parser = Value(object))]
    pub to: String,

    /// Only the volumes of this pool of the node, for example because its disk is to be replaced
    #[arg(long, value_name = "POOL", value_parser = Value(pool))]
    pub pool: Option<String>,

    /// Move them to this pool of the same node, instead of another node
    #[arg(long, value_name = "POOL", requires = "pool", conflicts_with_all = ["to", "cancel"], value_parser = Value(pool))]
    pub to_pool: Option<String>,

    /// Evict the pods when the copies are nearly up to date, and wait until the node, or the pool, has no volume left
    #[arg(long)]
    pub now: bool,

    /// Then move the snapshots of the node as well: each to the node of its volume, or else to that of --to
    #[arg(long, conflicts_with = "pool")]
    pub with_snapshots: bool,

    /// Give up the moves away from the node
    #[arg(long, conflicts_with_all = ["to", "now", "with_snapshots"])]
    pub cancel: bool,

    /// Only claims of this namespace [default: all]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = Value(object))]
    pub namespace: Option<String>,

    /// The namespace of the driver's controllers [default: they are looked for in all namespaces]
    #[arg(long, value_name = "NAMESPACE", value_parser = Value(object))]
    pub driver_namespace: Option<String>,

    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// The namespace of the claims [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = Value(object))]
    pub namespace: Option<String>,

    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Clone, Args)]
pub struct PromoteArgs {
    /// Names of PersistentVolumeClaims
    #[arg(value_name = "CLAIM", required = true, value_parser = Value(claim))]
    pub claims: Vec<String>,

    /// Yes, what was written after the last pass may be lost
    #[arg(long)]
    pub yes: bool,

    /// The namespace of the claims [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = Value(object))]
    pub namespace: Option<String>,

    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// The kubectl plug-in: the commands for administrators, and nothing else.
#[derive(Debug, Parser)]
#[command(name = PLUGIN, bin_name = AS_PLUGIN, version = version::long())]
#[command(about = "Shows volumes of hostloop, and moves them between nodes while pods use them")]
struct Plugin {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    #[command(flatten)]
    Inspect(InspectCommand),
    /// Find what is left over, half made, stale or lost on the nodes, and put it right
    #[command(after_help = AFTER_DOCTOR)]
    Doctor(DoctorArgs),
    /// Collect what is needed to look into a problem, in one archive without secrets
    #[command(after_help = AFTER_BUNDLE)]
    SupportBundle(BundleArgs),
    #[command(flatten)]
    Admin(AdminCommand),
    /// Make a volume of an image file, of a directory, or of a claim of another driver
    #[command(after_help = AFTER_ADOPT)]
    Adopt(AdoptArgs),
}

/// Reads a command line. The first word is the name by which the binary was called: as `kubectl-hostloop`, it has the
/// commands for administrators only. Also tells how users call it.
///
/// # Errors
/// What clap says of a wrong one; `--help` and `--version` are errors to it, too.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<(Command, &'static str), clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    let called = words.first().and_then(|word| Path::new(word).file_name());
    if called != Some(OsStr::new(PLUGIN)) {
        return Ok((Cli::try_parse_from(words)?.command, "hostloop"));
    }
    let matches = plugin().try_get_matches_from(words)?;
    let command = match Plugin::from_arg_matches(&matches)?.command {
        PluginCommand::Inspect(command) => Command::Inspect(command),
        PluginCommand::Doctor(args) => Command::Doctor(args),
        PluginCommand::SupportBundle(args) => Command::SupportBundle(args),
        PluginCommand::Admin(command) => Command::Admin(command),
        PluginCommand::Adopt(args) => Command::Adopt(args),
    };
    Ok((command, AS_PLUGIN))
}

/// The plug-in's commands, whose examples call it as its users do.
fn plugin() -> clap::Command {
    Plugin::command().mut_subcommands(|command| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        command.after_help(
            help.replace("  hostloop ", "  kubectl hostloop ").replace("| hostloop", "| kubectl hostloop"),
        )
    })
}

/// The name of a claim, as kubectl takes it: also `pvc/NAME`.
fn claim(text: &str) -> Result<String, String> {
    let kinds = ["pvc/", "persistentvolumeclaim/", "persistentvolumeclaims/"];
    object(kinds.iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text))
}

pub(super) fn pool(text: &str) -> Result<String, String> {
    text.parse::<PoolName>().map(|name| name.to_string()).map_err(|error| error.to_string())
}

/// A name of an object of Kubernetes.
pub(super) fn object(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let end = |c: char| c.is_ascii_alphanumeric();
    if text.len() <= 253 && text.chars().all(fine) && text.starts_with(end) && text.ends_with(end) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a name in Kubernetes; use lower-case letters, digits, - and ."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::one_line;

    fn read(line: &str) -> Result<(Command, &'static str), clap::Error> {
        parse(line.split(' ').map(OsString::from))
    }

    fn moved(line: &str) -> MoveArgs {
        match read(line).unwrap().0 {
            Command::Admin(AdminCommand::Move(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_move_is_read() {
        let args = moved("hostloop move -n shop pvc/data log --to node-2 --now --context test --json");
        assert_eq!(args.claims, ["data", "log"]);
        assert_eq!((args.to.as_deref(), args.namespace.as_deref()), (Some("node-2"), Some("shop")));
        assert!(args.now && args.wait && !args.cancel && args.cluster.json);
        assert_eq!(args.cluster.context.as_deref(), Some("test"));
        assert!(!moved("hostloop move data --to any --wait=false").wait);
        assert_eq!(moved("hostloop move data --to any --pool fast").pool.as_deref(), Some("fast"));
        assert!(moved("hostloop move data --cancel").cancel);
    }

    #[test]
    fn flags_that_exclude_each_other_are_told() {
        let wrong = |line: &str| {
            let error = read(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            one_line(&error).unwrap_or_else(|| error.to_string())
        };
        assert!(wrong("hostloop move data").contains("--to <NODE|any>"));
        assert!(wrong("hostloop move --to any").contains("<CLAIM>"));
        assert!(wrong("hostloop move data --cancel --to any").contains("cannot be used with"));
        assert!(wrong("hostloop move data --cancel --pool fast").contains("cannot be used with"));
        assert!(wrong("hostloop move data --to any --pool ../x").starts_with("--pool: "));
        assert!(wrong("hostloop evacuate node-1 --cancel --now").contains("cannot be used with"));
        assert!(wrong("hostloop status -A -n shop").contains("cannot be used with"));
        assert!(wrong("hostloop move Data --to any").starts_with("CLAIM: \"Data\" is not a name"));
        assert!(wrong("hostloop move data --to Node_1").starts_with("--to: \"Node_1\" is not a name"));
    }

    #[test]
    fn the_plug_in_has_only_commands_of_administrators() {
        plugin().debug_assert();
        let (command, called) = read("/usr/local/bin/kubectl-hostloop evacuate node-1").unwrap();
        assert!(matches!(command, Command::Admin(AdminCommand::Evacuate(args)) if args.to == "any"));
        assert_eq!(called, "kubectl hostloop");
        assert!(read("kubectl-hostloop serve").is_err());
        assert_eq!(read("hostloop status").unwrap().1, "hostloop");
    }

    #[test]
    fn the_help_of_the_plug_in_calls_it_as_its_users_do() {
        let help = |line: &str| read(line).unwrap_err().to_string();
        for command in
            ["move", "evacuate", "status", "promote", "adopt", "volumes", "volume", "snapshots", "nodes"]
        {
            let text = help(&format!("kubectl-hostloop {command} --help"));
            assert!(text.contains(&format!("Usage: kubectl hostloop {command}")), "{text}");
            let examples = text.lines().filter(|line| line.trim().starts_with("hostloop"));
            assert_eq!(examples.count(), 0, "{text}");
            assert!(text.contains(&format!("  kubectl hostloop {command} ")), "{text}");
            let text = help(&format!("hostloop {command} --help"));
            assert!(text.contains(&format!("Usage: hostloop {command}")), "{text}");
            assert!(!text.contains("kubectl hostloop"), "{text}");
        }
    }
}
