//! Requests as the sidecars and kubelet send them. Change the fields for anything unusual.

use std::collections::HashMap;
use std::path::Path;

use crate::config::Check;
use crate::wire::csi::volume_capability::access_mode::Mode;
use crate::wire::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::wire::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use crate::wire::csi::*;

/// What a volume is made from, by its id.
#[derive(Debug, Clone)]
pub enum MadeFrom {
    /// A restore.
    Snapshot(String),
    /// A clone.
    Volume(String),
}

impl MadeFrom {
    /// The request with this source.
    pub fn source_of(&self, request: CreateVolumeRequest) -> CreateVolumeRequest {
        let r#type = Some(match self.clone() {
            MadeFrom::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
            MadeFrom::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
        });
        CreateVolumeRequest { volume_content_source: Some(VolumeContentSource { r#type }), ..request }
    }
}

/// Access to a mounted filesystem of this type, which an empty one leaves to the driver; `None` is access to a raw device.
pub fn capability(fs_type: Option<&str>, mode: Mode) -> VolumeCapability {
    let mount = |fs_type: &str| MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
    let access =
        fs_type.map_or(AccessType::Block(BlockVolume {}), |fs_type| AccessType::Mount(mount(fs_type)));
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access) }
}

/// Returns a range from this number of bytes on.
pub fn range(bytes: impl TryInto<i64>) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes: bytes.try_into().unwrap_or(i64::MAX), limit_bytes: 0 })
}

/// Parameters, of a class or of one request.
pub fn parameters(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The capability of a volume of this kind, for one writer.
pub fn writer(check: Check) -> VolumeCapability {
    let fs_type = match check {
        Check::Block => None,
        Check::Directory | Check::DirectoryEnforced => Some(""),
        Check::Ext4 | Check::Xfs | Check::Btrfs => Some(check.as_str()),
    };
    capability(fs_type, Mode::SingleNodeWriter)
}

/// CreateVolume of a volume of this kind, in a pool that can have it.
pub fn create_kind(name: &str, bytes: u64, check: Check) -> CreateVolumeRequest {
    let of_kind: &[_] = match check {
        Check::Directory => &[("backend", "directory")],
        Check::DirectoryEnforced => &[("backend", "directory"), ("enforcement", "required")],
        Check::Ext4 | Check::Xfs | Check::Btrfs | Check::Block => &[],
    };
    CreateVolumeRequest { parameters: parameters(of_kind), ..create(name, bytes, writer(check)) }
}

/// CreateVolume of at least this number of bytes.
pub fn create(name: &str, bytes: impl TryInto<i64>, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: range(bytes),
        volume_capabilities: vec![capability],
        ..Default::default()
    }
}

/// DeleteVolume.
pub fn delete(id: &str) -> DeleteVolumeRequest {
    DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() }
}

/// CreateSnapshot of this volume.
pub fn snapshot(name: &str, volume_id: &str) -> CreateSnapshotRequest {
    let (name, source_volume_id) = (name.to_owned(), volume_id.to_owned());
    CreateSnapshotRequest { name, source_volume_id, ..Default::default() }
}

/// DeleteSnapshot.
pub fn delete_snapshot(id: &str) -> DeleteSnapshotRequest {
    DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() }
}

/// ControllerPublishVolume.
pub fn attach(id: &str, node_id: &str, capability: VolumeCapability) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node_id.to_owned(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// ControllerUnpublishVolume.
pub fn detach(id: &str, node_id: &str) -> ControllerUnpublishVolumeRequest {
    let (volume_id, node_id) = (id.to_owned(), node_id.to_owned());
    ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() }
}

/// NodeStageVolume.
pub fn stage(id: &str, staging: impl AsRef<Path>, capability: VolumeCapability) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// NodeUnstageVolume.
pub fn unstage(id: &str, staging: impl AsRef<Path>) -> NodeUnstageVolumeRequest {
    NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: text(staging) }
}

/// NodePublishVolume of a volume that is staged.
pub fn publish(
    id: &str,
    staging: impl AsRef<Path>,
    target: impl AsRef<Path>,
    capability: VolumeCapability,
) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging),
        target_path: text(target),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// NodeUnpublishVolume.
pub fn unpublish(id: &str, target: impl AsRef<Path>) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: text(target) }
}

/// NodeGetVolumeStats of a path at which the volume is mounted.
pub fn stats(id: &str, path: impl AsRef<Path>) -> NodeGetVolumeStatsRequest {
    NodeGetVolumeStatsRequest { volume_id: id.to_owned(), volume_path: text(path), ..Default::default() }
}

/// ControllerExpandVolume to at least this number of bytes.
pub fn expand(id: &str, bytes: impl TryInto<i64>) -> ControllerExpandVolumeRequest {
    let (volume_id, capacity_range) = (id.to_owned(), range(bytes));
    ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() }
}

/// NodeExpandVolume of a path at which the volume is mounted; `None` for the size that it has.
pub fn node_expand(
    id: &str,
    path: impl AsRef<Path>,
    bytes: Option<impl TryInto<i64>>,
) -> NodeExpandVolumeRequest {
    NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: text(path),
        capacity_range: bytes.and_then(range),
        ..Default::default()
    }
}

/// Returns a path as text.
pub(super) fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().display().to_string()
}
