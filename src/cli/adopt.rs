//! The command line of `hostloop adopt`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::admin::object;
use super::inspect::SourceArgs;
use super::value::{absolute, largest};
use super::wrong::Value;

pub(super) const AFTER_ADOPT: &str = "\
The driver of the node makes the volume, of what lies below a directory that its flag --adopt-from names (in the chart: node.adoptFrom). \
It renames an image or a directory into the volume if both are on one mount; otherwise it shares blocks or copies, compares, and \
renames the source to NAME.adopted-ID as soon as the volume is whole. What is in use is refused, and a filesystem is checked first. \
After a kill or an error, the same command again finishes or begins anew.

With --image and --directory, the PersistentVolume and the claim are printed for kubectl; with --yes they are created. With --claim, \
the PersistentVolume of another driver is replaced by one of this driver with the same name, and the claim keeps its name and its uid: \
no pod may use it meanwhile. Without --yes the command only says what it would do. docs/migrate.md has the steps for \
local-path-provisioner, the hostpath driver of Kubernetes, and OpenEBS.

Examples:
  hostloop adopt --image /old/disk.img --new-claim shop/data --endpoint unix:///csi/csi.sock
  hostloop adopt --directory /old/db --size 20Gi --node node-1 --class directories --new-claim shop/db --yes
  hostloop adopt --claim shop/data --class directories
  hostloop adopt --claim shop/data --class directories --yes
  hostloop adopt --claim shop/data --give-up --yes

Exit codes: 0 the volume is there (with --dry-run, or with --claim and no --yes: it can be made), 1 refused, failed or interrupted, \
2 wrong flag or value.";

/// Which volume is made of what.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["image", "directory", "claim"]))]
pub struct AdoptArgs {
    /// An image file: with ext4, xfs or btrfs from its first byte on, or with the data of a raw block volume (--block)
    #[arg(long, value_name = "FILE", value_parser = Value(absolute))]
    pub image: Option<PathBuf>,

    /// A directory, which becomes a volume of backend directory
    #[arg(long, value_name = "DIR", value_parser = Value(absolute))]
    pub directory: Option<PathBuf>,

    /// A claim of local-path-provisioner, of hostpath.csi.k8s.io, or of OpenEBS hostpath or rawfile
    #[arg(long, value_name = "[NAMESPACE/]NAME", value_parser = Value(claim), conflicts_with = "endpoint")]
    pub claim: Option<(Option<String>, String)>,

    /// The node with the file or directory. With --endpoint, the node that is asked
    #[arg(long, value_name = "NODE", value_parser = Value(object), conflicts_with_all = ["claim", "endpoint"])]
    pub node: Option<String>,

    /// The StorageClass of the volume. With --endpoint only its name is used, in what is printed
    #[arg(long, value_name = "NAME", value_parser = Value(object))]
    pub class: Option<String>,

    /// With --endpoint: a parameter of the StorageClass, such as backend=directory. Repeat the flag for more
    #[arg(long, value_name = "NAME=VALUE", value_parser = Value(parameter), requires = "endpoint")]
    pub parameter: Vec<(String, String)>,

    /// The smallest size of the volume [default: that of the image; with --claim, that of the PersistentVolume]
    #[arg(long, value_name = "SIZE", value_parser = Value(largest))]
    pub size: Option<u64>,

    /// The image is a raw block volume, even if it has a filesystem in it
    #[arg(long, conflicts_with_all = ["directory", "claim"])]
    pub block: bool,

    /// The claim that the volume is for, which is printed or created
    #[arg(long, value_name = "[NAMESPACE/]NAME", value_parser = Value(claim), conflicts_with = "claim")]
    #[arg(required_unless_present = "claim")]
    pub new_claim: Option<(Option<String>, String)>,

    /// With --claim, for the CSI drivers: the directory of the node in which the driver keeps its volumes [default for
    /// hostpath.csi.k8s.io: /var/lib/csi-hostpath-data]. rawfile needs it: that of the storage pool, or /var/csi/rawfile before 0.15
    #[arg(long, value_name = "DIR", value_parser = Value(absolute), requires = "claim")]
    pub source_root: Option<PathBuf>,

    /// Remove what the volume was copied from as soon as the volume is whole, instead of renaming it
    #[arg(long)]
    pub remove_source: bool,

    /// With --claim: give up an adoption that was interrupted, and create the earlier PersistentVolume again. Refused if the data are in
    /// a volume of hostloop already, or if the node does not see them in their place; deletes nothing
    #[arg(long, conflicts_with_all = ["image", "directory", "class", "size", "remove_source"])]
    pub give_up: bool,

    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,

    /// Create the objects, or replace the PersistentVolume of the claim
    #[arg(long, conflicts_with_all = ["dry_run", "endpoint"])]
    pub yes: bool,

    #[command(flatten)]
    pub source: SourceArgs,
}

/// A claim with its namespace, if that is given.
fn claim(text: &str) -> Result<(Option<String>, String), String> {
    match text.split_once('/') {
        Some((namespace, name)) => Ok((Some(object(namespace)?), object(name)?)),
        None => Ok((None, object(text)?)),
    }
}

fn parameter(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    parts
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("{text:?} has no name and value; write NAME=VALUE"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, one_line, parse};

    fn read(line: &str) -> Result<AdoptArgs, clap::Error> {
        match parse(line.split(' ').map(OsString::from))?.0 {
            Command::Adopt(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_source_and_its_claim_are_read() {
        let args =
            read("kubectl-hostloop adopt --image /old/disk.img --new-claim shop/data --node node-1 --yes")
                .unwrap();
        assert_eq!(args.new_claim, Some((Some("shop".to_owned()), "data".to_owned())));
        assert!(args.yes && !args.block && args.image.is_some());
        let args = read("hostloop adopt --claim data --size 5Gi").unwrap();
        assert_eq!((args.claim, args.size), (Some((None, "data".to_owned())), Some(5 << 30)));
        let line = "hostloop adopt --directory /old/db --new-claim db --endpoint /csi.sock --parameter backend=directory";
        assert_eq!(read(line).unwrap().parameter, [("backend".to_owned(), "directory".to_owned())]);
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        let wrong = |line: &str| {
            let error = read(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            one_line(&error).unwrap_or_else(|| error.to_string())
        };
        assert!(wrong("hostloop adopt --new-claim data").contains("--image"));
        assert!(
            wrong("hostloop adopt --image /a --directory /b --new-claim data")
                .contains("cannot be used with")
        );
        assert!(wrong("hostloop adopt --image /a").contains("--new-claim"));
        assert!(wrong("hostloop adopt --image /a --new-claim b --give-up").contains("cannot be used with"));
        assert!(wrong("hostloop adopt --claim a --give-up --class b").contains("cannot be used with"));
        assert!(wrong("hostloop adopt --claim a --endpoint /csi.sock").contains("cannot be used with"));
        assert!(
            wrong("hostloop adopt --image /a --new-claim b --endpoint /csi.sock --yes")
                .contains("cannot be used with")
        );
        assert!(wrong("hostloop adopt --image a --new-claim b").contains("--image"));
        assert!(
            wrong("hostloop adopt --image /a --new-claim b --endpoint /c.sock --parameter x")
                .contains("NAME=VALUE")
        );
    }
}
