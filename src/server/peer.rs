//! The port of a node for the other processes of its cluster: TLS with certificates on both sides, and only what the
//! identity of the caller allows.
//!
//! A handshake is a task of its own, so that one slow peer delays no other, and a connection is tonic's only after it.

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

use self::allow::AllowLayer;
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
        Server::builder()
            .http2_max_header_list_size(MAX_HEADERS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .max_connection_age(age)
            .layer(RpcLayer::new(running, observer))
            .layer(AllowLayer)
            .add_routes(routes)
            .serve_with_incoming_shutdown(Handshakes::new(Incoming::new(listener), tls), requested)
    })
    .await
}
