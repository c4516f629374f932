//! The port of a node for the other processes of its cluster: TLS with certificates on both sides, and only what the
//! identity of the caller allows.
//!
//! A handshake is a task of its own, so that one slow peer delays no other. tonic gets the connection only after it.

mod allow;
mod handshakes;
mod prompt;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::Server;

pub use self::allow::AllowLayer;
use self::handshakes::Handshakes;
use super::MAX_HEADERS;
use super::drain::{self, Stop, Stopped};
use super::incoming::Incoming;
use super::rpc::{Observer, RpcLayer, Running};
use crate::cluster::tls::Tls;

/// How often a peer that says nothing is asked whether it is there, and how long it may take to answer: a node that
/// lost its power never closes a connection.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// A connection takes no new calls after so long, so that its caller comes back with a new handshake: certificates
/// that expired and CAs that are trusted no longer end with it. Calls that are running go on.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(3600);

/// What a peer may send of a call before it is read, and of all calls on its connection. Requests are small.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

/// HTTP/2 as peers get it. Nothing in it grows with what they do.
pub fn peer_http2() -> Server {
    Server::builder()
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .http2_adaptive_window(Some(false))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

/// Serves peers until `stop`, and then up to the end of the calls that are running or of the time for it. The
/// caller's [`PeerIdentity`](crate::cluster::identity::PeerIdentity) is in the extensions of each request, and in the
/// span of each call as `peer`. A call that the identity does not allow is answered with PERMISSION_DENIED and never
/// reaches `routes`.
pub async fn serve_peers(
    listener: TcpListener,
    tls: Tls,
    routes: Routes,
    stop: Stop,
    observer: Option<Arc<dyn Observer>>,
) -> Stopped {
    serve(listener, tls, routes, stop, (MAX_CONNECTION_AGE, observer)).await
}

async fn serve(
    listener: TcpListener,
    tls: Tls,
    routes: Routes,
    stop: Stop,
    (age, observer): (Duration, Option<Arc<dyn Observer>>),
) -> Stopped {
    let running = Running::default();
    drain::run(stop, running.clone(), |requested| {
        peer_http2()
            .max_connection_age(age)
            .layer(RpcLayer::new(running, observer))
            .layer(AllowLayer)
            .add_routes(routes)
            .serve_with_incoming_shutdown(Handshakes::new(Incoming::new(listener), tls), requested)
    })
    .await
}
