//! Requests of the Controller service.

use super::fields::{self, Metadata, check_map, check_secrets, invalid};
use super::{capability, mutable, parameters, snapshot, topology};
use crate::error::{Error, Result};
use crate::model::request::{
    ControllerExpandVolume, ControllerModifyVolume, ControllerPublishVolume, ControllerUnpublishVolume,
    CreateVolume, GetCapacity, Placement, ValidateVolumeCapabilities,
};
use crate::model::{Capability, Modification, SizeRange, VolumeParameters};
use crate::wire::csi;

pub fn create_volume(request: csi::CreateVolumeRequest) -> Result<CreateVolume> {
    let name = fields::name(request.name)?;
    let capabilities = capability::all(request.volume_capabilities)?;
    check_map("parameters", &request.parameters)?;
    check_map("mutable_parameters", &request.mutable_parameters)?;
    check_secrets(&request.secrets)?;
    let source = snapshot::source(request.volume_content_source)?;
    let mutable = mutable::decode(&request.mutable_parameters).map_err(Error::Invalid)?;
    let class = parameters::storage_class(&request.parameters, mutable).map_err(Error::Invalid)?;
    capabilities.iter().try_for_each(|c| parameters::fit(&class.parameters, c)).map_err(Error::Invalid)?;
    Ok(CreateVolume {
        name,
        size: fields::size(request.capacity_range)?,
        capabilities,
        parameters: class.parameters,
        source,
        consistency: class.consistency,
        topology: topology::requirement(request.accessibility_requirements)?,
        way: None,
        reservation: None,
        as_copy: false,
        convert: false,
        generation: None,
        claim: Metadata(&request.parameters).claim(),
    })
}

/// What a controller has to know of a CreateVolume: it looks at nothing else, so that a node may know more than it does.
pub fn placement(request: &csi::CreateVolumeRequest) -> Result<Placement> {
    Ok(Placement {
        name: fields::name(request.name.clone())?,
        source: snapshot::source(request.volume_content_source.clone())?,
        class: parameters::placement_class(&request.parameters).map_err(Error::Invalid)?,
        topology: topology::requirement(request.accessibility_requirements.clone())?,
    })
}

pub fn controller_publish_volume(
    request: csi::ControllerPublishVolumeRequest,
) -> Result<ControllerPublishVolume> {
    let volume_id = fields::volume_id(request.volume_id)?;
    let node_id = fields::node_id(request.node_id)?;
    let capability = capability::required(request.volume_capability)?;
    check_secrets(&request.secrets)?;
    let context = fields::context(request.volume_context)?;
    Ok(ControllerPublishVolume { volume_id, node_id, capability, read_only: request.readonly, context })
}

pub fn controller_unpublish_volume(
    request: csi::ControllerUnpublishVolumeRequest,
) -> Result<ControllerUnpublishVolume> {
    let volume_id = fields::volume_id(request.volume_id)?;
    let node_id = fields::optional_node_id(request.node_id)?;
    check_secrets(&request.secrets)?;
    Ok(ControllerUnpublishVolume { volume_id, node_id })
}

/// CSI ValidateVolumeCapabilities.
///
/// # Errors
/// `Invalid` for a malformed request; what is well formed but not supported is part of the result.
pub fn validate_volume_capabilities(
    request: csi::ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilities> {
    let volume_id = fields::volume_id(request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return fields::missing("volume_capabilities");
    }
    let capabilities = capability::each(request.volume_capabilities)?;
    check_map("parameters", &request.parameters)?;
    check_map("mutable_parameters", &request.mutable_parameters)?;
    check_secrets(&request.secrets)?;
    let context = fields::context(request.volume_context)?;
    let parameters = match mutable::decode(&request.mutable_parameters) {
        Err(reason) => Some(Err(reason)),
        Ok(mutable) if request.parameters.is_empty() && mutable == Modification::default() => None,
        Ok(mutable) => {
            Some(parameters::storage_class(&request.parameters, mutable).map(|class| class.parameters))
        }
    };
    let capabilities = match &parameters {
        Some(Ok(parameters)) => fitting(capabilities, parameters),
        _ => capabilities,
    };
    Ok(ValidateVolumeCapabilities { volume_id, capabilities, context, parameters })
}

/// Takes out the capabilities that no volume with these parameters has.
fn fitting(
    capabilities: Vec<Result<Capability, String>>,
    parameters: &VolumeParameters,
) -> Vec<Result<Capability, String>> {
    let fit = |c: Capability| parameters::fit(parameters, &c).map(|()| c);
    capabilities.into_iter().map(|capability| capability.and_then(fit)).collect()
}

/// CSI GetCapacity.
///
/// # Errors
/// `Invalid` for a malformed request; a capability that no volume has is part of the result.
pub fn get_capacity(request: csi::GetCapacityRequest) -> Result<GetCapacity> {
    let capabilities = capability::each(request.volume_capabilities)?;
    check_map("parameters", &request.parameters)?;
    let class = parameters::storage_class(&request.parameters, Modification::default());
    let parameters = class.map_err(Error::Invalid)?.parameters;
    Ok(GetCapacity {
        capabilities: fitting(capabilities, &parameters),
        parameters,
        topology: topology::place(request.accessible_topology)?,
    })
}

pub fn controller_expand_volume(
    request: csi::ControllerExpandVolumeRequest,
) -> Result<ControllerExpandVolume> {
    let volume_id = fields::volume_id(request.volume_id)?;
    if request.capacity_range.is_none() {
        return fields::missing("capacity_range");
    }
    let size = fields::size(request.capacity_range)?;
    if size == SizeRange::default() {
        return invalid("capacity_range is empty; name required_bytes or limit_bytes");
    }
    check_secrets(&request.secrets)?;
    Ok(ControllerExpandVolume {
        volume_id,
        size,
        capability: capability::optional(request.volume_capability)?,
    })
}

/// CSI ControllerModifyVolume. Parameters that no volume has are part of the result: of an unknown volume the
/// answer is NOT_FOUND whatever is to change.
pub fn controller_modify_volume(
    request: csi::ControllerModifyVolumeRequest,
) -> Result<ControllerModifyVolume> {
    let volume_id = fields::volume_id(request.volume_id)?;
    check_map("mutable_parameters", &request.mutable_parameters)?;
    check_secrets(&request.secrets)?;
    Ok(ControllerModifyVolume { volume_id, modification: mutable::required(&request.mutable_parameters) })
}

#[cfg(test)]
mod tests;
