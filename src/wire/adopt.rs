//! The messages with which a volume is made of what others have made, to plain types and back.

use std::path::{Component, Path, PathBuf};

use super::decode;
use super::{csi, peer};
use crate::error::{Error, Result};
use crate::model::{AdoptVolume, Adoption, AdoptionOrder, Settings, Taken, Volume};
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode};
use peer::adopt_volume_request::Source;

/// Decodes a request.
///
/// # Errors
/// INVALID_ARGUMENT.
pub fn request(request: peer::AdoptVolumeRequest) -> Result<AdoptVolume> {
    let (path, is_directory) = match request.source {
        Some(Source::Image(path)) => (path, false),
        Some(Source::Directory(path)) => (path, true),
        None => return Err(Error::Invalid("name an image or a directory".to_owned())),
    };
    let access_type = match request.block {
        true => AccessType::Block(BlockVolume {}),
        false => AccessType::Mount(MountVolume {
            fs_type: request.fs_type,
            mount_flags: request.mount_flags,
            volume_mount_group: String::new(),
        }),
    };
    let capability = csi::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: access_mode::Mode::SingleNodeWriter.into() }),
    };
    let required_bytes = i64::try_from(request.size_bytes)
        .map_err(|_| Error::Invalid("size_bytes is too large".to_owned()))?;
    let volume = decode::create_volume(csi::CreateVolumeRequest {
        name: "adopted".to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        parameters: request.parameters,
        ..csi::CreateVolumeRequest::default()
    })?;
    let (remove_source, dry_run, look) = (request.remove_source, request.dry_run, request.look);
    Ok(AdoptVolume { path: plain(&path)?, is_directory, volume, remove_source, dry_run, look })
}

/// An absolute path in its plain spelling, so that paths can be compared.
fn plain(text: &str) -> Result<PathBuf> {
    let path = Path::new(text);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let plain: PathBuf = path.components().collect();
    match path.is_absolute() && is_plain && !text.contains('\0') && plain.as_os_str() == text {
        true => Ok(plain),
        false => Err(Error::Invalid(format!(
            "{text:?} is not a plain absolute path; write it without ., .., doubled slashes and a slash at the end"
        ))),
    }
}

/// Encodes a request.
pub fn encode_order(order: &AdoptionOrder) -> peer::AdoptVolumeRequest {
    let AdoptionOrder { node_id, path, is_directory, parameters, block, .. } = order.clone();
    let AdoptionOrder { fs_type, mount_flags, size_bytes, remove_source, dry_run, look, .. } = order.clone();
    let source = Some(if is_directory { Source::Directory(path) } else { Source::Image(path) });
    peer::AdoptVolumeRequest {
        node_id,
        source,
        parameters,
        block,
        fs_type,
        mount_flags,
        size_bytes,
        remove_source,
        dry_run,
        look,
    }
}

/// Decodes an answer.
pub fn decode_answer(answer: peer::AdoptVolumeResponse) -> Adoption {
    Adoption {
        volume_id: answer.volume_id,
        capacity_bytes: answer.capacity_bytes,
        volume_context: answer.volume_context.into_iter().collect(),
        node_id: answer.node_id,
        driver_name: answer.driver_name,
        fs_type: answer.fs_type,
        block: answer.block,
        way: answer.way,
        left: Some(answer.left).filter(|left| !left.is_empty()),
        made: answer.made,
    }
}

/// Encodes an answer: the volume, if there is one, or what it would be; where its source is; whether it was made.
pub fn encode(
    (volume, way): (Option<&Volume>, Option<Taken>),
    left: Option<&Path>,
    made: bool,
    settings: &Settings,
) -> peer::AdoptVolumeResponse {
    let fs_type = volume.and_then(Volume::fs_type).map(|fs_type| fs_type.as_str().to_owned());
    peer::AdoptVolumeResponse {
        volume_id: volume.map(|volume| volume.id.to_string()).unwrap_or_default(),
        capacity_bytes: volume.map_or(0, |volume| volume.capacity_bytes),
        volume_context: volume.map(|volume| volume.context().into_iter().collect()).unwrap_or_default(),
        node_id: settings.node_id.clone(),
        driver_name: settings.driver_name.clone(),
        fs_type: fs_type.unwrap_or_default(),
        block: volume.is_some_and(Volume::is_block),
        way: way.map(Taken::as_str).unwrap_or_default().to_owned(),
        left: left.map(|left| left.display().to_string()).unwrap_or_default(),
        made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_only_in_its_plain_spelling() {
        assert_eq!(plain("/a/b c").unwrap(), Path::new("/a/b c"));
        for path in ["", "a", "/a/../b", "/a/./b", "/a//b", "/a/", "/a\0b"] {
            assert!(plain(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_request_without_a_source_is_refused() {
        let error = request(peer::AdoptVolumeRequest::default()).unwrap_err();
        assert!(error.to_string().contains("name an image or a directory"), "{error}");
    }
}
