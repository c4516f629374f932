//! Connections whose peers have proved who they are.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_stream::Stream;

use super::super::crowd::{Crowd, Limits, Seat};
use super::super::incoming::Incoming;
use super::prompt::Prompt;
use crate::cluster::tls::{PeerStream, Tls, TlsError};

/// So many handshakes run at once, each for [`HANDSHAKE_TIMEOUT`](crate::cluster::tls::HANDSHAKE_TIMEOUT) at most: a
/// flood of connections that say nothing costs memory for these only, and drives out its own ones.
const HANDSHAKES: Limits = Limits { all: 256, each: 64 };
/// Connections after the handshake. A controller or a node needs one or two at a time.
const CONNECTIONS: Limits = Limits { all: 4096, each: 512 };
/// How long a peer may take to speak HTTP/2 after its handshake.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

pub type Peer = Prompt<PeerStream<TcpStream>>;

/// The handshakes that are running, as a stream of those that went well, without end. Dropped, it ends them all.
pub struct Handshakes {
    incoming: Incoming<TcpListener>,
    tls: Tls,
    running: JoinSet<Option<Peer>>,
    silent: Crowd,
    known: Crowd,
}

impl Handshakes {
    /// Those of the connections of a listener.
    pub fn new(incoming: Incoming<TcpListener>, tls: Tls) -> Self {
        Self::limited(incoming, tls, HANDSHAKES)
    }

    /// The same with other limits.
    pub fn limited(incoming: Incoming<TcpListener>, tls: Tls, limits: Limits) -> Self {
        let (silent, known) = (Crowd::new(limits), Crowd::new(CONNECTIONS));
        Handshakes { incoming, tls, running: JoinSet::new(), silent, known }
    }
}

impl Stream for Handshakes {
    type Item = io::Result<Peer>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            while let Poll::Ready(Some(done)) = self.running.poll_join_next(cx) {
                if let Ok(Some(stream)) = done {
                    return Poll::Ready(Some(Ok(stream)));
                }
            }
            match ready!(Pin::new(&mut self.incoming).poll_next(cx)) {
                Some(Ok(stream)) => {
                    let address = stream.peer_addr().ok();
                    // One that is gone already has no address.
                    let source = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
                    let (tls, known) = (self.tls.clone(), self.known.clone());
                    let shaken = shake_hands(tls, stream, address, self.silent.enter(source));
                    let made = async move {
                        let stream = shaken.await?;
                        Some(Prompt::new(stream, PREFACE_TIMEOUT, known.enter(source)))
                    };
                    self.running.spawn(made);
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

async fn shake_hands(
    tls: Tls,
    stream: TcpStream,
    address: Option<SocketAddr>,
    mut seat: Seat,
) -> Option<PeerStream<TcpStream>> {
    // Answers are small and complete: nothing is gained by waiting for more (tcp(7), TCP_NODELAY).
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        Ok(()) = &mut seat => {
            let address = text(address);
            tracing::debug!(address, "a connection without a handshake was closed for a newer one");
            return None;
        }
    };
    match accepted {
        Ok(stream) => {
            tracing::debug!(
                peer = stream.identity().to_string().as_str(),
                address = text(address).as_str(),
                "connected"
            );
            Some(stream)
        }
        Err(error) => {
            report(&error, address);
            None
        }
    }
}

fn report(error: &TlsError, address: Option<SocketAddr>) {
    let address = text(address);
    let silent = match error {
        TlsError::Handshake(error) => error.kind() == io::ErrorKind::UnexpectedEof,
        TlsError::Timeout(_) => true,
        _ => false,
    };
    let error = error.to_string();
    match silent {
        // Whoever only looks whether the port is open, such as a probe of kubelet. A flood must not fill the log.
        true => tracing::debug!(address, error, "a connection failed before its first call"),
        false => tracing::warn!(address, error, "a peer was refused"),
    }
}

fn text(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
}
