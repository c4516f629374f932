//! A connection after its handshake.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;
use tonic::transport::server::Connected;

use super::error::explain;
use crate::cluster::identity::PeerIdentity;

/// An encrypted connection to a peer that has proved who it is. Nobody but the peer can read, change, or end it
/// unnoticed.
#[derive(Debug)]
pub struct PeerStream<IO> {
    inner: TlsStream<IO>,
    identity: PeerIdentity,
}

impl<IO> PeerStream<IO> {
    pub(super) fn new(inner: TlsStream<IO>, identity: PeerIdentity) -> Self {
        PeerStream { inner, identity }
    }

    /// Who is at the other end, by its certificate.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }
}

/// tonic puts it into the extensions of each request of the connection.
impl<IO> Connected for PeerStream<IO> {
    type ConnectInfo = PeerIdentity;

    fn connect_info(&self) -> PeerIdentity {
        self.identity.clone()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for PeerStream<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer).map_err(explain)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PeerStream<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes).map_err(explain)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices).map_err(explain)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx).map_err(explain)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx).map_err(explain)
    }
}
