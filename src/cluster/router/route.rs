//! How a call finds its node: as its declaration says (`service/declare.rs`). Requests and answers are sent on unchanged,
//! so that an older controller passes on to a newer node what it does not know itself. A call that needs more than one
//! node has a function of its own.

use std::sync::Arc;

use futures_util::StreamExt;
use prost::bytes::Bytes;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use super::Router;
use super::forward::Envelope;
use super::owner::{Last, Named};
use crate::cluster::peers::Member;
use crate::error::{Error, Result};
use crate::service::declare::{self, Call, Declarations, Facts, Question, Route, StreamCall, require};
use crate::service::stream::Messages;
use crate::service::table::{Answer, Table, add_controller, add_identity, add_peer, decode, encode};
use crate::service::{each_of_controller, observe, observe_made};
use crate::wire::csi;

/// A call that a function of the router has to look at.
pub(super) struct Asked<Q> {
    pub(super) bytes: Bytes,
    /// What this version sees in it.
    pub(super) request: Q,
    /// What is wrong with it, as far as this version knows: only for what comes to no node, which may know more.
    pub(super) wrong: Option<Error>,
    pub(super) envelope: Envelope,
}

impl Router {
    pub fn routes(&self) -> Routes {
        let mut routes = Routes::builder();
        let table = Arc::new(self.table());
        add_identity(&table, &mut routes);
        add_controller(&table, &mut routes);
        add_peer(&Arc::new(self.details_table(true)), &mut routes);
        routes.routes()
    }

    fn table(&self) -> Table {
        let mut routed = Routed { router: self.clone(), table: Table::default() };
        each_of_controller(&mut routed);
        routed.function(Router::create_volume);
        routed.function(Router::list_volumes);
        routed.function(Router::controller_list_volume_health);
        routed.function(Router::get_capacity);
        routed.function(Router::list_snapshots);
        let (router, mut table) = (self.clone(), routed.table);
        table.raw_stream::<csi::GetMetadataDeltaRequest>(move |request| {
            let router = router.clone();
            Box::pin(async move {
                let (asked, member) = router.for_delta(request).await?;
                router.stream::<csi::GetMetadataDeltaRequest>(member, &asked.envelope, asked.bytes).await
            })
        });
        table
    }

    fn ask_of<Q: crate::service::declare::Request>(
        &self,
        request: Request<Bytes>,
        check: impl FnOnce(Q, &tonic::metadata::MetadataMap) -> Option<Error>,
    ) -> Result<Asked<Q>, Status> {
        require::<Q>(self.settings.attach)?;
        let envelope = Envelope::of(&request);
        let (metadata, _, bytes) = request.into_parts();
        let request = observe(decode::<Q>(&bytes)?, &bytes);
        let wrong = check(request.clone(), &metadata);
        Ok(Asked { bytes, request, wrong, envelope })
    }

    async fn route<Q: Call>(&self, request: Request<Bytes>) -> Answer<Bytes> {
        let Asked { bytes, request, wrong, envelope } =
            self.ask_of::<Q>(request, |request, metadata| request.check(metadata).err())?;
        let mut has_moved = false;
        let found = match request.route() {
            Route::Owner(named) => match self.moved_off(named).await? {
                Some(member) => Ok(Last::Member(member)),
                None => self.owner(named.into()).map(Last::Member),
            },
            Route::CommonOwner(ids) => match self.common_owner(ids).await {
                Ok(member) => Ok(Last::Member(member)),
                Err(status) => return Err(wrong.map_or(status, Status::from)),
            },
            // Its first node may have nothing left of it, and would report success.
            Route::LastOwner(named @ declare::Named::Volume(id)) => match self.locate(id).await?.node {
                Some(member) => Ok(Last::Member(member)),
                None => self.last_owner(named.into()),
            },
            Route::LastOwner(named) => match self.last_holder(named.into()).await {
                Ok(Some(member)) => Ok(Last::Member(member)),
                Ok(None) => self.last_owner(named.into()),
                Err(status) => return Err(wrong.map_or(status, Status::from)),
            },
            Route::Deletion(id) => {
                let located = self.locate(id).await?;
                has_moved = located.has_moved;
                match located.node {
                    Some(member) => Ok(Last::Member(member)),
                    None => self.last_owner(Named::volume(id)),
                }
            }
            Route::Controller | Route::Node | Route::Peers(_) => return Err(Status::unimplemented(Q::PATH)),
        };
        match (found, wrong) {
            (Ok(Last::Member(member)), _) => {
                let (member, answer) = match self.follow::<Q>(member, &envelope, bytes.clone()).await {
                    Err(status) => {
                        let member = self.elsewhere(request.route(), status).await?;
                        self.follow::<Q>(member, &envelope, bytes).await?
                    }
                    Ok(answer) => answer,
                };
                observe_made(&request, &member.node_id);
                if let (Route::Deletion(id), true) = (request.route(), has_moved) {
                    self.forget_moves(id).await?;
                }
                Ok(Response::new(answer))
            }
            (Err(error), None) | (_, Some(error)) => Err(error.into()),
            (Ok(Last::Nobody), None) => Ok(Response::new(encode(&Q::Reply::default()))),
        }
    }

    /// Returns the node of a volume whose PersistentVolume names another one than its id, or of a volume or a snapshot whose first node
    /// has left the cluster.
    async fn moved_off(&self, named: declare::Named<'_>) -> Result<Option<Arc<Member>>, Status> {
        let declare::Named::Volume(id) = named else {
            return match self.find(named.into())? {
                // A node that was emptied may be off.
                Some(first) if self.has_snapshot(&first, named.into()).await.is_ok() => Ok(None),
                Some(_) => self.find_snapshot(named.into()).await,
                None => self.find_moved(named.into()).await,
            };
        };
        match self.placed(id).await? {
            Some(member) => Ok(Some(member)),
            None if self.find(named.into())?.is_none() => self.search(id).await,
            None => Ok(None),
        }
    }

    /// Returns the node of a volume or a snapshot that its first node does not have, or of a volume that has moved to a node which is
    /// not part of the cluster now.
    ///
    /// # Errors
    /// The status of the first node if no node has it, or if the status is about something else; UNAVAILABLE if a snapshot has moved to a
    /// node that does not answer.
    async fn elsewhere(&self, route: Route<'_>, status: Status) -> Result<Arc<Member>, Status> {
        let Route::Owner(named) = route else { return Err(status) };
        let declare::Named::Volume(id) = named else {
            return match status.code() {
                Code::NotFound => self.find_moved(named.into()).await?.ok_or(status),
                _ => Err(status),
            };
        };
        if status.code() != Code::NotFound {
            return self.beyond(id, status).await;
        }
        let first = self.find(named.into())?;
        match self.find_elsewhere(id).await? {
            Some(member) if first.is_none_or(|first| first.node_id != member.node_id) => Ok(member),
            _ => Err(status),
        }
    }

    /// Opens a node's stream, which goes on message by message. A caller that goes away ends the stream of the node as well,
    /// and an error of the node ends that of the caller.
    async fn stream<Q: StreamCall>(
        &self,
        member: Arc<Member>,
        envelope: &Envelope,
        bytes: Bytes,
    ) -> Answer<Messages<Bytes>> {
        let (link, messages) = self.open::<Q>(&member, envelope, bytes).await?;
        let router = self.clone();
        let told = move |status| router.no_answer(&member, &link, status);
        Ok(Response::new(Box::pin(messages.map(move |message| message.map_err(&told)))))
    }

    async fn route_stream<Q: StreamCall>(&self, request: Request<Bytes>) -> Answer<Messages<Bytes>> {
        let Asked { bytes, request, wrong, envelope } =
            self.ask_of::<Q>(request, |request, _| request.check().err())?;
        let Route::Owner(named) = request.route() else { return Err(Status::unimplemented(Q::PATH)) };
        let member = match self.holder(named.into()).await? {
            Some(member) => member,
            None => self.owner(named.into()).map_err(|error| wrong.unwrap_or(error))?,
        };
        self.stream::<Q>(member, &envelope, bytes).await
    }

    /// The node of both snapshots that are to be compared.
    async fn for_delta(
        &self,
        request: Request<Bytes>,
    ) -> Result<(Asked<csi::GetMetadataDeltaRequest>, Arc<Member>), Status> {
        let mut asked =
            self.ask_of::<csi::GetMetadataDeltaRequest>(request, |request, _| request.check().err())?;
        let csi::GetMetadataDeltaRequest { base_snapshot_id, target_snapshot_id, .. } = &asked.request;
        let mut owners = Vec::new();
        for id in [base_snapshot_id, target_snapshot_id] {
            let named = Named::snapshot(id);
            let held = self.holder(named).await?;
            owners.push(held.map_or_else(|| self.owner(named), Ok));
        }
        let owners: Result<Vec<_>> = owners.into_iter().collect();
        let owners = owners.map_err(|error| asked.wrong.take().unwrap_or(error))?;
        let [base, target] = owners.as_slice() else {
            return Err(Status::internal("two snapshots have two nodes"));
        };
        if base.node_id != target.node_id {
            return Err(self.apart([(base, base_snapshot_id), (target, target_snapshot_id)]).await);
        }
        let target = Arc::clone(target);
        Ok((asked, target))
    }

    /// Returns why two snapshots on two nodes cannot be compared. One may have moved away from the other, or they are of two volumes.
    async fn apart(&self, snapshots: [(&Arc<Member>, &String); 2]) -> Status {
        let mut volumes = Vec::new();
        for (member, id) in snapshots {
            let request = csi::GetSnapshotRequest { snapshot_id: id.clone(), ..Default::default() };
            match self.call(member, &Envelope::default(), request).await {
                Ok(answer) => volumes.push(answer.snapshot.unwrap_or_default().source_volume_id),
                Err(status) => return status,
            }
        }
        let [(base, base_id), (target, target_id)] = snapshots;
        let are = format!(
            "snapshots {base_id} and {target_id} are on the nodes {:?} and {:?}",
            base.node_id, target.node_id
        );
        let is_one = matches!(volumes.as_slice(), [one, other] if one == other);
        match is_one {
            true => Error::InUse(format!(
                "{are}: move one to the node of the other (hostloop evacuate --with-snapshots), or read all of the later one"
            )),
            false => Error::Invalid(format!("{are}, and are of different volumes: only those of one volume can be compared")),
        }
        .into()
    }
}

struct Routed {
    router: Router,
    table: Table,
}

impl Routed {
    /// Has a function of the router answer this one.
    fn function<Q: Call, F>(&mut self, serve: fn(Router, Asked<Q>) -> F)
    where
        F: Future<Output = Result<Bytes, Status>> + Send + 'static,
    {
        let router = self.router.clone();
        self.table.raw::<Q>(move |request| {
            let router = router.clone();
            Box::pin(async move {
                let check = |request: Q, metadata: &_| request.check(metadata).err();
                let asked = router.ask_of::<Q>(request, check)?;
                serve(router, asked).await.map(Response::new)
            })
        });
    }
}

impl Declarations for Routed {
    fn question<Q: Question>(&mut self) {
        let router = self.router.clone();
        self.table.unary::<Q, _>(move |_| {
            let settings = &router.settings;
            // Ready once the nodes are known, whether they can be reached or not: no node is asked.
            let ready = router.is_ready();
            let (driver_name, attach) = (settings.driver_name.as_str(), settings.attach);
            let reply = Q::answer(&Facts { driver_name, attach, ready, node: None });
            async { Ok(reply) }
        });
    }

    fn call<Q: Call>(&mut self) {
        let router = self.router.clone();
        self.table.raw::<Q>(move |request| {
            let router = router.clone();
            Box::pin(async move { router.route::<Q>(request).await })
        });
    }

    fn stream<Q: StreamCall>(&mut self) {
        let router = self.router.clone();
        self.table.raw_stream::<Q>(move |request| {
            let router = router.clone();
            Box::pin(async move { router.route_stream::<Q>(request).await })
        });
    }
}
