//! The command line of `hostloop certs`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use time::Duration;

use super::value::{driver_name, named, node_id};
use super::wrong::Value;
use crate::cluster::certs::SecretName;
use crate::cluster::identity::PeerRole;

/// The shortest validity: less is over before anybody has used it.
const MIN_VALID: Duration = Duration::minutes(1);
const MAX_VALID: Duration = Duration::days(366 * 100);

const AFTER_HELP: &str = "\
Write durations like 90d, 12h or 10y.

Examples:
  hostloop certs init --dir ca
  hostloop certs issue --ca ca --role controller --out controller
  hostloop certs issue --ca ca --role node --node-id node-1 --out node-1
  hostloop certs renew --ca ca --dir controller --dir node-1
  hostloop certs show --dir node-1

Exit codes: 0 done, 1 not done or (show, renew) something is wrong, 2 wrong flag or value.";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CertsArgs {
    #[command(subcommand)]
    pub command: CertsCommand,
}

/// What to do with certificates.
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Make a CA: ca.crt, and ca.key with mode 0600, or a Secret with both. One that is there is never replaced
    Init(InitArgs),
    /// Make an identity: ca.crt, tls.crt and tls.key, all exchanged in one step
    Issue(IssueArgs),
    /// Renew identities that come to their end, or whose CA is another one now; for a timer. Each gets a new key.
    /// Processes that use them notice by themselves
    Renew(RenewArgs),
    /// Show identities, validity and fingerprints, and whether the files fit together
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Where to make it; made if it is missing
    #[arg(long, value_name = "DIR", required_unless_present = "secret")]
    pub dir: Option<PathBuf>,

    /// In a pod of Kubernetes, instead of --dir: make it in this Secret. One that is there stays as it is, and Helm is
    /// told to leave it there
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "dir", value_parser = Value(secret))]
    pub secret: Option<SecretName>,

    /// CSI plugin name, as --driver-name of hostloop serve: the CA is for the processes of this driver
    #[arg(long, env = "HOSTLOOP_DRIVER_NAME", value_name = "NAME", default_value = "hostloop.csi.dev")]
    #[arg(value_parser = Value(driver_name))]
    pub driver_name: String,

    /// How long it is good. Nothing that it signs is good for longer
    #[arg(long, value_name = "DURATION", default_value = "10y", value_parser = Value(valid))]
    pub valid: Duration,
}

#[derive(Debug, Args)]
pub struct IssueArgs {
    /// Directory of the CA
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,

    /// What the bearer may do: controller (route calls to nodes) or node (serve controllers, copy data from nodes)
    #[arg(long, value_name = "ROLE", value_parser = Value(role))]
    pub role: PeerRole,

    /// CSI node id: the identity is that of this node only. Without it all nodes can share the identity
    #[arg(long, value_name = "ID", value_parser = Value(node_id))]
    pub node_id: Option<String>,

    /// Where to put the files; made if it is missing. An identity that is there is replaced by the same one only
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// How long it is good
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = Value(valid))]
    pub valid: Duration,

    /// CSI plugin name [default: the one that the CA is for]
    #[arg(long, value_name = "NAME", value_parser = Value(driver_name))]
    pub driver_name: Option<String>,
}

#[derive(Debug, Args)]
pub struct RenewArgs {
    /// Directory of the CA
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,

    /// Directory of an identity. Repeat the flag for more
    #[arg(long, value_name = "DIR", required = true)]
    pub dir: Vec<PathBuf>,

    /// Renew what ends within this time [default: a third of its validity, which is 30d of 90d]
    #[arg(long, value_name = "DURATION", value_parser = Value(duration))]
    pub before: Option<Duration>,

    /// How long the new one is good [default: as long as the one before]
    #[arg(long, value_name = "DURATION", value_parser = Value(valid))]
    pub valid: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Directory of an identity, or of a CA
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

/// Names as the API server takes them, which become parts of a path there (RFC 1123).
fn secret(text: &str) -> Result<SecretName, String> {
    let plain = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        (1..=253).contains(&part.len()) && part.chars().all(inner) && !part.starts_with(['-', '.'])
    };
    match text.split_once('/') {
        Some((namespace, name)) if plain(namespace) && plain(name) => {
            Ok(SecretName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err(format!("{text:?} is not a Secret; write it as NAMESPACE/NAME")),
    }
}

fn role(text: &str) -> Result<PeerRole, String> {
    named(text, "a role of a peer", &[PeerRole::Controller, PeerRole::Node], PeerRole::as_str)
}

fn valid(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        valid if (MIN_VALID..=MAX_VALID).contains(&valid) => Ok(valid),
        _ => Err(format!("{text:?} is out of range; use 1min to 100y")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| format!("{text:?} is not a duration; write it like 90d, 12h or 10y"))
}
