//! What a move needs of the nodes (`cluster/moves/nodes.rs`), by the calls that they serve.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

use super::Router;
use super::forward::{Envelope, Original, is_unreachable};
use super::route::Asked;
use crate::cluster::answers::line;
use crate::cluster::moves::copies::{Access, NewCopy, Updated};
use crate::cluster::moves::nodes::{NodeError, Nodes, PassRequest, Presence, Result};
use crate::cluster::moves::resources::VolumeReplicaSpec;
use crate::cluster::peers::Member;
use crate::cluster::permit;
use crate::model::answer::Found;
use crate::model::{Grant, Settings, VolumeId, VolumeSource, most_bytes};
use crate::service::table::encode;
use crate::wire::csi::volume_capability::access_mode::Mode;
use crate::wire::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::wire::csi::volume_content_source::{self, Type};
use crate::wire::rpc::Unary;
use crate::wire::{csi, decode, peer, reserve};

/// How long a call may take before the controller looks again at what is wanted. What it has begun goes on.
const LIMIT: Duration = Duration::from_secs(10);

#[tonic::async_trait]
impl Nodes for Router {
    fn members(&self) -> Option<Vec<String>> {
        let members = Router::members(self).ok()?;
        Some(members.iter().map(|(_, member)| member.node_id.clone()).collect())
    }

    async fn room(&self, copy: &NewCopy) -> Result<u64> {
        let question = csi::GetCapacityRequest {
            volume_capabilities: capabilities(&copy.access),
            parameters: copy.parameters.clone().into_iter().collect(),
            accessible_topology: None,
        };
        let answer = self.tell(&copy.target, question).await?;
        Ok(u64::try_from(answer.available_capacity).unwrap_or(0))
    }

    async fn find(&self, node: &str, volume_id: &str) -> Result<Presence> {
        let question = peer::FindVolumeRequest { volume_id: volume_id.to_owned() };
        presence(self.tell(node, question).await?)
    }

    async fn pool(&self, node: &str, volume_id: &str) -> Result<Option<String>> {
        let question = peer::FindVolumeRequest { volume_id: volume_id.to_owned() };
        let location = reserve::decode_location(self.tell(node, question).await?);
        Ok(location.pool.map(|pool| pool.to_string()))
    }

    async fn adopted(&self, node: &str, volume_id: &str) -> Result<Option<(u64, Vec<String>)>> {
        let question = peer::FindVolumeRequest { volume_id: volume_id.to_owned() };
        let location = reserve::decode_location(self.tell(node, question).await?);
        Ok(location.generation.map(|generation| (generation, location.adopted_from)))
    }

    async fn create(&self, copy: &NewCopy) -> Result<()> {
        self.at(&copy.source_node)?;
        let request = request(copy);
        let NewCopy { source_node, generation, convert, .. } = copy;
        let original = Original { node_id: source_node.clone(), convert: *convert, generation: *generation };
        let (bytes, envelope) = (encode(&request), Envelope::default().within(LIMIT).of_copy(original));
        let asked = Asked { bytes, request, wrong: None, envelope };
        let made = self.clone().create_volume(asked).await;
        made.map(|_| ()).map_err(|status| failed(&status))
    }

    async fn update(&self, replica: &VolumeReplicaSpec, pass: &PassRequest) -> Result<Updated> {
        let source = self.at(&replica.source_node)?;
        let source_address = source.address.clone().ok_or_else(|| away(&replica.source_node))?;
        let grant = Grant {
            source_node: replica.source_node.clone(),
            target_node: replica.target_node.clone(),
            source: VolumeSource::Volume(id(&replica.volume_id)?),
            target: id(&replica.copy_id)?,
            expires: permit::expiry(),
        };
        let permit = (self.signer)(&grant).map_err(|why| {
            NodeError::Failed(format!("no permit to read volume {} can be made: {why}", replica.volume_id))
        })?;
        let parameters = pass.parameters.clone().into_iter().collect();
        let consistency = decode::consistency(&parameters).map_err(|error| failed(&error.into()))?;
        let request = peer::UpdateCopyRequest {
            volume_id: replica.copy_id.clone(),
            source_node_id: replica.source_node.clone(),
            source_address,
            permit: permit.as_bytes().to_vec(),
            no_freeze: !consistency.freeze,
            freeze_timeout_ms: consistency.freeze_timeout_ms,
            whole: pass.whole,
            most_bytes: pass.most_bytes,
            last_pass: pass.last,
        };
        let answer = self.tell(&replica.target_node, request).await?;
        Ok(Updated {
            sent_bytes: answer.sent_bytes,
            changed_bytes: answer.changed_bytes,
            cut_ns: answer.cut_ns,
            source_in_use: !answer.sealed,
        })
    }

    async fn complete(&self, replica: &VolumeReplicaSpec, stale: bool, least_bytes: u64) -> Result<()> {
        let request = peer::CompleteCopyRequest {
            volume_id: replica.copy_id.clone(),
            stale,
            source_volume_id: replica.volume_id.clone(),
            generation: replica.next_generation(),
            least_bytes,
        };
        self.tell(&replica.target_node, request).await.map(drop)
    }

    async fn modify(&self, replica: &VolumeReplicaSpec, parameters: &BTreeMap<String, String>) -> Result<()> {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: replica.volume_id.clone(),
            mutable_parameters: parameters.clone().into_iter().collect(),
            ..Default::default()
        };
        self.tell(&replica.target_node, request).await.map(drop)
    }

    async fn fence(&self, replica: &VolumeReplicaSpec) -> Result<()> {
        self.seal_volume(replica, &replica.target_node).await
    }

    async fn unfence(&self, replica: &VolumeReplicaSpec) -> Result<()> {
        self.seal_volume(replica, "").await
    }

    async fn retire(&self, replica: &VolumeReplicaSpec) -> Result<String> {
        let (source, target) = (&replica.source_node, &replica.target_node);
        self.retire_volume(source, replica, (replica.next_generation(), target)).await
    }

    async fn reclaim(&self, replica: &VolumeReplicaSpec) -> Result<()> {
        let request = peer::ReclaimVolumeRequest {
            volume_id: replica.volume_id.clone(),
            generation: replica.reclaimed_generation(),
        };
        self.tell(&replica.source_node, request).await.map(drop)
    }

    async fn retire_copy(&self, replica: &VolumeReplicaSpec) -> Result<String> {
        let (source, target) = (&replica.source_node, &replica.target_node);
        self.retire_volume(target, replica, (replica.reclaimed_generation(), source)).await
    }

    async fn release(&self, replica: &VolumeReplicaSpec) -> Result<()> {
        let request = peer::ReleaseCutsRequest {
            volume_id: replica.volume_id.clone(),
            target_volume_id: replica.copy_id.clone(),
        };
        self.tell(&replica.source_node, request).await.map(drop)
    }

    async fn delete_copy(&self, replica: &VolumeReplicaSpec) -> Result<()> {
        self.delete(&replica.target_node, replica, (&replica.copy_id, replica.generation)).await
    }

    async fn delete_left(&self, replica: &VolumeReplicaSpec, left_id: &str) -> Result<()> {
        self.delete(&replica.source_node, replica, (left_id, replica.next_generation())).await
    }

    async fn delete_left_copy(&self, replica: &VolumeReplicaSpec, left_id: &str) -> Result<()> {
        self.delete(&replica.target_node, replica, (left_id, replica.reclaimed_generation())).await
    }
}

impl Router {
    /// Returns a node by its CSI node id.
    fn at(&self, node: &str) -> Result<Arc<Member>> {
        let members = Router::members(self).map_err(|error| failed(&error.into()))?;
        members.with_id(node).cloned().ok_or_else(|| away(node))
    }

    async fn tell<Q: Unary>(&self, node: &str, request: Q) -> Result<Q::Reply> {
        let answer = self.call(&*self.at(node)?, &Envelope::default().within(LIMIT), request).await;
        answer.map_err(|status| failed(&status))
    }

    /// Retires what a node has of the volume, since another node has this generation.
    async fn retire_volume(
        &self,
        node: &str,
        replica: &VolumeReplicaSpec,
        (generation, by): (u64, &str),
    ) -> Result<String> {
        let (volume_id, node_id) = (replica.volume_id.clone(), by.to_owned());
        let request = peer::RetireVolumeRequest { volume_id, generation, node_id };
        // It goes into the status of the VolumeReplica.
        let left = self.tell(node, request).await?.volume_id;
        let wrong = |_| NodeError::Failed(format!("node {node:?} answers {:?}, which is no id", line(&left)));
        left.parse::<VolumeId>().map_err(wrong)?;
        Ok(left)
    }

    /// Deletes a copy of the volume at a node, or what is left of the volume there.
    async fn delete(
        &self,
        node: &str,
        replica: &VolumeReplicaSpec,
        (id, generation): (&str, u64),
    ) -> Result<()> {
        let (volume_id, source_volume_id) = (id.to_owned(), replica.volume_id.clone());
        let request = peer::DeleteCopyRequest { volume_id, source_volume_id, generation };
        self.tell(node, request).await.map(drop)
    }

    /// Seals a volume, or takes the seal back. The number of seals that were taken back is asked for first: if this request comes so late
    /// that another one has been answered, the node does not carry it out.
    async fn seal_volume(&self, replica: &VolumeReplicaSpec, moved_to: &str) -> Result<()> {
        let question = peer::FindVolumeRequest { volume_id: replica.volume_id.clone() };
        let found = self.tell(&replica.source_node, question).await?;
        let request = peer::SealVolumeRequest {
            volume_id: replica.volume_id.clone(),
            moved_to: moved_to.to_owned(),
            generation: replica.generation,
            unsealed: found.unsealed,
        };
        self.tell(&replica.source_node, request).await.map(drop)
    }
}

/// Returns what a node has answered about a volume.
fn presence(answer: peer::FindVolumeResponse) -> Result<Presence> {
    let location = reserve::decode_location(answer);
    match (location.generation, location.unusable) {
        _ if location.deleted => Ok(Presence::Deleted),
        (Some(generation), None) => Ok(Presence::Has(generation)),
        (Some(_), Some(why)) => Ok(Presence::Unusable(line(&why))),
        // The record comes later, as while the source of a copy is opened.
        (None, _) if location.moved_to.is_none() && location.found != Found::Nothing => {
            Err(NodeError::Running("something is done with the volume, or is about to be".to_owned()))
        }
        (None, _) => Ok(Presence::Nothing),
    }
}

fn away(node: &str) -> NodeError {
    NodeError::Silent(format!("no process of the driver runs on node {node:?}"))
}

fn id(text: &str) -> Result<VolumeId> {
    text.parse().map_err(|_| NodeError::Refused(format!("{text:?} is not the id of a volume")))
}

/// Returns what the status of a call means for a move.
fn failed(status: &Status) -> NodeError {
    let message = status.message().to_owned();
    match status.code() {
        Code::Unavailable if is_unreachable(status) => NodeError::Silent(message),
        Code::Aborted | Code::DeadlineExceeded | Code::Cancelled => NodeError::Running(message),
        Code::NotFound => NodeError::NotFound(message),
        Code::ResourceExhausted => NodeError::NoRoom(message),
        Code::FailedPrecondition => NodeError::InUse(message),
        Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented | Code::AlreadyExists => {
            NodeError::Refused(message)
        }
        _ => NodeError::Failed(message),
    }
}

fn request(copy: &NewCopy) -> csi::CreateVolumeRequest {
    let segments = [(Settings::TOPOLOGY_KEY.to_owned(), copy.target.clone())].into();
    let there = vec![csi::Topology { segments }];
    csi::CreateVolumeRequest {
        name: copy.name.clone(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: i64::try_from(copy.bytes).unwrap_or(i64::MAX),
            // The node of the source says how large it is, and the copy has at least that size.
            limit_bytes: i64::try_from(most_bytes(copy.bytes)).unwrap_or(i64::MAX),
        }),
        volume_capabilities: capabilities(&copy.access),
        parameters: copy.parameters.clone().into_iter().collect(),
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(Type::Volume(volume_content_source::VolumeSource {
                volume_id: copy.source.clone(),
            })),
        }),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: there.clone(),
            preferred: there,
        }),
        mutable_parameters: copy.mutable_parameters.clone().into_iter().collect(),
        ..Default::default()
    }
}

/// As csi-provisioner asks for it: one capability for each access mode.
fn capabilities(access: &Access) -> Vec<csi::VolumeCapability> {
    let mode = |mode: &String| match mode.as_str() {
        "ReadWriteOncePod" => Mode::SingleNodeSingleWriter,
        "ReadOnlyMany" => Mode::MultiNodeReaderOnly,
        "ReadWriteMany" => Mode::MultiNodeMultiWriter,
        _ => Mode::SingleNodeMultiWriter,
    };
    let kind = || match access.block {
        true => AccessType::Block(BlockVolume {}),
        false => AccessType::Mount(MountVolume {
            fs_type: access.fs_type.clone(),
            mount_flags: access.mount_options.clone(),
            ..Default::default()
        }),
    };
    let capability = |name: &String| csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode(name).into() }),
        access_type: Some(kind()),
    };
    access.modes.iter().map(capability).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_volume_only_with_its_data() {
        let answer = |generation, found: peer::VolumePresence| peer::FindVolumeResponse {
            presence: found.into(),
            generation,
            ..Default::default()
        };
        let (held, none) = (peer::VolumePresence::Held, peer::VolumePresence::None);
        assert_eq!(presence(answer(Some(2), held)), Ok(Presence::Has(2)));
        let unusable = peer::FindVolumeResponse { unusable: "no disk".to_owned(), ..answer(Some(2), held) };
        assert_eq!(presence(unusable), Ok(Presence::Unusable("no disk".to_owned())));
        assert_eq!(presence(answer(None, none)), Ok(Presence::Nothing));
        for found in [held, peer::VolumePresence::Reserved] {
            assert!(matches!(presence(answer(None, found)), Err(NodeError::Running(_))), "{found:?}");
        }
        let moved = peer::FindVolumeResponse { moved_to: "n2".to_owned(), ..answer(None, held) };
        assert_eq!(presence(moved), Ok(Presence::Nothing));
        let deleted = peer::FindVolumeResponse { deleted: true, ..answer(Some(2), held) };
        assert_eq!(presence(deleted), Ok(Presence::Deleted));
    }

    #[test]
    fn a_copy_is_asked_for_as_by_csi_provisioner() {
        let copy = NewCopy {
            convert: false,
            name: "pvc-1-moved-2".to_owned(),
            source: "vol-1".to_owned(),
            source_node: "node-1".to_owned(),
            generation: 0,
            target: "node-2".to_owned(),
            bytes: 1 << 30,
            access: Access {
                block: false,
                fs_type: "xfs".to_owned(),
                mount_options: vec!["noatime".to_owned()],
                modes: vec!["ReadWriteOnce".to_owned(), "ReadWriteOncePod".to_owned()],
            },
            parameters: [("pool".to_owned(), "fast".to_owned())].into(),
            mutable_parameters: [("discard".to_owned(), "false".to_owned())].into(),
        };
        let asked = request(&copy);
        let [first, second] = asked.volume_capabilities.as_slice() else { panic!("{asked:?}") };
        assert_eq!(first.access_mode.as_ref().map(AccessMode::mode), Some(Mode::SingleNodeMultiWriter));
        assert_eq!(second.access_mode.as_ref().map(AccessMode::mode), Some(Mode::SingleNodeSingleWriter));
        let Some(AccessType::Mount(mount)) = &first.access_type else { panic!("{first:?}") };
        assert_eq!(
            (mount.fs_type.as_str(), mount.mount_flags.as_slice()),
            ("xfs", ["noatime".to_owned()].as_slice())
        );
        let topology = asked.accessibility_requirements.unwrap_or_default();
        assert_eq!(topology.requisite[0].segments["topology.hostloop.csi.dev/node"], "node-2");
        assert_eq!(
            (asked.parameters["pool"].as_str(), asked.mutable_parameters["discard"].as_str()),
            ("fast", "false")
        );
        let range = asked.capacity_range.unwrap_or_default();
        assert_eq!(range.required_bytes, 1 << 30);
        assert!((1 << 30..(1 << 30) + (80 << 20)).contains(&range.limit_bytes), "{range:?}");
    }
}
