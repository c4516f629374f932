//! The calls for one volume as requests.

use hostloop::wire::csi;

use super::Kind;
use super::call::{Answer, Call};
use super::rpc::{Caller, Sent, bytes, capability, nothing, range};
use crate::client;

impl Caller<'_> {
    /// Makes a call for one volume.
    pub(super) async fn send_to_volume(&self, call: &Call, v: usize) -> Sent {
        let volume_id = self.setup.volume_id(v);
        let kind = self.setup.volumes[v].kind;
        let node_id = self.setup.node.clone();
        let rpc = &self.rpc;
        match *call {
            Call::Create { v, bytes: size, limit, thick, from, wanted } => {
                let name = &self.setup.volumes[v].name;
                let mut request = self.create_request(v, name, (size, limit), from, wanted);
                if thick {
                    request.parameters.insert("provisioning".to_owned(), "thick".to_owned());
                }
                let volume = rpc.call(request).await?.volume;
                let volume = volume.expect("a volume");
                assert_eq!(volume.volume_id, volume_id);
                Ok(bytes(volume.capacity_bytes))
            }
            Call::Delete(_) => rpc.call(client::delete(&volume_id)).await.map(nothing),
            Call::Attach { read_only: readonly, wanted, .. } => {
                let request = client::attach(&volume_id, &node_id, capability(kind, wanted));
                let request = csi::ControllerPublishVolumeRequest { readonly, ..request };
                rpc.call(request).await.map(nothing)
            }
            Call::Detach { other_node, .. } => {
                let node_id = if other_node { "another".to_owned() } else { node_id };
                rpc.call(client::detach(&volume_id, &node_id)).await.map(nothing)
            }
            _ => self.change(call, v).await,
        }
    }

    /// What changes a volume that is there, and what looks at it.
    async fn change(&self, call: &Call, v: usize) -> Sent {
        let volume_id = self.setup.volume_id(v);
        let kind = self.setup.volumes[v].kind;
        let rpc = &self.rpc;
        match *call {
            Call::Expand { bytes: size, limit, .. } => {
                let capacity_range = range(size, limit);
                let request = client::expand(&volume_id, size);
                let request = csi::ControllerExpandVolumeRequest { capacity_range, ..request };
                let answer = rpc.call(request).await?;
                assert_eq!(answer.node_expansion_required, matches!(kind, Kind::Ext4 | Kind::Xfs));
                Ok(bytes(answer.capacity_bytes))
            }
            Call::Modify { thick, direct_io, .. } => {
                let thick = thick.map(|thick| ("provisioning", if thick { "thick" } else { "thin" }));
                let direct_io = direct_io.map(|on| ("directIO", if on { "true" } else { "false" }));
                let changed: Vec<_> = thick.into_iter().chain(direct_io).collect();
                rpc.call(client::modify(&volume_id, &changed)).await.map(nothing)
            }
            Call::Get(_) => {
                let request = csi::ControllerGetVolumeRequest { volume_id };
                let answer = rpc.call(request).await?;
                let attached = answer.status.is_some_and(|status| !status.published_node_ids.is_empty());
                let size = answer.volume.expect("a volume").capacity_bytes;
                Ok(Answer { attached, ..bytes(size) })
            }
            Call::Validate { wanted, .. } => {
                let volume_capabilities = vec![capability(kind, wanted)];
                let request = csi::ValidateVolumeCapabilitiesRequest {
                    volume_id,
                    volume_capabilities,
                    ..Default::default()
                };
                let answer = rpc.call(request).await?;
                Ok(Answer { confirmed: answer.confirmed.is_some(), ..Answer::default() })
            }
            _ => self.stage(call, v).await,
        }
    }

    /// NodeStageVolume to NodeUnpublishVolume.
    async fn stage(&self, call: &Call, v: usize) -> Sent {
        let volume_id = self.setup.volume_id(v);
        let kind = self.setup.volumes[v].kind;
        let staging = self.machine.staging(&volume_id);
        let target = |pod| self.machine.target(&volume_id, pod);
        let rpc = &self.rpc;
        match *call {
            Call::Stage { wanted, .. } => {
                self.machine.prepare(&volume_id);
                rpc.call(client::stage(&volume_id, staging, capability(kind, wanted))).await.map(nothing)
            }
            Call::Unstage(_) => rpc.call(client::unstage(&volume_id, staging)).await.map(nothing),
            Call::Publish { pod, read_only: readonly, wanted, .. } => {
                let request = client::publish(&volume_id, staging, target(pod), capability(kind, wanted));
                let request = csi::NodePublishVolumeRequest { readonly, ..request };
                rpc.call(request).await.map(nothing)
            }
            Call::Unpublish { pod, .. } => {
                rpc.call(client::unpublish(&volume_id, target(pod))).await.map(nothing)
            }
            _ => self.at_path(call, v).await,
        }
    }

    /// Calls for the path of a volume.
    async fn at_path(&self, call: &Call, v: usize) -> Sent {
        let volume_id = self.setup.volume_id(v);
        let staging = self.machine.staging(&volume_id);
        let target = |pod| self.machine.target(&volume_id, pod);
        let rpc = &self.rpc;
        match *call {
            Call::NodeExpand { pod, bytes: size, .. } => {
                let request = client::node_expand(&volume_id, target(pod), Some(size));
                let request = csi::NodeExpandVolumeRequest { staging_target_path: staging, ..request };
                Ok(bytes(rpc.call(request).await?.capacity_bytes))
            }
            Call::Stats { pod, .. } => {
                let request = client::stats(&volume_id, target(pod));
                let request = csi::NodeGetVolumeStatsRequest { staging_target_path: staging, ..request };
                rpc.call(request).await.map(nothing)
            }
            _ => unreachable!("{call:?} is no call for a volume"),
        }
    }
}
