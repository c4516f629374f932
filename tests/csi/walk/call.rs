//! A call of a CSI caller as a value, and what it changes for those who were told that it succeeded.

use std::collections::BTreeMap;

use hostloop::model::{NodeKey, VolumeId};
use hostloop::wire::csi;
use tonic::Status;

use crate::harness::{NODE, Server};
use crate::requests::{Spec, attach, delete, detach, expand, publish, stage, unpublish, unstage};

/// A mutating RPC.
#[derive(Debug, Clone)]
pub enum Call {
    Create(Spec, csi::CreateVolumeRequest),
    Delete(csi::DeleteVolumeRequest),
    Attach(csi::ControllerPublishVolumeRequest),
    Detach(csi::ControllerUnpublishVolumeRequest),
    Expand(csi::ControllerExpandVolumeRequest),
    Stage(csi::NodeStageVolumeRequest),
    Unstage(csi::NodeUnstageVolumeRequest),
    Publish(csi::NodePublishVolumeRequest),
    PublishInline(Spec, csi::NodePublishVolumeRequest),
    Unpublish(csi::NodeUnpublishVolumeRequest),
    NodeExpand(csi::NodeExpandVolumeRequest),
}

impl Call {
    pub fn create(spec: Spec, name: &str) -> Call {
        Call::Create(spec, spec.create(name))
    }

    pub fn delete(id: &str) -> Call {
        Call::Delete(delete(id))
    }

    pub fn attach(id: &str, spec: Spec) -> Call {
        Call::Attach(attach(id, spec.capability()))
    }

    pub fn detach(id: &str) -> Call {
        Call::Detach(detach(id))
    }

    pub fn expand(id: &str, bytes: i64) -> Call {
        Call::Expand(expand(id, bytes))
    }

    pub fn stage(id: &str, spec: Spec) -> Call {
        Call::Stage(stage(id, spec.capability()))
    }

    pub fn unstage(id: &str) -> Call {
        Call::Unstage(unstage(id))
    }

    pub fn publish(id: &str, spec: Spec, pod: &str) -> Call {
        Call::Publish(publish(id, spec.capability(), pod))
    }

    pub fn unpublish(id: &str, pod: &str) -> Call {
        Call::Unpublish(unpublish(id, pod))
    }

    /// Makes the call.
    pub fn run(&self, server: &Server) -> Result<(), Status> {
        match self.clone() {
            Call::Create(_, request) => server.create_volume(request).map(drop),
            Call::Delete(request) => server.delete_volume(request).map(drop),
            Call::Attach(request) => server.controller_publish_volume(request).map(drop),
            Call::Detach(request) => server.controller_unpublish_volume(request).map(drop),
            Call::Expand(request) => server.controller_expand_volume(request).map(drop),
            Call::Stage(request) => server.node_stage_volume(request).map(drop),
            Call::Unstage(request) => server.node_unstage_volume(request).map(drop),
            Call::Publish(request) | Call::PublishInline(_, request) => {
                server.node_publish_volume(request).map(drop)
            }
            Call::Unpublish(request) => server.node_unpublish_volume(request).map(drop),
            Call::NodeExpand(request) => server.node_expand_volume(request).map(drop),
        }
    }

    /// Whether a failure may leave part of it done: what is taken away is never brought back, a retry goes on.
    pub fn is_forward_only(&self) -> bool {
        matches!(self, Call::Delete(_) | Call::Unstage(_) | Call::Unpublish(_))
    }
}

/// The id that CreateVolume gives a volume.
pub fn id_of(name: &str) -> String {
    VolumeId::of_name(&NodeKey::of(NODE), name).to_string()
}

/// The directory of an inline volume.
pub fn inline_id_of(csi_id: &str) -> String {
    VolumeId::of_inline(&NodeKey::of(NODE), csi_id).to_string()
}

/// A volume as its callers know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    pub spec: Spec,
    pub bytes: u64,
    pub attached: bool,
    pub staged: Option<csi::NodeStageVolumeRequest>,
    /// By target path.
    pub published: BTreeMap<String, csi::NodePublishVolumeRequest>,
    pub inline: bool,
    /// What a pod wrote and synced.
    pub marker: Option<Vec<u8>>,
}

/// Everything that was acknowledged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    pub volumes: BTreeMap<String, Known>,
}

impl Model {
    fn known(&mut self, id: &str) -> &mut Known {
        self.volumes.get_mut(id).expect("the scenario made this volume")
    }

    /// Takes note of a call that succeeded.
    pub fn apply(&mut self, call: &Call) {
        let new = |spec: Spec, inline| Known {
            spec,
            bytes: spec.bytes as u64,
            attached: false,
            staged: None,
            published: BTreeMap::new(),
            inline,
            marker: None,
        };
        let required =
            |range: &Option<csi::CapacityRange>| range.map_or(0, |range| range.required_bytes) as u64;
        match call.clone() {
            Call::Create(spec, request) => {
                self.volumes.insert(id_of(&request.name), new(spec, false));
            }
            Call::Delete(request) => {
                self.volumes.remove(&request.volume_id);
            }
            Call::Attach(request) => self.known(&request.volume_id).attached = true,
            Call::Detach(request) => self.known(&request.volume_id).attached = false,
            Call::Expand(csi::ControllerExpandVolumeRequest { volume_id, capacity_range, .. })
            | Call::NodeExpand(csi::NodeExpandVolumeRequest { volume_id, capacity_range, .. }) => {
                let known = self.known(&volume_id);
                known.bytes = known.bytes.max(required(&capacity_range));
            }
            Call::Stage(request) => self.known(&request.volume_id).staged = Some(request.clone()),
            Call::Unstage(request) => self.known(&request.volume_id).staged = None,
            Call::Publish(request) => {
                let (id, target) = (request.volume_id.clone(), request.target_path.clone());
                self.known(&id).published.insert(target, request);
            }
            Call::PublishInline(spec, request) => {
                let (id, target) = (request.volume_id.clone(), request.target_path.clone());
                let known = self.volumes.entry(id).or_insert_with(|| new(spec, true));
                known.published.insert(target, request);
            }
            Call::Unpublish(request) => {
                let known = self.known(&request.volume_id);
                known.published.remove(&request.target_path);
                if known.inline {
                    self.volumes.remove(&request.volume_id);
                }
            }
        }
    }

    /// What is there whether or not the last call was carried out: this is what callers build up again after
    /// a power cut before they repeat that call.
    pub fn common(&self, other: &Model) -> Model {
        let mut common = self.clone();
        common.volumes.retain(|id, known| match other.volumes.get(id) {
            None => false,
            Some(there) => {
                known.staged = known.staged.take().filter(|_| there.staged.is_some());
                known.published.retain(|target, _| there.published.contains_key(target));
                true
            }
        });
        common
    }
}
