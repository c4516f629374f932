//! A connection to a node, as the router needs it.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A way to reach nodes. What is at the other end has shown who it is before anything else is sent: the real way is
/// mutual TLS.
#[tonic::async_trait]
pub trait Connect: Send + Sync {
    /// Connects to `address` (HOST:PORT), where the node with this CSI node id should be. A host name is looked up
    /// by each call. The caller sets the time limit.
    ///
    /// # Errors
    /// Why there is no connection, in one line.
    async fn connect(&self, address: &str, node_id: &str) -> io::Result<Box<dyn Stream>>;
}
