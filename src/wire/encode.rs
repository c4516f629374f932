//! Model to proto: the answers.

mod health;
mod page;
mod snapshot;

pub use health::*;
pub use page::{Listed, fitting};
pub use snapshot::*;

use std::collections::HashMap;

use crate::model::answer::{
    Capacity, Expanded, ListPage, StatsRow, Validation, VolumeStats, VolumeStatus as Found,
};
use crate::model::{Settings, Volume, VolumeSource};
use crate::wire::csi;
use csi::controller_service_capability::rpc::Type as ControllerRpc;
use csi::node_service_capability::rpc::Type as NodeRpc;
use csi::plugin_capability::service::Type as Service;
use csi::plugin_capability::volume_expansion::Type as Expansion;
use csi::volume_usage::Unit;

/// CSI `Volume`. `node_id` is the node that the volume is on.
pub fn volume(volume: &Volume, node_id: &str) -> csi::Volume {
    csi::Volume {
        capacity_bytes: bytes(volume.capacity_bytes),
        volume_id: volume.id.to_string(),
        volume_context: volume.context().into_iter().collect(),
        content_source: volume.source.as_ref().map(content_source),
        accessible_topology: vec![topology(node_id)],
    }
}

/// CSI `VolumeContentSource`: what the volume was made from, also where that is gone.
fn content_source(source: &VolumeSource) -> csi::VolumeContentSource {
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource as CloneSource};
    let r#type = match source {
        VolumeSource::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.to_string() }),
        VolumeSource::Volume(id) => Type::Volume(CloneSource { volume_id: id.to_string() }),
    };
    csi::VolumeContentSource { r#type: Some(r#type) }
}

pub fn topology(node_id: &str) -> csi::Topology {
    csi::Topology { segments: HashMap::from([(Settings::TOPOLOGY_KEY.to_owned(), node_id.to_owned())]) }
}

pub fn create_volume(made: &Volume, node_id: &str) -> csi::CreateVolumeResponse {
    csi::CreateVolumeResponse { volume: Some(volume(made, node_id)) }
}

/// What ValidateVolumeCapabilities confirms if it confirms at all: what was asked (csi.proto,
/// ValidateVolumeCapabilitiesResponse.Confirmed). Taken before the request is decoded.
pub fn asked(
    request: &csi::ValidateVolumeCapabilitiesRequest,
) -> csi::validate_volume_capabilities_response::Confirmed {
    csi::validate_volume_capabilities_response::Confirmed {
        volume_context: request.volume_context.clone(),
        volume_capabilities: request.volume_capabilities.clone(),
        parameters: request.parameters.clone(),
        mutable_parameters: request.mutable_parameters.clone(),
    }
}

pub fn validate_volume_capabilities(
    validation: Validation,
    asked: csi::validate_volume_capabilities_response::Confirmed,
) -> csi::ValidateVolumeCapabilitiesResponse {
    csi::ValidateVolumeCapabilitiesResponse {
        confirmed: validation.confirmed.then_some(asked),
        message: validation.message,
    }
}

pub fn list_volumes(page: &ListPage, node_id: &str) -> csi::ListVolumesResponse {
    use csi::list_volumes_response::{Entry, VolumeStatus};
    #[allow(deprecated, reason = "CSI 1.12 has conditions")]
    let entry = |listed: &Found| Entry {
        volume: Some(volume(&listed.volume, node_id)),
        status: Some(VolumeStatus {
            published_node_ids: published_node_ids(&listed.volume),
            volume_condition: Some(health::condition(&listed.troubles)),
        }),
    };
    csi::ListVolumesResponse {
        entries: page.volumes.iter().map(entry).collect(),
        next_token: page.next_token.clone().unwrap_or_default(),
    }
}

#[allow(deprecated, reason = "CSI 1.12 has conditions")]
pub fn controller_get_volume(found: &Found, node_id: &str) -> csi::ControllerGetVolumeResponse {
    use csi::controller_get_volume_response::VolumeStatus;
    csi::ControllerGetVolumeResponse {
        volume: Some(volume(&found.volume, node_id)),
        status: Some(VolumeStatus {
            published_node_ids: published_node_ids(&found.volume),
            volume_condition: Some(health::condition(&found.troubles)),
        }),
    }
}

fn published_node_ids(volume: &Volume) -> Vec<String> {
    volume.attachments.iter().map(|attachment| attachment.node_id.clone()).collect()
}

pub fn get_capacity(capacity: &Capacity) -> csi::GetCapacityResponse {
    csi::GetCapacityResponse {
        available_capacity: bytes(capacity.available),
        maximum_volume_size: Some(bytes(capacity.maximum_volume)),
        minimum_volume_size: Some(bytes(capacity.minimum_volume)),
    }
}

pub fn controller_expand_volume(expanded: Expanded) -> csi::ControllerExpandVolumeResponse {
    csi::ControllerExpandVolumeResponse {
        capacity_bytes: bytes(expanded.capacity_bytes),
        node_expansion_required: expanded.node_expansion_required,
    }
}

pub fn node_expand_volume(capacity_bytes: u64) -> csi::NodeExpandVolumeResponse {
    csi::NodeExpandVolumeResponse { capacity_bytes: bytes(capacity_bytes) }
}

/// CSI NodeGetVolumeStats' answer; a unit of which nothing is known is left out.
#[allow(deprecated, reason = "CSI 1.12 has conditions")]
pub fn node_get_volume_stats(stats: &VolumeStats) -> csi::NodeGetVolumeStatsResponse {
    let usage = |unit: Unit, row: StatsRow| csi::VolumeUsage {
        available: bytes(row.available),
        total: bytes(row.total),
        used: bytes(row.used),
        unit: unit.into(),
    };
    let rows = [(Unit::Bytes, stats.bytes), (Unit::Inodes, stats.inodes)];
    csi::NodeGetVolumeStatsResponse {
        usage: rows.into_iter().filter_map(|(unit, row)| Some(usage(unit, row?))).collect(),
        volume_condition: Some(health::condition(&stats.troubles)),
    }
}

pub fn plugin_capabilities(services: &[Service], expansion: Expansion) -> csi::GetPluginCapabilitiesResponse {
    use csi::plugin_capability as plugin;
    let service = |kind: &Service| plugin::Type::Service(plugin::Service { r#type: (*kind).into() });
    let expansion = plugin::Type::VolumeExpansion(plugin::VolumeExpansion { r#type: expansion.into() });
    let types = services.iter().map(service).chain([expansion]);
    csi::GetPluginCapabilitiesResponse {
        capabilities: types.map(|kind| csi::PluginCapability { r#type: Some(kind) }).collect(),
    }
}

pub fn controller_capabilities(rpcs: &[ControllerRpc]) -> csi::ControllerGetCapabilitiesResponse {
    use csi::controller_service_capability as controller;
    let capability = |rpc: &ControllerRpc| csi::ControllerServiceCapability {
        r#type: Some(controller::Type::Rpc(controller::Rpc { r#type: (*rpc).into() })),
    };
    csi::ControllerGetCapabilitiesResponse { capabilities: rpcs.iter().map(capability).collect() }
}

pub fn node_capabilities(rpcs: &[NodeRpc]) -> csi::NodeGetCapabilitiesResponse {
    use csi::node_service_capability as node;
    let capability = |rpc: &NodeRpc| csi::NodeServiceCapability {
        r#type: Some(node::Type::Rpc(node::Rpc { r#type: (*rpc).into() })),
    };
    csi::NodeGetCapabilitiesResponse { capabilities: rpcs.iter().map(capability).collect() }
}

pub fn node_get_info(settings: &Settings) -> csi::NodeGetInfoResponse {
    csi::NodeGetInfoResponse {
        node_id: settings.node_id.clone(),
        max_volumes_per_node: settings.max_volumes_per_node.into(),
        accessible_topology: Some(topology(&settings.node_id)),
    }
}

/// A count as the protocol carries it, which is signed: never negative, at most `i64::MAX`.
fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
