//! Which records beside data can be believed.

use crate::inventory::{Data, Entry, Record};
use crate::model::{BackendKind, Format, Snapshot, Volume, format_two};
use crate::store::{Identity, Subject};

/// The record beside the data, if it is of these data and can be believed.
pub(super) fn usable(entry: &Entry, identity: &Identity) -> Result<Subject, String> {
    let beside = match &entry.record {
        Record::Whole(beside) => beside,
        Record::Bad(why) => return Err(format!("the record beside its data cannot be used: {why}")),
        Record::Missing => return Err("no record lies beside its data".to_owned()),
    };
    let Identity { driver, node_id } = &beside.identity;
    if beside.identity != *identity {
        return Err(format!("the record beside its data is of driver {driver:?} and node {node_id:?}"));
    }
    let subject = adjusted(entry, &beside.subject);
    let (name, pool, backend, bytes) = match &subject {
        Subject::Volume(volume) => {
            let sized = volume.parameters.backend.has_image().then_some(volume.capacity_bytes);
            (volume.directory().as_str(), volume.pool(), volume.parameters.backend, sized)
        }
        Subject::Snapshot(snapshot, _) => {
            let backend = snapshot.content.backend();
            let sized = backend.has_image().then_some(snapshot.size_bytes);
            (snapshot.id.as_str(), &snapshot.pool, backend, sized)
        }
    };
    if name != entry.name {
        return Err(format!("the record in it is of {name}: was the directory copied?"));
    }
    if *pool != entry.pool {
        return Err(format!("its record says that it is in pool {pool}, and it is in pool {}", entry.pool));
    }
    match (entry.data, bytes) {
        (Data::Missing, _) => Err("its data are gone".to_owned()),
        (Data::Image { bytes, .. }, Some(recorded)) if bytes < recorded => {
            let [bytes, recorded] = format_two(bytes, recorded);
            Err(format!("its image has {bytes}, and its record says {recorded}"))
        }
        (Data::Image { .. }, _) if backend == BackendKind::Loop => Ok(subject),
        (Data::Tree, _) if backend == BackendKind::Directory => Ok(subject),
        _ => Err(format!("its record says backend {}, and its data are of another one", backend.as_str())),
    }
}

/// Reports whether a record is of the data in this directory, of whichever size and node.
pub(super) fn is_of(entry: &Entry, subject: &Subject) -> bool {
    let (name, pool, backend) = match subject {
        Subject::Volume(volume) => (volume.directory().as_str(), volume.pool(), volume.parameters.backend),
        Subject::Snapshot(snapshot, _) => (snapshot.id.as_str(), &snapshot.pool, snapshot.content.backend()),
    };
    let fits = match entry.data {
        Data::Image { .. } => backend == BackendKind::Loop,
        Data::Tree => backend == BackendKind::Directory,
        Data::Missing => false,
    };
    fits && name == entry.name && *pool == entry.pool
}

/// Returns the record with what the marks and the data say.
pub(super) fn adjusted(entry: &Entry, subject: &Subject) -> Subject {
    match subject {
        Subject::Snapshot(snapshot, group) => {
            let allocated_bytes = match entry.data {
                Data::Image { allocated, .. } => allocated,
                _ => snapshot.allocated_bytes,
            };
            Subject::Snapshot(Snapshot { allocated_bytes, ..snapshot.clone() }, group.clone())
        }
        Subject::Volume(volume) => {
            let format = match volume.content.format() {
                Some(Format::Blank) if entry.formatted || entry.formatting => Format::Formatted,
                Some(format) => format,
                None => return subject.clone(),
            };
            let content = volume.content.with_format(format);
            Subject::Volume(Volume { content, ..volume.clone() })
        }
    }
}
