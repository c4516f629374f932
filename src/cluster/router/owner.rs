//! Which node an id belongs to.

use std::sync::Arc;

use super::Router;
use crate::cluster::peers::{Member, Members};
use crate::error::{Error, Result};
use crate::model::{GroupSnapshotId, Id, SnapshotId, VolumeId};
use crate::service::declare;

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
        Named { what: "volume", id, key: VolumeId::node_key_in(id).filter(|_| !is_inline()) }
    }

    pub(super) fn snapshot(id: &'a str) -> Self {
        Named { what: "snapshot", id, key: SnapshotId::node_key_in(id) }
    }

    pub(super) fn group(id: &'a str) -> Self {
        Named { what: "group snapshot", id, key: GroupSnapshotId::node_key_in(id) }
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
            None => Err(Error::Unavailable(format!(
                "{what} {id} is on a node that is not part of the cluster (its key is {key}): bring the node back, \
                 or give it up with --forget-node"
            ))),
        }
    }

    /// The one node that owns all of these; what no node owns is left out.
    ///
    /// # Errors
    /// NOT_FOUND where nothing is left; FAILED_PRECONDITION where they are on several nodes.
    pub(super) fn common_owner<'a>(&self, named: impl IntoIterator<Item = Named<'a>>) -> Result<Arc<Member>> {
        let members = self.members()?;
        let (mut found, mut missing) = (Vec::new(), None);
        for named in named {
            match member(&members, named) {
                Some(member) => found.push((named, member)),
                None => missing = missing.or(Some(named)),
            }
        }
        let Some((first, owner)) = found.first() else {
            return Err(
                missing.map_or_else(|| Error::Invalid("nothing is named".to_owned()), |m| m.not_found())
            );
        };
        match (found.iter().find(|(_, member)| member.node_id != owner.node_id), missing) {
            (None, _) => Ok(Arc::clone(owner)),
            (Some(_), Some(missing)) => Err(missing.not_found()),
            (Some((other, elsewhere)), None) => Err(Error::InUse(format!(
                "{} {} is on node {:?} and {} on node {:?}: all must be on one node",
                first.what, first.id, owner.node_id, other.id, elsewhere.node_id
            ))),
        }
    }
}

/// The node of `members` that owns this.
pub(super) fn member(members: &Members, named: Named<'_>) -> Option<Arc<Member>> {
    named.key.and_then(|key| members.with_key(key)).cloned()
}
