//! CSI ListVolumes, ControllerListVolumeHealth and ListSnapshots: one list over all nodes, in the order of the nodes' keys.
//! Each node sorts its part by id. A token holds the key of a node and the last id of the page: the next page continues at
//! this node. The id alone does not name the node, since a volume keeps it when it moves. Nodes and volumes may come and go
//! between pages. A volume that stays on its node is neither missed nor listed twice. A page lists a snapshot once that is just moving; two
//! pages may both have it.

use std::collections::HashMap;
use std::str::FromStr;
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
use crate::wire::{csi, decode, encode, fields};

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
    /// The field of the entries in a page.
    const ENTRIES: u32 = 1;

    /// Returns the request for a page of this list.
    fn page(&self, limit: i32, token: String) -> Self;
    /// The entries of a page and the token of the next one, empty after the last.
    fn open(page: Self::Reply) -> (Vec<Self::Entry>, String);
}

impl Listing for csi::ListVolumesRequest {
    type Entry = csi::list_volumes_response::Entry;
    type Id = VolumeId;

    fn page(&self, max_entries: i32, starting_token: String) -> Self {
        csi::ListVolumesRequest { max_entries, starting_token }
    }

    fn open(page: csi::ListVolumesResponse) -> (Vec<Self::Entry>, String) {
        (page.entries, page.next_token)
    }
}

impl Listing for csi::ControllerListVolumeHealthRequest {
    type Entry = csi::VolumeHealth;
    type Id = VolumeId;

    fn page(&self, max_entries: i32, starting_token: String) -> Self {
        csi::ControllerListVolumeHealthRequest { max_entries, starting_token, ..self.clone() }
    }

    fn open(page: csi::ControllerListVolumeHealthResponse) -> (Vec<Self::Entry>, String) {
        (page.entries, page.next_token)
    }
}

impl Listing for csi::ListSnapshotsRequest {
    type Entry = csi::list_snapshots_response::Entry;
    type Id = SnapshotId;

    fn page(&self, max_entries: i32, starting_token: String) -> Self {
        csi::ListSnapshotsRequest { max_entries, starting_token, ..self.clone() }
    }

    fn open(page: csi::ListSnapshotsResponse) -> (Vec<Self::Entry>, String) {
        (page.entries, page.next_token)
    }
}

/// Where a page ends: a node, and an id of its part of the list.
struct Position<I> {
    node_key: String,
    id: I,
}

impl<I: FromStr> FromStr for Position<I> {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (node_key, id) = text.split_once('/').ok_or(())?;
        Ok(Position { node_key: node_key.to_owned(), id: id.parse().map_err(|_| ())? })
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
        let all = csi::ListVolumesRequest::default();
        let (entries, next_token) = self.list(&all, &asked.envelope, max_entries, starting_token).await?;
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
        let all = csi::ControllerListVolumeHealthRequest::default();
        let (entries, next_token) = self.list(&all, &asked.envelope, max_entries, starting_token).await?;
        Ok(table::encode(&csi::ControllerListVolumeHealthResponse { entries, next_token }))
    }

    /// Lists the snapshots of all nodes, or asks the one node that has the snapshot that the filters name. The snapshots of a volume can be
    /// on several nodes: it may have moved, and so may they.
    ///
    /// # Errors
    /// As [`Router::list_volumes`].
    pub(super) async fn list_snapshots(
        self,
        asked: Asked<csi::ListSnapshotsRequest>,
    ) -> Result<Bytes, Status> {
        let ListSnapshots { max_entries, starting_token, source_volume_id, snapshot_id } =
            decode::list_snapshots(asked.request)?;
        let only = match (&snapshot_id, &source_volume_id) {
            (Some(id), _) => match self.holder(Named::snapshot(id)).await? {
                Some(member) => Some(member),
                None => return Ok(Bytes::new()),
            },
            (None, Some(id)) if VolumeId::node_key_in(id).is_none() => return Ok(Bytes::new()),
            (None, _) => None,
        };
        if let Some(member) = only {
            if let Some(text) = &starting_token {
                token::parse::<SnapshotId>(text)?;
            }
            return self.pass::<csi::ListSnapshotsRequest>(&member, &asked.envelope, asked.bytes).await;
        }
        let of = csi::ListSnapshotsRequest {
            source_volume_id: source_volume_id.unwrap_or_default(),
            ..Default::default()
        };
        let (entries, next_token) = self.list(&of, &asked.envelope, max_entries, starting_token).await?;
        Ok(table::encode(&csi::ListSnapshotsResponse { entries, next_token }))
    }

    /// Returns one page of a list, and the token of the next page.
    async fn list<L: Listing>(
        &self,
        of: &L,
        envelope: &Envelope,
        limit: usize,
        starting_token: Option<String>,
    ) -> Result<(Vec<L::Entry>, String), Status> {
        let after: Option<Position<L::Id>> = starting_token.as_deref().map(token::parse).transpose()?;
        let first_key = after.as_ref().map_or("", |after| after.node_key.as_str());
        let members = self.members()?;
        let mut asked: Vec<(String, Arc<Member>, String)> = Vec::new();
        for (key, member) in members.iter().filter(|(key, _)| *key >= first_key) {
            let here = after.as_ref().filter(|after| after.node_key == key);
            let token = here.map(|after| token::make(after.id.as_ref())).unwrap_or_default();
            asked.push((key.to_owned(), Arc::clone(member), token));
        }
        let pages = asked.into_iter().map(|(key, member, token)| async move {
            (key, self.entries(of, envelope, member, limit, token).await)
        });
        let mut pages = stream::iter(pages).buffered(AT_ONCE);
        let (mut entries, mut keys, mut more) = (Vec::new(), Vec::new(), false);
        let mut listed: HashMap<String, String> = HashMap::new();
        while !more && let Some((key, page)) = pages.next().await {
            let (found, rest) = match page {
                Ok(page) => page,
                // The page is full without this node. The next page reports its error.
                Err(_) if entries.len() >= limit => (Vec::new(), true),
                Err(status) => return Err(status),
            };
            // While a snapshot moves, two nodes have it.
            let mut found = found;
            found.retain(|entry| *listed.entry(entry.id().to_owned()).or_insert_with(|| key.clone()) == key);
            let room = limit - entries.len();
            more = rest || found.len() > room;
            entries.extend(found.into_iter().take(room));
            keys.resize(entries.len(), key);
        }
        let fitting = encode::fitting(&entries);
        more |= fitting < entries.len();
        entries.truncate(fitting);
        keys.truncate(fitting);
        let last = keys.last().zip(entries.last()).filter(|_| more);
        let next = last.map(|(key, entry)| token::make(&format!("{key}/{}", entry.id())));
        Ok((entries, next.unwrap_or_default()))
    }

    /// The entries of one node after a token, at most `limit`, and whether there are more.
    async fn entries<L: Listing>(
        &self,
        of: &L,
        envelope: &Envelope,
        member: Arc<Member>,
        limit: usize,
        mut token: String,
    ) -> Result<(Vec<L::Entry>, bool), Status> {
        let mut entries = Vec::new();
        loop {
            let wanted = (limit - entries.len()).min(PAGE);
            let request = of.page(i32::try_from(wanted).unwrap_or(i32::MAX), token);
            let request = table::encode(&request);
            let page = self.pass::<L>(&member, &envelope.within(PATIENCE), request).await;
            let page = page.map_err(cannot_be_asked)?;
            // An entry without content has two bytes here, and some hundred in memory.
            if fields::count(&page, &[L::ENTRIES]).is_none_or(|count| count > wanted) {
                return Err(Status::unavailable(format!(
                    "node {:?} answers with more than the {wanted} entries that it was asked for",
                    member.node_id
                )));
            }
            let (found, next) = L::open(table::decode(&page)?);
            // A node that says "more" and sends nothing would be asked for ever.
            let done = next.is_empty() || found.is_empty();
            entries.extend(found);
            if done || entries.len() >= limit {
                return Ok((entries, !next.is_empty()));
            }
            if encode::fitting(&entries) < entries.len() {
                // The answer has no room for more.
                return Ok((entries, true));
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
