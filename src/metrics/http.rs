//! The HTTP server: three pages to read, and nothing else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Metrics;

/// Connections at a time; further ones wait for their turn.
const CONNECTIONS: usize = 16;
/// How long a connection may last: it serves one request.
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

/// Serves until it is dropped, and its connections with it.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) -> Infallible {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // It is never closed.
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let metrics = Arc::clone(&metrics);
                connections.spawn(async move {
                    let _slot = slot;
                    let _ = tokio::time::timeout(DEADLINE, connection(stream, metrics)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection for metrics could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, metrics: Arc<Metrics>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let metrics = Arc::clone(&metrics);
        async move { Ok::<_, Infallible>(answer(request, &metrics).await) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
    // What goes wrong is the other side's, and of no use in the log.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer<B>(request: Request<B>, metrics: &Metrics) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer =
            page(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD are served\n".to_owned());
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match request.uri().path() {
        "/" => page(StatusCode::OK, PLAIN, "/metrics\n/healthz\n".to_owned()),
        "/healthz" => match metrics.health() {
            Ok(()) => page(StatusCode::OK, PLAIN, "ok\n".to_owned()),
            Err(reason) => page(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("not ready: {reason}\n")),
        },
        "/metrics" => match metrics.text().await {
            Ok(text) => page(StatusCode::OK, format_for(request.headers()), text),
            Err(error) => {
                tracing::error!(%error, "a bug: the metrics cannot be written");
                page(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "the log has the reason\n".to_owned())
            }
        },
        _ => page(StatusCode::NOT_FOUND, PLAIN, "not found, see /\n".to_owned()),
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
