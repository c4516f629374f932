//! A volume as its callers know it: what they remember of it, and the requests of its life, which carry all of that. A
//! caller sends them over its own connection, and decides what follows from an answer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::requests;
use crate::wire::csi;

/// A volume and how it is used. Change the fields for anything unusual.
#[derive(Debug, Clone)]
pub struct Volume {
    /// The id that requests name.
    pub id: String,
    /// The volume as CreateVolume answered it.
    pub info: csi::Volume,
    pub capability: csi::VolumeCapability,
    /// What ControllerPublishVolume answered; empty until then.
    pub publish_context: HashMap<String, String>,
    /// The directory that kubelet makes before NodeStageVolume; empty if the driver does not have that call.
    pub staging: PathBuf,
}

impl Volume {
    /// Creates the record of a volume that CreateVolume answered with `info`.
    pub fn new(info: csi::Volume, capability: csi::VolumeCapability, staging: impl Into<PathBuf>) -> Self {
        let (id, publish_context) = (info.volume_id.clone(), HashMap::new());
        Volume { id, info, capability, publish_context, staging: staging.into() }
    }

    /// Returns its size in bytes; 0 if the answer had a negative one.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.info.capacity_bytes).unwrap_or_default()
    }

    /// ControllerPublishVolume.
    pub fn attach_request(&self, node: &str, readonly: bool) -> csi::ControllerPublishVolumeRequest {
        let volume_context = self.info.volume_context.clone();
        let request = requests::attach(&self.id, node, self.capability.clone());
        csi::ControllerPublishVolumeRequest { readonly, volume_context, ..request }
    }

    /// ControllerUnpublishVolume.
    pub fn detach_request(&self, node: &str) -> csi::ControllerUnpublishVolumeRequest {
        requests::detach(&self.id, node)
    }

    /// NodeStageVolume.
    pub fn stage_request(&self) -> csi::NodeStageVolumeRequest {
        csi::NodeStageVolumeRequest {
            publish_context: self.publish_context.clone(),
            volume_context: self.info.volume_context.clone(),
            ..requests::stage(&self.id, &self.staging, self.capability.clone())
        }
    }

    /// NodeUnstageVolume.
    pub fn unstage_request(&self) -> csi::NodeUnstageVolumeRequest {
        requests::unstage(&self.id, &self.staging)
    }

    /// NodePublishVolume for the pod that finds its volumes at this path.
    pub fn publish_request(&self, target: impl AsRef<Path>) -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            publish_context: self.publish_context.clone(),
            volume_context: self.info.volume_context.clone(),
            ..requests::publish(&self.id, &self.staging, target, self.capability.clone())
        }
    }

    /// NodeUnpublishVolume.
    pub fn unpublish_request(&self, target: impl AsRef<Path>) -> csi::NodeUnpublishVolumeRequest {
        requests::unpublish(&self.id, target)
    }

    /// NodeGetVolumeStats of a path at which the volume is mounted.
    pub fn stats_request(&self, path: impl AsRef<Path>) -> csi::NodeGetVolumeStatsRequest {
        requests::stats(&self.id, path)
    }

    /// ControllerExpandVolume to at least this number of bytes.
    pub fn expand_request(&self, bytes: impl TryInto<i64>) -> csi::ControllerExpandVolumeRequest {
        let volume_capability = Some(self.capability.clone());
        csi::ControllerExpandVolumeRequest { volume_capability, ..requests::expand(&self.id, bytes) }
    }

    /// NodeExpandVolume of a path at which the volume is mounted; `None` for the size that it has.
    pub fn node_expand_request(
        &self,
        path: impl AsRef<Path>,
        bytes: Option<impl TryInto<i64>>,
    ) -> csi::NodeExpandVolumeRequest {
        csi::NodeExpandVolumeRequest {
            staging_target_path: requests::text(&self.staging),
            volume_capability: Some(self.capability.clone()),
            ..requests::node_expand(&self.id, path, bytes)
        }
    }

    /// CreateSnapshot.
    pub fn snapshot_request(&self, name: &str) -> csi::CreateSnapshotRequest {
        requests::snapshot(name, &self.id)
    }

    /// DeleteVolume.
    pub fn delete_request(&self) -> csi::DeleteVolumeRequest {
        requests::delete(&self.id)
    }
}
