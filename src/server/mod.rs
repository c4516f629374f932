//! Transport: the listener, what happens around every call, and the end.
//!
//! Start reading at [`serve`], and at [`serve_peers`] for the port that other processes of the cluster use; `rpc.rs` is
//! what a call passes through.

mod body;
mod crowd;
mod drain;
mod endpoint;
mod incoming;
mod message;
mod panic;
mod peer;
mod rpc;
mod socket;
#[cfg(test)]
mod tests;
mod trace;

use std::io;
use std::sync::Arc;

use tokio::net::{TcpListener, UnixListener};
use tonic::service::Routes;
use tonic::transport::Server;

pub(crate) use self::crowd::{Crowd, Limits};
pub use self::drain::{Stop, Stopped};
pub use self::endpoint::Endpoint;
pub(crate) use self::incoming::Incoming;
pub use self::panic::install_hook;
pub use self::peer::{AllowLayer, peer_http2, serve_peers};
pub use self::rpc::Observer;
pub(crate) use self::socket::{SocketError, SocketFile, SocketPlace, bind as bind_socket};

use self::incoming::Accept;
use self::rpc::{RpcLayer, Running};

/// A call has at most so many bytes of headers; CSI has none of its own.
const MAX_HEADERS: u32 = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("listen on {0}: {1} (--endpoint)")]
    Tcp(Endpoint, io::Error),
}

/// A socket that callers can connect to; they wait until [`serve`] takes it.
#[derive(Debug)]
pub struct Listener(Inner);

#[derive(Debug)]
enum Inner {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `endpoint`; a Unix socket has these permissions.
    ///
    /// # Errors
    /// [`BindError`], with the path or address, where that is not possible.
    pub async fn bind(endpoint: &Endpoint, socket_mode: u32) -> Result<Self, BindError> {
        let inner = match endpoint {
            Endpoint::Unix(path) => {
                let place = SocketPlace { path, flag: "--endpoint", make_directory: true };
                let (listener, file) = socket::bind(place, socket_mode).await?;
                Inner::Unix(listener, file)
            }
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address).await;
                Inner::Tcp(listener.map_err(|error| BindError::Tcp(endpoint.clone(), error))?)
            }
        };
        Ok(Listener(inner))
    }

    /// Serves what connects to a port that is listened on already.
    pub fn of_tcp(listener: TcpListener) -> Self {
        Listener(Inner::Tcp(listener))
    }

    /// The TCP address in use, where that is what it listens on: port 0 has become a real one.
    pub fn tcp_address(&self) -> Option<std::net::SocketAddr> {
        match &self.0 {
            Inner::Unix(..) => None,
            Inner::Tcp(listener) => listener.local_addr().ok(),
        }
    }
}

/// Serves until `stop`, and then up to the end of the calls that are running or of the time for it. The socket is
/// removed at the end. The observer is told of every call.
pub async fn serve(
    listener: Listener,
    routes: Routes,
    stop: Stop,
    observer: Option<Arc<dyn Observer>>,
) -> Stopped {
    match listener.0 {
        Inner::Unix(listener, file) => {
            let stopped = serve_on(listener, routes, stop, observer).await;
            drop(file);
            stopped
        }
        Inner::Tcp(listener) => serve_on(listener, routes, stop, observer).await,
    }
}

async fn serve_on<L>(listener: L, routes: Routes, stop: Stop, observer: Option<Arc<dyn Observer>>) -> Stopped
where
    L: Accept,
    L::Connection: tokio::io::AsyncRead + tokio::io::AsyncWrite + tonic::transport::server::Connected + Unpin,
    L::Connection: Send + 'static,
{
    let running = Running::default();
    drain::run(stop, running.clone(), |requested| {
        Server::builder()
            .http2_max_header_list_size(MAX_HEADERS)
            .layer(RpcLayer::new(running, observer))
            .add_routes(routes)
            .serve_with_incoming_shutdown(Incoming::new(listener), requested)
    })
    .await
}
