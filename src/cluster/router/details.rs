//! The questions of people who look at the cluster and mend it: which nodes there are, what is on one of them, what is amiss there, what
//! its kernel says, that one finding be put right, that a node make a volume of what others have made, and that a snapshot move. The caller asks for each node on its own, so that a
//! node that is down costs its own answer only. The message of a node goes on as it is.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use prost::bytes::Bytes;
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use super::forward::Envelope;
use super::{Router, describe};
use crate::cluster::details::{MOST_PAGES, NodeAnswer};
use crate::cluster::notices::Asks;
use crate::cluster::peers::Member;
use crate::error::Error;
use crate::model::details::KnownNode;
use crate::service::table::{Answer, Table, add_peer, decode, encode};
use crate::service::{declare, observe};
use crate::wire::rpc::Unary;
use crate::wire::{details, peer};

/// The answer to a caller whose port passes no fixes on.
const NO_FIXES: &str = "this controller passes no fixes on: set inspect.fix in the chart (--inspect-fix of the controllers), or run \
     hostloop doctor --fix --endpoint on the node";
/// The answer to a caller whose port moves no snapshots.
const NO_MOVES: &str =
    "this controller moves no snapshots: set inspect.fix in the chart (--inspect-fix of the controllers)";
/// How long a node may take for a page. The caller waits longer (`cluster/details.rs`), so that it gets the reason.
const LIMIT: Duration = Duration::from_secs(4);
/// How long a node may take to read what its kernel says.
const LIMIT_OF_REPORT: Duration = Duration::from_secs(15);
/// How long a node may take to look for what is amiss, or to put one finding right.
const LIMIT_OF_DOCTOR: Duration = Duration::from_secs(60);
/// How long a node may take to make a volume of what others have made before its caller asks again.
const LONGEST: Duration = Duration::from_secs(60);

#[tonic::async_trait]
impl Asks for Router {
    async fn ask(&self) -> Result<Vec<(String, Result<NodeAnswer, String>)>, String> {
        let answers = self.ask_nodes().await.map_err(|status| describe(&status))?;
        let said = |(node, answer): (String, Result<NodeAnswer, Status>)| {
            (node, answer.map_err(|status| describe(&status)))
        };
        Ok(answers.into_iter().map(said).collect())
    }
}

impl Router {
    /// Returns what is served to people who look at the cluster, and nothing else. `fixes` has nodes put right what the callers name, and snapshots moved.
    pub fn details_routes(&self, fixes: bool) -> Routes {
        let mut routes = Routes::builder();
        add_peer(&Arc::new(self.details_table(fixes)), &mut routes);
        routes.routes()
    }

    pub(super) fn details_table(&self, fixes: bool) -> Table {
        let mut table = Table::default();
        let router = self.clone();
        table.unary::<peer::ListNodesRequest, _>(move |_| {
            let nodes = router.known_nodes();
            async { nodes }
        });
        let router = self.clone();
        table.raw::<peer::ListDetailsRequest>(move |request| {
            let router = router.clone();
            Box::pin(async move {
                router.of_node::<peer::ListDetailsRequest>(request, |asked| asked.node_id, LIMIT).await
            })
        });
        let router = self.clone();
        table.raw::<peer::ListFindingsRequest>(move |request| {
            let router = router.clone();
            let limit = LIMIT_OF_DOCTOR;
            Box::pin(async move {
                router.of_node::<peer::ListFindingsRequest>(request, |asked| asked.node_id, limit).await
            })
        });
        let router = self.clone();
        table.raw::<peer::GetNodeReportRequest>(move |request| {
            let router = router.clone();
            let limit = LIMIT_OF_REPORT;
            Box::pin(async move {
                router.of_node::<peer::GetNodeReportRequest>(request, |asked| asked.node_id, limit).await
            })
        });
        let router = self.clone();
        table.raw::<peer::FixFindingRequest>(move |request| {
            let router = router.clone();
            let limit = LIMIT_OF_DOCTOR;
            Box::pin(async move {
                if !fixes {
                    return Err(Error::Denied(NO_FIXES.to_owned()).into());
                }
                router.of_node::<peer::FixFindingRequest>(request, |asked| asked.node_id, limit).await
            })
        });
        let router = self.clone();
        table.raw::<peer::AdoptVolumeRequest>(move |request| {
            let router = router.clone();
            Box::pin(async move { router.adopt_volume(request).await })
        });
        let router = self.clone();
        table.raw::<peer::MoveSnapshotRequest>(move |request| {
            let router = router.clone();
            Box::pin(async move {
                match fixes {
                    true => router.move_snapshot(request).await,
                    false => Err(Error::Denied(NO_MOVES.to_owned()).into()),
                }
            })
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

    /// Asks all nodes at the same time what they know of their volumes, and has them measure their pools only. A node that does not
    /// answer costs its own answer only.
    ///
    /// # Errors
    /// UNAVAILABLE until the nodes are known.
    async fn ask_nodes(&self) -> Result<Vec<(String, Result<NodeAnswer, Status>)>, Status> {
        let members = self.members()?;
        let ask = |member: Arc<Member>| async move {
            let answer = timeout(LIMIT * 2, self.answer_of(&member)).await;
            let late = || Err(Error::Unavailable("it has not answered in time".to_owned()).into());
            (member.node_id.clone(), answer.unwrap_or_else(|_| late()))
        };
        Ok(join_all(members.iter().map(|(_, member)| ask(Arc::clone(member)))).await)
    }

    async fn answer_of(&self, member: &Member) -> Result<NodeAnswer, Status> {
        let (mut all, mut token) = (NodeAnswer::default(), String::new());
        for _ in 0..MOST_PAGES {
            let request =
                peer::ListDetailsRequest { node_id: member.node_id.clone(), token, pools_only: true };
            let envelope = Envelope::default().within(LIMIT);
            let page =
                self.pass_if_up::<peer::ListDetailsRequest>(member, &envelope, encode(&request)).await?;
            match all.add(details::decode(decode(&page)?)) {
                Some(next) => token = next,
                None => return Ok(all),
            }
        }
        Err(Status::internal("it has more than it can have"))
    }

    /// Sends a request on to the node that it names.
    ///
    /// # Errors
    /// NOT_FOUND if there is no such node, UNAVAILABLE with its name if it does not answer.
    async fn of_node<Q: declare::Request + Unary>(
        &self,
        request: Request<Bytes>,
        node_id: fn(Q) -> String,
        limit: Duration,
    ) -> Answer<Bytes> {
        let envelope = Envelope::of(&request).within(limit);
        let bytes = request.into_inner();
        let node_id = node_id(observe(decode::<Q>(&bytes)?, &bytes));
        let members = self.members()?;
        let member = members.with_id(&node_id).ok_or_else(|| no_node(&node_id))?;
        let page = self.pass_if_up::<Q>(member, &envelope, bytes).await;
        page.map(Response::new).map_err(|status| match status.code() {
            Code::DeadlineExceeded => {
                let seconds = limit.as_secs();
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

pub(super) fn no_node(node_id: &str) -> Error {
    Error::NotFound(format!("there is no node {node_id:?} in the cluster"))
}
