//! The RPCs of a process by their paths. To gRPC's transport, a message is bytes here: what a handler does not decode
//! passes through unchanged, and the transport is compiled once, not for each RPC.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use http::{Request, Response};
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::service::RoutesBuilder;
use tower::Service;

use super::stream::Messages;
use crate::wire::rpc::{Streaming, Unary};
use crate::wire::{csi, peer};

/// What comes later.
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// The answer of a call.
pub(crate) type Answer<T> = Result<tonic::Response<T>, Status>;
type Handle<T> = Box<dyn Fn(tonic::Request<Bytes>) -> Later<Answer<T>> + Send + Sync>;

enum Method {
    Unary(Handle<Bytes>),
    Streaming(Handle<Messages<Bytes>>),
}

/// Messages as they are on the wire.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// A message from its bytes.
///
/// # Errors
/// INTERNAL, as gRPC's libraries say it, for what is not such a message.
pub(crate) fn decode<M: Message + Default>(bytes: &Bytes) -> Result<M, Status> {
    M::decode(bytes.clone()).map_err(|error| Status::internal(error.to_string()))
}

/// A message as bytes.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// How each RPC is served.
#[derive(Default)]
pub(crate) struct Table(HashMap<&'static str, Method>);

impl Table {
    /// This RPC, as bytes.
    pub(crate) fn raw<Q: Unary>(
        &mut self,
        serve: impl Fn(tonic::Request<Bytes>) -> Later<Answer<Bytes>> + Send + Sync + 'static,
    ) {
        self.0.insert(Q::PATH, Method::Unary(Box::new(serve)));
    }

    /// The same with an answer of many messages.
    pub(crate) fn raw_stream<Q: Streaming>(
        &mut self,
        serve: impl Fn(tonic::Request<Bytes>) -> Later<Answer<Messages<Bytes>>> + Send + Sync + 'static,
    ) {
        self.0.insert(Q::PATH, Method::Streaming(Box::new(serve)));
    }

    /// This RPC.
    pub(crate) fn unary<Q: Unary, F>(
        &mut self,
        serve: impl Fn(tonic::Request<Bytes>) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Q::Reply, Status>> + Send + 'static,
    {
        self.raw::<Q>(move |request| {
            let answer = serve(request);
            Box::pin(async move { answer.await.map(|reply| tonic::Response::new(encode(&reply))) })
        });
    }

    /// This RPC, whose answer has many messages.
    pub(crate) fn stream<Q: Streaming, F>(
        &mut self,
        serve: impl Fn(tonic::Request<Bytes>) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Messages<Q::Reply>, Status>> + Send + 'static,
    {
        self.raw_stream::<Q>(move |request| {
            let answer = serve(request);
            Box::pin(async move {
                let messages = answer.await?;
                let bytes = messages.map(|message| message.map(|message| encode(&message)));
                Ok(tonic::Response::new(Box::pin(bytes) as Messages<Bytes>))
            })
        });
    }

    /// Whether there is an RPC at this path.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Answers a call; UNIMPLEMENTED where nothing serves it.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let mut grpc = Grpc::new(BytesCodec);
        match self.0.get(request.uri().path()) {
            Some(Method::Unary(serve)) => grpc.unary(One(serve), request).await,
            Some(Method::Streaming(serve)) => grpc.server_streaming(Many(serve), request).await,
            None => Status::unimplemented("").into_http(),
        }
    }
}

/// A handler with one answer.
struct One<'a>(&'a Handle<Bytes>);

impl UnaryService<Bytes> for One<'_> {
    type Response = Bytes;
    type Future = Later<Answer<Bytes>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        (self.0)(request)
    }
}

/// A handler with a stream of answers.
struct Many<'a>(&'a Handle<Messages<Bytes>>);

impl ServerStreamingService<Bytes> for Many<'_> {
    type Response = Bytes;
    type ResponseStream = Messages<Bytes>;
    type Future = Later<Answer<Messages<Bytes>>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        (self.0)(request)
    }
}

/// The services, by the numbers of [`name`].
pub(crate) mod number {
    pub(crate) const IDENTITY: u8 = 0;
    pub(crate) const NODE: u8 = 1;
    pub(crate) const CONTROLLER: u8 = 2;
    pub(crate) const GROUP_CONTROLLER: u8 = 3;
    pub(crate) const SNAPSHOT_METADATA: u8 = 4;
    pub(crate) const PEER: u8 = 5;
}

const fn name(service: u8) -> &'static str {
    match service {
        number::IDENTITY => csi::identity_server::SERVICE_NAME,
        number::NODE => csi::node_server::SERVICE_NAME,
        number::CONTROLLER => csi::controller_server::SERVICE_NAME,
        number::GROUP_CONTROLLER => csi::group_controller_server::SERVICE_NAME,
        number::SNAPSHOT_METADATA => csi::snapshot_metadata_server::SERVICE_NAME,
        _ => peer::peer_server::SERVICE_NAME,
    }
}

/// One service of a table.
#[derive(Clone)]
struct Part<const SERVICE: u8>(Arc<Table>);

impl<const SERVICE: u8> NamedService for Part<SERVICE> {
    const NAME: &'static str = name(SERVICE);
}

impl<const SERVICE: u8> Service<Request<Body>> for Part<SERVICE> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Later<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let table = Arc::clone(&self.0);
        Box::pin(async move { Ok(table.answer(request).await) })
    }
}

/// Adds Identity.
pub(crate) fn add_identity(table: &Arc<Table>, routes: &mut RoutesBuilder) {
    routes.add_service(Part::<{ number::IDENTITY }>(Arc::clone(table)));
}

/// Adds what kubelet calls, Identity among it.
pub(crate) fn add_node(table: &Arc<Table>, routes: &mut RoutesBuilder) {
    add_identity(table, routes);
    routes.add_service(Part::<{ number::NODE }>(Arc::clone(table)));
}

/// Adds what other processes of the cluster call.
pub(crate) fn add_peer(table: &Arc<Table>, routes: &mut RoutesBuilder) {
    routes.add_service(Part::<{ number::PEER }>(Arc::clone(table)));
}

/// Adds what the sidecars of a controller call, beside Identity.
pub(crate) fn add_controller(table: &Arc<Table>, routes: &mut RoutesBuilder) {
    let table = || Arc::clone(table);
    routes
        .add_service(Part::<{ number::CONTROLLER }>(table()))
        .add_service(Part::<{ number::GROUP_CONTROLLER }>(table()))
        .add_service(Part::<{ number::SNAPSHOT_METADATA }>(table()));
}
