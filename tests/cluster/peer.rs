//! The port for peers: who may call what there, over real connections.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hostloop::cluster::identity::{PeerIdentity, PeerRole};
use hostloop::cluster::tls::Tls;
use hostloop::server::{Stop, Stopped, serve_peers};
use hostloop::shutdown::{Shutdown, Trigger};
use hostloop::wire::csi;
use hyper_util::rt::TokioIo;
use prost_reflect::DescriptorPool;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::{Service, service_fn};

use crate::log::listen;
use crate::pki::{Pki, controller, node};
use crate::wait::until;

/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(60);

/// Answers every method with ABORTED and the caller's identity: the call has come through.
fn reached(request: &Request<Body>) -> Status {
    match request.extensions().get::<PeerIdentity>() {
        Some(peer) => Status::aborted(peer.to_string()),
        None => Status::internal("there is no identity"),
    }
}

/// Services of these names that say who calls; `Panic` panics and `Sleep` takes a while.
macro_rules! services {
    ($($service:ident = $name:literal),*) => {
        $(
            #[derive(Clone)]
            struct $service;

            impl NamedService for $service {
                const NAME: &'static str = $name;
            }

            impl Service<Request<Body>> for $service {
                type Response = Response<Body>;
                type Error = Infallible;
                type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

                fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                    Poll::Ready(Ok(()))
                }

                fn call(&mut self, request: Request<Body>) -> Self::Future {
                    Box::pin(async move {
                        match request.uri().path().rsplit('/').next() {
                            Some("Panic") => panic!("as asked"),
                            Some("Sleep") => tokio::time::sleep(Duration::from_millis(500)).await,
                            _ => {}
                        }
                        Ok(reached(&request).into_http())
                    })
                }
            }
        )*

        /// All of them.
        fn routes() -> Routes {
            let mut routes = Routes::builder();
            $(routes.add_service($service);)*
            routes.routes()
        }
    };
}

services! {
    Identity = "csi.v1.Identity",
    ControllerService = "csi.v1.Controller",
    GroupController = "csi.v1.GroupController",
    SnapshotMetadata = "csi.v1.SnapshotMetadata",
    NodeService = "csi.v1.Node",
    Peer = "hostloop.v1.Peer",
    Health = "grpc.health.v1.Health"
}

/// A node that serves its peers.
pub struct Server {
    pub address: SocketAddr,
    trigger: Trigger,
    serving: JoinHandle<Stopped>,
}

pub async fn start(tls: Tls) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (trigger, shutdown) = Shutdown::new();
    let stop = Stop {
        requested: Box::pin(shutdown.clone().requested()),
        forced: Box::pin(shutdown.forced()),
        timeout: LONG,
    };
    Server { address, trigger, serving: tokio::spawn(serve_peers(listener, tls, routes(), stop, None)) }
}

fn channel(tls: &Tls, address: SocketAddr) -> Channel {
    channel_from(tls, address, "127.0.0.1")
}

/// The same from another address of this machine.
pub fn channel_from(tls: &Tls, address: SocketAddr, from: &str) -> Channel {
    let (tls, from) = (tls.clone(), SocketAddr::new(from.parse().unwrap(), 0));
    let connect = service_fn(move |_| {
        let tls = tls.clone();
        async move {
            let socket = TcpSocket::new_v4()?;
            socket.bind(from)?;
            let stream = socket.connect(address).await?;
            let stream = tls.connect(stream, PeerRole::Node, "node-1").await.map_err(io::Error::other)?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    Endpoint::from_static("http://peer").connect_with_connector_lazy(connect)
}

pub async fn call(channel: &Channel, path: &str) -> Status {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    if let Err(error) = grpc.ready().await {
        return Status::unavailable(error.to_string());
    }
    let codec = tonic_prost::ProstCodec::<String, String>::default();
    let path: PathAndQuery = path.parse().unwrap();
    let called = tokio::time::timeout(LONG, grpc.unary(tonic::Request::new(String::new()), path, codec));
    match called.await.unwrap() {
        Ok(_) => Status::ok(""),
        Err(status) => status,
    }
}

/// Every method of the CSI protocol, and some of ours, with who may call it.
fn methods() -> Vec<(String, Vec<PeerRole>)> {
    let pool = DescriptorPool::decode(csi::DESCRIPTOR).unwrap();
    let mut methods: Vec<_> = pool
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|method| {
            let service = method.parent_service().full_name().to_owned();
            let allowed = match service.as_str() {
                "csi.v1.Controller" | "csi.v1.GroupController" | "csi.v1.SnapshotMetadata" => {
                    vec![PeerRole::Controller]
                }
                _ => vec![],
            };
            (format!("/{service}/{}", method.name()), allowed)
        })
        .collect();
    assert!(methods.len() > 30, "{methods:?}");
    methods.push(("/hostloop.v1.Peer/Hello".to_owned(), vec![PeerRole::Controller, PeerRole::Node]));
    methods.push(("/hostloop.v1.Peer/Other".to_owned(), vec![PeerRole::Node]));
    for path in [
        "/",
        "/x",
        "/csi.v1.Controller",
        "/csi.v1.Controller/",
        "/csi.v1.Controller/a/b",
        "//csi.v1.Controller/CreateVolume",
        "/grpc.health.v1.Health/Check",
        "/csi.v2.Controller/CreateVolume",
        "/csi.v1.Controller/Create%56olume",
        "/csi.v1.SnapshotMetadata%2FGetMetadataDelta",
    ] {
        methods.push((path.to_owned(), vec![]));
    }
    methods
}

#[tokio::test]
async fn each_role_may_call_what_is_in_the_table_and_nothing_else() {
    let pki = Pki::new();
    let server = start(pki.tls("server", &node(Some("node-1")))).await;
    for identity in [controller(), node(None), node(Some("node-2"))] {
        let channel = channel(&pki.tls("client", &identity), server.address);
        for (path, allowed) in methods() {
            let status = call(&channel, &path).await;
            let wanted = match allowed.contains(&identity.role) {
                true => (Code::Aborted, identity.to_string()),
                false => {
                    let path = path.trim_start_matches('/');
                    (Code::PermissionDenied, format!("{identity} may not call {path}"))
                }
            };
            assert_eq!((status.code(), status.message()), (wanted.0, wanted.1.as_str()), "{path}");
        }
        std::fs::remove_dir_all(pki.path("client")).unwrap();
    }
}

#[tokio::test]
async fn slow_peers_delay_nobody() {
    let pki = Pki::new();
    let server = start(pki.tls("server", &node(Some("node-1")))).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let channel = channel(&pki.tls("client", &controller()), server.address);
    // One after the other they would take minutes.
    let status = call(&channel, "/hostloop.v1.Peer/Hello").await;
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    // They are turned away in time.
    let ended = tokio::time::timeout(LONG, async {
        for stream in &mut silent {
            let _ = stream.read(&mut [0; 16]).await;
        }
    });
    ended.await.unwrap();
    assert_eq!(call(&channel, "/hostloop.v1.Peer/Hello").await.code(), Code::Aborted);
}

#[tokio::test]
async fn running_calls_finish_at_the_end_and_nobody_else_comes_in() {
    let pki = Pki::new();
    let server = start(pki.tls("server", &node(Some("node-1")))).await;
    let client = pki.tls("client", &controller());
    let channel = channel(&client, server.address);
    assert_eq!(call(&channel, "/hostloop.v1.Peer/Hello").await.code(), Code::Aborted);
    let running = tokio::spawn(async move { call(&channel, "/csi.v1.Controller/Sleep").await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    // A handshake that hangs does not hold up the end.
    let _silent = TcpStream::connect(server.address).await.unwrap();
    server.trigger.pull();
    assert_eq!(running.await.unwrap().code(), Code::Aborted);
    let stopped = tokio::time::timeout(LONG, server.serving).await.unwrap().unwrap();
    assert_eq!(stopped.cut, 0);
    let refused = TcpStream::connect(server.address).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn the_log_says_who_called_and_who_was_not_let_in() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (lines, _listening) = listen();
    let server = start(pki.tls("server", &node(Some("node-1")))).await;
    let good = channel(&pki.tls("client", &controller()), server.address);
    let status = call(&good, "/csi.v1.Controller/Panic").await;
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    assert_eq!(call(&good, "/csi.v1.Node/NodeStageVolume").await.code(), Code::PermissionDenied);
    assert_eq!(call(&good, "/csi.v1.Controller/CreateVolume").await.code(), Code::Aborted);
    let text = lines.text();
    let peer = r#"peer="spiffe://hostloop.csi.dev/controller""#;
    for (method, code) in [
        ("Controller/Panic", "INTERNAL"),
        ("Node/NodeStageVolume", "PERMISSION_DENIED"),
        ("Controller/CreateVolume", "ABORTED"),
    ] {
        let line = text.lines().find(|line| line.contains(method)).unwrap();
        assert!(line.contains(peer) && line.contains(code), "{line}");
    }

    // The stranger trusts our CA, and is not trusted.
    let dir = other.issue("stranger", &controller(), crate::pki::minutes(-5, 60));
    std::fs::remove_file(dir.join("ca.crt")).unwrap();
    let both = ["ca/ca.crt"]
        .map(|path| [&pki, &other].map(|p| std::fs::read_to_string(p.path(path)).unwrap()).concat());
    std::fs::write(dir.join("ca.crt"), &both[0]).unwrap();
    let stranger = Tls::open(&dir, crate::pki::DRIVER, PeerRole::Controller).unwrap();
    let status = call(&channel(&stranger, server.address), "/csi.v1.Controller/CreateVolume").await;
    // It is told so, though it had sent a request already.
    assert!(format!("{status:?}").contains("the peer refuses the certificate of this process"), "{status:?}");
    let said = "a peer was refused";
    until(said, async || lines.text().contains(said)).await;
    let text = lines.text();
    let line = text.lines().find(|line| line.contains(said)).unwrap();
    assert!(
        line.contains("WARN") && line.contains("127.0.0.1") && line.contains("no CA in ca.crt"),
        "{line}"
    );
}

/// A stolen certificate of one node is not good for being another one, where each node has its own.
#[tokio::test]
async fn a_pull_takes_the_certificate_of_the_named_node_only() {
    use hostloop::model::NodeKey;

    let pki = Pki::new();
    let connect = hostloop::app::connector(pki.tls("puller", &node(Some("node-2"))));
    let wanted = NodeKey::of("node-1");
    for (name, identity, is_taken) in [
        ("named", node(Some("node-1")), true),
        ("stolen", node(Some("node-3")), false),
        ("shared", node(None), true),
    ] {
        let server = start(pki.tls(name, &identity)).await;
        let channel = connect(&server.address.to_string(), wanted.as_str()).await;
        match channel {
            Ok(channel) => {
                assert!(is_taken, "{name}");
                assert_eq!(call(&channel, "/hostloop.v1.Peer/Hello").await.code(), Code::Aborted, "{name}");
            }
            Err(why) => assert!(
                !is_taken && why.contains("its certificate belongs to node \"node-3\""),
                "{name}: {why}"
            ),
        }
    }
}
