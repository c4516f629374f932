//! CSI ListVolumes, ControllerListVolumeHealth and ListSnapshots: one list over all nodes, in the order of the ids, which
//! begin with the nodes' keys. A token is that of a node: it holds the last id of its page, and so says with which node
//! to continue. Nodes and volumes may come and go between pages; what stays is neither missed nor seen twice.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use prost::bytes::Bytes;
use tonic::Status;

use super::Router;
use super::forward::Envelope;
use super::owner::Named;
use super::route::Asked;
use crate::cluster::peers::Member;
use crate::driver::token;
use crate::model::request::{ListSnapshots, ListVolumes};
use crate::model::{Id, SnapshotId, VolumeId};
use crate::service::table;
use crate::wire::encode::Listed;
use crate::wire::rpc::Unary;
use crate::wire::{csi, decode, encode};

/// So many nodes are asked at once.
const AT_ONCE: usize = 16;
/// A node is asked for so many entries at a time.
const PAGE: usize = 1000;
/// How long a node may take for them.
const PATIENCE: Duration = Duration::from_secs(10);

/// A list that nodes have.
trait Listing: Unary + Send + Sync {
    type Entry: Listed + Send;
    type Id: Id + Send + Sync;

    fn page(limit: i32, token: String) -> Self;
    /// The entries of a page and the token of the next one, empty after the last.
    fn open(page: Self::Reply) -> (Vec<Self::Entry>, String);
}

impl Listing for csi::ListVolumesRequest {
    type Entry = csi::list_volumes_response::Entry;
    type Id = VolumeId;

    fn page(max_entries: i32, starting_token: String) -> Self {
        csi::ListVolumesRequest { max_entries, starting_token }
    }

    fn open(page: csi::ListVolumesResponse) -> (Vec<Self::Entry>, String) {
        (page.entries, page.next_token)
    }
}

impl Listing for csi::ControllerListVolumeHealthRequest {
    type Entry = csi::VolumeHealth;
    type Id = VolumeId;

    fn page(max_entries: i32, starting_token: String) -> Self {
        csi::ControllerListVolumeHealthRequest { max_entries, starting_token, ..Default::default() }
    }

    fn open(page: csi::ControllerListVolumeHealthResponse) -> (Vec<Self::Entry>, String) {
        (page.entries, page.next_token)
    }
}

impl Listing for csi::ListSnapshotsRequest {
    type Entry = csi::list_snapshots_response::Entry;
    type Id = SnapshotId;

    fn page(max_entries: i32, starting_token: String) -> Self {
        csi::ListSnapshotsRequest { max_entries, starting_token, ..Default::default() }
    }

    fn open(page: csi::ListSnapshotsResponse) -> (Vec<Self::Entry>, String) {
        (page.entries, page.next_token)
    }
}

impl Router {
    /// Lists the volumes of all nodes.
    ///
    /// # Errors
    /// ABORTED for a token that no driver gave out; UNAVAILABLE, with its name, for a node that cannot be asked.
    pub(super) async fn list_volumes(self, asked: Asked<csi::ListVolumesRequest>) -> Result<Bytes, Status> {
        let ListVolumes { max_entries, starting_token } =
            decode::page(asked.request.max_entries, asked.request.starting_token)?;
        let (entries, next_token) =
            self.list::<csi::ListVolumesRequest>(&asked.envelope, max_entries, starting_token).await?;
        Ok(table::encode(&csi::ListVolumesResponse { entries, next_token }))
    }

    /// Lists the volumes of all nodes that are not healthy.
    ///
    /// # Errors
    /// As [`Router::list_volumes`]: without an answer nobody knows whether the volumes of a node are healthy.
    pub(super) async fn controller_list_volume_health(
        self,
        asked: Asked<csi::ControllerListVolumeHealthRequest>,
    ) -> Result<Bytes, Status> {
        let csi::ControllerListVolumeHealthRequest { max_entries, starting_token, secrets } = asked.request;
        decode::check_secrets(&secrets)?;
        let ListVolumes { max_entries, starting_token } = decode::page(max_entries, starting_token)?;
        let (entries, next_token) = self
            .list::<csi::ControllerListVolumeHealthRequest>(&asked.envelope, max_entries, starting_token)
            .await?;
        Ok(table::encode(&csi::ControllerListVolumeHealthResponse { entries, next_token }))
    }

    /// Lists the snapshots of all nodes, or asks the one node that can have what the filters name.
    ///
    /// # Errors
    /// As [`Router::list_volumes`].
    pub(super) async fn list_snapshots(
        self,
        asked: Asked<csi::ListSnapshotsRequest>,
    ) -> Result<Bytes, Status> {
        let ListSnapshots { max_entries, starting_token, source_volume_id, snapshot_id } =
            decode::list_snapshots(asked.request)?;
        let snapshot = snapshot_id.as_deref().map(Named::snapshot);
        let filter = snapshot.or_else(|| source_volume_id.as_deref().map(Named::volume));
        let Some(named) = filter else {
            let (entries, next_token) =
                self.list::<csi::ListSnapshotsRequest>(&asked.envelope, max_entries, starting_token).await?;
            return Ok(table::encode(&csi::ListSnapshotsResponse { entries, next_token }));
        };
        if let Some(text) = &starting_token {
            token::parse::<SnapshotId>(text)?;
        }
        match self.find(named)? {
            Some(member) => {
                self.pass::<csi::ListSnapshotsRequest>(&member, &asked.envelope, asked.bytes).await
            }
            None => Ok(Bytes::new()),
        }
    }

    /// One page, and the token of the next one.
    async fn list<L: Listing>(
        &self,
        envelope: &Envelope,
        limit: usize,
        starting_token: Option<String>,
    ) -> Result<(Vec<L::Entry>, String), Status> {
        let after: Option<L::Id> = starting_token.as_deref().map(token::parse).transpose()?;
        let first_key = after.as_ref().map(Id::node_key).unwrap_or_default();
        let members = self.members()?;
        let mut asked: Vec<(Arc<Member>, String)> = Vec::new();
        for (key, member) in members.iter().filter(|(key, _)| *key >= first_key) {
            let token = starting_token.clone().filter(|_| key == first_key).unwrap_or_default();
            asked.push((Arc::clone(member), token));
        }
        let pages =
            asked.into_iter().map(|(member, token)| self.entries::<L>(envelope, member, limit, token));
        let mut pages = stream::iter(pages).buffered(AT_ONCE);
        let (mut entries, mut more) = (Vec::new(), false);
        while !more && let Some(page) = pages.next().await {
            let (found, rest) = match page {
                Ok(page) => page,
                // The page is full without this node. The next one tells.
                Err(_) if entries.len() >= limit => (Vec::new(), true),
                Err(status) => return Err(status),
            };
            let room = limit - entries.len();
            more = rest || found.len() > room;
            entries.extend(found.into_iter().take(room));
        }
        let fitting = encode::fitting(&entries);
        more |= fitting < entries.len();
        entries.truncate(fitting);
        let last = entries.last().filter(|_| more).map(|entry| token::make(entry.id()));
        Ok((entries, last.unwrap_or_default()))
    }

    /// The entries of one node after a token, at most `limit`, and whether there are more.
    async fn entries<L: Listing>(
        &self,
        envelope: &Envelope,
        member: Arc<Member>,
        limit: usize,
        mut token: String,
    ) -> Result<(Vec<L::Entry>, bool), Status> {
        let mut entries = Vec::new();
        loop {
            let wanted = (limit - entries.len()).min(PAGE);
            let request = L::page(i32::try_from(wanted).unwrap_or(i32::MAX), token);
            let page = self.call(&member, &envelope.within(PATIENCE), request).await;
            let (found, next) = L::open(page.map_err(cannot_be_asked)?);
            // A node that says "more" and sends nothing would be asked for ever.
            let done = next.is_empty() || found.is_empty();
            entries.extend(found);
            if done || entries.len() >= limit {
                return Ok((entries, !next.is_empty()));
            }
            token = next;
        }
    }
}

/// A list without the volumes of one node would look as if they were gone: no answer of that node is none at all.
fn cannot_be_asked(status: Status) -> Status {
    match status.code() {
        tonic::Code::DeadlineExceeded => Status::unavailable(status.message()),
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_node_is_unavailable() {
        let late = cannot_be_asked(Status::deadline_exceeded("late"));
        assert_eq!((late.code(), late.message()), (tonic::Code::Unavailable, "late"));
        let aborted = cannot_be_asked(Status::aborted("token"));
        assert_eq!((aborted.code(), aborted.message()), (tonic::Code::Aborted, "token"));
    }
}
