//! Answers of many messages.

use tokio_stream::StreamExt;
use tonic::Streaming;
use tonic::server::ServerStreamingService;

use super::*;
use crate::error::Error;
use crate::service::stream::{Messages, stream};

/// How many are working.
static WORKING: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

struct Working;

impl Working {
    fn begin() -> Working {
        WORKING.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Working
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        WORKING.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}

impl ServerStreamingService<String> for Method {
    type Response = String;
    type ResponseStream = Messages<String>;
    type Future = Boxed<Result<tonic::Response<Self::ResponseStream>, Status>>;

    /// The request is how many messages to send before what the method's name says.
    fn call(&mut self, request: tonic::Request<String>) -> Self::Future {
        let method = self.0.clone();
        Box::pin(async move {
            let text = request.into_inner();
            tracing::Span::current().record("snapshot.id", text.as_str());
            let count: u32 = text.parse().map_err(|_| Status::invalid_argument(text))?;
            let encode = match method.as_str() {
                "StreamPanicInPoll" => |text: String| match text.as_str() {
                    "1" => panic!("the secret is hunter2"),
                    _ => text,
                },
                // So large that those which nobody reads soon fill what the connection holds.
                "StreamLarge" => |text| format!("{text:60000}"),
                _ => |text| text,
            };
            let messages = stream(move |emit| {
                let _working = Working::begin();
                for number in 0..count {
                    if !emit(number.to_string()) {
                        return Ok(());
                    }
                    if method == "StreamSlowly" {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
                match method.as_str() {
                    "StreamFail" => Err(Error::NotFound("no more".to_owned())),
                    "StreamFailSilently" => Err(Error::NotFound(String::new())),
                    "StreamPanic" => panic!("the secret is hunter2"),
                    _ => Ok(()),
                }
            });
            Ok(tonic::Response::new(
                Box::pin(messages.map(move |message| message.map(encode))) as Messages<String>
            ))
        })
    }
}

async fn open(channel: &Channel, path: &'static str, count: &str) -> Result<Streaming<String>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|e| Status::unknown(e.to_string()))?;
    let codec = ProstCodec::<String, String>::default();
    let request = tonic::Request::new(count.to_owned());
    grpc.server_streaming(request, PathAndQuery::from_static(path), codec)
        .await
        .map(tonic::Response::into_inner)
}

/// Waits for what comes in no time, unless it never does.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    // On a busy machine a test may wait for minutes.
    let deadline = Instant::now() + Duration::from_secs(300);
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How many messages came, and the error after them.
async fn read(channel: &Channel, path: &'static str, count: &str) -> (usize, Option<Status>) {
    let mut messages = match open(channel, path, count).await {
        Ok(messages) => messages,
        Err(status) => return (0, Some(status)),
    };
    let mut got = 0;
    while let Some(message) = messages.next().await {
        match message {
            Ok(text) => assert_eq!(text, got.to_string()),
            Err(status) => return (got, Some(status)),
        }
        got += 1;
    }
    (got, None)
}

#[tokio::test]
async fn messages_come_in_order_and_an_error_after_them() {
    let server = start(Duration::ZERO).await;
    let channel = connect(&server.path).await.unwrap();
    for count in [0, 1, 1000] {
        let text = count.to_string();
        let (got, end) = read(&channel, "/csi.v1.Echo/StreamAll", &text).await;
        assert!(got == count && end.is_none(), "{got} {end:?}");
        let (got, end) = read(&channel, "/csi.v1.Echo/StreamFail", &text).await;
        let end = end.expect("an error");
        assert_eq!((got, end.code(), end.message()), (count, Code::NotFound, "no more"));
        assert!(end.details().is_empty());
    }
    let (got, end) = read(&channel, "/csi.v1.Echo/StreamAll", "not a number").await;
    assert_eq!((got, end.map(|end| end.code())), (0, Some(Code::InvalidArgument)));
}

#[tokio::test]
async fn an_error_after_messages_has_a_message_too() {
    let server = start(Duration::ZERO).await;
    let channel = connect(&server.path).await.unwrap();
    let (got, end) = read(&channel, "/csi.v1.Echo/StreamFailSilently", "2").await;
    let end = end.expect("an error");
    assert_eq!((got, end.code()), (2, Code::NotFound));
    assert!(!end.message().trim().is_empty());
}

#[tokio::test]
async fn a_panic_in_a_stream_is_internal_and_no_end() {
    let server = start(Duration::ZERO).await;
    let channel = connect(&server.path).await.unwrap();
    for path in ["/csi.v1.Echo/StreamPanic", "/csi.v1.Echo/StreamPanicInPoll"] {
        let (got, end) = read(&channel, path, "2").await;
        let end = end.expect("a stream that was cut off must not look whole");
        assert_eq!(end.code(), Code::Internal, "{path} {got}");
        assert!(!end.message().is_empty() && !end.message().contains("hunter2"), "{}", end.message());
        let (got, end) = read(&channel, "/csi.v1.Echo/StreamAll", "3").await;
        assert!(got == 3 && end.is_none(), "the connection is as it was");
    }
}

/// On this thread, like `each_call_has_one_line_in_the_log`.
#[tokio::test]
async fn one_line_for_each_stream_with_the_code_of_its_end() {
    let (lines, _listening) = listen(LogLevel::Debug, LogFormat::Text);
    let server = start(Duration::ZERO).await;
    let channel = connect(&server.path).await.unwrap();
    let of_calls = || -> Vec<String> {
        lines.take().lines().filter(|line| line.contains("method=")).map(str::to_owned).collect()
    };
    of_calls();
    for (path, count, parts) in [
        ("/csi.v1.Echo/StreamAll", "5", [" INFO ", r#"code="OK""#]),
        ("/csi.v1.Echo/StreamFail", "0", [r#"code="NOT_FOUND""#, r#"error="no more""#]),
        ("/csi.v1.Echo/StreamFail", "5", [r#"code="NOT_FOUND""#, r#"error="no more""#]),
        ("/csi.v1.Echo/StreamPanicInPoll", "5", [" WARN ", r#"code="INTERNAL""#]),
    ] {
        read(&channel, path, count).await;
        let text = of_calls();
        assert_eq!(text.len(), 1, "{text:?}");
        for part in parts.into_iter().chain(["ms=", &format!("snapshot.id=\"{count}\"")]) {
            assert!(text[0].contains(part), "{part} in {text:?}");
        }
    }
    let mut messages = open(&channel, "/csi.v1.Echo/StreamLarge", "100000").await.unwrap();
    messages.next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(of_calls().is_empty(), "it has not ended");
    drop(messages);
    let mut text = Vec::new();
    let logged = || {
        text = of_calls();
        !text.is_empty()
    };
    until("no line of the call that was given up", logged).await;
    assert!(text.len() == 1 && text[0].contains(r#"code="CANCELLED""#), "{text:?}");
}

#[tokio::test]
async fn the_end_waits_for_running_streams() {
    let mut server = start(Duration::from_secs(20)).await;
    let channel = connect(&server.path).await.unwrap();
    let mut messages = open(&channel, "/csi.v1.Echo/StreamSlowly", "6").await.unwrap();
    messages.next().await.unwrap().unwrap();
    server.request.take().unwrap().send(()).unwrap();
    let mut got = 1;
    while let Some(message) = messages.next().await {
        assert_eq!(message.unwrap(), got.to_string());
        got += 1;
    }
    assert_eq!(got, 6, "all of it came");
    drop(channel);
    assert_eq!(server.server.await.unwrap().cut, 0);
}

/// Two ways in which a stream ends before its work does: its caller goes, or the server's time is over.
#[tokio::test]
async fn work_for_nobody_ends() {
    let mut server = start(Duration::from_millis(300)).await;
    let channel = connect(&server.path).await.unwrap();
    let endless = "4000000000";
    let working = || WORKING.load(std::sync::atomic::Ordering::SeqCst);

    let mut messages = open(&channel, "/csi.v1.Echo/StreamLarge", endless).await.unwrap();
    messages.next().await.unwrap().unwrap();
    assert!(working() > 0);
    drop(messages);
    until("work goes on for nobody", || working() == 0).await;

    // A caller that stopped reading.
    let mut messages = open(&channel, "/csi.v1.Echo/StreamLarge", endless).await.unwrap();
    messages.next().await.unwrap().unwrap();
    server.request.take().unwrap().send(()).unwrap();
    let stopped = server.server.await.unwrap();
    assert_eq!(stopped, Stopped { cut: 1, left: Duration::ZERO });
    drop((messages, channel));
    until("work goes on for nobody", || working() == 0).await;
}
