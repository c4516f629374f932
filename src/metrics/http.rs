//! The HTTP server: a few pages to read, and nothing else. A connection has [`HEAD_TIMEOUT`] to send its request and
//! serves one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Health, Metrics};
use crate::server::{Crowd, Limits};

/// Connections that have not sent a request yet.
const SILENT: Limits = Limits { all: 64, each: 16 };
/// Connections that are answered, or wait for that.
const ASKING: Limits = Limits { all: 256, each: 64 };
/// So many are told the metrics at a time; further ones wait for their turn.
const SCRAPES: usize = 16;
/// How long a connection may take to send its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may last.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes that the line and the headers of a request may have together; the least that hyper can do with.
const MAX_HEAD: usize = 8192;
/// Headers that a request may have.
const MAX_HEADERS: usize = 64;
/// How long to wait after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

const PLAIN: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
pub struct Site {
    health: Health,
    /// With the right to be told them.
    metrics: Option<(Arc<Metrics>, Arc<Semaphore>)>,
}

impl Site {
    pub fn health(health: Health) -> Self {
        Site { health, metrics: None }
    }

    pub fn metrics(metrics: Arc<Metrics>) -> Self {
        let health = Arc::clone(&metrics.health);
        Site { health, metrics: Some((metrics, Arc::new(Semaphore::new(SCRAPES)))) }
    }

    /// Serves until it is dropped, and its connections with it.
    pub async fn serve(self, listener: TcpListener) -> Infallible {
        let (silent, asking) = (Crowd::new(SILENT), Crowd::new(ASKING));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, address)) => {
                    let (site, silent, asking) = (self.clone(), silent.clone(), asking.clone());
                    connections.spawn(async move {
                        let served = site.connection(stream, address, &silent, asking);
                        let _ = tokio::time::timeout(DEADLINE, served).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection for metrics or health could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// A connection is one of the silent up to its request, and one of those that ask from then on.
    async fn connection(self, stream: TcpStream, address: SocketAddr, silent: &Crowd, asking: Crowd) {
        let (asks, mut asked) = tokio::sync::oneshot::channel();
        let asks = Mutex::new(Some(asks));
        let service = service_fn(move |request: Request<Incoming>| {
            if let Some(asks) = asks.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = asks.send(());
            }
            let site = self.clone();
            async move { Ok::<_, Infallible>(site.answer(request).await) }
        });
        let mut http = http1::Builder::new();
        http.keep_alive(false).max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        // What goes wrong is the other side's, and of no use in the log.
        let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
        let mut place = silent.enter(address.ip());
        tokio::select! {
            // In this order, one that has sent its request is not among the silent ones for a moment longer, where others drive it out.
            biased;
            _ = &mut served => return,
            Ok(()) = &mut asked => drop(place),
            Ok(()) = &mut place => return,
        }
        tokio::select! {
            _ = served => {}
            Ok(()) = asking.enter(address.ip()) => {}
        }
    }

    async fn answer<B>(&self, request: Request<B>) -> Response<String> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer =
                page(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD are served\n".to_owned());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match (request.uri().path(), &self.metrics) {
            ("/", Some(_)) => page(StatusCode::OK, PLAIN, "/metrics\n/healthz\n/readyz\n".to_owned()),
            ("/", None) => page(StatusCode::OK, PLAIN, "/healthz\n/readyz\n".to_owned()),
            ("/healthz", _) => match (self.health)() {
                Ok(()) => page(StatusCode::OK, PLAIN, "ok\n".to_owned()),
                Err(reason) => page(StatusCode::OK, PLAIN, format!("alive, not ready: {reason}\n")),
            },
            ("/readyz", _) => match (self.health)() {
                Ok(()) => page(StatusCode::OK, PLAIN, "ok\n".to_owned()),
                Err(reason) => page(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("not ready: {reason}\n")),
            },
            ("/metrics", Some((metrics, turns))) => {
                // It is never closed.
                let _turn = turns.acquire().await.ok();
                scrape(metrics, request.headers()).await
            }
            _ => page(StatusCode::NOT_FOUND, PLAIN, "not found, see /\n".to_owned()),
        }
    }
}

async fn scrape(metrics: &Metrics, headers: &HeaderMap) -> Response<String> {
    match metrics.text().await {
        Ok(text) => page(StatusCode::OK, format_for(headers), text),
        Err(error) => {
            tracing::error!(%error, "a bug: the metrics cannot be written");
            page(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "the log has the reason\n".to_owned())
        }
    }
}
/// What the text is called for this client: it can be read as both.
fn format_for(headers: &HeaderMap) -> &'static str {
    let accepts = |value: &HeaderValue| {
        value.to_str().is_ok_and(|value| value.contains("application/openmetrics-text"))
    };
    if headers.get_all(ACCEPT).iter().any(accepts) { OPEN_METRICS } else { PROMETHEUS }
}

fn page(status: StatusCode, content_type: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
