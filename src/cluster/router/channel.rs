//! One gRPC channel on one connection, to a node that has said its name.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use tower::service_fn;

use super::connect::Stream;
use crate::cluster::answers::{LARGEST_ANSWER, line};
use crate::error::{causes, with_causes};
use crate::wire::peer::peer_client::PeerClient;
use crate::wire::peer::{HelloRequest, HelloResponse};

/// A connection without an answer is asked for a sign of life this often,
const KEEPALIVE: Duration = Duration::from_secs(5);
/// and given up without one after so long: a call to a machine that lost its power ends after the sum of the two.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a node may send of an answer before it is read,
const STREAM_WINDOW: u32 = 128 << 10;
/// and of all answers on the connection. All streams that a node gives one caller (half of 64) take no more than half of
/// it while nobody reads them, so that other answers find their way.
const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;

/// The connection of a channel is gone, and what was to be sent was not.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed")]
pub(super) struct Closed;

/// A channel on this connection. It makes no second one by itself: at the same address there may be another node by
/// then, and only a channel that has said Hello is used.
pub(in crate::cluster) async fn open(stream: Box<dyn Stream>) -> Result<Channel, tonic::transport::Error> {
    let stream = Mutex::new(Some(TokioIo::new(stream)));
    let connect = service_fn(move |_: Uri| {
        let stream = stream.lock().ok().and_then(|mut stream| stream.take());
        async { stream.ok_or(Closed) }
    });
    let endpoint = Endpoint::from_static("http://node")
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .http2_adaptive_window(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    endpoint.connect_with_connector(connect).await
}

/// Asks who is at the other end.
pub(super) async fn hello(channel: Channel) -> io::Result<HelloResponse> {
    let mut client = PeerClient::new(channel).max_decoding_message_size(LARGEST_ANSWER);
    let answer = client.hello(HelloRequest {}).await;
    answer.map(Response::into_inner).map_err(|status| io::Error::other(describe(&status)))
}

/// What a status says, in one line, with what is behind it.
pub(in crate::cluster) fn describe(status: &Status) -> String {
    line(&with_causes(status.message().to_owned(), status))
}

/// Whether the call was never sent, since the connection was closed before.
pub(super) fn was_not_sent(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<Closed>())
}

/// Whether the status is not the node's answer but says that there was none.
pub(super) fn is_local(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_described_in_one_line_with_its_causes() {
        assert_eq!(describe(&Status::internal("one\nand\r\nthe other")), "one and  the other");
        let local = Status::from_error(Box::new(io::Error::other("reset by peer")));
        assert!(describe(&local).contains("reset by peer"), "{}", describe(&local));
        assert!(is_local(&local) && !was_not_sent(&local));
        assert!(was_not_sent(&Status::from_error(Box::new(Closed))));
        assert!(!is_local(&Status::unavailable("the node's answer")));
    }
}
