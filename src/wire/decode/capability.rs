//! CSI `VolumeCapability`.

use super::fields::{self, MAP_LIMIT, STRING_LIMIT, at_most, invalid};
use crate::error::{Error, Result};
use crate::model::{AccessMode, AccessType, Capability, FsType, MountFlags};
use crate::wire::csi;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessType as CsiAccessType, MountVolume};

/// Why a capability was not taken.
enum Refusal {
    /// A required part is missing or too large: INVALID_ARGUMENT in every RPC.
    Malformed(Error),
    /// It is well formed, but no volume of this driver has it: INVALID_ARGUMENT where it is to be used,
    /// and an answer where it is asked about.
    Unsupported(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Malformed(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Malformed(error) => error,
            Refusal::Unsupported(reason) => Error::Invalid(reason),
        }
    }
}

/// `volume_capability`, which must be there.
pub(super) fn required(capability: Option<csi::VolumeCapability>) -> Result<Capability> {
    match capability {
        Some(capability) => Ok(decode("volume_capability", capability)?),
        None => fields::missing("volume_capability"),
    }
}

/// `volume_capability`, which may be left out.
pub(super) fn optional(capability: Option<csi::VolumeCapability>) -> Result<Option<Capability>> {
    capability.map(|capability| required(Some(capability))).transpose()
}

/// `volume_capabilities` of a volume to be made: at least one, and all of what one volume can be.
pub(super) fn all(capabilities: Vec<csi::VolumeCapability>) -> Result<Vec<Capability>> {
    if capabilities.is_empty() {
        return fields::missing("volume_capabilities");
    }
    each(capabilities)?.into_iter().map(|capability| capability.or_else(invalid)).collect()
}

/// `volume_capabilities` that are only asked about: the reason stands in for one that no volume has, or that
/// no volume has together with the ones before it.
pub(super) fn each(capabilities: Vec<csi::VolumeCapability>) -> Result<Vec<Result<Capability, String>>> {
    let mut decoded = Vec::with_capacity(capabilities.len());
    let (mut block, mut fs_type) = (None, None);
    for (at, capability) in capabilities.into_iter().enumerate() {
        let field = format!("volume_capabilities[{at}]");
        let capability = match decode(&field, capability) {
            Ok(capability) => capability,
            Err(Refusal::Unsupported(reason)) => {
                decoded.push(Err(reason));
                continue;
            }
            Err(Refusal::Malformed(error)) => return Err(error),
        };
        let other_access = *block.get_or_insert(capability.is_block()) != capability.is_block();
        let other_fs = matches!((fs_type, capability.fs_type()), (Some(a), Some(b)) if a != b);
        fs_type = fs_type.or(capability.fs_type());
        decoded.push(if other_access {
            Err("volume_capabilities asks for both block and mount; a volume is one of them".to_owned())
        } else if other_fs {
            Err("volume_capabilities names different values of fs_type; a volume has one filesystem"
                .to_owned())
        } else {
            Ok(capability)
        });
    }
    Ok(decoded)
}

fn decode(field: &str, capability: csi::VolumeCapability) -> Result<Capability, Refusal> {
    let Some(mode) = capability.access_mode else {
        return Ok(fields::missing(&format!("{field}.access_mode"))?);
    };
    let Some(access) = capability.access_type else {
        return Ok(fields::missing(&format!("{field}.access_type (block or mount)"))?);
    };
    let mode = decode_mode(field, mode.mode)?;
    let access = match access {
        CsiAccessType::Block(_) => AccessType::Block,
        CsiAccessType::Mount(mount) => decode_mount(field, &mount)?,
    };
    Ok(Capability { access, mode })
}

fn decode_mode(field: &str, mode: i32) -> Result<AccessMode, Refusal> {
    Ok(match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter) => AccessMode::SingleNodeWriter,
        Ok(Mode::SingleNodeReaderOnly) => AccessMode::SingleNodeReaderOnly,
        Ok(Mode::MultiNodeReaderOnly) => AccessMode::MultiNodeReaderOnly,
        Ok(Mode::MultiNodeSingleWriter) => AccessMode::MultiNodeSingleWriter,
        Ok(Mode::MultiNodeMultiWriter) => AccessMode::MultiNodeMultiWriter,
        Ok(Mode::SingleNodeSingleWriter) => AccessMode::SingleNodeSingleWriter,
        Ok(Mode::SingleNodeMultiWriter) => AccessMode::SingleNodeMultiWriter,
        Ok(Mode::Unknown) => invalid(format!("{field}.access_mode.mode is UNKNOWN; name a mode"))?,
        Err(_) => {
            let reason = format!("{field}.access_mode.mode {mode} is not supported; use a mode of CSI 1.13");
            return Err(Refusal::Unsupported(reason));
        }
    })
}

/// Mount flags may be sensitive (csi.proto, MountVolume.mount_flags): a message names one without its value.
fn decode_mount(field: &str, mount: &MountVolume) -> Result<AccessType, Refusal> {
    at_most(&format!("{field}.mount.fs_type"), mount.fs_type.len(), STRING_LIMIT)?;
    at_most(&format!("{field}.mount.volume_mount_group"), mount.volume_mount_group.len(), STRING_LIMIT)?;
    at_most(
        &format!("{field}.mount.mount_flags"),
        mount.mount_flags.iter().map(String::len).sum(),
        MAP_LIMIT,
    )?;
    if mount.mount_flags.iter().any(|flag| flag.contains(|c: char| c.is_control())) {
        invalid(format!("{field}.mount.mount_flags contains a control character; leave it out"))?;
    }
    let unsupported = |reason: String| Refusal::Unsupported(format!("{field}.mount: {reason}"));
    if !mount.volume_mount_group.is_empty() {
        let reason =
            "volume_mount_group is not supported; let the fsGroup policy of the CSIDriver object do it";
        return Err(unsupported(reason.to_owned()));
    }
    let fs_type = match mount.fs_type.as_str() {
        "" => None,
        name => Some(name.parse::<FsType>().map_err(|e| unsupported(e.to_string()))?),
    };
    let flags = MountFlags::parse(mount.mount_flags.iter().map(String::as_str))
        .map_err(|e| unsupported(e.to_string()))?;
    Ok(AccessType::Mount { fs_type, flags })
}

#[cfg(test)]
mod tests;
