//! The command line of `hostloop support-bundle`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::inspect::SourceArgs;
use super::value::absolute;
use super::wrong::Value;

pub(super) const AFTER_BUNDLE: &str = "\
It writes one tar archive, which begins with a list of what is in it and of what could not be read. The list is printed, too. Look \
through the archive before you send it: it has the names of nodes, namespaces, claims and pods.

Over the API server: versions, nodes, volumes, snapshots, findings of hostloop doctor, objects of the driver, logs of its pods, and \
of each node that answers its mounts, its loop devices and what its kernel says of filesystems and disks. With --endpoint, on a node: the same \
of this node, its state file, and the flags of its driver.

Secrets are neither asked for nor written: Secret objects are not read, and what may hold a secret is replaced by ***.

Examples:
  hostloop support-bundle
  hostloop support-bundle -o /tmp/cluster.tar --driver-namespace hostloop
  hostloop support-bundle --endpoint unix:///run/hostloop/csi.sock -o node.tar
  kubectl -n hostloop exec POD -c hostloop -- hostloop support-bundle --endpoint unix:///csi/csi.sock -o - >node.tar

Exit codes: 0 written, also if something could not be read, 1 nothing was written, 2 wrong flag or value.";

#[derive(Debug, Clone, Args)]
pub struct BundleArgs {
    /// The archive, which must not exist yet; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "hostloop-support.tar")]
    pub output: PathBuf,

    /// With --endpoint: the directory of the state file
    #[arg(long, value_name = "DIR", default_value = "/var/lib/hostloop", value_parser = Value(absolute))]
    pub data_dir: PathBuf,

    /// With --endpoint: where the driver serves its metrics, such as 127.0.0.1:9100 [default: they are left out]
    #[arg(long, value_name = "IP:PORT", requires = "endpoint")]
    pub metrics: Option<SocketAddr>,

    #[command(flatten)]
    pub source: SourceArgs,
}
