//! CSI CreateVolume: which node makes a volume, and that no second node makes it again.
//!
//! An answer can be lost after the volume was made. Ids are derived from node and name, so every node that may have made
//! the volume is asked for it before another one makes it (docs/decisions/0008). Two controllers that are asked at the
//! same time agree on a node by `reserve.rs`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use prost::bytes::Bytes;
use tonic::{Code, Status};

use super::Router;
use super::forward::{Envelope, Original, ask_each, unreachable};
use super::owner::Named;
use super::placement::Candidates;
use super::reserve::{HELD, Holds, Round};
use super::route::Asked;
use crate::cluster::peers::{Member, Members};
use crate::cluster::permit;
use crate::error::Error;
use crate::model::answer::Found;
use crate::model::request::{Placement, Source};
use crate::model::{Grant, NodeKey, VolumeId, VolumeSource};
use crate::service::table;
use crate::wire::{csi, decode};

/// How long a node may take to say whether it has a volume, or how much room. Both come from memory.
const QUESTION: Duration = Duration::from_secs(2);
/// A message names so many full nodes, and then says how many more there are.
const NAMED: usize = 4;

/// Where a copy comes from.
enum CopySource {
    /// There is nothing to copy, or nobody knows the source: the node that is chosen says so.
    None,
    /// What this node has, and perhaps for no other one.
    Node { node: Arc<Member>, source: VolumeSource, travel: Travel },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Travel {
    Allowed,
    /// The StorageClass says `crossNodeCopy: "false"`.
    Forbidden,
}

impl CopySource {
    fn node(&self) -> Option<&Arc<Member>> {
        match self {
            CopySource::None => None,
            CopySource::Node { node, .. } => Some(node),
        }
    }

    /// Whether a copy to this node may be made.
    fn allows(&self, target: &Member) -> bool {
        match self {
            CopySource::Node { node, travel: Travel::Forbidden, .. } => node.node_id == target.node_id,
            CopySource::Node { .. } | CopySource::None => true,
        }
    }
}

impl Router {
    /// Finds the node of the source. That of a copy for a move is named: another node that says that it has the volume
    /// has no part in it.
    ///
    /// # Errors
    /// UNAVAILABLE while the node of a volume that has moved is not known.
    async fn copy_source(
        &self,
        wanted: &Placement,
        original: Option<&Original>,
        members: &Members,
    ) -> Result<CopySource, Status> {
        let travel = if wanted.class.cross_node_copy { Travel::Allowed } else { Travel::Forbidden };
        let found = match &wanted.source {
            Some(Source::Snapshot(id)) => {
                let node = self.holder(Named::snapshot(id)).await?;
                node.zip(id.parse().ok()).map(|(node, id)| (node, VolumeSource::Snapshot(id)))
            }
            Some(Source::Volume(volume_id)) => match volume_id.parse::<VolumeId>() {
                Ok(id) if !id.is_inline() => {
                    let node = match original {
                        Some(Original { node_id, .. }) => members.with_id(node_id).cloned(),
                        None => self.locate(volume_id).await?.node,
                    };
                    node.map(|node| (node, VolumeSource::Volume(id)))
                }
                _ => None,
            },
            None => None,
        };
        Ok(match found {
            Some((node, source)) => CopySource::Node { node, source, travel },
            None => CopySource::None,
        })
    }

    /// Has the volume made by the best node that can, or finds it where it is.
    ///
    /// # Errors
    /// The chosen node's; RESOURCE_EXHAUSTED where no allowed node has room; UNAVAILABLE, with its name, for a node
    /// that has to be asked and cannot be.
    pub(super) async fn create_volume(self, asked: Asked<csi::CreateVolumeRequest>) -> Result<Bytes, Status> {
        let Asked { bytes, request, wrong, envelope } = asked;
        let (envelope, wanted) = (&envelope, &decode::placement(&request)?);
        let members = self.members()?;
        let origin = self.copy_source(wanted, envelope.original(), &members).await?;
        let mut candidates = Candidates::new(&members, wanted.topology.as_ref(), origin.node());
        let [_, _, ..] = candidates.nodes.as_slice() else {
            return match candidates.nodes.first().filter(|only| origin.allows(only)) {
                Some(only) => {
                    observe_volume(&only.node_id, &wanted.name);
                    self.create_on(envelope, only, (&origin, &wanted.name), bytes).await
                }
                None => Err(wrong.unwrap_or_else(|| no_room(&[], &origin)).into()),
            };
        };
        let looked = self.look(envelope, candidates.nodes.clone(), &wanted.name);
        let looked = if candidates.fixed < candidates.nodes.len() {
            let (looked, room) = join(looked, self.room(envelope, &candidates, &request)).await;
            candidates.order_by_room(|member| {
                room.iter().find(|(node_id, _)| *node_id == member.node_id).map(|(_, bytes)| *bytes)
            });
            looked
        } else {
            looked.await
        };
        let mut unsure = Vec::new();
        for (member, holds) in looked {
            match holds {
                Holds::Answer(Found::Held) => {
                    observe_volume(&member.node_id, &wanted.name);
                    let envelope = envelope.with_reservation(HELD);
                    return self.create_on(&envelope, &member, (&origin, &wanted.name), bytes).await;
                }
                Holds::Answer(Found::Reserved | Found::Nothing) => {}
                Holds::Unknown(status) => unsure.push((member.node_id.clone(), status)),
            }
        }
        let silent = unsure.iter().map(|(node_id, _)| node_id.clone()).collect();
        let unsure = unsure.into_iter().next().map(|(_, status)| status);
        let nodes = candidates.nodes.clone();
        let round = Round { router: &self, envelope, name: &wanted.name, nodes: &nodes, silent };
        self.try_in_order(&round, &origin, unsure, bytes).await
    }

    /// Asks every candidate at once how much room it has for such a volume.
    async fn room(
        &self,
        envelope: &Envelope,
        candidates: &Candidates,
        request: &csi::CreateVolumeRequest,
    ) -> Vec<(String, i64)> {
        let ask = |member: Arc<Member>| {
            let question = csi::GetCapacityRequest {
                volume_capabilities: request.volume_capabilities.clone(),
                parameters: request.parameters.clone(),
                accessible_topology: None,
            };
            async move {
                let question = table::encode(&question);
                let answer = self.ask::<csi::GetCapacityRequest>(&member, envelope, question, QUESTION);
                let answer = answer.await.ok()?;
                Some((member.node_id.clone(), answer.available_capacity))
            }
        };
        ask_each(candidates.nodes.clone(), ask).await.into_iter().flatten().collect()
    }

    /// Has the volume made by the first candidate, and by the next one where there is no room; where another controller
    /// makes it on one of the others, by that. `unsure` is why some candidate could not say whether it has the volume
    /// already: only the first one is tried then, since it is the one that an earlier call with the same name has asked
    /// as well.
    async fn try_in_order(
        &self,
        round: &Round<'_>,
        origin: &CopySource,
        unsure: Option<Status>,
        request: Bytes,
    ) -> Result<Bytes, Status> {
        let mut full: Vec<(String, String)> = Vec::new();
        for member in round.nodes.iter().filter(|member| origin.allows(member)) {
            if full.iter().any(|(node_id, _)| *node_id == member.node_id) {
                continue;
            }
            if let Some(status) = unsure.as_ref().filter(|_| !full.is_empty()) {
                return Err(Status::new(status.code(), status.message()));
            }
            let (member, token) = round.settle(member).await?;
            let envelope = round.envelope.with_reservation(&token);
            match self.create_on(&envelope, &member, (origin, round.name), request.clone()).await {
                Err(status) if status.code() == Code::ResourceExhausted => {
                    full.push((member.node_id.clone(), status.message().to_owned()));
                }
                answer => {
                    observe_volume(&member.node_id, round.name);
                    return answer;
                }
            }
        }
        let full: Vec<String> =
            full.iter().map(|(node_id, why)| format!("node {node_id:?}: {why}")).collect();
        Err(no_room(&full, origin).into())
    }

    /// Has the volume made by this node, from a source that may be on another one.
    async fn create_on(
        &self,
        envelope: &Envelope,
        member: &Arc<Member>,
        (origin, name): (&CopySource, &str),
        request: Bytes,
    ) -> Result<Bytes, Status> {
        let elsewhere = match origin {
            // A copy in another pool of the node is brought up to date as one on another node.
            CopySource::Node { node, source, .. }
                if node.node_id != member.node_id || envelope.original().is_some() =>
            {
                Some((node, source))
            }
            CopySource::Node { .. } | CopySource::None => None,
        };
        let Some((node, source)) = elsewhere else {
            return self.pass::<csi::CreateVolumeRequest>(member, envelope, request).await;
        };
        let Some(address) = &node.address else {
            return Err(unreachable(node, "no process of the driver runs there, and it has the source"));
        };
        let grant = Grant {
            source_node: node.node_id.clone(),
            target_node: member.node_id.clone(),
            source: source.clone(),
            target: VolumeId::of_name(&NodeKey::of(&member.node_id), name),
            expires: permit::expiry(),
        };
        let wrong = |why| Error::Unavailable(format!("no permit to read {source} can be made: {why}"));
        let permit = (self.signer)(&grant).map_err(wrong)?;
        tracing::info!(node = member.node_id, from = node.node_id, "the source is pulled");
        let envelope = envelope.with_source(&node.node_id, address, permit);
        self.pass::<csi::CreateVolumeRequest>(member, &envelope, request).await
    }
}

/// Puts the id of a volume of this node on the span of the call. Only once: a span has one value more for each time.
fn observe_volume(node_id: &str, name: &str) {
    let id = VolumeId::of_name(&NodeKey::of(node_id), name);
    tracing::Span::current().record("volume.id", id.as_str());
}

/// Why no node has made the volume.
fn no_room(full: &[String], origin: &CopySource) -> Error {
    let mut message = match full {
        [] => "no node of this driver is among those that accessibility_requirements allow".to_owned(),
        [one] => one.clone(),
        some => {
            let named: Vec<&str> = some.iter().take(NAMED).map(String::as_str).collect();
            let more = some.len().saturating_sub(NAMED);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            format!("no allowed node has room: {}{more}", named.join("; "))
        }
    };
    if let CopySource::Node { node, travel: Travel::Forbidden, .. } = origin {
        let reason =
            format!("parameter crossNodeCopy is false, and the source is on node {:?}", node.node_id);
        message = if full.is_empty() {
            format!("{reason}, which accessibility_requirements leave out")
        } else {
            format!("{message}; {reason}")
        };
    }
    Error::Exhausted(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_nodes_are_named_as_far_as_they_fit() {
        let message = |count: usize| {
            let full: Vec<String> = (1..=count).map(|number| format!("node {number} is full")).collect();
            no_room(&full, &CopySource::None).to_string()
        };
        assert!(message(0).contains("no node of this driver is among those"));
        assert!(message(1).ends_with("node 1 is full"), "{}", message(1));
        assert!(message(NAMED).ends_with("; node 4 is full"), "{}", message(NAMED));
        let more = message(NAMED + 2);
        assert!(more.ends_with("; node 4 is full; and 2 more"), "{more}");
    }
}
