//! What people ask of the cluster: which nodes there are, what is on one of them, and that a node makes a volume of what others have made. The caller asks for each
//! node on its own, so that a node that is down costs its own answer only. The message of a node goes on as it is.

use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use super::Router;
use super::forward::Envelope;
use crate::error::Error;
use crate::model::details::KnownNode;
use crate::service::observe;
use crate::service::table::{Answer, Table, add_peer, decode};
use crate::wire::{details, peer};

/// How long a node may take for a page. The caller waits longer (`cluster/details.rs`), so that it gets the reason.
const LIMIT: Duration = Duration::from_secs(4);
/// How long a node may take to make a volume of what others have made before its caller asks again.
const LONGEST: Duration = Duration::from_secs(60);

impl Router {
    /// Returns what is served to people who look at the cluster, and nothing else.
    pub fn details_routes(&self) -> Routes {
        let mut routes = Routes::builder();
        add_peer(&Arc::new(self.details_table()), &mut routes);
        routes.routes()
    }

    pub(super) fn details_table(&self) -> Table {
        let mut table = Table::default();
        let router = self.clone();
        table.unary::<peer::ListNodesRequest, _>(move |_| {
            let nodes = router.known_nodes();
            async { nodes }
        });
        let router = self.clone();
        table.raw::<peer::ListDetailsRequest>(move |request| {
            let router = router.clone();
            Box::pin(async move { router.list_details(request).await })
        });
        let router = self.clone();
        table.raw::<peer::AdoptVolumeRequest>(move |request| {
            let router = router.clone();
            Box::pin(async move { router.adopt_volume(request).await })
        });
        table
    }

    /// Returns the nodes of the cluster.
    ///
    /// # Errors
    /// UNAVAILABLE until all of them are known.
    fn known_nodes(&self) -> Result<peer::ListNodesResponse, Status> {
        let members = self.members()?;
        let known = |node_id: &String, address: &Option<String>| KnownNode {
            node_id: node_id.clone(),
            address: address.clone(),
            last_answer: self.links.last_answer(node_id),
        };
        let nodes = members.iter().map(|(_, member)| known(&member.node_id, &member.address));
        Ok(peer::ListNodesResponse {
            nodes: nodes.map(details::encode_known).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    /// Asks a node for a page of what is on it.
    ///
    /// # Errors
    /// NOT_FOUND if there is no such node, UNAVAILABLE with its name if it does not answer.
    async fn list_details(&self, request: Request<Bytes>) -> Answer<Bytes> {
        let envelope = Envelope::of(&request).within(LIMIT);
        let bytes = request.into_inner();
        let asked = observe(decode::<peer::ListDetailsRequest>(&bytes)?, &bytes);
        let node_id = asked.node_id;
        let members = self.members()?;
        let member = members.with_id(&node_id).ok_or_else(|| no_node(&node_id))?;
        let page = self.pass_if_up::<peer::ListDetailsRequest>(member, &envelope, bytes).await;
        page.map(Response::new).map_err(|status| match status.code() {
            Code::DeadlineExceeded => {
                let seconds = LIMIT.as_secs();
                Error::Unavailable(format!("node {node_id:?} did not answer within {seconds} s")).into()
            }
            _ => status,
        })
    }

    /// Has a node make a volume of what others have made. The node goes on if its caller gives up.
    ///
    /// # Errors
    /// Those of the node; NOT_FOUND if there is no such node, UNAVAILABLE with its name if it does not answer.
    async fn adopt_volume(&self, request: Request<Bytes>) -> Answer<Bytes> {
        let envelope = Envelope::of(&request).within(LONGEST);
        let bytes = request.into_inner();
        let asked = observe(decode::<peer::AdoptVolumeRequest>(&bytes)?, &bytes);
        let members = self.members()?;
        let member = members.with_id(&asked.node_id).ok_or_else(|| no_node(&asked.node_id))?;
        let answer = self.pass_if_up::<peer::AdoptVolumeRequest>(member, &envelope, bytes).await;
        answer.map(Response::new)
    }
}

fn no_node(node_id: &str) -> Error {
    Error::NotFound(format!("there is no node {node_id:?} in the cluster"))
}
