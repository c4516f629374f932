//! CSI ValidateVolumeCapabilities.

use super::{Driver, not_found, request::check};
use crate::backend::{refused_option, unsupported};
use crate::error::Result;
use crate::model::answer::Validation;
use crate::model::request::ValidateVolumeCapabilities;

impl Driver {
    /// Says whether a volume has these capabilities.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown volume; INVALID_ARGUMENT for a `volume_context` that is not the volume's.
    pub fn validate_volume_capabilities(&self, request: ValidateVolumeCapabilities) -> Result<Validation> {
        let volume_id = &request.volume_id;
        let id = self.controller_id(volume_id).ok_or_else(|| not_found(volume_id))?;
        let volume = self.ready_volume(&id, volume_id)?;
        check::context(&volume, &request.context)?;
        let capability = request.capabilities.iter().find_map(|capability| match capability {
            Ok(capability) => unsupported(&volume.content, &volume.parameters, capability)
                .or_else(|| refused_option(&self.os, &volume.content, capability)),
            Err(reason) => Some(reason.clone()),
        });
        let parameters = request.parameters.and_then(|parameters| match parameters {
            Ok(parameters) if check::are_asked_for(&volume.parameters, &parameters) => None,
            Ok(_) => Some("the volume was made with other parameters".to_owned()),
            Err(reason) => Some(reason),
        });
        let message = capability.or(parameters);
        Ok(Validation { confirmed: message.is_none(), message: message.unwrap_or_default() })
    }
}
