//! Whether a request fits the volume: rules that several RPCs share.

use crate::backend::unsupported;
use crate::error::{Error, Result};
use crate::model::request::Context;
use crate::model::{AccessType, Capability, MountFlags, Volume, VolumeParameters};

/// Refuses a capability that the volume does not have, with the error that `refuse` makes of the reason.
pub(crate) fn capability(volume: &Volume, wanted: &Capability, refuse: fn(String) -> Error) -> Result<()> {
    match unsupported(&volume.content, &volume.parameters, &as_converted(volume, wanted)) {
        Some(reason) => Err(refuse(format!("volume {}: {reason}", volume.id))),
        None => Ok(()),
    }
}

/// Refuses a `volume_context` that is not the volume's. Keys that are not ours were added on the way (the
/// provisioner's identity, kubelet's pod info) and mean nothing to us. A volume that has moved may be in another pool than the one that
/// its PersistentVolume keeps, and may have another backend.
///
/// # Errors
/// INVALID_ARGUMENT naming the key.
pub(crate) fn context(volume: &Volume, sent: &Context) -> Result<()> {
    let may_differ =
        |key: &str| key == "pool" && volume.generation > 0 || key == "backend" && volume.converted;
    let wrong =
        |(key, value): &(String, String)| !may_differ(key) && sent.get(key).is_some_and(|sent| sent != value);
    match volume.context().into_iter().find(wrong) {
        Some((key, value)) => Err(Error::Invalid(format!(
            "volume_context {key:?} is not {value:?}, as CreateVolume returned it"
        ))),
        None => Ok(()),
    }
}

/// Refuses what needs the data of a volume, where it is a copy that is being brought up to date: they may be of two points in
/// time.
///
/// # Errors
/// FAILED_PRECONDITION.
pub(crate) fn is_no_copy(volume: &Volume) -> Result<()> {
    match (&volume.copy_of, &volume.source) {
        (None, _) => Ok(()),
        (Some(_), Some(source)) => Err(Error::InUse(format!(
            "volume {} is a copy of {source} that is being brought up to date; it can be used when that has been completed",
            volume.id
        ))),
        (Some(_), None) => Err(Error::InUse(format!("volume {} is a copy that is not complete", volume.id))),
    }
}

/// Refuses what changes the data of a volume that moves to another node, where they would be lost, and of a copy.
///
/// # Errors
/// FAILED_PRECONDITION.
pub(crate) fn may_change(volume: &Volume) -> Result<()> {
    is_no_copy(volume)?;
    match &volume.moved_to {
        None => Ok(()),
        Some(_) if volume.moves_within_node() => Err(Error::InUse(format!(
            "volume {} is sealed, because its data move to another pool of this node: it can be used when that has ended",
            volume.id
        ))),
        Some(node) => Err(Error::InUse(format!(
            "volume {} is sealed, because its data move to node {node:?}: it cannot be used here any more",
            volume.id
        ))),
    }
}

/// Makes sure that a volume has moved as often as the caller knows.
///
/// # Errors
/// FAILED_PRECONDITION.
pub(crate) fn has_generation(volume: &Volume, generation: u64, node_id: &str) -> Result<()> {
    match volume.generation == generation {
        true => Ok(()),
        false => Err(Error::InUse(format!(
            "node {node_id:?} has generation {} of volume {}, not {generation}",
            volume.generation, volume.id
        ))),
    }
}

/// Returns a capability as it means a volume: one that a move has converted has another filesystem than its PersistentVolume says.
pub(crate) fn as_converted(volume: &Volume, wanted: &Capability) -> Capability {
    match &wanted.access {
        AccessType::Mount { flags, .. } if volume.converted => Capability {
            access: AccessType::Mount { fs_type: None, flags: flags.clone() },
            mode: wanted.mode,
        },
        _ => wanted.clone(),
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

/// Reports whether an existing volume has the requested parameters. What the request leaves to the pool was decided when
/// the volume was created.
pub(crate) fn are_asked_for(there: &VolumeParameters, asked: &VolumeParameters) -> bool {
    let enforcement = asked.enforcement.or(there.enforcement);
    *there == VolumeParameters { enforcement, ..asked.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sample_volume;

    fn volume(moved_to: Option<&str>) -> Volume {
        Volume { moved_to: moved_to.map(str::to_owned), ..sample_volume() }
    }

    #[test]
    fn a_sealed_volume_is_refused_with_its_new_node() {
        assert!(may_change(&volume(None)).is_ok());
        let refused = may_change(&volume(Some("node-b")));
        assert!(matches!(refused, Err(Error::InUse(message)) if message.contains("\"node-b\"")));
    }
}
