//! Requests as external-provisioner, external-attacher and kubelet send them, with paths of the fake kernel's
//! tree. Change the fields for anything unusual.

use std::collections::HashMap;

use csi::volume_capability::access_mode::Mode;
use hostloop::model::FsType;
use hostloop::wire::csi;

use crate::client;
pub use crate::client::*;
use crate::harness::{DIRECTORIES, KUBELET, NODE, SHARING, SHARING_DIRECTORIES};

pub const MIB: i64 = 1 << 20;

/// Pools whose filesystem limits directories, by their names and where they lie.
pub const LIMITED: [(&str, &str, FsType); 4] = [
    ("limited-xfs", "/pools/limited-xfs", FsType::Xfs),
    ("limited-ext4", "/pools/limited-ext4", FsType::Ext4),
    ("limited-btrfs", "/pools/limited-btrfs", FsType::Btrfs),
    ("limited-qgroups", "/pools/limited-qgroups", FsType::Btrfs),
];

/// The number of the one of these with full qgroups, where copies share everything.
pub const QGROUPS: usize = 3;

/// A kind of volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    pub kind: Kind,
    pub thick: bool,
    /// In the pool whose filesystem can share blocks.
    pub sharing: bool,
    /// A directory in a pool whose filesystem limits it, by the number of [`LIMITED`].
    pub limited: Option<usize>,
    pub bytes: i64,
}

impl Spec {
    /// Thin, 512 MiB.
    pub fn new(kind: Kind) -> Spec {
        Spec { kind, thick: false, sharing: false, limited: None, bytes: 512 * MIB }
    }

    pub fn thick(kind: Kind) -> Spec {
        Spec { thick: true, ..Spec::new(kind) }
    }

    pub fn sharing(kind: Kind) -> Spec {
        Spec { sharing: true, ..Spec::new(kind) }
    }

    /// A directory whose size its filesystem enforces.
    pub fn limited(number: usize) -> Spec {
        Spec { limited: Some(number), ..Spec::new(Kind::Directory) }
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
        self.kind.capability(mode)
    }

    /// Parameters of the StorageClass, or attributes of an inline volume.
    pub fn parameters(&self) -> HashMap<String, String> {
        let mut parameters = client::parameters(self.kind.backend());
        if self.thick {
            parameters.insert("provisioning".to_owned(), "thick".to_owned());
        }
        let in_its_kind = match (self.kind, self.sharing) {
            (Kind::Directory, false) => Some(DIRECTORIES),
            (Kind::Directory, true) => Some(SHARING_DIRECTORIES),
            (_, true) => Some(SHARING),
            (_, false) => None,
        };
        let pool = self.limited.map(|number| LIMITED[number].0).or(in_its_kind);
        parameters.extend(pool.map(|pool| ("pool".to_owned(), pool.to_owned())));
        parameters
    }

    pub fn create(&self, name: &str) -> csi::CreateVolumeRequest {
        let parameters = self.parameters();
        csi::CreateVolumeRequest { parameters, ..client::create(name, self.bytes, self.capability()) }
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

/// Where a volume is staged.
pub fn staging_path(id: &str) -> String {
    format!("{KUBELET}/stage/{id}")
}

/// Where a volume is published for a pod.
pub fn target_path(pod: &str) -> String {
    format!("{KUBELET}/pods/{pod}")
}

pub fn attach(id: &str, capability: csi::VolumeCapability) -> csi::ControllerPublishVolumeRequest {
    client::attach(id, NODE, capability)
}

pub fn detach(id: &str) -> csi::ControllerUnpublishVolumeRequest {
    client::detach(id, NODE)
}

pub fn stage(id: &str, capability: csi::VolumeCapability) -> csi::NodeStageVolumeRequest {
    client::stage(id, staging_path(id), capability)
}

pub fn unstage(id: &str) -> csi::NodeUnstageVolumeRequest {
    client::unstage(id, staging_path(id))
}

pub fn publish(id: &str, capability: csi::VolumeCapability, pod: &str) -> csi::NodePublishVolumeRequest {
    client::publish(id, staging_path(id), target_path(pod), capability)
}

pub fn unpublish(id: &str, pod: &str) -> csi::NodeUnpublishVolumeRequest {
    client::unpublish(id, target_path(pod))
}

/// NodeExpandVolume at a path where the volume is mounted; `None` for the size that it has.
pub fn node_expand(id: &str, path: &str, bytes: Option<i64>) -> csi::NodeExpandVolumeRequest {
    let staging_target_path = staging_path(id);
    csi::NodeExpandVolumeRequest { staging_target_path, ..client::node_expand(id, path, bytes) }
}
