//! A caller of the driver, as the sidecars and kubelet are: it sends any request of CSI and has no rules of its own. The
//! self-test uses it, and so do the tests and the benchmarks.

use std::path::Path;

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Error};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::wire::csi::ProbeRequest;
use crate::wire::rpc::{self, Rpc, Unary};

/// Speaks to one driver. Clones share its connection.
#[derive(Debug, Clone)]
pub struct Client(Grpc<Channel>);

impl Client {
    /// A client of the driver at this socket; it connects with its first call, and again if it must.
    ///
    /// # Errors
    /// Where the path cannot be part of an address.
    pub fn new(socket: &Path) -> Result<Self, Error> {
        Ok(Client::on(endpoint(socket)?.connect_lazy()))
    }

    /// A client on this connection.
    pub fn on(channel: Channel) -> Self {
        Client(Grpc::new(channel))
    }

    /// The same, for answers of up to so many bytes. Else they have 4 MiB at most, as gRPC's libraries have it.
    #[must_use]
    pub fn accepting(self, bytes: usize) -> Self {
        Client(self.0.max_decoding_message_size(bytes))
    }

    /// Whether the driver answers that it is ready.
    pub async fn is_ready(&self) -> bool {
        self.call(ProbeRequest {}).await.is_ok_and(|answer| answer.ready.unwrap_or(true))
    }

    /// Calls the RPC of this request.
    ///
    /// # Errors
    /// What the driver answers; UNKNOWN or UNAVAILABLE where there is no connection.
    pub async fn call<Q: Unary>(&self, request: Q) -> Result<Q::Reply, Status> {
        self.send(Request::new(request)).await
    }

    /// The same with metadata or a deadline.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub async fn send<Q: Unary>(&self, request: Request<Q>) -> Result<Q::Reply, Status> {
        let (mut grpc, path) = self.ready::<Q>().await?;
        grpc.unary(request, path, ProstCodec::default()).await.map(Response::into_inner)
    }

    /// Calls an RPC that a stream of messages answers.
    ///
    /// # Errors
    /// As for [`call`](Self::call), before the first message.
    pub async fn open<Q: rpc::Streaming>(&self, request: Request<Q>) -> Result<Streaming<Q::Reply>, Status> {
        let (mut grpc, path) = self.ready::<Q>().await?;
        grpc.server_streaming(request, path, ProstCodec::default()).await.map(Response::into_inner)
    }

    async fn ready<Q: Rpc>(&self) -> Result<(Grpc<Channel>, PathAndQuery), Status> {
        let mut grpc = self.0.clone();
        let failed = |error| Status::unknown(format!("the connection is not ready: {error}"));
        grpc.ready().await.map_err(failed)?;
        Ok((grpc, PathAndQuery::from_static(Q::PATH)))
    }
}

/// Where the driver at this socket is reached.
///
/// # Errors
/// Where the path cannot be part of an address.
pub fn endpoint(socket: &Path) -> Result<Endpoint, Error> {
    Endpoint::from_shared(format!("unix://{}", socket.display()))
}
