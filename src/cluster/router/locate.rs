//! Which node has a volume that may have moved: it keeps its id, which names the node that it was made on.

use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use tonic::Status;

use super::Router;
use super::forward::{Envelope, ask_each};
use super::owner::{Named, member};
use crate::cluster::peers::Member;
use crate::error::{Error, Result};
use crate::model::answer::{Found, Location};
use crate::model::{FoundSnapshot, Handover, VolumeId};
use crate::service::{MOVED_TO, table};
use crate::wire::rpc::Unary;
use crate::wire::{handover, peer, reserve};

/// How long a node may take to say whether it has a volume.
const QUESTION: Duration = Duration::from_secs(2);

/// A node that has a volume, and the generation of the volume there; `None` for a node that does not have it.
type Held = Option<(u64, Arc<Member>)>;

/// A node, and what it says of a snapshot.
type Answered = (Arc<Member>, Result<FoundSnapshot, Status>);

/// Returns the first node that has a snapshot whole.
fn whole(answers: &[Answered]) -> Option<Arc<Member>> {
    let has_it = |(_, answer): &&Answered| answer.as_ref().is_ok_and(|it| it.found && !it.incomplete);
    answers.iter().find(has_it).map(|(member, _)| Arc::clone(member))
}

/// Returns the node with the highest generation of a volume.
fn latest(answers: Vec<Held>) -> Option<Arc<Member>> {
    let latest = answers.into_iter().flatten().max_by_key(|(generation, _)| *generation);
    latest.map(|(_, member)| member)
}

/// Returns the node that the volume of this answer has moved to.
fn moved_to(status: &Status) -> Option<String> {
    let value = status.metadata().get_bin(MOVED_TO)?.to_bytes().ok()?;
    String::from_utf8(value.to_vec()).ok()
}

/// Returns the error for a volume that has moved to a node that is not part of the cluster now.
fn is_away(id: &str, node_id: &str) -> Status {
    let message = format!(
        "volume {id} has moved to node {node_id:?}, which is not part of the cluster now; bring the node back"
    );
    Error::Unavailable(message).into()
}

/// Where a volume is.
pub(super) struct Located {
    /// The node that has it; `None` if its id names no node and no node has it.
    pub node: Option<Arc<Member>>,
    /// A node may remember that it moved away.
    pub has_moved: bool,
}

impl Located {
    fn at(node: Arc<Member>, has_moved: bool) -> Located {
        Located { node: Some(node), has_moved }
    }
}

impl Router {
    /// Sends a call to a node. If the node reports that the volume has moved, sends the call to the next node.
    ///
    /// # Errors
    /// As [`Router::call`]. If the next node is not part of the cluster, the status is that of the node before it.
    pub(super) async fn follow<Q: Unary>(
        &self,
        first: Arc<Member>,
        envelope: &Envelope,
        request: Bytes,
    ) -> Result<(Arc<Member>, Bytes), Status> {
        let members = self.members()?;
        let mut member = first;
        // Each node on the way of a volume has an earlier generation than the one after it. A snapshot that moves is on two nodes: each
        // of them deletes what it has and names the other one, and the first is asked again.
        for _ in 0..=members.iter().count() {
            let status = match self.pass::<Q>(&member, envelope, request.clone()).await {
                Ok(answer) => return Ok((member, answer)),
                Err(status) => status,
            };
            let Some(node_id) = moved_to(&status) else { return Err(status) };
            tracing::debug!(from = member.node_id, to = node_id, "the volume has moved");
            let Some(next) = members.with_id(&node_id) else { return Err(status) };
            member = Arc::clone(next);
        }
        Err(Status::unavailable("the nodes do not agree where the volume is; try again"))
    }

    /// Finds the node that has a volume now.
    ///
    /// # Errors
    /// UNAVAILABLE while that is not known.
    pub(super) async fn locate(&self, id: &str) -> Result<Located, Status> {
        if let Some(member) = self.placed(id).await? {
            return Ok(Located::at(member, true));
        }
        let members = self.members()?;
        let Some(mut member) = member(&members, Named::volume(id)) else {
            return Ok(Located { node: self.search(id).await?, has_moved: true });
        };
        let mut has_moved = false;
        for _ in members.iter() {
            match self.location(&member, id).await {
                Ok(Location { moved_to: Some(node_id), .. }) => match members.with_id(&node_id) {
                    Some(next) => (member, has_moved) = (Arc::clone(next), true),
                    // It may have moved on from there before.
                    None => {
                        let found = self.search(id).await?.ok_or_else(|| is_away(id, &node_id))?;
                        return Ok(Located::at(found, true));
                    }
                },
                // A disk may have been replaced.
                Ok(Location { found: Found::Nothing, generation: None, .. }) => {
                    let node = self.search(id).await?;
                    let has_moved = has_moved || node.is_some();
                    return Ok(Located { node, has_moved });
                }
                Ok(Location { generation, .. }) => {
                    return Ok(Located::at(member, has_moved || generation > Some(0)));
                }
                // If the node does not answer, the call that follows reports why.
                Err(_) => return Ok(Located::at(member, has_moved)),
            }
        }
        Err(Status::unavailable(format!("the nodes do not agree where volume {id} is; try again")))
    }

    /// Returns the node that the PersistentVolume of a volume names, if it is another one than that of its id, and has the volume.
    ///
    /// # Errors
    /// UNAVAILABLE while that is not known: the node of its id may have an earlier generation of the volume.
    pub(super) async fn placed(&self, id: &str) -> Result<Option<Arc<Member>>, Status> {
        let Some(node_id) = self.places.of(id)? else { return Ok(None) };
        let members = self.members()?;
        let Some(member) = members.with_id(&node_id) else { return Ok(None) };
        let location = self.location(member, id).await?;
        Ok(location.generation.is_some().then(|| Arc::clone(member)))
    }

    /// Has every node forget that a deleted volume had moved away from there. A node that does not answer keeps the id and the
    /// name of the volume in use.
    pub(super) async fn forget_moves(&self, id: &str) -> Result<(), Status> {
        let members = self.members()?.iter().map(|(_, member)| Arc::clone(member)).collect();
        let tell = |member: Arc<Member>| async move {
            let request = table::encode(&peer::ForgetVolumeRequest { volume_id: id.to_owned() });
            let envelope = Envelope::default();
            let told = self.ask::<peer::ForgetVolumeRequest>(&member, &envelope, request, QUESTION).await;
            if let Err(status) = told {
                tracing::warn!(
                    node = member.node_id,
                    volume.id = id,
                    error = status.message(),
                    "the node may remember that this deleted volume has moved, and its name stays in use there"
                );
            }
        };
        ask_each(members, tell).await;
        Ok(())
    }

    /// Returns the node of a volume that has moved to a node that is not part of the cluster now.
    ///
    /// # Errors
    /// UNAVAILABLE if no node has it; the status itself if it is about something else.
    pub(super) async fn beyond(&self, id: &str, status: Status) -> Result<Arc<Member>, Status> {
        let Some(node_id) = moved_to(&status) else { return Err(status) };
        self.find_elsewhere(id).await?.ok_or_else(|| is_away(id, &node_id))
    }

    /// Asks every node for a volume whose first node does not have it, or has left the cluster. If several nodes have it, the one with the highest
    /// generation is returned.
    ///
    /// # Errors
    /// UNAVAILABLE if a node did not answer: it may have a higher generation.
    pub(super) async fn search(&self, id: &str) -> Result<Option<Arc<Member>>, Status> {
        self.ask_all(id).await?.into_iter().collect::<Result<Vec<_>, _>>().map(latest)
    }

    /// Asks every node for a volume, as [`Router::search`] does, and ignores nodes that do not answer. For a call that a node has
    /// answered with NOT_FOUND: the answer stays the same if no node has the volume.
    ///
    /// # Errors
    /// UNAVAILABLE while the nodes are not known.
    pub(super) async fn find_elsewhere(&self, id: &str) -> Result<Option<Arc<Member>>, Status> {
        Ok(latest(self.ask_all(id).await?.into_iter().filter_map(Result::ok).collect()))
    }

    /// Returns the answer of each node that was asked for a volume, with its generation there.
    async fn ask_all(&self, id: &str) -> Result<Vec<Result<Held, Status>>, Status> {
        if !id.parse::<VolumeId>().is_ok_and(|id| !id.is_inline()) {
            return Ok(Vec::new());
        }
        let members = self.members()?.iter().map(|(_, member)| Arc::clone(member)).collect();
        let ask = |member: Arc<Member>| async move {
            let location = self.location(&member, id).await?;
            Ok(location.generation.map(|generation| (generation, member)))
        };
        Ok(ask_each(members, ask).await)
    }

    /// Returns the node that has a snapshot or a group snapshot now. Its id names the node that it was made on; it may have moved to another
    /// node, and the disk of that node may be another node's now (`hostloop state adopt-node`). If no node says that it has it, returns its
    /// first node, whose answer is that of the call; `None` if that node is not part of the cluster.
    ///
    /// # Errors
    /// UNAVAILABLE while the nodes are not known, and if a node that may have it does not answer ([`Router::find_moved`]).
    pub(super) async fn holder(&self, named: Named<'_>) -> Result<Option<Arc<Member>>, Status> {
        let Some(first) = self.find(named)? else { return self.find_moved(named).await };
        match self.has_snapshot(&first, named).await {
            Ok(FoundSnapshot { found: true, incomplete: false, .. }) => Ok(Some(first)),
            Ok(_) => Ok(self.find_moved(named).await?.or(Some(first))),
            // If no other node has it, the call that follows reports why the first one does not answer.
            Err(_) => Ok(self.find_snapshot(named).await?.or(Some(first))),
        }
    }

    /// Returns the node that has to delete a snapshot or a group snapshot, as [`Router::holder`] does. One that is just being copied to a
    /// node counts as there.
    ///
    /// # Errors
    /// UNAVAILABLE if its first node does not have it, and another one did not answer: that one may have it.
    pub(super) async fn last_holder(&self, named: Named<'_>) -> Result<Option<Arc<Member>>, Status> {
        let Some(first) = self.find(named)? else { return self.search_snapshot(named).await };
        match self.has_snapshot(&first, named).await {
            Ok(FoundSnapshot { found: true, handover, .. }) => {
                self.expect_member(handover, named)?;
                Ok(Some(first))
            }
            Ok(_) => Ok(self.search_snapshot(named).await?.or(Some(first))),
            // If no other node has it, the call that follows reports why the first one does not answer.
            Err(_) => Ok(self.find_snapshot(named).await?.or(Some(first))),
        }
    }

    /// Asks every node for a snapshot or a group snapshot, and ignores nodes that do not answer.
    ///
    /// # Errors
    /// UNAVAILABLE while the nodes are not known.
    pub(super) async fn find_snapshot(&self, named: Named<'_>) -> Result<Option<Arc<Member>>, Status> {
        Ok(whole(&self.ask_all_for(named).await?))
    }

    /// Asks every node for a snapshot or a group snapshot that its first node does not have. Each node remembers which node it has
    /// released it to.
    ///
    /// # Errors
    /// UNAVAILABLE, with its name, if the node that it was released to does not answer, or is not part of the cluster and was not given up. If
    /// the first node is not part of the cluster, any node can have it: UNAVAILABLE if one does not answer.
    pub(super) async fn find_moved(&self, named: Named<'_>) -> Result<Option<Arc<Member>>, Status> {
        let answers = self.ask_all_for(named).await?;
        if let Some(member) = whole(&answers) {
            return Ok(Some(member));
        }
        self.expect_no_way_on(named, &answers)?;
        let silent = answers.into_iter().find_map(|(_, answer)| answer.err());
        match silent.filter(|_| self.find(named).is_ok_and(|first| first.is_none())) {
            Some(status) => Err(status),
            None => Ok(None),
        }
    }

    /// Makes sure that no node which a snapshot was released to can have it without saying so.
    ///
    /// # Errors
    /// UNAVAILABLE, with the name of the node.
    fn expect_no_way_on(&self, named: Named<'_>, answers: &[Answered]) -> Result<(), Status> {
        let released = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?.moved_to.as_deref());
        for node_id in released {
            let answer =
                answers.iter().find(|(member, _)| member.node_id == node_id).map(|(_, answer)| answer);
            let why = match answer {
                Some(Ok(_)) => continue,
                Some(Err(status)) => format!("which does not say whether it has it: {}", status.message()),
                None if self.is_given_up(node_id)? => continue,
                None => {
                    "which is not part of the cluster; bring the node back, or give it up with --forget-node"
                        .to_owned()
                }
            };
            let shown = named.shown();
            return Err(Error::Unavailable(format!("{shown} has moved to node {node_id:?}, {why}")).into());
        }
        Ok(())
    }

    /// Reports whether an administrator has given up a node, and the cluster does not have it any longer.
    pub(super) fn is_given_up(&self, node_id: &str) -> Result<bool> {
        Ok(self.settings.forget_nodes.contains(node_id) && self.members()?.is_gone(node_id))
    }

    /// Makes sure that the other node that may have a snapshot can be asked to delete it as well, before the first one deletes it and forgets
    /// the other one.
    ///
    /// # Errors
    /// UNAVAILABLE if it is not part of the cluster, and was not given up.
    fn expect_member(&self, handover: Option<Handover>, named: Named<'_>) -> Result<(), Status> {
        let Some(Handover { node_id, .. }) = handover else { return Ok(()) };
        match self.members()?.with_id(&node_id).is_some() || self.is_given_up(&node_id)? {
            true => Ok(()),
            false => Err(Error::Unavailable(format!(
                "node {node_id:?} may have {} as well, and is not part of the cluster; bring the node back, or give it up with \
                 --forget-node",
                named.id()
            ))
            .into()),
        }
    }

    /// Asks every node for a snapshot or a group snapshot, whole or not.
    ///
    /// # Errors
    /// UNAVAILABLE if none of those that answer has it, and another one did not answer, or it was released to a node that is not part of the
    /// cluster and was not given up.
    async fn search_snapshot(&self, named: Named<'_>) -> Result<Option<Arc<Member>>, Status> {
        let (mut holder, answers) = (None, self.ask_all_for(named).await?);
        for (member, answer) in &answers {
            if let Ok(found) = answer
                && found.found
            {
                self.expect_member(found.handover.clone(), named)?;
                holder = Some(Arc::clone(member));
            }
        }
        if holder.is_some() {
            return Ok(holder);
        }
        self.expect_no_way_on(named, &answers)?;
        answers.into_iter().find_map(|(_, answer)| answer.err()).map_or(Ok(None), Err)
    }

    /// Returns the answer of each node that was asked for a snapshot or a group snapshot.
    async fn ask_all_for(&self, named: Named<'_>) -> Result<Vec<Answered>, Status> {
        if !named.is_id() {
            return Ok(Vec::new());
        }
        let members = self.members()?.iter().map(|(_, member)| Arc::clone(member)).collect();
        let ask = |member: Arc<Member>| async move {
            let answer = self.has_snapshot(&member, named).await;
            (member, answer)
        };
        Ok(ask_each(members, ask).await)
    }

    pub(super) async fn has_snapshot(
        &self,
        member: &Member,
        named: Named<'_>,
    ) -> Result<FoundSnapshot, Status> {
        let question = peer::FindSnapshotRequest { snapshot_id: named.id().to_owned() };
        let (question, envelope) = (table::encode(&question), Envelope::default());
        let answer = self.ask::<peer::FindSnapshotRequest>(member, &envelope, question, QUESTION).await;
        answer.map(handover::decode_found)
    }

    async fn location(&self, member: &Member, id: &str) -> Result<Location, Status> {
        let question = table::encode(&peer::FindVolumeRequest { volume_id: id.to_owned() });
        let envelope = Envelope::default();
        let answer = self.ask::<peer::FindVolumeRequest>(member, &envelope, question, QUESTION).await;
        answer.map(reserve::decode_location)
    }
}
