//! The lines of the state file as text: how they are written, sealed with a checksum, and read.

use std::io;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Identity;
use crate::model::{GroupSnapshot, GroupSnapshotId, Moved, Phase, Snapshot, SnapshotId, Volume, VolumeId};

/// The format that is written, and the latest that is read; so is every earlier one. Raise it if an earlier version of
/// hostloop would misread what is written. tests/upgrade/run raises it in a copy of the tree.
pub(super) const FORMAT: u64 = 1;

/// How every line but the first starts.
const START: &[u8] = b"{\"seq\":";
/// What comes between the bytes that the checksum covers and its eight hex digits.
const SEAL: &[u8] = b",\"crc\":\"";
/// What comes after the digits.
const END: &[u8] = b"\"}";
/// What a line has beside its members: two numbers of up to 20 digits, their names, the checksum.
pub(super) const FRAME: u64 = 96;
/// What a record has more as `deleting` than as `ready`.
const DELETING: u64 = ("deleting".len() - "ready".len()) as u64;
/// More than the line of a removal has.
const REMOVAL: u64 = 256;

/// One change, as a line tells it: `"put":{"volume":{…}}`, `"rename":{"from":"vol-…","to":{…}}` or
/// `"delete":{"volume":"vol-…"}`. A further kind of record is a further variant of [`Put`] and [`Delete`].
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Change {
    /// The record is now this one.
    Put(Put),
    /// A volume has another id, and this record.
    Rename(Rename),
    /// The record is gone.
    Delete(Delete),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Put {
    Volume(Arc<Volume>),
    Snapshot(Arc<Snapshot>),
    GroupSnapshot(Arc<GroupSnapshot>),
    Moved(Arc<Moved>),
}

/// A volume that gets another id.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Rename {
    pub from: VolumeId,
    pub to: Arc<Volume>,
}

/// The key of a record, by kind.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Delete {
    Volume(VolumeId),
    Snapshot(SnapshotId),
    GroupSnapshot(GroupSnapshotId),
    /// By the id of the volume that moved away.
    Moved(VolumeId),
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// Format of the file.
    pub hostloop: u64,
    /// CSI plugin name of the owner.
    pub driver: String,
    /// CSI node id of the owner.
    pub node: String,
    /// Sequence number of the second line.
    pub first: u64,
    /// Sequence number up to which all was on disk before the file got its name.
    pub synced: u64,
}

/// Any further line.
#[derive(Debug)]
pub(super) struct Line {
    pub seq: u64,
    /// What it says.
    pub change: Change,
}

/// [`Line`] as JSON. It is strict, so that a member that another version invents is refused, not skipped.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
    seq: u64,
    #[serde(rename = "synced")]
    _synced: IgnoredAny,
    put: Option<Put>,
    rename: Option<Rename>,
    delete: Option<Delete>,
    #[serde(rename = "crc")]
    _crc: IgnoredAny,
}

/// The one member that every format has, so that a later one is recognised whatever else it changes.
#[derive(Deserialize)]
struct Version {
    hostloop: u64,
}

/// The one member of an intact line that says what was on disk before it.
#[derive(Deserialize)]
struct Mark {
    synced: u64,
}

impl Put {
    /// Reports whether the record says that what it is about is being deleted.
    pub fn is_going(&self) -> bool {
        let phase = match self {
            Put::Volume(volume) => volume.phase,
            Put::Snapshot(snapshot) => snapshot.phase,
            Put::GroupSnapshot(group) => group.phase,
            Put::Moved(_) => return false,
        };
        phase == Phase::Deleting
    }

    /// How many nodes the volume is published to (`--attach`).
    pub fn attachments(&self) -> usize {
        match self {
            Put::Volume(volume) => volume.attachments.len(),
            Put::Snapshot(_) | Put::GroupSnapshot(_) | Put::Moved(_) => 0,
        }
    }

    /// The bytes that the file may still get on the way of this record out of it: the record once more without its
    /// attachment, once as `deleting`, and its removal.
    pub fn way_out(&self) -> u64 {
        let mut count = Count(0);
        // No record of ours cannot be JSON; one that could not has never been written.
        let _ = serde_json::to_writer(&mut count, self);
        (count.0 + FRAME) * 2 + DELETING + REMOVAL
    }
}

/// Counts what is written to it.
struct Count(u64);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Change {
    /// The members of a line that tell the change, without the braces around them.
    ///
    /// # Errors
    /// Where the record cannot be JSON, which no record of ours is.
    pub fn members(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string(self)?;
        Ok(json.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default().to_owned())
    }

    /// The id of what it is about; ids of different kinds differ, except that a volume and the record of its move have the same one.
    pub fn id(&self) -> &str {
        match self {
            Change::Put(Put::Volume(volume)) => volume.id.as_str(),
            Change::Put(Put::Snapshot(snapshot)) => snapshot.id.as_str(),
            Change::Put(Put::GroupSnapshot(group)) => group.id.as_str(),
            Change::Put(Put::Moved(moved)) => moved.id.as_str(),
            Change::Rename(Rename { from, .. }) => from.as_str(),
            Change::Delete(Delete::Volume(id)) => id.as_str(),
            Change::Delete(Delete::Snapshot(id)) => id.as_str(),
            Change::Delete(Delete::GroupSnapshot(id)) => id.as_str(),
            Change::Delete(Delete::Moved(id)) => id.as_str(),
        }
    }
}

impl Header {
    /// The header of a new file whose `count` records start at `first` and are on disk before it has its name.
    pub fn new(identity: &Identity, first: u64, count: u64) -> Self {
        Header {
            hostloop: FORMAT,
            driver: identity.driver.clone(),
            node: identity.node_id.clone(),
            first,
            synced: first.saturating_add(count).saturating_sub(1),
        }
    }

    /// The line, with its newline.
    ///
    /// # Errors
    /// As for [`Change::members`].
    pub fn line(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string(self)?;
        Ok(seal(json.strip_suffix('}').unwrap_or_default().to_owned()))
    }
}

/// The line for a change, with its newline.
pub(super) fn line(seq: u64, synced: u64, members: &str) -> String {
    seal(format!("{{\"seq\":{seq},\"synced\":{synced},{members}"))
}

/// Adds the checksum over what is there, the closing brace and the newline.
pub(super) fn seal(mut text: String) -> String {
    let crc = crc32fast::hash(text.as_bytes());
    text.push_str(&format!(",\"crc\":\"{crc:08x}\"}}\n"));
    text
}

/// The JSON of a line that is exactly as it was written, newline included; `None` otherwise.
pub(super) fn intact(line: &[u8]) -> Option<&[u8]> {
    let json = line.strip_suffix(b"\n")?;
    let open = json.strip_suffix(END)?;
    let (sealed, digits) = open.split_at_checked(open.len().checked_sub(8)?)?;
    let covered = sealed.strip_suffix(SEAL)?;
    (format!("{:08x}", crc32fast::hash(covered)).as_bytes() == digits).then_some(json)
}

/// The format that a first line names, if it is that of a state file at all.
pub(super) fn format_of(line: &[u8]) -> Option<u64> {
    serde_json::from_slice(line).ok().map(|Version { hostloop }| hostloop)
}

/// Returns the intact line that ends here. It may follow a line that has lost its newline; its start is not found inside it a second
/// time, since JSON escapes quotes.
pub(super) fn intact_at_end(line: &[u8]) -> Option<&[u8]> {
    let start = line.windows(START.len()).rposition(|bytes| bytes == START)?;
    intact(line.get(start..)?)
}

/// Returns the mark of the intact line that ends here.
pub(super) fn mark_at_end(line: &[u8]) -> Option<u64> {
    serde_json::from_slice(intact_at_end(line)?).ok().map(|Mark { synced }| synced)
}

/// Reads an intact line.
///
/// # Errors
/// What this version does not know about it.
pub(super) fn parse(json: &[u8]) -> Result<Line, String> {
    let RawLine { seq, put, rename, delete, .. } = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let change = match (put, rename, delete) {
        (Some(put), None, None) => Change::Put(put),
        (None, Some(rename), None) => Change::Rename(rename),
        (None, None, Some(delete)) => Change::Delete(delete),
        _ => return Err("it is not one put, one rename or one delete".to_owned()),
    };
    Ok(Line { seq, change })
}
