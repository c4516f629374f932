//! The port of a node for its peers, and what happens there to whole messages: a call is lost, its answer is, it comes
//! late (and goes on when nobody waits for it any more), or it comes twice.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use hostloop::cluster::tls::{PeerStream, Tls};
use hostloop::model::{NodeKey, SnapshotId, VolumeId};
use hostloop::server::{AllowLayer, Stop, Stopped, peer_http2};
use hostloop::service::RESERVATION;
use hostloop::wire::csi;
use hyper::body::{Body as _, Bytes, Frame};
use prost::Message as _;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::service::Routes;
use tower::{Service, layer::layer_fn};

use crate::moves::{self, Moves};
use crate::net::{Net, Stream};
use crate::random::Random;

/// Before a message come its flags and its length.
const PREFIX: usize = 5;

/// How often something happens to a call.
pub struct Faults {
    random: Mutex<Random>,
    /// One in so many.
    often: Mutex<u64>,
    /// The ids of volumes and snapshots whose orders came late or twice, and without a reservation.
    pub stale: Mutex<BTreeSet<String>>,
    /// Where moves are checked by the calls that come.
    moves: Option<Arc<Moves>>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    Swallow,
    LoseAnswer,
    Late(u64),
    Twice(u64),
}

impl Faults {
    pub fn new(mut random: Random, moves: Option<Arc<Moves>>) -> Faults {
        let often = *random.choose(&[5, 20, u64::MAX]);
        let moves = moves.filter(|moves| moves.standby);
        Faults { random: Mutex::new(random), often: Mutex::new(often), stale: Mutex::default(), moves }
    }

    pub fn heal(&self) {
        *self.often.lock().unwrap() = u64::MAX;
    }

    /// An order of what has no choice of nodes, and so nothing that says whether it is too late, is about to come at
    /// another time than it should (docs/decisions/0008).
    fn remember(&self, id: &str, rpc: &str, headers: &http::HeaderMap, message: &[u8]) {
        let (message, node) = (message.get(PREFIX..).unwrap_or_default(), NodeKey::of(id));
        let ordered = match rpc {
            "CreateVolume" if !headers.contains_key(RESERVATION) => csi::CreateVolumeRequest::decode(message)
                .map(|order| VolumeId::of_name(&node, &order.name).to_string()),
            "CreateSnapshot" => csi::CreateSnapshotRequest::decode(message)
                .map(|order| SnapshotId::of_name(&node, &order.name).to_string()),
            _ => return,
        };
        self.stale.lock().unwrap().extend(ordered.ok());
    }

    fn next(&self, unary: bool) -> Fault {
        let often = *self.often.lock().unwrap();
        let mut random = self.random.lock().unwrap();
        if !random.one_in(often) {
            return Fault::None;
        }
        let milliseconds = random.between(1, 20_000);
        match random.below(4) {
            0 => Fault::Swallow,
            1 => Fault::LoseAnswer,
            2 if unary => Fault::Twice(milliseconds),
            _ => Fault::Late(milliseconds),
        }
    }
}

/// Serves a node's peers as `server::serve_peers` does, on this net.
pub async fn serve(
    mut accepted: UnboundedReceiver<Stream>,
    tls: Tls,
    routes: Routes,
    stop: Stop,
    faults: Arc<Faults>,
    net: Net,
    id: String,
) -> Stopped {
    let (ready, incoming) = unbounded_channel::<PeerStream<Stream>>();
    let handshakes = async move {
        while let Some(stream) = accepted.recv().await {
            let (tls, ready) = (tls.clone(), ready.clone());
            tokio::spawn(async move {
                if let Ok(stream) = tls.accept(stream).await {
                    let _ = ready.send(stream);
                }
            });
        }
    };
    let gate =
        layer_fn(move |inner| Gate { inner, faults: faults.clone(), net: net.clone(), id: id.clone() });
    let incoming = UnboundedReceiverStream::new(incoming).map(Ok::<_, std::io::Error>);
    let serving = peer_http2().layer(AllowLayer).layer(gate).add_routes(routes);
    tokio::select! {
        ended = serving.serve_with_incoming(incoming) => ended.expect("the server serves"),
        () = handshakes => {}
        () = stop.requested => {}
    }
    Stopped { cut: 0, left: stop.timeout }
}

#[derive(Clone)]
struct Gate<S> {
    inner: S,
    faults: Arc<Faults>,
    net: Net,
    id: String,
}

type Answer = Result<http::Response<Body>, Infallible>;

impl<S> Service<http::Request<Body>> for Gate<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Gate { inner, faults, net, id } = self.clone();
        let rpc = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let unary = !rpc.starts_with("Pull");
        let fault = if rpc == "Hello" { Fault::None } else { faults.next(unary) };
        crate::log(|| format!("{id} gets {rpc} {fault:?}"));
        let checks = faults.moves.clone().filter(|_| moves::is_checked(&rpc));
        Box::pin(async move {
            let Some(moves) = checks else {
                return answered(fault, inner, request, (&faults, &net), (&id, &rpc)).await;
            };
            let (parts, body) = request.into_parts();
            let Some(message) = read(body).await else { return std::future::pending().await };
            moves.comes(&id, &rpc, message.get(PREFIX..).unwrap_or_default());
            let request = http::Request::from_parts(parts, Body::new(Whole::of(message.clone())));
            let answer = answered(fault, inner, request, (&faults, &net), (&id, &rpc)).await?;
            let (parts, body) = answer.into_parts();
            let body = Whole::read(body).await;
            moves.goes(&id, &rpc, message.get(PREFIX..).unwrap_or_default(), body.message());
            Ok(http::Response::from_parts(parts, Body::new(body)))
        })
    }
}

/// The answer of a node to a call to which this happens.
async fn answered<S>(
    fault: Fault,
    mut inner: S,
    request: http::Request<Body>,
    (faults, net): (&Faults, &Net),
    (id, rpc): (&str, &str),
) -> Answer
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    match fault {
        Fault::None => inner.call(request).await,
        Fault::Swallow => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            net.cut(id);
            std::future::pending().await
        }
        Fault::LoseAnswer => {
            let _ = inner.call(request).await;
            net.cut(id);
            std::future::pending().await
        }
        Fault::Late(milliseconds) | Fault::Twice(milliseconds) => {
            let (parts, body) = request.into_parts();
            let Some(bytes) = read(body).await else { return std::future::pending().await };
            faults.remember(id, rpc, &parts.headers, &bytes);
            let request = || http::Request::from_parts(parts.clone(), Body::new(Whole::of(bytes.clone())));
            let (mut other, again) = (inner.clone(), request());
            // It goes on also without its caller.
            let (id, rpc) = (id.to_owned(), rpc.to_owned());
            let late = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
                crate::log(|| format!("{id} gets {rpc} now"));
                other.call(again).await
            });
            match fault {
                Fault::Twice(_) => inner.call(request()).await,
                _ => late.await.expect("no panic"),
            }
        }
    }
}

/// The whole of a request; `None` where its caller has gone.
async fn read(mut body: Body) -> Option<Bytes> {
    let mut all = Vec::new();
    loop {
        match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(Ok(frame)) => all.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
            Some(Err(_)) => return None,
            None => return Some(all.into()),
        }
    }
}

/// A body of one piece, and what comes after it.
struct Whole(Option<Bytes>, Option<http::HeaderMap>);

impl Whole {
    fn of(message: Bytes) -> Whole {
        Whole(Some(message), None)
    }

    /// The whole of an answer, as far as it came.
    async fn read(mut body: Body) -> Whole {
        let (mut all, mut trailers) = (Vec::new(), None);
        while let Some(Ok(frame)) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            match frame.into_data() {
                Ok(data) => all.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        Whole((!all.is_empty()).then(|| all.into()), trailers)
    }

    fn message(&self) -> &[u8] {
        self.0.as_deref().and_then(|message| message.get(PREFIX..)).unwrap_or_default()
    }
}

impl hyper::body::Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.0.take().map(Frame::data);
        Poll::Ready(data.or_else(|| self.1.take().map(Frame::trailers)).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none() && self.1.is_none()
    }
}
