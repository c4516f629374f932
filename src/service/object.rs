//! The objects of Kubernetes that a call is for: for the log, and for nothing else.

use std::collections::HashMap;

use super::declare::Field;
use crate::driver::Driver;
use crate::model::{Claim, SnapshotObject, format_bytes};
use crate::wire::{csi, decode};

/// Returns the claim and the size of a volume that is to be made.
pub(super) fn of_create_volume(request: &csi::CreateVolumeRequest) -> Vec<Field<'_>> {
    let mut fields = of_claim(decode::Metadata(&request.parameters).claim());
    fields.extend(size_of(request.capacity_range.as_ref()));
    fields
}

/// Returns the size that a call asks for, as people write it.
pub(super) fn size_of(range: Option<&csi::CapacityRange>) -> Option<Field<'static>> {
    let bytes = u64::try_from(range?.required_bytes).ok().filter(|bytes| *bytes > 0)?;
    Some(("size", format_bytes(bytes).into()))
}

/// Returns the VolumeSnapshot of a snapshot that is to be made.
pub(super) fn of_create_snapshot(parameters: &HashMap<String, String>) -> Vec<Field<'static>> {
    of_object(decode::Metadata(parameters).snapshot())
}

/// Returns the claim that a volume was made for.
pub(super) fn of_volume(driver: &Driver, id: &str) -> Vec<Field<'static>> {
    let volume = id.parse().ok().and_then(|id| driver.store().get(&id));
    of_claim(volume.and_then(|volume| volume.claim.clone()))
}

/// Returns the VolumeSnapshot that a snapshot was made for.
pub(super) fn of_snapshot(driver: &Driver, id: &str) -> Vec<Field<'static>> {
    let snapshot = id.parse().ok().and_then(|id| driver.store().snapshot(&id));
    of_object(snapshot.and_then(|snapshot| snapshot.object.clone()))
}

fn of_claim<'a>(claim: Option<Claim>) -> Vec<Field<'a>> {
    let Some(claim) = claim else { return Vec::new() };
    vec![("claim", claim.to_string().into()), ("pv.name", claim.persistent_volume.into())]
}

fn of_object<'a>(object: Option<SnapshotObject>) -> Vec<Field<'a>> {
    let Some(SnapshotObject { namespace, name, content }) = object else { return Vec::new() };
    vec![("volumesnapshot", format!("{namespace}/{name}").into()), ("volumesnapshotcontent", content.into())]
}
