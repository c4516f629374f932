//! The command line of `hostloop certs`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const AFTER_HELP: &str = "\
Write durations like 90d, 12h or 10y.

Examples:
  hostloop certs init --dir ca
  hostloop certs issue --ca ca --role controller --out controller
  hostloop certs issue --ca ca --role node --node-id node-1 --out node-1
  hostloop certs renew --ca ca --dir controller --dir node-1
  hostloop certs show --dir node-1

Exit codes: 0 done, 1 failed or (show, renew) something is wrong, 2 wrong flag or value.";

/// Flags of `hostloop certs`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CertsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CertsCommand,
}

/// What to do with certificates.
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Make a CA: ca.crt, and ca.key with mode 0600, or a Secret with both. An existing CA is never replaced
    Init(InitArgs),
    /// Make an identity: ca.crt, tls.crt and tls.key, all replaced in one step
    Issue(IssueArgs),
    /// Renew identities that end soon, or whose CA has changed. Run it from a timer. Each gets a new key; processes that
    /// use them notice by themselves
    Renew(RenewArgs),
    /// Show identities, validity and fingerprints, and whether the files belong together
    Show(ShowArgs),
}

/// Flags of `hostloop certs init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Directory for the CA; created if it is missing
    #[arg(long, value_name = "DIR", required_unless_present = "secret")]
    pub dir: Option<PathBuf>,

    /// In a pod of Kubernetes, instead of --dir: make the CA in this Secret. An existing Secret stays as it is, and Helm is
    /// told not to delete it
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "dir")]
    pub secret: Option<String>,

    /// CSI driver name, as in hostloop serve --driver-name. The CA is for the processes of this driver
    #[arg(long, env = "HOSTLOOP_DRIVER_NAME", value_name = "NAME", default_value = "hostloop.csi.dev")]
    pub driver_name: String,

    /// How long the CA is valid. Nothing that it signs is valid for longer
    #[arg(long, value_name = "DURATION", default_value = "10y")]
    pub valid: String,
}

/// Flags of `hostloop certs issue`.
#[derive(Debug, Args)]
pub struct IssueArgs {
    /// Directory of the CA
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,

    /// What the bearer may do: controller (route calls to nodes) or node (serve controllers, copy data from nodes)
    #[arg(long, value_name = "ROLE")]
    pub role: String,

    /// CSI node id, for an identity of this node alone. Without it, all nodes can share the identity
    #[arg(long, value_name = "ID")]
    pub node_id: Option<String>,

    /// Directory for the files; created if it is missing. An existing identity is only replaced by the same identity
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// How long the identity is valid
    #[arg(long, value_name = "DURATION", default_value = "90d")]
    pub valid: String,

    /// CSI driver name [default: the one that the CA is for]
    #[arg(long, value_name = "NAME")]
    pub driver_name: Option<String>,
}

/// Flags of `hostloop certs renew`.
#[derive(Debug, Args)]
pub struct RenewArgs {
    /// Directory of the CA
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,

    /// Directory of an identity. Repeat the flag for more
    #[arg(long, value_name = "DIR", required = true)]
    pub dir: Vec<PathBuf>,

    /// Renew what ends within this time [default: a third of its validity, which is 30d of 90d]
    #[arg(long, value_name = "DURATION")]
    pub before: Option<String>,

    /// How long the new identity is valid [default: as long as the old one]
    #[arg(long, value_name = "DURATION")]
    pub valid: Option<String>,
}

/// Flags of `hostloop certs show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Directory of an identity, or of a CA
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}
