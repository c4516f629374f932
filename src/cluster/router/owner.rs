//! Which node an id belongs to.

use std::sync::Arc;

use futures_util::future::try_join_all;
use tonic::Status;

use super::Router;
use crate::cluster::peers::{Member, Members};
use crate::error::{Error, Result};
use crate::model::{GroupSnapshotId, Id, SnapshotId, VolumeId};
use crate::service::declare;

const VOLUME: &str = "volume";

/// Something that a caller names by its id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    what: &'static str,
    id: &'a str,
    /// The key of its node; `None` for text that is not an id.
    key: Option<&'a str>,
}

impl<'a> From<declare::Named<'a>> for Named<'a> {
    fn from(named: declare::Named<'a>) -> Self {
        match named {
            declare::Named::Volume(id) => Named::volume(id),
            declare::Named::Snapshot(id) => Named::snapshot(id),
            declare::Named::Group(id) => Named::group(id),
        }
    }
}

impl<'a> Named<'a> {
    /// A volume, as the Controller service knows them.
    pub(super) fn volume(id: &'a str) -> Self {
        let is_inline = || id.parse::<VolumeId>().is_ok_and(|id| id.is_inline());
        Named { what: VOLUME, id, key: VolumeId::node_key_in(id).filter(|_| !is_inline()) }
    }

    pub(super) fn snapshot(id: &'a str) -> Self {
        Named { what: "snapshot", id, key: SnapshotId::node_key_in(id) }
    }

    pub(super) fn group(id: &'a str) -> Self {
        Named { what: "group snapshot", id, key: GroupSnapshotId::node_key_in(id) }
    }

    /// Returns its id.
    pub(super) fn id(&self) -> &'a str {
        self.id
    }

    /// Reports whether the text is an id.
    pub(super) fn is_id(&self) -> bool {
        self.key.is_some()
    }

    /// Returns what it is, with its id, for messages.
    pub(super) fn shown(&self) -> String {
        format!("{} {}", self.what, self.id)
    }

    fn not_found(&self) -> Error {
        let Named { what, id, key } = self;
        Error::NotFound(match key {
            None => format!("{what} {id:?} does not exist"),
            Some(key) => format!("{what} {id:?} does not exist: no node of the cluster has the key {key}"),
        })
    }
}

/// Who has to do a call that ends something.
#[derive(Debug)]
pub(super) enum Last {
    Member(Arc<Member>),
    /// Nobody: it is not there, or was given up.
    Nobody,
}

impl Router {
    /// The node that owns this.
    ///
    /// # Errors
    /// NOT_FOUND where no node does; UNAVAILABLE while the nodes are not known.
    pub(super) fn owner(&self, named: Named<'_>) -> Result<Arc<Member>> {
        self.find(named)?.ok_or_else(|| named.not_found())
    }

    /// The node that owns this, if any.
    ///
    /// # Errors
    /// UNAVAILABLE while the nodes are not known.
    pub(super) fn find(&self, named: Named<'_>) -> Result<Option<Arc<Member>>> {
        Ok(member(&*self.members()?, named))
    }

    /// The node that has to delete or unpublish this. What is on a node that is not there is kept by default: only an
    /// administrator knows that the node will not come back.
    ///
    /// # Errors
    /// UNAVAILABLE where its node is not there and was not given up.
    pub(super) fn last_owner(&self, named: Named<'_>) -> Result<Last> {
        let Some(key) = named.key else { return Ok(Last::Nobody) };
        let members = self.members()?;
        if let Some(member) = members.with_key(key) {
            return Ok(Last::Member(Arc::clone(member)));
        }
        let Named { what, id, .. } = named;
        match self.forget.get(key) {
            Some(node_id) if members.is_gone(node_id) => {
                tracing::warn!(node = node_id, "{what} {id} was given up with its node (--forget-node)");
                Ok(Last::Nobody)
            }
            Some(node_id) => Err(Error::Unavailable(format!(
                "{what} {id} is on node {node_id:?}, which is still part of the cluster; remove the node before you forget it"
            ))),
            // Its first node may have been emptied before it left, and nothing says which node it went to.
            None if what != VOLUME => Err(Error::Unavailable(format!(
                "{what} {id} was made on a node that is not part of the cluster (its key is {key}), and no node has it now: bring that node \
                 back, or give it up with --forget-node; also if the {what} had moved to another node since, and that one was given up"
            ))),
            None => Err(Error::Unavailable(format!(
                "{what} {id} is on a node that is not part of the cluster (its key is {key}): bring the node back, \
                 or give it up with --forget-node"
            ))),
        }
    }

    /// Returns the one node that has all of these volumes.
    ///
    /// # Errors
    /// NOT_FOUND for a volume that no node has; FAILED_PRECONDITION if they are on several nodes; UNAVAILABLE while the node of
    /// one of them is not known.
    pub(super) async fn common_owner(&self, ids: &[String]) -> Result<Arc<Member>, Status> {
        let located = try_join_all(ids.iter().map(|id| self.locate(id))).await?;
        let mut found = Vec::new();
        for (id, located) in ids.iter().zip(located) {
            found.push((id, located.node.ok_or_else(|| Named::volume(id).not_found())?));
        }
        let Some((first, owner)) = found.first() else {
            return Err(Error::Invalid("nothing is named".to_owned()).into());
        };
        match found.iter().find(|(_, member)| member.node_id != owner.node_id) {
            None => Ok(Arc::clone(owner)),
            Some((other, elsewhere)) => Err(Error::InUse(format!(
                "volume {first} is on node {:?} and volume {other} on node {:?}: all must be on one node",
                owner.node_id, elsewhere.node_id
            ))
            .into()),
        }
    }
}

/// The node of `members` that owns this.
pub(super) fn member(members: &Members, named: Named<'_>) -> Option<Arc<Member>> {
    named.key.and_then(|key| members.with_key(key)).cloned()
}
