//! Whether a request fits the volume: rules that several RPCs share.

use crate::backend::unsupported;
use crate::error::{Error, Result};
use crate::model::request::Context;
use crate::model::{AccessType, Capability, MountFlags, Volume};

/// Refuses a capability that the volume does not have, with the error that `refuse` makes of the reason.
pub(crate) fn capability(volume: &Volume, wanted: &Capability, refuse: fn(String) -> Error) -> Result<()> {
    match unsupported(&volume.content, &volume.parameters, wanted) {
        Some(reason) => Err(refuse(format!("volume {}: {reason}", volume.id))),
        None => Ok(()),
    }
}

/// Refuses a `volume_context` that is not the volume's. Keys that are not ours were added on the way (the
/// provisioner's identity, kubelet's pod info) and mean nothing to us.
///
/// # Errors
/// INVALID_ARGUMENT naming the key.
pub(crate) fn context(volume: &Volume, sent: &Context) -> Result<()> {
    let wrong = |(key, value): &(String, String)| sent.get(key).is_some_and(|sent| sent != value);
    match volume.context().into_iter().find(wrong) {
        Some((key, value)) => Err(Error::Invalid(format!(
            "volume_context {key:?} is not {value:?}, as CreateVolume returned it"
        ))),
        None => Ok(()),
    }
}

/// Mount flags may be sensitive and say nothing about the volume: a record has none.
pub(crate) fn without_flags(capability: Capability) -> Capability {
    match capability.access {
        AccessType::Mount { fs_type, .. } => Capability {
            access: AccessType::Mount { fs_type, flags: MountFlags::default() },
            mode: capability.mode,
        },
        AccessType::Block => capability,
    }
}
