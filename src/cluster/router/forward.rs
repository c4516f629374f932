//! A call that is sent on to a node: the same message, the rest of the caller's time, and the node's answer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::uri::PathAndQuery;
use prost::bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use tonic::client::Grpc;
use tonic::metadata::{AsciiMetadataValue, BinaryMetadataValue, MetadataMap};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::Router;
use super::channel::{describe, is_local, was_not_sent};
use super::links::{Link, Patience};
use crate::cluster::answers::line;
use crate::cluster::peers::Member;
use crate::error::Error;
use crate::model::Permit;
use crate::service::table::{Answer, BytesCodec, decode, encode};
use crate::service::{CONVERT, COPY, GENERATION, MOVED_TO, PERMIT, RESERVATION, SOURCE_ADDRESS, SOURCE_NODE};
use crate::wire::rpc::{Rpc, Streaming, Unary};

/// So many nodes are asked the same at once.
const AT_ONCE: usize = 128;
/// The limit for an answer of a node, or a message of a stream, in bytes. Nodes keep to it, since callers take no more
/// (`wire/encode/page.rs`).
const MAX_ANSWER: usize = 4 << 20;

/// A connection that is ready, and where the RPC is served.
async fn ready<Q: Rpc>(channel: Channel) -> Result<(Grpc<Channel>, PathAndQuery), Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_ANSWER);
    let failed = |error| Status::unknown(format!("the connection is not ready: {error}"));
    grpc.ready().await.map_err(failed)?;
    Ok((grpc, PathAndQuery::from_static(Q::PATH)))
}

async fn unary<Q: Unary>(channel: Channel, request: Request<Bytes>) -> Answer<Bytes> {
    let (mut grpc, path) = ready::<Q>(channel).await?;
    grpc.unary(request, path, BytesCodec).await
}

async fn streaming<Q: Streaming>(channel: Channel, request: Request<Bytes>) -> Answer<Incoming> {
    let (mut grpc, path) = ready::<Q>(channel).await?;
    grpc.server_streaming(request, path, BytesCodec).await
}

/// The messages of a node's answer, as they come.
pub(super) type Incoming = tonic::Streaming<Bytes>;

#[derive(Debug, Clone, Default)]
pub(super) struct Envelope {
    /// When the caller gives up.
    deadline: Option<Instant>,
    /// The address of the node that has the source of a new volume (`HOST:PORT`).
    source_address: Option<String>,
    /// The CSI node id of that node.
    source_node: Option<String>,
    /// The permit to read the source.
    permit: Option<Permit>,
    /// With what the name of a new volume is reserved.
    reservation: Option<String>,
    /// What a new volume is a copy of that is brought up to date until it takes its source's place.
    copy: Option<Original>,
}

/// The volume that a copy is made of.
#[derive(Debug, Clone)]
pub(super) struct Original {
    /// The CSI node id of the only node that the data may come from.
    pub node_id: String,
    /// The copy gets the backend and the filesystem of its parameters.
    pub convert: bool,
    /// How often the volume has moved.
    pub generation: u64,
}

impl Envelope {
    /// That of a call which goes on.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        let left = timeout(request.metadata());
        Envelope { deadline: left.map(|left| Instant::now() + left), ..Envelope::default() }
    }

    /// The same, for a node that has to fetch the source of a volume from there.
    pub(super) fn with_source(&self, node_id: &str, address: &str, permit: Permit) -> Self {
        let (address, node_id) = (address.to_owned(), node_id.to_owned());
        Envelope {
            source_address: Some(address),
            source_node: Some(node_id),
            permit: Some(permit),
            ..self.clone()
        }
    }

    /// The same, for a node on which the name of a volume is reserved with this.
    pub(super) fn with_reservation(&self, token: &str) -> Self {
        Envelope { reservation: Some(token.to_owned()), ..self.clone() }
    }

    /// The same, for a copy that is brought up to date until it takes its source's place.
    pub(super) fn of_copy(&self, original: Original) -> Self {
        Envelope { copy: Some(original), ..self.clone() }
    }

    /// Returns what the new volume is such a copy of.
    pub(super) fn original(&self) -> Option<&Original> {
        self.copy.as_ref()
    }

    /// The same, with no more time than this.
    pub(super) fn within(&self, limit: Duration) -> Self {
        let limit = Instant::now() + limit;
        let deadline = self.deadline.map_or(limit, |deadline| deadline.min(limit));
        Envelope { deadline: Some(deadline), ..self.clone() }
    }

    /// Waits for the whole answer of a node until the caller gives up. tonic ends only the wait for its beginning.
    async fn in_time<T>(
        &self,
        member: &Member,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        match self.deadline {
            Some(deadline) => timeout_at(deadline, answer).await.unwrap_or_else(|_| Err(late(member))),
            None => answer.await,
        }
    }

    fn seal<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        let source = [(SOURCE_ADDRESS, &self.source_address), (SOURCE_NODE, &self.source_node)];
        for (name, value) in source.into_iter().chain([(RESERVATION, &self.reservation)]) {
            if let Some(value) = value.as_ref().and_then(|text| AsciiMetadataValue::try_from(text).ok()) {
                request.metadata_mut().insert(name, value);
            }
        }
        if let Some(Original { generation, convert, .. }) = self.copy {
            request.metadata_mut().insert(COPY, AsciiMetadataValue::from_static("1"));
            if convert {
                request.metadata_mut().insert(CONVERT, AsciiMetadataValue::from_static("1"));
            }
            request.metadata_mut().insert(GENERATION, AsciiMetadataValue::from(generation));
        }
        if let Some(permit) = &self.permit {
            request.metadata_mut().insert_bin(PERMIT, BinaryMetadataValue::from_bytes(permit.as_bytes()));
        }
        request
    }
}

/// The time that a caller gives (gRPC over HTTP/2: at most eight digits and a unit).
fn timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

impl Router {
    /// Calls a node and waits for its answer.
    ///
    /// # Errors
    /// The node's own status, or UNAVAILABLE with the node's name where it could not be asked.
    pub(super) async fn call<Q: Unary>(
        &self,
        member: &Member,
        envelope: &Envelope,
        message: Q,
    ) -> Result<Q::Reply, Status> {
        decode(&self.pass::<Q>(member, envelope, encode(&message)).await?)
    }

    /// The same with a request and an answer that go on as they came: with fields that this version does not know.
    ///
    /// # Errors
    /// As [`Router::call`].
    pub(super) async fn pass<Q: Unary>(
        &self,
        member: &Member,
        envelope: &Envelope,
        request: Bytes,
    ) -> Result<Bytes, Status> {
        let answer = self.call_with(Patience::Wait, member, envelope, request, unary::<Q>).await;
        answer.map(|(_, answer)| answer)
    }

    /// Finds a node, and does not wait for one that is known to be down.
    ///
    /// # Errors
    /// As [`Router::call`].
    pub(super) async fn pass_if_up<Q: Unary>(
        &self,
        member: &Member,
        envelope: &Envelope,
        request: Bytes,
    ) -> Result<Bytes, Status> {
        let answer = self.call_with(Patience::None, member, envelope, request, unary::<Q>).await;
        answer.map(|(_, answer)| answer)
    }

    /// The same with an answer of many messages, and the link that they come over: it may still fail.
    ///
    /// # Errors
    /// As [`Router::call`].
    pub(super) async fn open<Q: Streaming>(
        &self,
        member: &Member,
        envelope: &Envelope,
        request: Bytes,
    ) -> Result<(Link, Incoming), Status> {
        self.call_with(Patience::Wait, member, envelope, request, streaming::<Q>).await
    }

    /// Asks a node for something that the caller can do without: a node that is known to be down or slow is not
    /// waited for, and no node for longer than `limit`.
    ///
    /// # Errors
    /// As [`Router::call`].
    pub(super) async fn ask<Q: Unary>(
        &self,
        member: &Member,
        envelope: &Envelope,
        request: Bytes,
        limit: Duration,
    ) -> Result<Q::Reply, Status> {
        let node_id = &member.node_id;
        let slow = || {
            let seconds = limit.as_secs_f32();
            Error::Unavailable(format!("node {node_id:?} did not answer within {seconds} s; try again"))
        };
        if self.links.is_slow(node_id) {
            return Err(slow().into());
        }
        let envelope = envelope.within(limit);
        let answer = self.call_with(Patience::None, member, &envelope, request, unary::<Q>);
        // Connecting has its own limit, which says more of what is wrong; a channel's answer has this one.
        match answer.await {
            Err(status) if status.code() == Code::DeadlineExceeded => {
                self.links.was_slow(node_id);
                Err(slow().into())
            }
            answer => decode(&answer?.1),
        }
    }

    async fn call_with<T, F>(
        &self,
        patience: Patience,
        member: &Member,
        envelope: &Envelope,
        request: Bytes,
        send: impl Fn(Channel, Request<Bytes>) -> F,
    ) -> Result<(Link, T), Status>
    where
        F: Future<Output = Answer<T>>,
    {
        let mut again = true;
        loop {
            let link = self.links.get(member, patience).await.map_err(|why| unreachable(member, &why))?;
            tracing::debug!(node = member.node_id, "sent on");
            let answer = send(link.channel.clone(), envelope.seal(request.clone()));
            match envelope.in_time(member, answer).await {
                Ok(answer) => {
                    self.links.has_answered(&member.node_id);
                    return Ok((link, answer.into_inner()));
                }
                // The node has restarted since the last call, say. Nothing was sent, so the call is not lost.
                Err(status) if again && was_not_sent(&status) => self.links.failed(&member.node_id, &link),
                Err(status) => return Err(self.no_answer(member, &link, status)),
            }
            again = false;
        }
    }

    /// What the caller is told of a call that failed.
    pub(super) fn no_answer(&self, member: &Member, link: &Link, status: Status) -> Status {
        // What tonic says at the end of the caller's time, on this side or on the node's, whichever is first.
        if status.code() == Code::Cancelled && status.message() == tonic::TimeoutExpired(()).to_string() {
            return late(member);
        }
        if !is_local(&status) {
            return answered(&status);
        }
        self.links.failed(&member.node_id, link);
        unreachable(member, &describe(&status))
    }
}

/// Asks many nodes, [`AT_ONCE`] at a time: the time of each runs from when it is asked, and not from when a thousand
/// others were. The answers come in any order.
pub(super) async fn ask_each<T, F>(members: Vec<Arc<Member>>, ask: impl Fn(Arc<Member>) -> F) -> Vec<T>
where
    F: Future<Output = T>,
{
    stream::iter(members.into_iter().map(ask)).buffer_unordered(AT_ONCE).collect().await
}

/// DEADLINE_EXCEEDED, with the name of the node.
fn late(member: &Member) -> Status {
    Status::deadline_exceeded(format!("node {:?} did not answer within the caller's time", member.node_id))
}

/// The source of the status of a call for which there is no connection: the node has not answered it.
#[derive(Debug, thiserror::Error)]
#[error("the node cannot be reached")]
struct Unreachable;

/// UNAVAILABLE, with the name of the node.
pub(super) fn unreachable(member: &Member, why: &str) -> Status {
    let node_id = &member.node_id;
    let message = format!("node {node_id:?} cannot be reached; try again: {why}");
    let mut status: Status = Error::Unavailable(message).into();
    status.set_source(Arc::new(Unreachable));
    status
}

/// Reports whether a call failed because there is no connection to its node. UNAVAILABLE can also be what a node answers.
pub(super) fn is_unreachable(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(|source| source.is::<Unreachable>())
}

/// A node's status without what belongs to its connection.
fn answered(status: &Status) -> Status {
    let mut metadata = MetadataMap::new();
    if let Some(node) = status.metadata().get_bin(MOVED_TO) {
        metadata.insert_bin(MOVED_TO, node.clone());
    }
    Status::with_metadata(status.code(), line(status.message()), metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Duration> {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().expect("a header"));
        timeout(&metadata)
    }

    #[test]
    fn the_callers_time_is_read() {
        assert_eq!(parse("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(parse("3M"), Some(Duration::from_secs(180)));
        assert_eq!(parse("10S"), Some(Duration::from_secs(10)));
        assert_eq!(parse("100m"), Some(Duration::from_millis(100)));
        assert_eq!(parse("5u"), Some(Duration::from_micros(5)));
        assert_eq!(parse("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for text in ["", "S", "10", "10s", "-1S", "123456789S", "1.5S"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(timeout(&MetadataMap::new()), None);
    }

    #[test]
    fn a_message_goes_on_with_what_is_left() {
        let mut request = Request::new(());
        request.set_timeout(Duration::from_secs(10));
        let permit = Permit::new(b"a permit".to_vec()).expect("a short one");
        let envelope = Envelope::of(&request).with_source("node-a", "10.0.0.1:9443", permit.clone());
        let sealed = envelope.seal(());
        let left = timeout(sealed.metadata()).expect("a timeout");
        assert!(left <= Duration::from_secs(10) && left > Duration::from_secs(1), "{left:?}");
        assert_eq!(sealed.metadata().get(SOURCE_ADDRESS).expect("an address"), "10.0.0.1:9443");
        assert_eq!(sealed.metadata().get(SOURCE_NODE).expect("its node"), "node-a");
        let sent = sealed.metadata().get_bin(PERMIT).expect("a permit").to_bytes().expect("base64");
        assert_eq!(sent.as_ref(), permit.as_bytes());
        let original = |convert| Original { node_id: "node-a".to_owned(), convert, generation: 3 };
        let sealed = |convert| envelope.of_copy(original(convert)).seal(());
        assert_eq!(sealed(false).metadata().get(GENERATION).expect("a number"), "3");
        assert_eq!(
            [false, true].map(|convert| sealed(convert).metadata().contains_key(CONVERT)),
            [false, true]
        );
        let short = envelope.within(Duration::from_secs(1)).seal(());
        assert!(timeout(short.metadata()).expect("a timeout") <= Duration::from_secs(1));
        let without = Envelope::default().seal(());
        assert!(without.metadata().is_empty());
    }
}
