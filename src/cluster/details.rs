//! Asks what is on the nodes of a cluster, for people who look at it: a controller, which knows all nodes, or one node. Both answer
//! the same two questions (`ListNodes`, `ListDetails`), over a Unix socket or any other connection.

use std::io;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::answers::LARGEST_ANSWER;
use super::router::{Stream, describe, open};
use crate::model::details::{DetailsPage, KnownNode, NodeDetails, SnapshotDetails, VolumeDetails};
use crate::model::{Adoption, AdoptionOrder};
use crate::wire::peer::peer_client::PeerClient;
use crate::wire::{adopt, details, peer};

/// How long one node may take for all of its answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long the answer to one request for an adoption is waited for.
pub const ADOPT_PATIENCE: Duration = Duration::from_secs(10);
/// The largest page, in bytes.
const LARGEST_PAGE: usize = 4 << 20;
/// The pages that one node may send: half a million volumes and snapshots.
pub(super) const MOST_PAGES: usize = 1000;

/// All that one node has answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeAnswer {
    pub node: NodeDetails,
    pub volumes: Vec<VolumeDetails>,
    pub snapshots: Vec<SnapshotDetails>,
}

impl NodeAnswer {
    /// Takes a page, and returns the token of the next one.
    pub(super) fn add(&mut self, page: DetailsPage) -> Option<String> {
        let DetailsPage { node, volumes, snapshots, next_token } = page;
        if let Some(node) = node {
            self.node = node;
        }
        self.volumes.extend(volumes);
        self.snapshots.extend(snapshots);
        next_token
    }
}

/// A node, and what it has answered, or why there is no answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedNode {
    pub known: KnownNode,
    pub answer: Result<NodeAnswer, String>,
}

/// Why there is no volume yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAdopted {
    /// The node works on it: the same request again finds it, or says how far that is.
    Working(String),
    /// A repeated request may be answered otherwise.
    Later(String),
    /// It failed, or something has to be changed first.
    Refused(String),
}

/// A connection to a process that answers.
#[derive(Debug, Clone)]
pub struct Source(Channel);

impl Source {
    /// Asks over this channel.
    pub fn on(channel: Channel) -> Self {
        Source(channel)
    }

    /// Asks over this connection.
    ///
    /// # Errors
    /// If nothing there speaks HTTP/2.
    pub async fn over(stream: impl Stream + 'static) -> Result<Self, String> {
        let opened = timeout(PATIENCE, open(Box::new(stream))).await;
        let opened = opened.map_err(|_| "it accepts connections, and does not answer".to_owned())?;
        opened.map(Source).map_err(|error| crate::error::with_causes(error.to_string(), &error))
    }

    /// Asks the process that serves this Unix socket.
    ///
    /// # Errors
    /// If the socket cannot be connected to.
    pub async fn at(socket: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("connect to {}: {error}", socket.display());
        let stream = timeout(PATIENCE, UnixStream::connect(socket)).await;
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        Source::over(stream.map_err(|_| failed(late()))?.map_err(failed)?).await
    }

    pub(super) fn client(&self) -> PeerClient<Channel> {
        PeerClient::new(self.0.clone()).max_decoding_message_size(LARGEST_PAGE)
    }

    /// Asks all nodes at the same time. A node that does not answer costs its own answer only, and [`PATIENCE`].
    ///
    /// # Errors
    /// If the nodes are not known.
    pub async fn ask_all(&self) -> Result<Vec<AskedNode>, String> {
        let known = self.nodes().await?;
        let ask = |known: KnownNode| async {
            let answer = timeout(PATIENCE, self.node(&known.node_id)).await;
            let late = || Err(format!("no answer within {} s", PATIENCE.as_secs()));
            AskedNode { answer: answer.unwrap_or_else(|_| late()), known }
        };
        Ok(join_all(known.into_iter().map(ask)).await)
    }

    /// Has a volume made of what others have made. The node goes on if there is no answer in time.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn adopt(&self, order: &AdoptionOrder) -> Result<Adoption, NotAdopted> {
        let mut client = self.client();
        let answer = timeout(ADOPT_PATIENCE, client.adopt_volume(adopt::encode_order(order))).await;
        let answer = answer.map_err(|_| NotAdopted::Working("the node works on it".to_owned()))?;
        match answer {
            Ok(answer) => Ok(adopt::decode_answer(answer.into_inner())),
            Err(status) => match status.code() {
                Code::Aborted | Code::DeadlineExceeded => Err(NotAdopted::Working(why(&status))),
                Code::Unavailable => Err(NotAdopted::Later(why(&status))),
                _ => Err(NotAdopted::Refused(why(&status))),
            },
        }
    }

    /// Makes sure that the process answers.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn answers(&self) -> Result<(), String> {
        self.nodes().await.map(drop)
    }

    pub(super) async fn nodes(&self) -> Result<Vec<KnownNode>, String> {
        let mut client = self.client().max_decoding_message_size(LARGEST_ANSWER.max(LARGEST_PAGE));
        let answer = timeout(PATIENCE, client.list_nodes(peer::ListNodesRequest {})).await;
        let answer = answer.map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?;
        let answer = answer.map_err(|status| why(&status))?.into_inner();
        Ok(answer.nodes.into_iter().map(details::decode_known).collect())
    }

    async fn node(&self, node_id: &str) -> Result<NodeAnswer, String> {
        let (mut all, mut token) = (NodeAnswer::default(), String::new());
        for _ in 0..MOST_PAGES {
            let request = peer::ListDetailsRequest { node_id: node_id.to_owned(), token, pools_only: false };
            let page = self.client().list_details(request).await.map(Response::into_inner);
            let page = details::decode(
                page.map_err(|status| why(&status).replacen(&format!("node {node_id:?} "), "", 1))?,
            );
            match all.add(page) {
                Some(next) => token = next,
                None => return Ok(all),
            }
        }
        Err("it has more than it can have".to_owned())
    }
}

/// Returns why a question has no answer, in one line.
pub(super) fn why(status: &Status) -> String {
    match status.code() {
        Code::Unimplemented => "it runs an earlier version, which does not answer this question".to_owned(),
        _ => describe(status),
    }
}
