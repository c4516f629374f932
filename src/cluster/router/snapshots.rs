//! Snapshots that may be on another node than their volume, and how one moves to another node (docs/decisions/0027).

use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use tonic::{Code, Request, Response, Status};

use super::Router;
use super::details::no_node;
use super::forward::{Envelope, unreachable};
use super::owner::Named;
use crate::cluster::peers::Member as Node;
use crate::cluster::permit;
use crate::error::Error;
use crate::model::{
    FoundSnapshot, Grant, Handover, MovingId, NodeKey, Side, SnapshotId, VolumeId, VolumeSource,
};
use crate::service::observe;
use crate::service::table::{Answer, decode, encode};
use crate::wire::{csi, handover, peer};
use peer::take_snapshot_request::Member;

/// How long a node may copy a snapshot before its caller is to ask again.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a node may take to record or delete something.
const SHORT: Duration = Duration::from_secs(30);

/// A snapshot on its way.
struct Way {
    id: MovingId,
    source: Arc<Node>,
    target: Arc<Node>,
    envelope: Envelope,
}

impl Way {
    fn named(&self) -> Named<'_> {
        match &self.id {
            MovingId::Snapshot(id) => Named::snapshot(id.as_str()),
            MovingId::Group(id) => Named::group(id.as_str()),
        }
    }
}

impl Router {
    /// Moves a snapshot or a group to another node. The nodes go on if the caller gives up.
    ///
    /// # Errors
    /// Those of the nodes; NOT_FOUND if there is no such snapshot or node; ABORTED while it is copied.
    pub(super) async fn move_snapshot(self, request: Request<Bytes>) -> Answer<Bytes> {
        let envelope = Envelope::of(&request);
        let bytes = request.into_inner();
        let asked = observe(decode::<peer::MoveSnapshotRequest>(&bytes)?, &bytes);
        let peer::MoveSnapshotRequest { snapshot_id, node_id, target_node_id } = asked;
        let id = handover::id(&snapshot_id)?;
        if node_id == target_node_id {
            let why = format!(
                "{id} is on node {node_id:?}, and cannot move to another pool of it; name another node"
            );
            return Err(Error::Invalid(why).into());
        }
        let members = self.members()?;
        let member = |node_id: &str| members.with_id(node_id).cloned().ok_or_else(|| no_node(node_id));
        let (source, target) = (member(&node_id)?, member(&target_node_id)?);
        self.move_on(&Way { id, source, target, envelope }).await?;
        Ok(Response::new(encode(&peer::MoveSnapshotResponse {})))
    }

    async fn move_on(&self, way: &Way) -> Result<(), Status> {
        let Way { id, source, target, .. } = way;
        let mut at_source = self.has_snapshot(source, way.named()).await?;
        if !at_source.found {
            return self.end_at_target(way).await;
        }
        if at_source.incomplete {
            // The node that it comes from must not release it yet.
            let why = format!("{id} is being copied to node {:?}; try again", source.node_id);
            return Err(Error::Crowded(why).into());
        }
        if let Some(Handover { side, node_id, number }) = &at_source.handover {
            match side {
                Side::Taken => self.end_earlier(way, node_id, *number).await?,
                Side::Offered if *node_id == target.node_id => {}
                Side::Offered | Side::Withdrawn => self.give_up(way, node_id, *number).await?,
            }
            at_source = self.has_snapshot(source, way.named()).await?;
            // The target has kept it.
            if !at_source.found {
                return self.end_at_target(way).await;
            }
        }
        let number = match self.take(way).await {
            Ok(0) => own_number(way, &at_source)?,
            Ok(number) => number,
            Err(status) => return Err(self.without_offer(way, status).await),
        };
        tracing::info!(
            id = id.as_str(),
            from = source.node_id,
            to = target.node_id,
            "the snapshot has been copied"
        );
        self.release(way, source, (&target.node_id, number)).await?;
        self.keep(way, target, (&source.node_id, number, true)).await
    }

    /// Ends a move whose source no longer has the snapshot.
    async fn end_at_target(&self, way: &Way) -> Result<(), Status> {
        let Way { id, source, target, .. } = way;
        let there = self.has_snapshot(target, way.named()).await?;
        if !there.found || there.incomplete {
            let why = format!(
                "neither node {:?} nor node {:?} has {id}; it was deleted, or has moved to another node",
                source.node_id, target.node_id
            );
            return Err(Error::NotFound(why).into());
        }
        match there.handover {
            Some(Handover { side: Side::Taken, node_id, number }) if node_id == source.node_id => {
                self.keep(way, target, (&node_id, number, true)).await
            }
            _ => Ok(()),
        }
    }

    /// Ends the move by which the snapshot came to the node that it is on.
    async fn end_earlier(&self, way: &Way, from: &str, number: u64) -> Result<(), Status> {
        if let Some(from) = self.other_node(way, from)? {
            let there = self.has_snapshot(&from, way.named()).await?.handover;
            let is_withdrawn = |there: &Handover| {
                (there.side, there.node_id.as_str(), there.number)
                    == (Side::Withdrawn, way.source.node_id.as_str(), number)
            };
            if there.as_ref().is_some_and(is_withdrawn) {
                return self.undo_earlier(way, &from, number).await;
            }
            self.release(way, &from, (&way.source.node_id, number)).await?;
        }
        self.keep(way, &way.source, (from, number, true)).await
    }

    /// Ends a move that was given up before the node that it went to heard of it: what that node has goes.
    async fn undo_earlier(&self, way: &Way, from: &Arc<Node>, number: u64) -> Result<(), Status> {
        let Way { id, source, .. } = way;
        self.keep(way, from, (&source.node_id, number, false)).await?;
        self.release(way, source, (&from.node_id, number)).await?;
        self.keep(way, from, (&source.node_id, number, true)).await?;
        if from.node_id == way.target.node_id {
            return Ok(());
        }
        let why = format!(
            "{id} is on node {:?}: its move to node {:?} was given up, and what that node had of it is deleted",
            from.node_id, source.node_id
        );
        Err(Error::InUse(why).into())
    }

    /// Gives a move up: the source keeps the snapshot, and the other node deletes what it has of it. The source says first that it
    /// releases nothing by this offer, so that the copy there is never the only one.
    async fn give_up(&self, way: &Way, to: &str, number: u64) -> Result<(), Status> {
        self.keep(way, &way.source, (to, number, false)).await?;
        if let Some(other) = self.other_node(way, to)? {
            // Also if it has no record yet: it is ABORTED there while a copy begins.
            self.release(way, &other, (&way.source.node_id, number)).await?;
        }
        self.keep(way, &way.source, (to, number, true)).await
    }

    /// Returns the other node of an earlier move; `None` if it was given up.
    ///
    /// # Errors
    /// UNAVAILABLE if it is not part of the cluster: it may have the snapshot.
    fn other_node(&self, way: &Way, node_id: &str) -> Result<Option<Arc<Node>>, Status> {
        if let Some(member) = self.members()?.with_id(node_id) {
            return Ok(Some(Arc::clone(member)));
        }
        match self.is_given_up(node_id)? {
            true => Ok(None),
            false => Err(Error::Unavailable(format!(
                "node {node_id:?} may have {} as well, and is not part of the cluster; bring the node back, or give it up with \
                 --forget-node",
                way.id
            ))
            .into()),
        }
    }

    /// Takes the offer back if the target answers that it cannot have the snapshot, so that the snapshot can be deleted, and moved to
    /// another node. Returns the answer.
    async fn without_offer(&self, way: &Way, status: Status) -> Status {
        let may_go_on = [Code::Aborted, Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled];
        if may_go_on.contains(&status.code()) {
            return status;
        }
        let offered = match self.has_snapshot(&way.source, way.named()).await {
            Ok(FoundSnapshot {
                handover: Some(Handover { side: Side::Offered, node_id, number }), ..
            }) => (node_id == way.target.node_id).then_some(number),
            _ => None,
        };
        if let Some(number) = offered
            && let Err(error) = self.give_up(way, &way.target.node_id, number).await
        {
            tracing::warn!(
                id = way.id.as_str(),
                error = error.message(),
                "the offer of the snapshot stays until the next try"
            );
        }
        status
    }

    /// Has the target copy the snapshot, and returns the number of the offer.
    async fn take(&self, way: &Way) -> Result<u64, Status> {
        let Way { id, source, target, envelope } = way;
        let Some(address) = &source.address else {
            return Err(unreachable(source, "no process of the driver runs there, and it has the snapshot"));
        };
        let (mut permit, mut members) = (Vec::new(), Vec::new());
        match id {
            MovingId::Snapshot(id) => permit = self.permit_to_take(way, id)?,
            MovingId::Group(_) => {
                for id in self.members_of(way).await? {
                    let permit = self.permit_to_take(way, &id)?;
                    members.push(Member { snapshot_id: id.to_string(), permit });
                }
            }
        }
        let request = peer::TakeSnapshotRequest {
            snapshot_id: id.as_str().to_owned(),
            source_address: address.clone(),
            source_node_id: source.node_id.clone(),
            permit,
            members,
        };
        let (envelope, request) = (envelope.within(LONGEST), encode(&request));
        let answer = self.pass_if_up::<peer::TakeSnapshotRequest>(target, &envelope, request).await?;
        Ok(decode::<peer::TakeSnapshotResponse>(&answer)?.number)
    }

    /// Returns the members that the source has of a group.
    async fn members_of(&self, way: &Way) -> Result<Vec<SnapshotId>, Status> {
        let request = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: way.id.as_str().to_owned(),
            ..Default::default()
        };
        let found = self.call(&way.source, &way.envelope.within(SHORT), request).await?;
        let members = found.group_snapshot.unwrap_or_default().snapshots;
        let node_id = &way.source.node_id;
        let wrong = |_| {
            Error::Unavailable(format!("node {node_id:?} names a member that is no snapshot of hostloop"))
        };
        members.iter().map(|member| Ok(member.snapshot_id.parse().map_err(wrong)?)).collect()
    }

    /// Returns a permit for the target to take this snapshot from the source, encoded.
    fn permit_to_take(&self, way: &Way, id: &SnapshotId) -> Result<Vec<u8>, Status> {
        let Way { source, target, .. } = way;
        let grant = Grant {
            source_node: source.node_id.clone(),
            target_node: target.node_id.clone(),
            source: VolumeSource::Snapshot(id.clone()),
            target: VolumeId::of_taken(&NodeKey::of(&target.node_id), id),
            expires: permit::expiry(),
        };
        let wrong = |why| Error::Unavailable(format!("no permit to read snapshot {id} can be made: {why}"));
        Ok((self.signer)(&grant).map_err(wrong)?.as_bytes().to_vec())
    }

    async fn release(&self, way: &Way, at: &Node, (node_id, number): (&str, u64)) -> Result<(), Status> {
        let request = peer::ReleaseSnapshotRequest {
            snapshot_id: way.id.as_str().to_owned(),
            node_id: node_id.to_owned(),
            number,
        };
        let envelope = way.envelope.within(SHORT);
        let released = self.pass_if_up::<peer::ReleaseSnapshotRequest>(at, &envelope, encode(&request)).await;
        released.map(drop).map_err(|status| without_record(at, status))
    }

    async fn keep(
        &self,
        way: &Way,
        at: &Node,
        (node_id, number, alone): (&str, u64, bool),
    ) -> Result<(), Status> {
        let (snapshot_id, node_id) = (way.id.as_str().to_owned(), node_id.to_owned());
        let request = peer::KeepSnapshotRequest { snapshot_id, node_id, number, alone };
        let envelope = way.envelope.within(SHORT);
        let kept = self.pass_if_up::<peer::KeepSnapshotRequest>(at, &envelope, encode(&request)).await;
        kept.map(drop).map_err(|status| without_record(at, status))
    }
}

/// A node without room for a record is not a target without room for the snapshot.
fn without_record(at: &Node, status: Status) -> Status {
    match status.code() {
        Code::ResourceExhausted => {
            Status::unavailable(format!("node {:?}: {}", at.node_id, status.message()))
        }
        _ => status,
    }
}

/// Returns the number of the offer to a target that has the snapshot and does not know of a move: its state file was rebuilt.
///
/// # Errors
/// FAILED_PRECONDITION if the source has made no offer to it.
fn own_number(way: &Way, at_source: &FoundSnapshot) -> Result<u64, Status> {
    match &at_source.handover {
        Some(Handover { side: Side::Offered, node_id, number }) if *node_id == way.target.node_id => Ok(*number),
        _ => Err(Error::InUse(format!(
            "nodes {:?} and {:?} both have {}, and neither knows of a move; see hostloop snapshots, and whether a state file was \
             restored",
            way.source.node_id, way.target.node_id, way.id
        ))
        .into()),
    }
}
