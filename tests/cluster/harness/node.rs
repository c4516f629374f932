//! A node: the whole driver in the role `node` on a fake kernel, on the net in memory.

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use hostloop::app::{self, Ended, Outside, StartError};
use hostloop::config::OperationConfig;
use hostloop::model::{FsType, InlineSettings, PoolKind, PoolName, PoolSettings, Reserve, Settings};
use hostloop::selftest::client::Client;
use hostloop::server::{Observer, Stop, Stopped};
use hostloop::shutdown::{Shutdown, Trigger};
use hostloop::state;
use hostloop::store::Identity;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use hyper_util::rt::TokioIo;
use prost::bytes::Bytes;
use tempfile::TempDir;
use tokio::io::DuplexStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Status};
use tower::{Service, layer::layer_fn, service_fn};

use super::net::Net;
use super::{DRIVER, server};
use crate::wait::until;

pub const DATA_DIR: &str = "/var/lib/hostloop";
/// Calls with this header are the tests' own: nothing happens to them.
const DIRECT: &str = "x-direct";

/// What becomes of a call.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// It is done, and then the connection breaks before the answer.
    LoseAnswer,
    /// It is not done, and there is no answer.
    Swallow,
    /// It waits on its way until the node is healed, and goes on also without its caller.
    Late,
    /// The same for the first one only; later ones overtake it.
    FirstLate,
    /// The node is of a version that knows more of it; it echoes the request.
    Newer,
    /// The answer begins, and nothing follows.
    Begins,
    /// It is not done, and the answer is this message, encoded.
    Answers(&'static [u8]),
}

/// A body with these bytes; without any, it never ends.
struct Sends(Option<Bytes>);

impl http_body::Body for Sends {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            None => Poll::Pending,
            Some(bytes) if bytes.is_empty() => Poll::Ready(None),
            Some(bytes) => Poll::Ready(Some(Ok(http_body::Frame::data(std::mem::take(bytes))))),
        }
    }
}

/// An answer with this body.
fn answer(body: Body) -> http::Response<Body> {
    let mut answer = http::Response::new(body);
    for (name, value) in [("content-type", "application/grpc"), ("grpc-status", "0")] {
        answer.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    answer
}

/// A message as gRPC sends it: whether it is compressed, and its length, come first.
fn framed(message: &[u8]) -> Bytes {
    let len = u32::try_from(message.len()).expect("a length").to_be_bytes();
    [&[0], len.as_slice(), message].concat().into()
}

/// A call that came in.
#[derive(Debug, Clone)]
pub struct Call {
    /// The name of the RPC.
    pub rpc: String,
    pub source_address: Option<String>,
    pub timeout: Option<String>,
}

/// What happens between the net and the driver.
#[derive(Clone, Default)]
struct Gate {
    faults: Arc<Mutex<Vec<(String, Fault)>>>,
    calls: Arc<Mutex<Vec<Call>>>,
    running: Arc<AtomicUsize>,
}

/// Counts as a running call while it lives.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

pub struct Node {
    pub id: String,
    pub address: String,
    pub kernel: FakeKernel,
    net: Net,
    gate: Gate,
    trigger: Trigger,
    serving: Option<JoinHandle<Result<Ended, StartError>>>,
    dir: TempDir,
}

impl Node {
    /// A new machine with a pool of so many bytes, and the driver on it.
    pub async fn start(net: &Net, id: &str, address: &str, bytes: u64) -> Node {
        let kernel = FakeKernel::new();
        kernel.create_directories("/var/lib");
        kernel.add_disk(DATA_DIR, FsType::Xfs, bytes);
        Node::start_on(net, id, address, kernel).await
    }

    async fn start_on(net: &Net, id: &str, address: &str, kernel: FakeKernel) -> Node {
        let (trigger, shutdown) = Shutdown::new();
        let dir = tempfile::tempdir().unwrap();
        let (gate, net) = (Gate::default(), net.clone());
        let accepted = net.listen(address);
        let (own, place, cable) = (gate.clone(), address.to_owned(), net.clone());
        let serve_peers = move |routes: Routes, stop: Stop, _: Option<Arc<dyn Observer>>| {
            serve(accepted, routes, stop, own, cable, place)
        };
        let outside = Outside {
            server: server(&dir),
            operation: OperationConfig::default(),
            shutdown,
            certificate: None,
            api: None,
        };
        let running = app::run_node(settings(id), outside, kernel.os(), net.others(), serve_peers);
        let serving = Some(tokio::spawn(running));
        let node =
            Node { id: id.to_owned(), address: address.to_owned(), kernel, net, gate, trigger, serving, dir };
        until("the node starts", async || {
            assert!(!node.serving.as_ref().unwrap().is_finished(), "the node does not start");
            node.list().await.is_ok()
        })
        .await;
        node
    }

    /// Ends the driver as SIGTERM does; its disk stays.
    pub async fn stop(&mut self) {
        self.net.close(&self.address);
        self.trigger.pull();
        if let Some(serving) = self.serving.take() {
            assert!(serving.await.expect("the node does not panic").is_ok(), "it did serve");
        }
    }

    /// The same machine with a new process, at this address.
    pub async fn start_again(mut self, address: &str) -> Node {
        self.stop().await;
        Node::start_on(&self.net, &self.id, address, self.kernel.clone()).await
    }

    /// Starts this machine as a node with another name, which has adopted the volumes.
    pub async fn adopted_as(mut self, id: &str, address: &str) -> Node {
        self.stop().await;
        let Settings { driver_name: driver, data_dir, pools, .. } = settings(id);
        let task = state::Task {
            verb: state::Verb::AdoptNode,
            identity: Identity { driver, node_id: id.to_owned() },
            data_dir,
            pools: pools.into_iter().map(|pool| (pool.name, pool.path)).collect(),
            wishes: state::Wishes::default(),
            from: Some(self.id.clone()),
            yes: true,
        };
        let report = state::run(&self.kernel.restart(), &task).expect("it runs");
        assert!(report.good, "{}", report.text);
        Node::start_on(&self.net, id, address, self.kernel.clone()).await
    }

    /// The next calls of this RPC end like this.
    pub fn fault(&self, rpc: &str, fault: Fault) {
        self.gate.faults.lock().unwrap().push((rpc.to_owned(), fault));
    }

    pub fn heal(&self) {
        self.gate.faults.lock().unwrap().clear();
    }

    /// The calls of this RPC that came in.
    pub fn calls(&self, rpc: &str) -> Vec<Call> {
        self.gate.calls.lock().unwrap().iter().filter(|call| call.rpc == rpc).cloned().collect()
    }

    /// How many calls are running.
    pub fn running(&self) -> usize {
        self.gate.running.load(Ordering::Acquire)
    }

    /// Every volume, asked of the node itself.
    pub async fn volumes(&self) -> Vec<String> {
        let page = self.list().await.expect("the node answers");
        page.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id).collect()
    }

    async fn list(&self) -> Result<csi::ListVolumesResponse, Status> {
        let mut request = Request::new(csi::ListVolumesRequest::default());
        request.metadata_mut().insert(DIRECT, "1".parse().unwrap());
        let (net, address) = (self.net.clone(), self.address.clone());
        let dial = service_fn(move |_: http::Uri| {
            let stream = net.dial(&address).map(TokioIo::new);
            async { stream }
        });
        let channel: Channel = Endpoint::from_static("http://node").connect_with_connector_lazy(dial);
        Client::on(channel).send(request).await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.trigger.pull();
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
        let _ = &self.dir;
    }
}

pub fn settings(id: &str) -> Settings {
    let pool = PoolSettings {
        name: PoolName::default(),
        path: DATA_DIR.into(),
        kind: PoolKind::Directory,
        reserve: Reserve::Bytes(0),
        overcommit: 1.0,
        directories: false,
    };
    Settings {
        driver_name: DRIVER.to_owned(),
        node_id: id.to_owned(),
        data_dir: PathBuf::from(DATA_DIR),
        pools: vec![pool],
        anchor_dir: None,
        attach: true,
        max_volumes_per_node: 0,
        max_volume_bytes: 1 << 40,
        inline: InlineSettings::default(),
        kubelet_dir: None,
        quota_ids: Default::default(),
        adopt_from: Vec::new(),
    }
}

async fn serve(
    accepted: UnboundedReceiver<DuplexStream>,
    routes: Routes,
    stop: Stop,
    gate: Gate,
    net: Net,
    address: String,
) -> Stopped {
    let incoming = UnboundedReceiverStream::new(accepted).map(Ok::<_, Infallible>);
    let layer = layer_fn(move |inner| Gated {
        inner,
        gate: gate.clone(),
        net: net.clone(),
        address: address.clone(),
    });
    let serving = Server::builder().layer(layer).add_routes(routes);
    tokio::select! {
        ended = serving.serve_with_incoming(incoming) => ended.expect("the server serves"),
        () = stop.requested => {}
    }
    Stopped { cut: 0, left: stop.timeout }
}

/// The services behind the gate.
#[derive(Clone)]
struct Gated<S> {
    inner: S,
    gate: Gate,
    net: Net,
    address: String,
}

impl<S> Service<http::Request<Body>> for Gated<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Gated { mut inner, gate, net, address } = self.clone();
        let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        if header(DIRECT).is_some() {
            return Box::pin(inner.call(request));
        }
        let rpc = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let (source_address, timeout) = (header("hostloop-source-address"), header("grpc-timeout"));
        gate.calls.lock().unwrap().push(Call { rpc: rpc.clone(), source_address, timeout });
        let fault =
            gate.faults.lock().unwrap().iter().find(|(name, _)| *name == rpc).map(|(_, fault)| *fault);
        let earlier = gate.calls.lock().unwrap().iter().filter(|call| call.rpc == rpc).count() - 1;
        let fault = fault.filter(|fault| !matches!(fault, Fault::FirstLate) || earlier == 0);
        let faults = Arc::clone(&gate.faults);
        gate.running.fetch_add(1, Ordering::AcqRel);
        let running = Running(Arc::clone(&gate.running));
        Box::pin(async move {
            let _running = running;
            match fault {
                None => inner.call(request).await,
                Some(Fault::Swallow) => std::future::pending().await,
                Some(Fault::Newer) => Ok(answer(request.into_body())),
                Some(Fault::Begins) => Ok(answer(Body::new(Sends(None)))),
                Some(Fault::Answers(message)) => Ok(answer(Body::new(Sends(Some(framed(message)))))),
                Some(Fault::Late | Fault::FirstLate) => {
                    let late = tokio::spawn(async move {
                        while faults.lock().unwrap().iter().any(|(name, _)| *name == rpc) {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        inner.call(request).await
                    });
                    late.await.expect("no panic")
                }
                Some(Fault::LoseAnswer) => {
                    let _ = inner.call(request).await;
                    net.cut(&address);
                    std::future::pending().await
                }
            }
        })
    }
}
