//! The calls for one volume as requests.

use hostloop::wire::csi;

use super::call::{Answer, Call, Kind};
use super::rpc::{Caller, Sent, bytes, capability, nothing, range};

impl Caller<'_> {
    /// Makes a call for one volume.
    pub(super) async fn send_to_volume(&mut self, call: &Call, v: usize) -> Sent {
        let volume_id = self.setup.volume_id(v);
        let kind = self.setup.volumes[v].kind;
        let node_id = self.setup.node.clone();
        let rpc = &mut self.rpc.clone();
        match *call {
            Call::Create { v, bytes: size, limit, thick, from, wanted } => {
                let name = &self.setup.volumes[v].name;
                let mut request = self.create_request(v, name, (size, limit), from, wanted);
                if thick {
                    request.parameters.insert("provisioning".to_owned(), "thick".to_owned());
                }
                let volume = rpc.controller.create_volume(request).await?.into_inner().volume;
                let volume = volume.expect("a volume");
                assert_eq!(volume.volume_id, volume_id);
                Ok(bytes(volume.capacity_bytes))
            }
            Call::Delete(_) => {
                let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
                rpc.controller.delete_volume(request).await.map(nothing)
            }
            Call::Attach { read_only: readonly, wanted, .. } => {
                let volume_capability = capability(kind, wanted);
                let request = csi::ControllerPublishVolumeRequest {
                    volume_id,
                    node_id,
                    volume_capability,
                    readonly,
                    ..Default::default()
                };
                rpc.controller.controller_publish_volume(request).await.map(nothing)
            }
            Call::Detach { other_node, .. } => {
                let node_id = if other_node { "another".to_owned() } else { node_id };
                let request =
                    csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
                rpc.controller.controller_unpublish_volume(request).await.map(nothing)
            }
            _ => self.change(call, v).await,
        }
    }

    /// What changes a volume that is there, and what looks at it.
    async fn change(&mut self, call: &Call, v: usize) -> Sent {
        let volume_id = self.setup.volume_id(v);
        let kind = self.setup.volumes[v].kind;
        let rpc = &mut self.rpc.clone();
        match *call {
            Call::Expand { bytes: size, limit, .. } => {
                let capacity_range = range(size, limit);
                let request =
                    csi::ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
                let answer = rpc.controller.controller_expand_volume(request).await?.into_inner();
                assert_eq!(answer.node_expansion_required, matches!(kind, Kind::Ext4 | Kind::Xfs));
                Ok(bytes(answer.capacity_bytes))
            }
            Call::Modify { thick, direct_io, .. } => {
                let thick = thick.map(|thick| ("provisioning", if thick { "thick" } else { "thin" }));
                let direct_io = direct_io.map(|on| ("directIO", if on { "true" } else { "false" }));
                let entries = thick.into_iter().chain(direct_io);
                let mutable_parameters = entries.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
                let request = csi::ControllerModifyVolumeRequest {
                    volume_id,
                    mutable_parameters,
                    ..Default::default()
                };
                rpc.controller.controller_modify_volume(request).await.map(nothing)
            }
            Call::Get(_) => {
                let request = csi::ControllerGetVolumeRequest { volume_id };
                let answer = rpc.controller.controller_get_volume(request).await?.into_inner();
                let attached = answer.status.is_some_and(|status| !status.published_node_ids.is_empty());
                let size = answer.volume.expect("a volume").capacity_bytes;
                Ok(Answer { attached, ..bytes(size) })
            }
            Call::Validate { wanted, .. } => {
                let volume_capabilities = capability(kind, wanted).into_iter().collect();
                let request = csi::ValidateVolumeCapabilitiesRequest {
                    volume_id,
                    volume_capabilities,
                    ..Default::default()
                };
                let answer = rpc.controller.validate_volume_capabilities(request).await?.into_inner();
                Ok(Answer { confirmed: answer.confirmed.is_some(), ..Answer::default() })
            }
            _ => self.stage(call, v).await,
        }
    }

    /// NodeStageVolume to NodeUnpublishVolume.
    async fn stage(&mut self, call: &Call, v: usize) -> Sent {
        let volume_id = self.setup.volume_id(v);
        let kind = self.setup.volumes[v].kind;
        let staging = self.machine.staging(&volume_id);
        let target = |pod| self.machine.target(&volume_id, pod);
        let rpc = &mut self.rpc.clone();
        match *call {
            Call::Stage { wanted, .. } => {
                self.machine.prepare(&volume_id);
                let request = csi::NodeStageVolumeRequest {
                    volume_id,
                    staging_target_path: staging,
                    volume_capability: capability(kind, wanted),
                    ..Default::default()
                };
                rpc.node.node_stage_volume(request).await.map(nothing)
            }
            Call::Unstage(_) => {
                let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path: staging };
                rpc.node.node_unstage_volume(request).await.map(nothing)
            }
            Call::Publish { pod, read_only: readonly, wanted, .. } => {
                let request = csi::NodePublishVolumeRequest {
                    target_path: target(pod),
                    volume_id: volume_id.clone(),
                    staging_target_path: staging,
                    volume_capability: capability(kind, wanted),
                    readonly,
                    ..Default::default()
                };
                rpc.node.node_publish_volume(request).await.map(nothing)
            }
            Call::Unpublish { pod, .. } => {
                let (target_path, volume_id) = (target(pod), volume_id.clone());
                let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
                rpc.node.node_unpublish_volume(request).await.map(nothing)
            }
            _ => self.at_path(call, v).await,
        }
    }

    /// Calls for the path of a volume.
    async fn at_path(&mut self, call: &Call, v: usize) -> Sent {
        let volume_id = self.setup.volume_id(v);
        let staging = self.machine.staging(&volume_id);
        let target = |pod| self.machine.target(&volume_id, pod);
        let rpc = &mut self.rpc.clone();
        match *call {
            Call::NodeExpand { pod, bytes: size, .. } => {
                let request = csi::NodeExpandVolumeRequest {
                    volume_path: target(pod),
                    volume_id: volume_id.clone(),
                    staging_target_path: staging,
                    capacity_range: range(size, 0),
                    ..Default::default()
                };
                Ok(bytes(rpc.node.node_expand_volume(request).await?.into_inner().capacity_bytes))
            }
            Call::Stats { pod, .. } => {
                let (volume_path, volume_id) = (target(pod), volume_id.clone());
                let request =
                    csi::NodeGetVolumeStatsRequest { volume_id, volume_path, staging_target_path: staging };
                rpc.node.node_get_volume_stats(request).await.map(nothing)
            }
            _ => unreachable!("{call:?} is no call for a volume"),
        }
    }
}
