//! The record of a volume or a snapshot as it lies beside its data: one line like those of the state file, for which it stands in when
//! that is lost.
//!
//! ```text
//! {"hostloop":1,"driver":"hostloop.csi.dev","node":"node-a","seq":7,"volume":{"id":"vol-…",…},"crc":"1c9d02aa"}
//! {"hostloop":1,"driver":"hostloop.csi.dev","node":"node-a","seq":9,"snapshot":{"id":"snap-…",…},"group":{…},"crc":"…"}
//! ```
//!
//! `seq` is the number of the last change that the state file had. A number that the state file has not reached yet shows that an older
//! one was restored. A volume is recorded without what changes often and is not needed to use it again: its attachments, which
//! external-attacher asks for again, and whether its image is formatted, which its marks say.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Identity;
use super::record::{self, FORMAT};
use crate::model::{Format, GroupSnapshot, Phase, Snapshot, Volume};

/// What a record beside data is of.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "most are volumes, and few exist at a time")]
pub enum Subject {
    Volume(Volume),
    /// A snapshot, with the group that it is a member of.
    Snapshot(Snapshot, Option<GroupSnapshot>),
}

/// A record beside data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// Whose it is.
    pub identity: Identity,
    /// The number of the last change in the state file when it was written.
    pub seq: u64,
    pub subject: Subject,
}

#[derive(Serialize)]
struct Written<'a> {
    hostloop: u64,
    driver: &'a str,
    node: &'a str,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<&'a Volume>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<&'a Snapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a GroupSnapshot>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    #[serde(rename = "hostloop")]
    _hostloop: u64,
    driver: String,
    node: String,
    seq: u64,
    volume: Option<Volume>,
    snapshot: Option<Snapshot>,
    group: Option<GroupSnapshot>,
    #[serde(rename = "crc")]
    _crc: IgnoredAny,
}

impl Beside {
    /// Returns the text of the record.
    ///
    /// # Errors
    /// If the record cannot be JSON, which no record of ours is.
    pub fn text(&self) -> serde_json::Result<Vec<u8>> {
        let (volume, snapshot, group) = match &self.subject {
            Subject::Volume(volume) => (Some(volume), None, None),
            Subject::Snapshot(snapshot, group) => (None, Some(snapshot), group.as_ref()),
        };
        let Identity { driver, node_id: node } = &self.identity;
        let written = Written { hostloop: FORMAT, driver, node, seq: self.seq, volume, snapshot, group };
        let json = serde_json::to_string(&written)?;
        Ok(record::seal(json.strip_suffix('}').unwrap_or_default().to_owned()).into_bytes())
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(bytes: &[u8]) -> Result<Beside, String> {
        let json = record::intact(bytes).ok_or("it is not as it was written")?;
        match record::format_of(json) {
            Some(format) if format > FORMAT => {
                return Err(format!(
                    "it has format {format}, and this version of hostloop reads up to {FORMAT}"
                ));
            }
            Some(_) => {}
            None => return Err("it is no record of hostloop".to_owned()),
        }
        let read: Read = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let subject = match (read.volume, read.snapshot) {
            (Some(volume), None) => Subject::Volume(volume),
            (None, Some(snapshot)) => Subject::Snapshot(snapshot, read.group),
            _ => return Err("it is not of one volume or one snapshot".to_owned()),
        };
        let identity = Identity { driver: read.driver, node_id: read.node };
        Ok(Beside { identity, seq: read.seq, subject })
    }
}

impl Subject {
    /// Returns the record of a volume as it lies beside its data: as a volume that can be used.
    pub fn of_volume(volume: &Volume) -> Self {
        Subject::Volume(Volume { phase: Phase::Ready, attachments: Vec::new(), ..volume.clone() })
    }

    /// Returns the record of a snapshot as it lies beside its data: without the other node that may have it while it moves. That changes
    /// often, and each of the two nodes has the snapshot whole.
    pub fn of_snapshot(snapshot: &Snapshot, group: Option<&GroupSnapshot>) -> Self {
        let group = group.map(|group| GroupSnapshot { phase: Phase::Ready, handover: None, ..group.clone() });
        Subject::Snapshot(Snapshot { phase: Phase::Ready, handover: None, ..snapshot.clone() }, group)
    }

    /// Reports whether two records say the same of what the disk does not say itself.
    pub fn agrees(&self, other: &Subject) -> bool {
        self.essence() == other.essence()
    }

    fn essence(&self) -> Subject {
        match self {
            Subject::Volume(volume) => {
                let content = match volume.content.format() {
                    Some(Format::Formatting | Format::Formatted) => volume.content.with_format(Format::Blank),
                    _ => volume.content.clone(),
                };
                Subject::of_volume(&Volume { content, ..volume.clone() })
            }
            Subject::Snapshot(snapshot, group) => {
                Subject::of_snapshot(&Snapshot { allocated_bytes: 0, ..snapshot.clone() }, group.as_ref())
            }
        }
    }
}
