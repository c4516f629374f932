//! Requests about snapshots and groups of them: of the Controller, the GroupController and the SnapshotMetadata
//! service.

use std::collections::HashMap;

use super::fields::{self, Metadata, check_map, check_secrets, invalid};
use super::{consistency, topology};
use crate::error::{Error, Result};
use crate::model::Consistency;
use crate::model::request::{
    CreateSnapshot, CreateVolumeGroupSnapshot, GetMetadataAllocated, GetMetadataDelta, ListSnapshots,
    MOST_MEMBERS, Source, VolumeGroupSnapshot,
};
use crate::wire::csi;
use csi::volume_content_source::Type as CsiSource;

/// `volume_content_source` of CreateVolume. One that is there names what to copy.
pub(super) fn source(source: Option<csi::VolumeContentSource>) -> Result<Option<Source>> {
    match source.map(|source| source.r#type) {
        None => Ok(None),
        Some(Some(CsiSource::Snapshot(snapshot))) => {
            let id = fields::required("volume_content_source.snapshot.snapshot_id", snapshot.snapshot_id)?;
            Ok(Some(Source::Snapshot(id)))
        }
        Some(Some(CsiSource::Volume(volume))) => {
            let id = fields::required("volume_content_source.volume.volume_id", volume.volume_id)?;
            Ok(Some(Source::Volume(id)))
        }
        Some(None) => invalid(
            "volume_content_source is empty; name a snapshot or a volume, or leave it out for an empty volume",
        ),
    }
}

pub fn create_snapshot(request: csi::CreateSnapshotRequest) -> Result<CreateSnapshot> {
    let name = fields::name(request.name)?;
    let source_volume_id = fields::required("source_volume_id", request.source_volume_id)?;
    check_secrets(&request.secrets)?;
    Ok(CreateSnapshot {
        name,
        source_volume_id,
        consistency: snapshot_class(&request.parameters)?,
        topology: topology::requirement(request.accessibility_requirements)?,
        object: Metadata(&request.parameters).snapshot(),
    })
}

fn snapshot_class(parameters: &HashMap<String, String>) -> Result<Consistency> {
    check_map("parameters", parameters)?;
    consistency::snapshot_class(parameters).map_err(Error::Invalid)
}

/// CSI ListSnapshots. Whether the token is one of ours is not decided here: a wrong one is ABORTED.
pub fn list_snapshots(request: csi::ListSnapshotsRequest) -> Result<ListSnapshots> {
    let max_entries = fields::page_size(request.max_entries)?;
    check_secrets(&request.secrets)?;
    Ok(ListSnapshots {
        max_entries,
        starting_token: fields::optional("starting_token", request.starting_token)?,
        source_volume_id: fields::optional("source_volume_id", request.source_volume_id)?,
        snapshot_id: fields::optional("snapshot_id", request.snapshot_id)?,
    })
}

pub fn create_volume_group_snapshot(
    request: csi::CreateVolumeGroupSnapshotRequest,
) -> Result<CreateVolumeGroupSnapshot> {
    let name = fields::name(request.name)?;
    if request.source_volume_ids.is_empty() {
        return fields::missing("source_volume_ids");
    }
    let count = request.source_volume_ids.len();
    if count > MOST_MEMBERS {
        return invalid(format!(
            "source_volume_ids has {count} ids; a group has {MOST_MEMBERS} volumes at most, make several"
        ));
    }
    let source_volume_ids = ids("source_volume_ids", request.source_volume_ids)?;
    check_secrets(&request.secrets)?;
    Ok(CreateVolumeGroupSnapshot {
        name,
        source_volume_ids,
        consistency: snapshot_class(&request.parameters)?,
    })
}

pub fn delete_volume_group_snapshot(
    request: csi::DeleteVolumeGroupSnapshotRequest,
) -> Result<VolumeGroupSnapshot> {
    group(request.group_snapshot_id, request.snapshot_ids, &request.secrets)
}

pub fn get_volume_group_snapshot(request: csi::GetVolumeGroupSnapshotRequest) -> Result<VolumeGroupSnapshot> {
    group(request.group_snapshot_id, request.snapshot_ids, &request.secrets)
}

fn group(
    group_snapshot_id: String,
    snapshot_ids: Vec<String>,
    secrets: &HashMap<String, String>,
) -> Result<VolumeGroupSnapshot> {
    let group_snapshot_id = fields::required("group_snapshot_id", group_snapshot_id)?;
    let snapshot_ids = ids("snapshot_ids", snapshot_ids)?;
    check_secrets(secrets)?;
    Ok(VolumeGroupSnapshot { group_snapshot_id, snapshot_ids })
}

/// Ids of any syntax, none of them empty.
fn ids(field: &str, ids: Vec<String>) -> Result<Vec<String>> {
    let each = ids.into_iter().enumerate();
    each.map(|(at, id)| fields::required(&format!("{field}[{at}]"), id)).collect()
}

/// CSI GetMetadataAllocated. Whether the offset lies within the snapshot is not decided here: one outside is
/// OUT_OF_RANGE.
pub fn get_metadata_allocated(request: csi::GetMetadataAllocatedRequest) -> Result<GetMetadataAllocated> {
    let snapshot_id = fields::snapshot_id(request.snapshot_id)?;
    let max_results = fields::limit("max_results", request.max_results)?;
    check_secrets(&request.secrets)?;
    Ok(GetMetadataAllocated { snapshot_id, starting_offset: request.starting_offset, max_results })
}

/// CSI GetMetadataDelta. The offset as for [`get_metadata_allocated`].
pub fn get_metadata_delta(request: csi::GetMetadataDeltaRequest) -> Result<GetMetadataDelta> {
    let base_snapshot_id = fields::required("base_snapshot_id", request.base_snapshot_id)?;
    let target_snapshot_id = fields::required("target_snapshot_id", request.target_snapshot_id)?;
    let max_results = fields::limit("max_results", request.max_results)?;
    check_secrets(&request.secrets)?;
    Ok(GetMetadataDelta {
        base_snapshot_id,
        target_snapshot_id,
        starting_offset: request.starting_offset,
        max_results,
    })
}

#[cfg(test)]
mod tests;
