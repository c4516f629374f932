//! What two records have in common, and what they do not.

use crate::model::{Format, Phase, PoolName, format_two};
use crate::store::Subject;

pub(super) fn id_of(subject: &Subject) -> String {
    match subject {
        Subject::Volume(volume) => volume.id.to_string(),
        Subject::Snapshot(snapshot, _) => snapshot.id.to_string(),
    }
}

pub(super) fn kind_of(subject: &Subject) -> &'static str {
    match subject {
        Subject::Volume(_) => "volume",
        Subject::Snapshot(..) => "snapshot",
    }
}

pub(super) fn purpose_of(subject: &Subject) -> Option<String> {
    match subject {
        Subject::Volume(volume) => volume.claim.as_ref().map(ToString::to_string),
        Subject::Snapshot(snapshot, _) => {
            snapshot.object.as_ref().map(|object| format!("{}/{}", object.namespace, object.name))
        }
    }
}

pub(super) fn phase_of(subject: &Subject) -> Phase {
    match subject {
        Subject::Volume(volume) => volume.phase,
        Subject::Snapshot(snapshot, _) => snapshot.phase,
    }
}

pub(super) fn is_ready(subject: &Subject) -> bool {
    phase_of(subject) == Phase::Ready
}

pub(super) fn is_being_deleted(subject: &Subject) -> bool {
    phase_of(subject) == Phase::Deleting
}

pub(super) fn pool_of(subject: &Subject) -> &PoolName {
    match subject {
        Subject::Volume(volume) => volume.pool(),
        Subject::Snapshot(snapshot, _) => &snapshot.pool,
    }
}

/// Reports whether something was made in the image that the record in the state file does not know.
pub(super) fn is_more_formatted(found: &Subject, recorded: &Subject) -> bool {
    let format = |subject: &Subject| match subject {
        Subject::Volume(volume) => volume.content.format(),
        Subject::Snapshot(..) => None,
    };
    (format(found), format(recorded)) == (Some(Format::Formatted), Some(Format::Blank))
}

/// Reports whether a record in the state file says the same as one beside data.
pub(super) fn says_same(recorded: &Subject, beside: &Subject) -> bool {
    match recorded {
        Subject::Volume(volume) => Subject::of_volume(volume).agrees(beside),
        Subject::Snapshot(snapshot, group) => Subject::of_snapshot(snapshot, group.as_ref()).agrees(beside),
    }
}

/// What the record in the state file has otherwise than the one beside the data, for people.
pub(super) fn difference(recorded: &Subject, beside: &Subject) -> String {
    let what = match (recorded, beside) {
        _ if !is_ready(recorded) => "it is whole",
        (Subject::Volume(one), Subject::Volume(other)) if one.id != other.id => "its id",
        (Subject::Volume(one), Subject::Volume(other)) if one.capacity_bytes != other.capacity_bytes => {
            let [one, other] = format_two(one.capacity_bytes, other.capacity_bytes);
            return format!("its size is {other}, not {one}");
        }
        (Subject::Volume(one), Subject::Volume(other)) if one.parameters != other.parameters => {
            "its parameters"
        }
        (Subject::Volume(one), Subject::Volume(other)) if one.copy_of != other.copy_of => {
            "how far it is with its source"
        }
        _ => "its record beside the data is newer",
    };
    what.to_owned()
}
