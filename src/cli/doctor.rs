//! The command line of `hostloop doctor`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::admin::object;
use super::inspect::SourceArgs;
use super::wrong::Value;
use crate::model::findings;

pub(super) const AFTER_DOCTOR: &str = "\
The nodes say what is in their pools, what is mounted, attached and recorded. The API server says which PersistentVolumes, \
VolumeSnapshotContents, claims and pods there are. What does not fit is listed, with its age, its bytes and what --fix does. What is \
younger than --grace is left out, and everything is looked at twice. Without --fix nothing is changed.

--fix deletes no data without --delete-data. It does nothing to what is in use, to what a PersistentVolume of any driver \
names or a claim wants, and to what has changed since it was looked at: the node looks again, under the lock of the volume. With --endpoint, which \
PersistentVolumes there are is not known, and nothing is taken for an orphan. docs/doctor.md lists the classes, and what is left alone \
on purpose.

Examples:
  hostloop doctor
  hostloop doctor node-1 --fix
  hostloop doctor --fix --delete-data --class orphan-record
  hostloop doctor --json | jq '.findings[] | select(.class == \"pv-without-volume\")'
  hostloop doctor --fix --endpoint unix:///run/hostloop/csi.sock

Exit codes: 0 nothing was found, or all of it was put right, 1 something was found, or a node or the API server did not answer, 2 wrong \
flag or value.";

/// The classes of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Class {
    /// Files in a pool without a record
    OrphanImage,
    /// A record that no object of the API server names
    OrphanRecord,
    /// A PersistentVolume whose node has no such volume
    PvWithoutVolume,
    /// A VolumeSnapshotContent whose node has no such snapshot
    ContentWithoutSnapshot,
    /// A mount for a pod that is gone
    StaleMount,
    /// A loop device that nothing uses
    StaleDevice,
    /// A filesystem that may have been left frozen
    Frozen,
    /// What a call has begun and not finished
    HalfMade,
    /// A directory whose filesystem does not enforce its size
    SizeNotEnforced,
    /// What a volume that has moved has left on its earlier node
    MovedLeft,
}

impl Class {
    /// Its name in what nodes say.
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::OrphanImage => findings::ORPHAN_IMAGE,
            Class::OrphanRecord => findings::ORPHAN_RECORD,
            Class::PvWithoutVolume => findings::PV_WITHOUT_VOLUME,
            Class::ContentWithoutSnapshot => findings::CONTENT_WITHOUT_SNAPSHOT,
            Class::StaleMount => findings::STALE_MOUNT,
            Class::StaleDevice => findings::STALE_DEVICE,
            Class::Frozen => findings::FROZEN,
            Class::HalfMade => findings::HALF_MADE,
            Class::SizeNotEnforced => findings::SIZE_NOT_ENFORCED,
            Class::MovedLeft => findings::MOVED_LEFT,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// Only this node [default: all nodes]
    #[arg(value_name = "NODE", value_parser = Value(object))]
    pub node: Option<String>,

    /// Put right what can be put right without a loss of data
    #[arg(long)]
    pub fix: bool,

    /// With --fix: also delete volumes and snapshots that nothing names and nothing uses. Data that were kept on purpose, such as
    /// those of a deleted PersistentVolume with the reclaim policy Retain, are among them
    #[arg(long, requires = "fix", conflicts_with = "endpoint")]
    pub delete_data: bool,

    /// Only findings of this class. Repeat the flag for more classes
    #[arg(long, value_name = "CLASS", value_enum)]
    pub class: Vec<Class>,

    /// Leave out what is younger than this, such as 30m or 2h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = Value(grace))]
    pub grace: Duration,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub source: SourceArgs,
}

fn grace(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("{text:?} is not a length of time; use for example 30m, 2h or 0s"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, parse};

    fn read(line: &str) -> Result<DoctorArgs, clap::Error> {
        match parse(line.split(' ').map(OsString::from))?.0 {
            Command::Doctor(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_visit_of_the_doctor_is_read() {
        let args = read("kubectl-hostloop doctor node-1 --fix --delete-data --class orphan-image --grace 5m")
            .unwrap();
        assert_eq!((args.node.as_deref(), args.fix, args.delete_data), (Some("node-1"), true, true));
        assert_eq!((args.class, args.grace), (vec![Class::OrphanImage], Duration::from_secs(300)));
        let args = read("hostloop doctor").unwrap();
        assert_eq!((args.fix, args.grace), (false, Duration::from_secs(3600)));
    }

    #[test]
    fn data_go_only_with_an_api_server() {
        for line in
            ["--delete-data", "--fix --delete-data --endpoint /run/x.sock", "--grace soon", "--class x"]
        {
            assert_eq!(read(&format!("hostloop doctor {line}")).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
