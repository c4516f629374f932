//! Requests as external-provisioner, external-attacher and kubelet send them, with paths of the fake kernel's
//! tree. Change the fields for anything unusual.

use std::collections::HashMap;

use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use hostloop::wire::csi;

use crate::harness::{DIRECTORIES, KUBELET, NODE, SHARING, SHARING_DIRECTORIES};

pub const MIB: i64 = 1 << 20;

/// What a volume holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Block,
    Directory,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block, Kind::Directory];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::Block => "block",
            Kind::Directory => "directory",
        }
    }
}

/// A kind of volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    pub kind: Kind,
    pub thick: bool,
    /// In the pool whose filesystem can share blocks.
    pub sharing: bool,
    pub bytes: i64,
}

impl Spec {
    /// Thin, 512 MiB.
    pub fn new(kind: Kind) -> Spec {
        Spec { kind, thick: false, sharing: false, bytes: 512 * MIB }
    }

    pub fn thick(kind: Kind) -> Spec {
        Spec { thick: true, ..Spec::new(kind) }
    }

    pub fn sharing(kind: Kind) -> Spec {
        Spec { sharing: true, ..Spec::new(kind) }
    }

    /// The same, larger.
    pub fn grown(self) -> Spec {
        Spec { bytes: self.bytes + 256 * MIB, ..self }
    }

    /// SINGLE_NODE_WRITER, with the kind's access type.
    pub fn capability(&self) -> csi::VolumeCapability {
        self.capability_in(Mode::SingleNodeWriter)
    }

    pub fn capability_in(&self, mode: Mode) -> csi::VolumeCapability {
        let mount = |fs_type: &str| {
            AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() })
        };
        let access = match self.kind {
            Kind::Block => AccessType::Block(BlockVolume {}),
            Kind::Directory => mount(""),
            kind => mount(kind.name()),
        };
        csi::VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(access),
        }
    }

    /// Parameters of the StorageClass, or attributes of an inline volume.
    pub fn parameters(&self) -> HashMap<String, String> {
        let mut parameters = HashMap::new();
        if self.kind == Kind::Directory {
            parameters.insert("backend".to_owned(), "directory".to_owned());
        }
        if self.thick {
            parameters.insert("provisioning".to_owned(), "thick".to_owned());
        }
        let pool = match (self.kind, self.sharing) {
            (Kind::Directory, false) => Some(DIRECTORIES),
            (Kind::Directory, true) => Some(SHARING_DIRECTORIES),
            (_, true) => Some(SHARING),
            (_, false) => None,
        };
        parameters.extend(pool.map(|pool| ("pool".to_owned(), pool.to_owned())));
        parameters
    }

    pub fn create(&self, name: &str) -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: range(self.bytes),
            volume_capabilities: vec![self.capability()],
            parameters: self.parameters(),
            ..Default::default()
        }
    }

    /// NodePublishVolume of an inline ephemeral volume.
    pub fn publish_inline(&self, id: &str, pod: &str) -> csi::NodePublishVolumeRequest {
        let mut volume_context = self.parameters();
        volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
        volume_context.insert("size".to_owned(), self.bytes.to_string());
        csi::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: target_path(pod),
            volume_capability: Some(self.capability()),
            volume_context,
            ..Default::default()
        }
    }
}

/// At least so many bytes.
pub fn range(bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 })
}

/// Where a volume is staged.
pub fn staging_path(id: &str) -> String {
    format!("{KUBELET}/stage/{id}")
}

/// Where a volume is published for a pod.
pub fn target_path(pod: &str) -> String {
    format!("{KUBELET}/pods/{pod}")
}

pub fn delete(id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() }
}

pub fn attach(id: &str, capability: csi::VolumeCapability) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: NODE.to_owned(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub fn detach(id: &str) -> csi::ControllerUnpublishVolumeRequest {
    let (volume_id, node_id) = (id.to_owned(), NODE.to_owned());
    csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() }
}

pub fn expand(id: &str, bytes: i64) -> csi::ControllerExpandVolumeRequest {
    let (volume_id, capacity_range) = (id.to_owned(), range(bytes));
    csi::ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() }
}

pub fn stage(id: &str, capability: csi::VolumeCapability) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: staging_path(id),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub fn unstage(id: &str) -> csi::NodeUnstageVolumeRequest {
    csi::NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: staging_path(id) }
}

pub fn publish(id: &str, capability: csi::VolumeCapability, pod: &str) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: staging_path(id),
        target_path: target_path(pod),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub fn unpublish(id: &str, pod: &str) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: target_path(pod) }
}

/// NodeExpandVolume at a path where the volume is mounted; `None` for the size that it has.
pub fn node_expand(id: &str, path: &str, bytes: Option<i64>) -> csi::NodeExpandVolumeRequest {
    csi::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        capacity_range: bytes.and_then(range),
        staging_target_path: staging_path(id),
        ..Default::default()
    }
}

/// What a volume is made from, by its id.
#[derive(Debug, Clone)]
pub enum MadeFrom {
    Snapshot(String),
    Volume(String),
}

impl MadeFrom {
    /// The request with this source.
    pub fn source_of(&self, request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest {
        let source = match self.clone() {
            MadeFrom::Snapshot(snapshot_id) => Source::Snapshot(SnapshotSource { snapshot_id }),
            MadeFrom::Volume(volume_id) => Source::Volume(VolumeSource { volume_id }),
        };
        let volume_content_source = Some(csi::VolumeContentSource { r#type: Some(source) });
        csi::CreateVolumeRequest { volume_content_source, ..request }
    }
}

pub fn snapshot(name: &str, volume_id: &str) -> csi::CreateSnapshotRequest {
    let (name, source_volume_id) = (name.to_owned(), volume_id.to_owned());
    csi::CreateSnapshotRequest { name, source_volume_id, ..Default::default() }
}

pub fn delete_snapshot(id: &str) -> csi::DeleteSnapshotRequest {
    csi::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() }
}

pub fn group(name: &str, volume_ids: &[&str]) -> csi::CreateVolumeGroupSnapshotRequest {
    let source_volume_ids = volume_ids.iter().map(|id| (*id).to_owned()).collect();
    csi::CreateVolumeGroupSnapshotRequest { name: name.to_owned(), source_volume_ids, ..Default::default() }
}

pub fn delete_group(id: &str) -> csi::DeleteVolumeGroupSnapshotRequest {
    csi::DeleteVolumeGroupSnapshotRequest { group_snapshot_id: id.to_owned(), ..Default::default() }
}

pub fn modify(id: &str, parameters: &[(&str, &str)]) -> csi::ControllerModifyVolumeRequest {
    let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let mutable_parameters = parameters.iter().map(entry).collect();
    csi::ControllerModifyVolumeRequest { volume_id: id.to_owned(), mutable_parameters, ..Default::default() }
}
