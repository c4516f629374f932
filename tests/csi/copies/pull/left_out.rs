//! A source that leaves something out on the way. Whatever it does then, no volume is made of the rest.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop::wire::peer;
use hostloop::wire::peer::peer_client::PeerClient;
use hostloop::wire::peer::peer_server::{Peer, PeerServer};
use peer::{pull_blocks_response as blocks, pull_tree_response as tree};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use super::nodes::{Pair, SOURCE};
use super::{directory, disk_of, image_of, scattered, tree_of};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;

type Reply<T> = Result<Response<T>, Status>;
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What becomes of the stream in which something was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It breaks two messages later.
    Breaks,
    /// It goes on to its end.
    Ends,
}

/// Stands before the source and leaves out one message of the first stream that has so many.
struct Thief {
    source: PeerClient<Channel>,
    message: usize,
    then: Then,
    done: Arc<AtomicBool>,
}

impl Thief {
    fn steal<T: Send + 'static>(&self, stream: tonic::Streaming<T>) -> Messages<T> {
        let (message, then, done) = (self.message, self.then, self.done.clone());
        let mut number = 0;
        let stolen = stream.filter_map(move |item| {
            let at = number;
            number += 1;
            if done.load(Ordering::Acquire) && at == message + 3 && then == Then::Breaks {
                return Some(Err(Status::unavailable("it broke")));
            }
            match at == message && !done.swap(true, Ordering::AcqRel) {
                true => None,
                false => Some(item),
            }
        });
        Box::pin(stolen)
    }
}

#[tonic::async_trait]
impl Peer for Thief {
    async fn hello(&self, request: Request<peer::HelloRequest>) -> Reply<peer::HelloResponse> {
        self.source.clone().hello(request).await
    }

    async fn open_source(
        &self,
        request: Request<peer::OpenSourceRequest>,
    ) -> Reply<peer::OpenSourceResponse> {
        self.source.clone().open_source(request).await
    }

    async fn pull_blocks(
        &self,
        request: Request<peer::PullBlocksRequest>,
    ) -> Reply<Messages<peer::PullBlocksResponse>> {
        let stream = self.source.clone().pull_blocks(request).await?.into_inner();
        Ok(Response::new(self.steal(stream)))
    }

    async fn pull_tree(
        &self,
        request: Request<peer::PullTreeRequest>,
    ) -> Reply<Messages<peer::PullTreeResponse>> {
        let mut client = self.source.clone().max_decoding_message_size(16 << 20);
        Ok(Response::new(self.steal(client.pull_tree(request).await?.into_inner())))
    }

    async fn close_source(
        &self,
        request: Request<peer::CloseSourceRequest>,
    ) -> Reply<peer::CloseSourceResponse> {
        self.source.clone().close_source(request).await
    }
}

/// Puts a thief at the source's address, and says whether it has stolen.
fn set(pair: &Pair, message: usize, then: Then) -> Arc<AtomicBool> {
    let done = Arc::new(AtomicBool::new(false));
    let thief = Thief { source: pair.source.peer.clone(), message, then, done: done.clone() };
    let socket = pair.new_socket();
    let _entered = pair.runtime.enter();
    let listener = UnixListener::bind(&socket).expect("a socket");
    pair.runtime.spawn(async move {
        let served = Server::builder().add_service(PeerServer::new(thief));
        served.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("it serves");
    });
    pair.network.listens(SOURCE, socket);
    done
}

/// How many messages a stream of the source has.
fn messages<T, M>(pair: &Pair, stream: impl Future<Output = Reply<tonic::Streaming<T>>>, last: M) -> usize
where
    M: Fn(&T) -> bool,
{
    pair.runtime.block_on(async {
        let mut all: Vec<_> = stream.await.expect("a stream").into_inner().collect().await;
        let end = all.pop().expect("an end").expect("an end");
        assert!(last(&end));
        all.len() + 1
    })
}

#[test]
fn an_image_without_a_piece_is_no_volume() {
    let rig = Rig::new();
    let (_, cut, _) = scattered(&rig);
    let pair = Pair::new(rig);
    let created = pair.source.driver.store().snapshots()[0].created.as_nanos();
    let request = peer::PullBlocksRequest {
        handle: cut.snapshot_id.clone(),
        created_ns: created,
        permit: pair.permit(&copy("pulled", from_snapshot(&cut.snapshot_id), block(), &[])),
        ..Default::default()
    };
    let mut client = pair.source.peer.clone();
    let is_end = |m: &peer::PullBlocksResponse| matches!(m.message, Some(blocks::Message::End(_)));
    let count = messages(&pair, async { client.pull_blocks(request).await }, is_end);
    assert_eq!(count, 3 + 1 + 3 + 1 + 1);
    for then in [Then::Breaks, Then::Ends] {
        for message in 0..count {
            let stolen = set(&pair, message, then);
            let pulled = pair.pulled(copy("pulled", from_snapshot(&cut.snapshot_id), block(), &[]));
            assert!(stolen.load(Ordering::Acquire), "{message}");
            let target = pair.target.kernel.read(disk_of(&pulled.id), 0, 64 << 20).expect("read");
            let source = pair.source.kernel.read(image_of(&cut.snapshot_id), 0, 64 << 20).expect("read");
            assert!(target == source, "message {message} was left out, {then:?}: the volume is another one");
            pair.target.driver.delete_volume(&pulled.id).expect("deleted");
        }
    }
}

#[test]
fn a_tree_without_a_piece_or_an_entry_is_no_volume() {
    let rig = Rig::new();
    let (_, cut) = directory(&rig);
    let pair = Pair::new(rig);
    let source = tree_of(&pair.source.kernel, &format!("snapshots/{}", cut.snapshot_id));
    let created = pair.source.driver.store().snapshots()[0].created.as_nanos();
    let request = peer::PullTreeRequest {
        handle: cut.snapshot_id.clone(),
        created_ns: created,
        permit: pair.permit(&copy("pulled", from_snapshot(&cut.snapshot_id), mount(), &[])),
        ..Default::default()
    };
    let mut client = pair.source.peer.clone();
    let is_end = |m: &peer::PullTreeResponse| matches!(m.message, Some(tree::Message::End(_)));
    let count = messages(&pair, async { client.pull_tree(request).await }, is_end);
    assert!(count > 15, "{count}");
    for then in [Then::Breaks, Then::Ends] {
        for message in 0..count {
            let stolen = set(&pair, message, then);
            let request = copy(
                "pulled",
                from_snapshot(&cut.snapshot_id),
                mount(),
                &[("backend", "directory"), ("pool", "directories")],
            );
            let pulled = pair.pulled(request);
            assert!(stolen.load(Ordering::Acquire), "{message}");
            let target = tree_of(&pair.target.kernel, &format!("volumes/{}", pulled.id));
            assert_eq!(target, source, "message {message} was left out, {then:?}");
            pair.target.driver.delete_volume(&pulled.id).expect("deleted");
        }
    }
}
