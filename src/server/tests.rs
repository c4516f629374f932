//! The server as a whole, with a hand-written service: each method does what its name says.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::Service;

use super::*;
use crate::telemetry::{LogFormat, LogLevel, Logging, subscriber};

mod streams;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "csi.v1.Echo";
}

struct Method(String);

impl UnaryService<String> for Method {
    type Response = String;
    type Future = Boxed<Result<tonic::Response<String>, Status>>;

    fn call(&mut self, request: tonic::Request<String>) -> Self::Future {
        let method = self.0.clone();
        Box::pin(async move {
            let text = request.into_inner();
            tracing::Span::current().record("volume.id", text.as_str());
            match method.as_str() {
                "Panic" => panic!("the secret is {text}"),
                "PanicInPool" => {
                    let work = tokio::task::spawn_blocking(move || panic!("the secret is {text}"));
                    std::panic::resume_unwind(work.await.map(|(): ()| ()).unwrap_err().into_panic())
                }
                "Refuse" => Err(Status::not_found(text)),
                "Sleep" => {
                    tokio::time::sleep(Duration::from_millis(text.parse().unwrap())).await;
                    Ok(tonic::Response::new(text))
                }
                "Hop" => {
                    let text = tokio::task::spawn_blocking(move || text).await.unwrap();
                    Ok(tonic::Response::new(text))
                }
                "CreateVolume" | "GetCapacity" => Ok(tonic::Response::new(text)),
                _ => Err(Status::unimplemented("")),
            }
        })
    }
}

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = Method(request.uri().path().rsplit('/').next().unwrap().to_owned());
        let mut grpc = tonic::server::Grpc::new(ProstCodec::<String, String>::default());
        Box::pin(async move {
            Ok(match method.0.starts_with("Stream") {
                true => grpc.server_streaming(method, request).await,
                false => grpc.unary(method, request).await,
            })
        })
    }
}

struct Running {
    _dir: tempfile::TempDir,
    path: PathBuf,
    request: Option<oneshot::Sender<()>>,
    force: Option<oneshot::Sender<()>>,
    server: tokio::task::JoinHandle<Stopped>,
}

async fn start(timeout: Duration) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("csi.sock");
    let listener = Listener::bind(&Endpoint::Unix(path.clone()), 0o600).await.unwrap();
    let (request, requested) = oneshot::channel::<()>();
    let (force, forced) = oneshot::channel::<()>();
    let wait = |signal: oneshot::Receiver<()>| {
        Box::pin(async move {
            if signal.await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    };
    let stop = Stop { requested: wait(requested), forced: wait(forced), timeout };
    let server = tokio::spawn(serve(listener, Routes::new(Echo), stop, None));
    Running { _dir: dir, path, request: Some(request), force: Some(force), server }
}

async fn connect(path: &Path) -> Result<Channel, tonic::transport::Error> {
    tonic::transport::Endpoint::try_from(format!("unix://{}", path.display())).unwrap().connect().await
}

async fn call(channel: &Channel, path: &'static str, text: &str) -> Result<String, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|e| Status::unknown(e.to_string()))?;
    let codec = ProstCodec::<String, String>::default();
    let request = tonic::Request::new(text.to_owned());
    grpc.unary(request, PathAndQuery::from_static(path), codec).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn calls_are_answered_and_errors_have_messages() {
    let server = start(Duration::ZERO).await;
    let channel = connect(&server.path).await.unwrap();
    assert_eq!(call(&channel, "/csi.v1.Echo/CreateVolume", "x").await.unwrap(), "x");
    for (path, code, message) in [
        ("/csi.v1.Echo/Refuse", Code::NotFound, "no ä\n"),
        ("/csi.v1.Echo/Other", Code::Unimplemented, "csi.v1.Echo/Other is not served by this driver"),
        (
            "/csi.v1.GroupController/GroupControllerGetCapabilities",
            Code::Unimplemented,
            "csi.v1.GroupController/GroupControllerGetCapabilities is not served by this driver",
        ),
    ] {
        let status = call(&channel, path, "no ä\n").await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, message), "{path}");
        assert!(status.details().is_empty());
    }
}

#[tokio::test]
async fn a_panic_is_internal_and_the_server_lives_on() {
    let server = start(Duration::ZERO).await;
    let channel = connect(&server.path).await.unwrap();
    for path in ["/csi.v1.Echo/Panic", "/csi.v1.Echo/PanicInPool"] {
        let status = call(&channel, path, "hunter2").await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().is_empty() && !status.message().contains("hunter2"));
        assert!(
            call(&channel, "/csi.v1.Echo/CreateVolume", "x").await.is_ok(),
            "the connection is as it was"
        );
    }
}

#[tokio::test]
async fn running_calls_finish_and_new_ones_are_refused() {
    let mut server = start(Duration::from_secs(10)).await;
    let channel = connect(&server.path).await.unwrap();
    let running = tokio::spawn(async move { call(&channel, "/csi.v1.Echo/Sleep", "300").await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.request.take().unwrap().send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(connect(&server.path).await.is_err());
    assert_eq!(running.await.unwrap().unwrap(), "300");
    let stopped = server.server.await.unwrap();
    assert_eq!(stopped.cut, 0);
    assert!(stopped.left > Duration::from_secs(8));
    assert!(!server.path.exists(), "the socket is gone");
}

#[tokio::test]
async fn the_deadline_or_a_second_request_cuts_calls() {
    for (timeout, force) in [(Duration::from_millis(200), false), (Duration::from_secs(60), true)] {
        let mut server = start(timeout).await;
        let channel = connect(&server.path).await.unwrap();
        let running = tokio::spawn(async move { call(&channel, "/csi.v1.Echo/Sleep", "5000").await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let started = Instant::now();
        server.request.take().unwrap().send(()).unwrap();
        if force {
            tokio::time::sleep(Duration::from_millis(50)).await;
            server.force.take().unwrap().send(()).unwrap();
        }
        assert_eq!(server.server.await.unwrap(), Stopped { cut: 1, left: Duration::ZERO });
        assert!(started.elapsed() < Duration::from_secs(3));
        assert!(!server.path.exists());
        running.abort();
    }
}

#[tokio::test]
async fn a_silent_caller_does_not_hold_up_the_end() {
    let mut server = start(Duration::from_secs(60)).await;
    // It connects, and then neither reads nor writes.
    let _silent = tokio::net::UnixStream::connect(&server.path).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = Instant::now();
    server.request.take().unwrap().send(()).unwrap();
    assert_eq!(server.server.await.unwrap().cut, 0);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn tcp_has_a_real_port() {
    let listener = Listener::bind(&Endpoint::Tcp("127.0.0.1:0".parse().unwrap()), 0).await.unwrap();
    let address = listener.tcp_address().unwrap();
    let stop = Stop {
        requested: Box::pin(std::future::pending()),
        forced: Box::pin(std::future::pending()),
        timeout: Duration::ZERO,
    };
    tokio::spawn(serve(listener, Routes::new(Echo), stop, None));
    let channel =
        tonic::transport::Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap();
    assert_eq!(call(&channel, "/csi.v1.Echo/GetCapacity", "x").await.unwrap(), "x");
    let error = Listener::bind(&Endpoint::Tcp(address), 0).await.unwrap_err().to_string();
    assert!(error.contains(&format!("tcp://{address}")) && error.contains("--endpoint"), "{error}");
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

/// What this thread logs from now on, while the second value lives.
fn listen(level: LogLevel, format: LogFormat) -> (Lines, impl Sized) {
    let lines = Lines::default();
    let writer = lines.clone();
    let guard =
        tracing::subscriber::set_default(subscriber(Logging { level, format }, move || writer.clone()));
    // Where there is one dispatcher only, tracing asks the thread that first comes to a line of code whether
    // anybody wants it, and another test's thread would say no for all.
    let second = tracing::Dispatch::new(subscriber(Logging { level, format }, io::sink));
    (lines, (second, guard))
}

/// The current-thread runtime runs the server on this thread, so that it logs to the subscriber of this test.
#[tokio::test]
async fn each_call_has_one_line_in_the_log() {
    let (lines, _listening) = listen(LogLevel::Info, LogFormat::Text);
    let server = start(Duration::ZERO).await;
    let channel = connect(&server.path).await.unwrap();
    lines.take();

    call(&channel, "/csi.v1.Echo/CreateVolume", "vol-1\nforged").await.unwrap();
    let text = lines.take();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in
        [" INFO ", r#"method="Echo/CreateVolume""#, r#"volume.id="vol-1\nforged""#, r#"code="OK""#, "ms="]
    {
        assert!(text.contains(part), "{part} in {text}");
    }

    call(&channel, "/csi.v1.Echo/GetCapacity", "x").await.unwrap();
    assert_eq!(lines.take(), "", "a call that only asks is logged at debug");

    call(&channel, "/csi.v1.Echo/Refuse", "vol-2").await.unwrap_err();
    let text = lines.take();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in [" WARN ", r#"code="NOT_FOUND""#, r#"error="vol-2""#] {
        assert!(text.contains(part), "{part} in {text}");
    }

    let impatient =
        tokio::time::timeout(Duration::from_millis(50), call(&channel, "/csi.v1.Echo/Sleep", "5000"));
    assert!(impatient.await.is_err());
    tokio::time::sleep(Duration::from_millis(50)).await;
    let text = lines.take();
    assert!(text.contains(" WARN ") && text.contains(r#"code="CANCELLED""#), "{text}");
}

#[tokio::test]
async fn lines_in_json_have_the_fields_of_the_call() {
    let (lines, _listening) = listen(LogLevel::Debug, LogFormat::Json);
    let server = start(Duration::ZERO).await;
    let channel = connect(&server.path).await.unwrap();
    lines.take();
    call(&channel, "/csi.v1.Echo/GetCapacity", "vol-1").await.unwrap();
    let text = lines.take();
    let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!((&line["level"], &line["code"]), (&"DEBUG".into(), &"OK".into()));
    assert_eq!(
        (&line["span"]["method"], &line["span"]["volume.id"]),
        (&"Echo/GetCapacity".into(), &"vol-1".into())
    );
    assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    assert!(line["ms"].as_f64().unwrap() >= 0.0);
}
