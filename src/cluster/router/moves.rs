//! What a move needs of the nodes (`cluster/moves/nodes.rs`), by the calls that they serve.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

use super::Router;
use super::copies::{capabilities, request};
use super::forward::{Envelope, is_unreachable};
use super::route::Asked;
use crate::cluster::mover::copies::{NewCopy, Updated};
use crate::cluster::moves::nodes::{NodeError, Nodes, PassRequest, Presence, Result};
use crate::cluster::moves::resources::VolumeReplicaSpec;
use crate::cluster::peers::Member;
use crate::cluster::permit;
use crate::model::{Grant, VolumeId, VolumeSource};
use crate::service::table::encode;
use crate::wire::rpc::Unary;
use crate::wire::{csi, decode, peer};

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
        let answer = self.tell(node, question).await?;
        Ok(match answer.generation {
            _ if answer.deleted => Presence::Deleted,
            Some(generation) => Presence::Has(generation),
            None => Presence::Nothing,
        })
    }

    async fn create(&self, copy: &NewCopy) -> Result<()> {
        let request = request(copy);
        let (bytes, envelope) = (encode(&request), Envelope::default().within(LIMIT).of_copy());
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
        };
        let answer = self.tell(&replica.target_node, request).await?;
        Ok(Updated {
            sent_bytes: answer.sent_bytes,
            changed_bytes: answer.changed_bytes,
            cut_ns: answer.cut_ns,
            source_in_use: !answer.sealed,
        })
    }

    async fn complete(&self, replica: &VolumeReplicaSpec, stale: bool) -> Result<()> {
        let request = peer::CompleteCopyRequest {
            volume_id: replica.copy_id.clone(),
            stale,
            source_volume_id: replica.volume_id.clone(),
            generation: replica.next_generation(),
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
        let request = peer::RetireVolumeRequest {
            volume_id: replica.volume_id.clone(),
            generation: replica.next_generation(),
            node_id: replica.target_node.clone(),
        };
        Ok(self.tell(&replica.source_node, request).await?.volume_id)
    }

    async fn release(&self, replica: &VolumeReplicaSpec) -> Result<()> {
        let request = peer::ReleaseCutsRequest {
            volume_id: replica.volume_id.clone(),
            target_volume_id: replica.copy_id.clone(),
        };
        self.tell(&replica.source_node, request).await.map(drop)
    }

    async fn delete_copy(&self, replica: &VolumeReplicaSpec) -> Result<()> {
        let request = peer::DeleteCopyRequest {
            volume_id: replica.copy_id.clone(),
            source_volume_id: replica.volume_id.clone(),
            generation: replica.generation,
        };
        self.tell(&replica.target_node, request).await.map(drop)
    }

    async fn delete_left(&self, replica: &VolumeReplicaSpec, left_id: &str) -> Result<()> {
        let request = peer::DeleteCopyRequest {
            volume_id: left_id.to_owned(),
            source_volume_id: replica.volume_id.clone(),
            generation: replica.next_generation(),
        };
        self.tell(&replica.source_node, request).await.map(drop)
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

    async fn seal_volume(&self, replica: &VolumeReplicaSpec, moved_to: &str) -> Result<()> {
        let request = peer::SealVolumeRequest {
            volume_id: replica.volume_id.clone(),
            moved_to: moved_to.to_owned(),
            generation: replica.generation,
        };
        self.tell(&replica.source_node, request).await.map(drop)
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
