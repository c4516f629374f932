//! A call of a CSI caller as a value, and what it changes for those who were told that it succeeded. The walk repeats each call
//! after each kill and each failure, which the volume of the selftest cannot: it makes its calls at once.

use std::collections::BTreeMap;
use std::time::Duration;

use csi::volume_content_source::Type as Source;
use hostloop::model::{GroupSnapshotId, NodeKey, SnapshotId, VolumeId};
use hostloop::wire::csi;
use tonic::{Code, Status};

use crate::harness::{NODE, Server};
use crate::requests::{
    MadeFrom, Spec, attach, delete, delete_group, delete_snapshot, detach, expand, group, modify, publish,
    snapshot, stage, unpublish, unstage,
};

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
    Modify(csi::ControllerModifyVolumeRequest),
    Snapshot(csi::CreateSnapshotRequest),
    DeleteSnapshot(csi::DeleteSnapshotRequest),
    Group(csi::CreateVolumeGroupSnapshotRequest),
    DeleteGroup(csi::DeleteVolumeGroupSnapshotRequest),
}

impl Call {
    pub fn create(spec: Spec, name: &str) -> Call {
        Call::Create(spec, spec.create(name))
    }

    /// A restored or cloned volume.
    pub fn create_from(spec: Spec, name: &str, from: &MadeFrom) -> Call {
        Call::Create(spec, from.source_of(spec.create(name)))
    }

    pub fn modify(id: &str, parameters: &[(&str, &str)]) -> Call {
        Call::Modify(modify(id, parameters))
    }

    pub fn snapshot(name: &str, id: &str) -> Call {
        Call::Snapshot(snapshot(name, id))
    }

    pub fn delete_snapshot(id: &str) -> Call {
        Call::DeleteSnapshot(delete_snapshot(id))
    }

    pub fn group(name: &str, ids: &[&str]) -> Call {
        Call::Group(group(name, ids))
    }

    pub fn delete_group(id: &str) -> Call {
        Call::DeleteGroup(delete_group(id))
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
            Call::Create(_, request) => server.call(request).map(drop),
            Call::Delete(request) => server.call(request).map(drop),
            Call::Attach(request) => server.call(request).map(drop),
            Call::Detach(request) => server.call(request).map(drop),
            Call::Expand(request) => server.call(request).map(drop),
            Call::Stage(request) => server.call(request).map(drop),
            Call::Unstage(request) => server.call(request).map(drop),
            Call::Publish(request) | Call::PublishInline(_, request) => server.call(request).map(drop),
            Call::Unpublish(request) => server.call(request).map(drop),
            Call::NodeExpand(request) => server.call(request).map(drop),
            Call::Modify(request) => server.call(request).map(drop),
            Call::Snapshot(request) => server.call(request).map(drop),
            Call::DeleteSnapshot(request) => server.call(request).map(drop),
            Call::Group(request) => server.call(request).map(drop),
            Call::DeleteGroup(request) => server.call(request).map(drop),
        }
    }

    /// Makes the call again, as a sidecar does: the driver may be finishing the first one by itself at this moment.
    pub fn repeat(&self, server: &Server) -> Result<(), String> {
        for _ in 0..100 {
            match self.run(server) {
                Err(status) if status.code() == Code::Aborted => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                answer => return answer.map_err(|status| format!("the retry fails: {status}")),
            }
        }
        self.run(server).map_err(|status| format!("the retry fails for two seconds: {status}"))
    }

    /// Whether a failure may leave part of it done: what is taken away is never brought back, a retry goes on.
    pub fn is_forward_only(&self) -> bool {
        matches!(
            self,
            Call::Delete(_)
                | Call::Unstage(_)
                | Call::Unpublish(_)
                | Call::DeleteSnapshot(_)
                | Call::DeleteGroup(_)
        )
    }
}

/// The id that CreateVolume gives a volume.
pub fn id_of(name: &str) -> String {
    VolumeId::of_name(&NodeKey::of(NODE), name).to_string()
}

/// The id that CreateSnapshot gives a snapshot.
pub fn snapshot_id_of(name: &str) -> String {
    SnapshotId::of_name(&NodeKey::of(NODE), name).to_string()
}

/// The id that CreateVolumeGroupSnapshot gives a group.
pub fn group_id_of(name: &str) -> String {
    GroupSnapshotId::of_name(&NodeKey::of(NODE), name).to_string()
}

/// The id of the member of a group that is of this volume.
pub fn member_id_of(group: &str, volume_id: &str) -> String {
    let (group, source) = (group.parse().expect("a group"), volume_id.parse().expect("a volume"));
    SnapshotId::of_member(&group, &NodeKey::of(NODE), &source).to_string()
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
    /// What a pod wrote and synced, or a volume got from its source.
    pub marker: Option<Vec<u8>>,
    /// Made by this call; changed as ControllerModifyVolume changes what a repeat of it must say.
    pub created: Option<csi::CreateVolumeRequest>,
}

impl Known {
    /// The value of a parameter.
    pub fn parameter(&self, key: &str) -> Option<&str> {
        let created = self.created.as_ref()?;
        created.mutable_parameters.get(key).or_else(|| created.parameters.get(key)).map(String::as_str)
    }
}

/// A snapshot as its callers know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Cut {
    pub spec: Spec,
    pub bytes: u64,
    pub source: String,
    pub group: Option<String>,
    /// What was in the volume.
    pub marker: Option<Vec<u8>>,
}

/// Everything that was acknowledged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    pub volumes: BTreeMap<String, Known>,
    pub snapshots: BTreeMap<String, Cut>,
}

impl Model {
    fn known(&mut self, id: &str) -> &mut Known {
        self.volumes.get_mut(id).expect("the scenario made this volume")
    }

    /// A snapshot of the volume as it is.
    fn cut(&mut self, id: String, source: &str, group: Option<String>) {
        let Known { spec, bytes, marker, .. } = self.known(source).clone();
        self.snapshots.insert(id, Cut { spec, bytes, source: source.to_owned(), group, marker });
    }

    /// What a new volume holds.
    fn marker_of(&self, source: &Option<csi::VolumeContentSource>) -> Option<Vec<u8>> {
        match source.as_ref()?.r#type.as_ref()? {
            Source::Snapshot(source) => self.snapshots[&source.snapshot_id].marker.clone(),
            Source::Volume(source) => self.volumes[&source.volume_id].marker.clone(),
        }
    }

    /// Takes note of a call that succeeded.
    pub fn apply(&mut self, call: &Call) {
        match call {
            Call::Snapshot(request) => {
                self.cut(snapshot_id_of(&request.name), &request.source_volume_id, None);
            }
            Call::DeleteSnapshot(request) => drop(self.snapshots.remove(&request.snapshot_id)),
            Call::Group(request) => {
                let group = group_id_of(&request.name);
                for source in &request.source_volume_ids {
                    self.cut(member_id_of(&group, source), source, Some(group.clone()));
                }
            }
            Call::DeleteGroup(request) => {
                self.snapshots.retain(|_, cut| cut.group.as_ref() != Some(&request.group_snapshot_id));
            }
            call => self.apply_to_volume(call.clone()),
        }
    }

    fn apply_to_volume(&mut self, call: Call) {
        let new = |spec: Spec, inline| Known {
            spec,
            bytes: spec.bytes as u64,
            attached: false,
            staged: None,
            published: BTreeMap::new(),
            inline,
            marker: None,
            created: None,
        };
        let required =
            |range: &Option<csi::CapacityRange>| range.map_or(0, |range| range.required_bytes) as u64;
        match call {
            Call::Snapshot(_) | Call::DeleteSnapshot(_) | Call::Group(_) | Call::DeleteGroup(_) => {}
            Call::Create(spec, request) => {
                let marker = self.marker_of(&request.volume_content_source);
                let id = id_of(&request.name);
                self.volumes.insert(id, Known { marker, created: Some(request), ..new(spec, false) });
            }
            Call::Modify(request) => {
                let created = self.known(&request.volume_id).created.as_mut().expect("it was made by a call");
                created.mutable_parameters.extend(request.mutable_parameters);
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
        common.snapshots.retain(|id, _| other.snapshots.contains_key(id));
        common
    }
}
