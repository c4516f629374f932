//! Requests of the Controller service.

use super::fields::{self, check_map, check_secrets, invalid};
use super::{capability, parameters, topology};
use crate::error::{Error, Result};
use crate::model::request::{
    ControllerExpandVolume, ControllerPublishVolume, ControllerUnpublishVolume, CreateVolume, GetCapacity,
    ListVolumes, ValidateVolumeCapabilities,
};
use crate::model::{Capability, SizeRange, VolumeParameters};
use crate::wire::csi;

/// CSI CreateVolume.
///
/// # Errors
/// `Invalid`, like all of this module.
pub fn create_volume(request: csi::CreateVolumeRequest) -> Result<CreateVolume> {
    let name = fields::name(request.name)?;
    let capabilities = capability::all(request.volume_capabilities)?;
    check_map("parameters", &request.parameters)?;
    check_secrets(&request.secrets)?;
    refuse_source(request.volume_content_source.as_ref())?;
    refuse_mutable_parameters(&request.mutable_parameters)?;
    let parameters = parameters::storage_class(&request.parameters).map_err(Error::Invalid)?;
    capabilities.iter().try_for_each(|c| parameters::fit(&parameters, c)).map_err(Error::Invalid)?;
    Ok(CreateVolume {
        name,
        size: fields::size(request.capacity_range)?,
        capabilities,
        parameters,
        topology: topology::requirement(request.accessibility_requirements)?,
    })
}

/// Neither CREATE_DELETE_SNAPSHOT nor CLONE_VOLUME is announced.
fn refuse_source(source: Option<&csi::VolumeContentSource>) -> Result<()> {
    match source {
        Some(_) => invalid("volume_content_source is not supported; ask for an empty volume"),
        None => Ok(()),
    }
}

/// MODIFY_VOLUME is not announced.
fn refuse_mutable_parameters(mutable: &std::collections::HashMap<String, String>) -> Result<()> {
    match mutable.is_empty() {
        true => Ok(()),
        false => invalid("mutable_parameters is not supported; use no VolumeAttributesClass"),
    }
}

/// CSI DeleteVolume: the volume's id.
///
/// # Errors
/// `Invalid`.
pub fn delete_volume(request: csi::DeleteVolumeRequest) -> Result<String> {
    let volume_id = fields::volume_id(request.volume_id)?;
    check_secrets(&request.secrets)?;
    Ok(volume_id)
}

/// CSI ControllerPublishVolume.
///
/// # Errors
/// `Invalid`.
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

/// CSI ControllerUnpublishVolume.
///
/// # Errors
/// `Invalid`.
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
    let parameters = match refuse_mutable_parameters(&request.mutable_parameters) {
        Err(error) => Some(Err(error.to_string())),
        Ok(()) if request.parameters.is_empty() => None,
        Ok(()) => Some(parameters::storage_class(&request.parameters)),
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

/// CSI ListVolumes. Whether the token is one of ours is not decided here: a wrong one is ABORTED.
///
/// # Errors
/// `Invalid`.
pub fn list_volumes(request: csi::ListVolumesRequest) -> Result<ListVolumes> {
    let max_entries = match usize::try_from(request.max_entries) {
        Ok(0) => None,
        Ok(count) => Some(count),
        Err(_) => {
            return invalid(format!("max_entries is {}; it must not be negative", request.max_entries));
        }
    };
    Ok(ListVolumes {
        max_entries,
        starting_token: fields::optional("starting_token", request.starting_token)?,
    })
}

/// CSI ControllerGetVolume: the volume's id.
///
/// # Errors
/// `Invalid`.
pub fn controller_get_volume(request: csi::ControllerGetVolumeRequest) -> Result<String> {
    fields::volume_id(request.volume_id)
}

/// CSI GetCapacity.
///
/// # Errors
/// `Invalid` for a malformed request; a capability that no volume has is part of the result.
pub fn get_capacity(request: csi::GetCapacityRequest) -> Result<GetCapacity> {
    let capabilities = capability::each(request.volume_capabilities)?;
    check_map("parameters", &request.parameters)?;
    let parameters = parameters::storage_class(&request.parameters).map_err(Error::Invalid)?;
    Ok(GetCapacity {
        capabilities: fitting(capabilities, &parameters),
        parameters,
        topology: topology::place(request.accessible_topology)?,
    })
}

/// CSI ControllerExpandVolume.
///
/// # Errors
/// `Invalid`.
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

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
