//! Connections whose peers have proved who they are.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_stream::Stream;

use super::super::incoming::Incoming;
use crate::cluster::tls::{PeerStream, Tls, TlsError};

/// So many handshakes run at once. Further connections wait in the kernel's queue: a flood of peers that say nothing
/// costs memory for these only, and each has [`HANDSHAKE_TIMEOUT`](crate::cluster::tls::HANDSHAKE_TIMEOUT).
const MAX_HANDSHAKES: usize = 256;

/// The handshakes that are running, as a stream of those that went well, without end. Dropped, it ends them all.
pub struct Handshakes {
    incoming: Incoming<TcpListener>,
    tls: Tls,
    running: JoinSet<Option<PeerStream<TcpStream>>>,
    most: usize,
}

impl Handshakes {
    /// Those of the connections of a listener.
    pub fn new(incoming: Incoming<TcpListener>, tls: Tls) -> Self {
        Self::limited(incoming, tls, MAX_HANDSHAKES)
    }

    /// The same with at most so many at once.
    pub fn limited(incoming: Incoming<TcpListener>, tls: Tls, most: usize) -> Self {
        Handshakes { incoming, tls, running: JoinSet::new(), most }
    }
}

impl Stream for Handshakes {
    type Item = io::Result<PeerStream<TcpStream>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            while let Poll::Ready(Some(done)) = self.running.poll_join_next(cx) {
                if let Ok(Some(stream)) = done {
                    return Poll::Ready(Some(Ok(stream)));
                }
            }
            if self.running.len() >= self.most {
                // The end of one of them wakes this task.
                return Poll::Pending;
            }
            match ready!(Pin::new(&mut self.incoming).poll_next(cx)) {
                Some(Ok(stream)) => {
                    let tls = self.tls.clone();
                    self.running.spawn(shake_hands(tls, stream));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

async fn shake_hands(tls: Tls, stream: TcpStream) -> Option<PeerStream<TcpStream>> {
    let address = stream.peer_addr().ok();
    // Answers are small and complete: nothing is gained by waiting for more (tcp(7), TCP_NODELAY).
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    match tls.accept(stream).await {
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
    let gone = matches!(error, TlsError::Handshake(error) if error.kind() == io::ErrorKind::UnexpectedEof);
    let error = error.to_string();
    match gone {
        // Whoever only looks whether the port is open, such as a probe of kubelet.
        true => tracing::debug!(address, error, "a connection came to nothing"),
        false => tracing::warn!(address, error, "a peer was not let in"),
    }
}

fn text(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
}
