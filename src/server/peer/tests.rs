//! The limits, with smaller numbers than the real ones.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use hyper_util::rt::TokioIo;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_stream::StreamExt;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::server::NamedService;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::super::crowd::Limits;
use super::*;
use crate::cluster::certs::Authority;
use crate::cluster::identity::{PeerIdentity, PeerRole};
use crate::cluster::tls::certificate::Validity;

/// An identity that all of the test share.
fn node() -> Tls {
    let dir = tempfile::tempdir().unwrap();
    let now = OffsetDateTime::now_utc();
    let validity = Validity { from: now - time::Duration::HOUR, until: now + time::Duration::HOUR };
    let ca = Authority::create(dir.path(), "d", validity).unwrap();
    let identity = PeerIdentity { driver: "d".to_owned(), role: PeerRole::Node, node_id: None };
    let out = dir.path().join("out");
    ca.issue(&identity, validity).unwrap().write(&out).unwrap();
    Tls::open(&out, "d", PeerRole::Node).unwrap()
}

/// Where there are too many handshakes, the one that has lasted longest makes way for a further connection.
#[tokio::test]
async fn handshakes_are_bounded() {
    let tls = node();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { all: 2, each: 2 };
    let mut handshakes = Handshakes::limited(Incoming::new(listener), tls.clone(), limits);
    let mut silent = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
    let stream = TcpStream::connect(address).await.unwrap();
    let client = tokio::spawn(async move { tls.connect(stream, PeerRole::Node, "x").await });
    let stream = tokio::time::timeout(Duration::from_secs(60), handshakes.next()).await.unwrap();
    let mut stream = stream.unwrap().unwrap();
    assert_eq!(stream.connect_info().role, PeerRole::Node);
    let mut client = client.await.unwrap().unwrap();
    client.write_all(b"here").await.unwrap();
    client.flush().await.unwrap();
    stream.read_exact(&mut [0; 4]).await.unwrap();
    // The first is closed, the second is still waited for.
    let [first, second] = &mut silent;
    assert!(first.read(&mut [0; 1]).await.is_ok_and(|count| count == 0) || first.read_u8().await.is_err());
    assert!(second.try_read(&mut [0; 1]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
}

#[derive(Clone)]
struct Peer;

impl NamedService for Peer {
    const NAME: &'static str = "hostloop.v1.Peer";
}

impl Service<Request<Body>> for Peer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Status::aborted("here").into_http()))
    }
}

/// A channel, and how often it has connected.
fn channel(tls: Tls, address: SocketAddr) -> (Channel, Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let connect = service_fn(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let tls = tls.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let stream = tls.connect(stream, PeerRole::Node, "x").await.map_err(io::Error::other)?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    (Endpoint::from_static("http://peer").connect_with_connector_lazy(connect), connections)
}

fn was_canceled(status: &tonic::Status) -> bool {
    let causes = std::iter::successors(std::error::Error::source(status), |error| error.source());
    causes.filter_map(|error| error.downcast_ref::<hyper::Error>()).any(hyper::Error::is_canceled)
}

/// A connection that grows old is exchanged for a new one, with a new handshake, and its caller sees nothing of it.
#[tokio::test]
async fn connections_are_renewed() {
    let tls = node();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Stop {
        requested: Box::pin(std::future::pending()),
        forced: Box::pin(std::future::pending()),
        timeout: Duration::ZERO,
    };
    let age = Duration::from_millis(200);
    tokio::spawn(serve(listener, tls.clone(), Routes::new(Peer), stop, (age, None)));
    let (channel, connections) = channel(tls, address);
    let started = Instant::now();
    while connections.load(Ordering::Relaxed) < 4 {
        assert!(started.elapsed() < Duration::from_secs(60), "the connections stay");
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/hostloop.v1.Peer/Hello");
        let codec = ProstCodec::<String, String>::default();
        let answer = grpc.unary(tonic::Request::new(String::new()), path, codec).await.unwrap_err();
        // The connection was closed before the call was sent. The router calls again then (router/forward.rs); this channel does not.
        if !was_canceled(&answer) {
            assert_eq!(answer.code(), Code::Aborted);
        }
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
}
