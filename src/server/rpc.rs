//! What happens around every call, from the outside in: it is counted, it has a span and a line in the log, an error has
//! a message, a panic becomes INTERNAL. A call lasts until the last frame of its answer (`body.rs`).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};
use tracing::Instrument;

use super::body::Answer;
use super::{message, panic, trace};
use crate::cluster::identity::PeerIdentity;
use crate::service::Caller;

/// How many calls are running.
#[derive(Debug, Clone, Default)]
pub struct Running(Arc<AtomicUsize>);

impl Running {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    fn enter(&self) -> Entered {
        self.0.fetch_add(1, Ordering::AcqRel);
        Entered(self.clone())
    }
}

/// Counts as one running call while it lives.
pub struct Entered(Running);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

pub trait Observer: Send + Sync {
    fn begun(&self);

    /// It is over. `method` is what the caller wanted, such as `csi.v1.Node/NodeStageVolume`, and may be anything;
    /// `code` is the name of the gRPC code. A call that its caller gave up is CANCELLED.
    fn ended(&self, method: &str, code: &'static str, took: Duration);
}

#[derive(Clone)]
pub struct RpcLayer {
    running: Running,
    observer: Option<Arc<dyn Observer>>,
}

impl RpcLayer {
    /// Counts the calls that run, and tells of each.
    pub fn new(running: Running, observer: Option<Arc<dyn Observer>>) -> Self {
        RpcLayer { running, observer }
    }
}

impl<S> Layer<S> for RpcLayer {
    type Service = Rpc<S>;

    fn layer(&self, inner: S) -> Rpc<S> {
        Rpc { inner, running: self.running.clone(), observer: self.observer.clone() }
    }
}

/// The services with all that happens around a call. One future on the heap for it all, and one body.
#[derive(Clone)]
pub struct Rpc<S> {
    inner: S,
    running: Running,
    observer: Option<Arc<dyn Observer>>,
}

impl<S> Service<Request<Body>> for Rpc<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let entered = self.running.enter();
        let call = trace::Call::begin(request.uri().path(), self.observer.clone());
        if let Some(peer) = request.extensions().get::<PeerIdentity>() {
            let peer = peer.to_string();
            call.span().record("peer", peer.as_str());
            request.extensions_mut().insert(Caller(peer));
        }
        // The one that is ready is taken, its copy stays for the next call.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        Box::pin(async move {
            let handler = async move { inner.call(request).await };
            let mut response = match panic::catch(handler).instrument(call.span().clone()).await {
                Ok(Ok(response)) => response,
                Err(panic::Panicked) => panic::status(call.method()).into_http(),
            };
            match message::fill(response.headers_mut(), call.method()) {
                Some(status) => call.end(&status),
                None => return Ok(response.map(|body| Body::new(Answer::new(body, call, entered)))),
            }
            Ok(response)
        })
    }
}
