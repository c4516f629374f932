//! The client of a node that pulls from another one: the driver's [`RemoteSources`] over gRPC.
//!
//! The driver calls from the blocking pool, where waiting for the network is allowed. Each stream has a connection of
//! its own, so that an error that breaks one does not break the next.

mod status;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};

use self::status::{answered, broken, describe, malformed, no_room, stopped};
use super::answers::{LARGEST_ANSWER, line};
use crate::driver::{Broken, RemoteSource, RemoteSources, Take};
use crate::error::{Error, Result};
use crate::model::pull::{Blocks, Changes, OpenSource, Piece, SourceDescription, SourceHandle, Way};
use crate::model::tree::{Attributes, Item, Position};
use crate::model::{NodeKey, Permit, SnapshotId, VolumeSource};
use crate::wire::peer::peer_client::PeerClient;
use crate::wire::pull::Malformed;
use crate::wire::{peer, pull};

/// How long the other node may take to open a source. A copy that takes longer goes on there, and a retry finds it.
const OPEN_WITHIN: Duration = Duration::from_secs(60);
/// Connecting, and saying who it is.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Before a stream begins, and between two messages of it; reading one of them takes the other node a moment.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// How long a broken connection is tried again: a caller comes back every minute, and brings a new address of the source.
const PATIENCE: Duration = Duration::from_secs(300);
/// Closing waits for a stream that the other node has not seen the end of; it removes the cut later otherwise.
const CLOSE_TRIES: u32 = 5;
const CLOSE_EVERY: Duration = Duration::from_millis(200);
/// The longest message with a piece, in bytes.
const LARGEST_PIECE: usize = Piece::MOST + 1024;
/// The longest message with an entry of a tree, in bytes: the extended attributes, and as much again for
/// their encoding and the rest of the entry.
const LARGEST_ENTRY: usize = 2 * Attributes::MOST;

/// What may be under way: on a network with 10 ms there and back, 100 MB/s.
const WINDOW: u32 = 1 << 20;
/// What comes beside a stream: each has a connection of its own, on which Hello was asked before.
const OTHERS: u32 = 64 << 10;
/// A node that is gone without a word is noticed after this, twice.
const ALIVE_EVERY: Duration = Duration::from_secs(20);

/// How a [`Connector`] is to set up its connections. The name in it is of no meaning: who answers is found out by TLS
/// and by asking.
pub fn endpoint() -> Endpoint {
    Endpoint::from_static("http://node")
        .http2_adaptive_window(false)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW + OTHERS)
        .http2_keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_EVERY)
}

/// A connection on its way, or why there is none.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Channel, String>> + Send>>;

/// Connects to the node at an address (`HOST:PORT`), mutually authenticated; the certificate there is that of the node
/// with this key, or one that all nodes share.
pub type Connector = Arc<dyn Fn(&str, &str) -> Connecting + Send + Sync>;

/// Pulls over connections that a [`Connector`] makes.
#[derive(Clone)]
pub struct Pull {
    connector: Connector,
    runtime: Handle,
    patience: Duration,
}

impl Pull {
    /// A client that waits on this runtime.
    pub fn new(connector: Connector, runtime: Handle) -> Self {
        Pull { connector, runtime, patience: PATIENCE }
    }

    /// Changes how long a broken connection is tried again while nothing arrives: five minutes.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Pull { patience, ..self }
    }

    async fn connect(&self, address: &str, node_key: &str) -> Result<PeerClient<Channel>, String> {
        let channel = timeout(CONNECT_WITHIN, (self.connector)(address, node_key)).await;
        let channel = channel.unwrap_or_else(|_| Err("no connection in time".to_owned()));
        let channel = channel.map_err(|why| line(&why))?;
        Ok(PeerClient::new(channel).max_decoding_message_size(LARGEST_ANSWER))
    }

    /// Connects, and makes sure that the node is the one that has what is wanted: an address may have been another
    /// node's a moment ago.
    async fn reach(&self, address: &str, node_key: &str) -> Result<(PeerClient<Channel>, String), String> {
        let mut client = self.connect(address, node_key).await?;
        let hello = timeout(CONNECT_WITHIN, client.hello(peer::HelloRequest {})).await;
        let hello = hello.map_err(|_| "no answer in time".to_owned())?;
        let hello = hello.map_err(|status| describe(&status))?.into_inner();
        match NodeKey::of(&hello.node_id).as_str() == node_key {
            true => Ok((client, hello.node_id)),
            false => Err(format!("node {:?} answers there", line(&hello.node_id))),
        }
    }
}

impl RemoteSources for Pull {
    fn open(&self, way: &Way, request: &OpenSource) -> Result<Arc<dyn RemoteSource>> {
        let address = way.address.as_str();
        let permit = way.permit.clone();
        let unreachable = |why: String| {
            Error::Unavailable(format!(
                "the node that has the source, at {address}, cannot be reached: {why}"
            ))
        };
        let description = self.runtime.block_on(async {
            let node_key = way.node_key.as_str();
            let (mut client, node_id) = self.reach(address, node_key).await.map_err(unreachable)?;
            let answer = timeout(OPEN_WITHIN, client.open_source(pull::encode_open(request, &permit))).await;
            let late =
                || unreachable("it is still making a copy of the source; a retry goes on there".to_owned());
            let answer = answer.map_err(|_| late())?;
            let answer = answer.map_err(|status| match (answered(&status), status.code()) {
                (Some(error), _) => error,
                (None, Code::ResourceExhausted) => no_room(&node_id, &status),
                (None, _) => unreachable(describe(&status)),
            })?;
            let described = pull::decode_description(answer.into_inner());
            let described = described.map_err(|Malformed(why)| {
                Error::Unavailable(format!(
                    "the node at {address} describes a source that this version does not understand: {}",
                    line(&why)
                ))
            })?;
            // A snapshot may have been made on an earlier node, whose disk this one has adopted. Each stream asks for the handle again, and
            // would be retried until it is found.
            let handle = &described.handle.id;
            let is_asked_for = matches!(&request.source, VolumeSource::Snapshot(id) if id == handle);
            match is_asked_for || handle.node_key() == node_key {
                true => Ok(described),
                false => Err(Error::Unavailable(format!(
                    "node {node_id:?} describes source {handle} of another node; check what runs there"
                ))),
            }
        })?;
        let (pull, node_key) = (self.clone(), way.node_key.to_string());
        let way = Mutex::new(Known { address: address.to_owned(), permit, moves: 0 });
        Ok(Arc::new(Opened { pull, node_key, way, description, ended: watch::Sender::new(false) }))
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

/// The way to the node, by what was heard last.
struct Known {
    address: String,
    permit: Permit,
    moves: u64,
}

struct Opened {
    pull: Pull,
    /// The key of the node that has the source. The id of a snapshot may name an earlier one.
    node_key: String,
    way: Mutex<Known>,
    description: SourceDescription,
    /// Whether `end` was called.
    ended: watch::Sender<bool>,
}

impl Opened {
    // Nothing that runs under the mutex can panic half-way, so a poisoned one is as good as any.
    fn way(&self) -> std::sync::MutexGuard<'_, Known> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection, and the permit to show there.
    async fn connect(&self) -> Result<(PeerClient<Channel>, Permit), Broken> {
        // At the end of the process the runtime goes first, and takes no task any more.
        if tokio::spawn(async {}).await.is_err() {
            let ending = "the driver is shutting down; a retry starts again".to_owned();
            return Err(Broken::Ended(Error::Unavailable(ending)));
        }
        let node_key = self.node_key.as_str();
        let address = self.way().address.clone();
        let (client, _) =
            self.unless_ended(self.pull.reach(&address, node_key)).await?.map_err(Broken::Connection)?;
        Ok((client, self.way().permit.clone()))
    }

    /// Begins a stream.
    async fn begin<T>(
        &self,
        answer: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ) -> Result<Streaming<T>, Broken> {
        self.in_time(answer).await.map(Response::into_inner)
    }

    /// Returns the next message of a stream; `None` at its end.
    async fn next<T>(&self, stream: &mut Streaming<T>) -> Result<Option<T>, Broken> {
        self.in_time(stream.message()).await
    }

    /// Waits for a part of an answer for a minute, unless the pull is ended.
    async fn in_time<T>(&self, part: impl Future<Output = Result<T, Status>>) -> Result<T, Broken> {
        match self.unless_ended(timeout(SILENT_FOR, part)).await? {
            Ok(part) => part.map_err(broken),
            Err(_) => Err(Broken::Connection("nothing has arrived for a minute".to_owned())),
        }
    }

    async fn unless_ended<T>(&self, work: impl Future<Output = T>) -> Result<T, Broken> {
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            // Never an error: `self` owns the sender.
            _ = ended.wait_for(|ended| *ended) => Err(stopped()),
            done = work => Ok(done),
        }
    }
}

impl RemoteSource for Opened {
    fn description(&self) -> &SourceDescription {
        &self.description
    }

    fn blocks(&self, offset: u64, take: Take<'_, u64, Blocks>) -> Result<(), Broken> {
        let runtime = &self.pull.runtime;
        let mut stream = runtime.block_on(async {
            let (client, permit) = self.connect().await?;
            let request = pull::encode_blocks_request(&self.description.handle, offset, &permit);
            let mut client = client.max_decoding_message_size(LARGEST_PIECE);
            self.begin(client.pull_blocks(request)).await
        })?;
        // Between messages, so that nobody writes to a disk within the runtime.
        while let Some(message) = runtime.block_on(self.next(&mut stream))? {
            take(pull::decode_blocks(message).map_err(malformed)?)?;
        }
        Ok(())
    }

    fn tree(
        &self,
        base: Option<&SourceHandle>,
        from: Position,
        take: Take<'_, Position, Item>,
    ) -> Result<(), Broken> {
        let runtime = &self.pull.runtime;
        let mut stream = runtime.block_on(async {
            let (client, permit) = self.connect().await?;
            let request = pull::encode_tree_request(&self.description.handle, base, from, &permit);
            let mut client = client.max_decoding_message_size(LARGEST_ENTRY);
            self.begin(client.pull_tree(request)).await
        })?;
        while let Some(message) = runtime.block_on(self.next(&mut stream))? {
            take(pull::decode_tree(message).map_err(malformed)?)?;
        }
        Ok(())
    }

    fn changes(&self, base: &SourceHandle, offset: u64, take: Take<'_, u64, Changes>) -> Result<(), Broken> {
        let runtime = &self.pull.runtime;
        let mut stream = runtime.block_on(async {
            let (client, permit) = self.connect().await?;
            let cut = &self.description.handle;
            let request = pull::encode_changes_request(base, cut, offset, &permit);
            let mut client = client.max_decoding_message_size(LARGEST_PIECE);
            self.begin(client.pull_changes(request)).await
        })?;
        while let Some(message) = runtime.block_on(self.next(&mut stream))? {
            take(pull::decode_changes(message).map_err(malformed)?)?;
        }
        Ok(())
    }

    fn show(&self, Way { address, permit, .. }: &Way) {
        let mut way = self.way();
        way.permit = permit.clone();
        if way.address != *address {
            tracing::info!(source = %self.description.handle.id, address, "the node of the source has moved");
            (way.address, way.moves) = (address.clone(), way.moves + 1);
        }
    }

    fn moves(&self) -> u64 {
        self.way().moves
    }

    fn end(&self) {
        self.ended.send_replace(true);
    }

    fn close(&self, cut: &SnapshotId) {
        let closing = async {
            for _ in 0..CLOSE_TRIES {
                let (mut client, permit) = match self.connect().await {
                    Ok(connected) => connected,
                    Err(Broken::Connection(why) | Broken::Damaged(why)) => return Err(why),
                    Err(Broken::Ended(error)) => return Err(error.to_string()),
                };
                match client.close_source(pull::encode_close(cut, &permit)).await {
                    Err(status) if status.code() == Code::Aborted => sleep(CLOSE_EVERY).await,
                    answer => return answer.map(drop).map_err(|status| describe(&status)),
                }
            }
            Err("it is still read".to_owned())
        };
        let closed = self.pull.runtime.block_on(async { timeout(CONNECT_WITHIN, closing).await });
        if let Err(why) = closed.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            tracing::warn!(source = %cut, why, "the source was not closed; its node removes what it made later");
        }
    }
}
