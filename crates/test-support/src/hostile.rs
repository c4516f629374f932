//! A node whose certificate is valid, and whose answers are what a test says: it is broken, or in wrong hands.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::stream;
use hostloop::wire::peer;
use hostloop::wire::peer::peer_server::Peer;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// How a call that has a stream for its answer is answered.
pub type Streams<T> = Arc<dyn Fn() -> Later<Result<Response<BoxStream<T>>, Status>> + Send + Sync>;
/// How OpenSource is answered.
pub type Opens =
    Arc<dyn Fn(&peer::OpenSourceRequest) -> Result<peer::OpenSourceResponse, Status> + Send + Sync>;

/// Clones are the same node.
#[derive(Clone)]
pub struct Hostile {
    /// What it says that it is.
    pub hello: peer::HelloResponse,
    pub open: Opens,
    pub blocks: Streams<peer::PullBlocksResponse>,
    pub changes: Streams<peer::PullChangesResponse>,
    pub tree: Streams<peer::PullTreeResponse>,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Hostile {
    /// A node with this id. It opens nothing, and none of its streams begins.
    pub fn new(node_id: &str) -> Hostile {
        Hostile {
            hello: peer::HelloResponse {
                driver_name: crate::pki::DRIVER.to_owned(),
                node_id: node_id.to_owned(),
                version: "1".to_owned(),
                ready: true,
            },
            open: Arc::new(|_| Err(Status::not_found("nothing is here"))),
            blocks: never(),
            changes: never(),
            tree: never(),
            calls: Arc::default(),
        }
    }

    /// Returns how often this was called.
    pub fn calls(&self, name: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| **call == name).count()
    }

    fn called(&self, name: &'static str) {
        self.calls.lock().unwrap().push(name);
    }
}

/// No answer at all: not even the head of one.
pub fn never<T: 'static>() -> Streams<T> {
    Arc::new(|| Box::pin(std::future::pending()))
}

/// These messages, as fast as they are read. Each call begins with the first one.
pub fn sends<T, I>(messages: impl Fn() -> I + Send + Sync + 'static) -> Streams<T>
where
    T: Send + 'static,
    I: Iterator<Item = T> + Send + 'static,
{
    Arc::new(move || {
        let messages: BoxStream<T> = Box::pin(stream::iter(messages().map(Ok)));
        Box::pin(async { Ok(Response::new(messages)) })
    })
}

#[tonic::async_trait]
impl Peer for Hostile {
    async fn hello(&self, _: Request<peer::HelloRequest>) -> Result<Response<peer::HelloResponse>, Status> {
        self.called("Hello");
        Ok(Response::new(self.hello.clone()))
    }

    async fn open_source(
        &self,
        request: Request<peer::OpenSourceRequest>,
    ) -> Result<Response<peer::OpenSourceResponse>, Status> {
        self.called("OpenSource");
        (self.open)(request.get_ref()).map(Response::new)
    }

    async fn pull_blocks(
        &self,
        _: Request<peer::PullBlocksRequest>,
    ) -> Result<Response<BoxStream<peer::PullBlocksResponse>>, Status> {
        self.called("PullBlocks");
        (self.blocks)().await
    }

    async fn pull_changes(
        &self,
        _: Request<peer::PullChangesRequest>,
    ) -> Result<Response<BoxStream<peer::PullChangesResponse>>, Status> {
        self.called("PullChanges");
        (self.changes)().await
    }

    async fn pull_tree(
        &self,
        _: Request<peer::PullTreeRequest>,
    ) -> Result<Response<BoxStream<peer::PullTreeResponse>>, Status> {
        self.called("PullTree");
        (self.tree)().await
    }

    async fn close_source(
        &self,
        _: Request<peer::CloseSourceRequest>,
    ) -> Result<Response<peer::CloseSourceResponse>, Status> {
        self.called("CloseSource");
        Ok(Response::new(peer::CloseSourceResponse {}))
    }
}
