//! The channels to the nodes: one for each, made when it is needed and kept. A node that cannot be reached delays only
//! calls to that node, and those no longer than it takes to find out.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::channel;
use super::connect::Connect;
use crate::cluster::answers::line;
use crate::cluster::peers::{Known, Member};
use crate::model::Timestamp;

/// How long it may take to connect, TLS and Hello included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// After a failed attempt nothing is tried for so long; doubled by each further one,
const BACKOFF: Duration = Duration::from_millis(100);
/// up to this.
const MAX_BACKOFF: Duration = Duration::from_secs(4);
/// A node that was slow to answer a question is not asked another one that can do without it for so long.
const QUIET: Duration = Duration::from_secs(10);

/// A channel to a node that has said who it is.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) channel: Channel,
    address: String,
    number: u64,
}

/// How an attempt ended; `None` while it runs.
type Outcome = Option<Result<Link, Arc<str>>>;

/// What is known of the way to one node.
#[derive(Debug)]
enum State {
    /// Nothing.
    Idle,
    /// An attempt runs, after another one that had failed for this reason.
    Connecting(watch::Receiver<Outcome>, Option<Arc<str>>),
    Up(Link),
    /// The last attempt at this address failed.
    Down {
        reason: Arc<str>,
        address: String,
        until: Instant,
    },
}

#[derive(Debug)]
struct Slot {
    state: State,
    /// Attempts that failed in a row.
    failures: u32,
    quiet: Option<Instant>,
}

/// Whether a caller waits for a node that could not be reached a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// It waits for the next attempt.
    Wait,
    /// The attempt is made, but for others.
    None,
}

/// Every node's channel. Clones share them.
#[derive(Clone)]
pub(super) struct Links(Arc<Inner>);

struct Inner {
    connect: Box<dyn Connect>,
    driver_name: String,
    known: Known,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    by_node: HashMap<String, Slot>,
    /// When each node answered last.
    answered: HashMap<String, Timestamp>,
    numbers: u64,
}

impl Links {
    /// Channels to the nodes of this driver.
    pub(super) fn new(connect: Box<dyn Connect>, driver_name: String, known: Known) -> Self {
        Links(Arc::new(Inner { connect, driver_name, known, slots: Mutex::default() }))
    }

    /// The channel to a node. The attempt to connect is a task of its own: it goes on for others when this caller
    /// gives up.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn get(&self, member: &Member, patience: Patience) -> Result<Link, Arc<str>> {
        let mut reason: Arc<str> = "the attempt to connect was given up".into();
        for _ in 0..2 {
            let Some(address) = self.address(member) else {
                return Err("no process of the driver runs there".into());
            };
            let mut attempt = match self.look(&member.node_id, &address, patience)? {
                Connection::Link(link) => return Ok(link),
                Connection::Attempt(attempt) => attempt,
            };
            let ended = attempt.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
            match ended.ok().flatten() {
                Some(Ok(link)) => return Ok(link),
                // Perhaps the node has another address by now. Another look tells.
                Some(Err(why)) => reason = why,
                None => {}
            }
        }
        Err(reason)
    }

    /// Where the node is now, which may be elsewhere than when the call began.
    fn address(&self, member: &Member) -> Option<String> {
        let members = self.0.known.borrow().clone();
        let now = members.as_ref().and_then(|members| members.with_id(&member.node_id));
        now.map_or(member, |now| now.as_ref()).address.clone()
    }

    /// The channel that is there, or the attempt to make one, which begins here where none runs.
    fn look(&self, node_id: &str, address: &str, patience: Patience) -> Result<Connection, Arc<str>> {
        let mut slots = self.slots();
        let slot = slots.by_node.entry(node_id.to_owned()).or_insert_with(Slot::new);
        let before = match &slot.state {
            State::Up(link) if link.address == address => return Ok(Connection::Link(link.clone())),
            State::Connecting(attempt, before) => {
                return match before {
                    Some(reason) if patience == Patience::None => Err(Arc::clone(reason)),
                    _ => Ok(Connection::Attempt(attempt.clone())),
                };
            }
            State::Down { reason, address: tried, until } if tried == address => {
                if Instant::now() < *until {
                    return Err(Arc::clone(reason));
                }
                Some(Arc::clone(reason))
            }
            State::Down { .. } | State::Up(_) | State::Idle => None,
        };
        let (tell, attempt) = watch::channel(None);
        slot.state = State::Connecting(attempt.clone(), before.clone());
        slots.numbers += 1;
        let number = slots.numbers;
        drop(slots);
        let (links, node_id, address) = (self.clone(), node_id.to_owned(), address.to_owned());
        tokio::spawn(async move {
            let outcome = links.attempt(&node_id, address, number).await;
            tell.send_replace(Some(outcome));
        });
        match before {
            Some(reason) if patience == Patience::None => Err(reason),
            _ => Ok(Connection::Attempt(attempt)),
        }
    }

    async fn attempt(&self, node_id: &str, mut address: String, number: u64) -> Result<Link, Arc<str>> {
        let establish = self.establish(node_id, &mut address);
        let made = tokio::time::timeout(CONNECT_TIMEOUT, establish).await.unwrap_or_else(|_| {
            Err(io::Error::other(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())))
        });
        let mut slots = self.slots();
        if made.is_ok() {
            slots.answered.insert(node_id.to_owned(), Timestamp::now());
        }
        let slot = slots.by_node.entry(node_id.to_owned()).or_insert_with(Slot::new);
        match made {
            Ok(channel) => {
                tracing::debug!(node = node_id, address, "connected");
                let link = Link { channel, address, number };
                *slot = Slot { state: State::Up(link.clone()), ..Slot::new() };
                Ok(link)
            }
            Err(error) => {
                let reason: Arc<str> = line(&format!("{address}: {error}")).into();
                if slot.failures == 0 {
                    tracing::warn!(node = node_id, "cannot be reached: {reason}");
                }
                let wait = BACKOFF.saturating_mul(1 << slot.failures.min(10)).min(MAX_BACKOFF);
                slot.failures = slot.failures.saturating_add(1);
                let until = Instant::now() + wait;
                slot.state = State::Down { reason: Arc::clone(&reason), address, until };
                Err(reason)
            }
        }
    }

    /// Connects and asks who is there. Where it is another node, discovery is asked once more: a pod's address may
    /// be another pod's a moment later.
    async fn establish(&self, node_id: &str, address: &mut String) -> io::Result<Channel> {
        loop {
            let stream = self.0.connect.connect(address, node_id).await?;
            let channel = channel::open(stream).await.map_err(io::Error::other)?;
            let hello = channel::hello(channel.clone()).await?;
            if hello.driver_name != self.0.driver_name {
                return Err(io::Error::other(format!("there is the driver {:?}", line(&hello.driver_name))));
            }
            if hello.node_id == node_id {
                return Ok(channel);
            }
            let members = self.0.known.borrow().clone();
            let newer = members.and_then(|members| members.with_id(node_id)?.address.clone());
            match newer.filter(|newer| newer != address) {
                Some(newer) => *address = newer,
                None => {
                    return Err(io::Error::other(format!("there is the node {:?}", line(&hello.node_id))));
                }
            }
        }
    }

    /// A call on this channel got no answer: the next one connects anew. An answer that comes late does no harm.
    pub(super) fn failed(&self, node_id: &str, link: &Link) {
        let mut slots = self.slots();
        if let Some(slot) = slots.by_node.get_mut(node_id)
            && matches!(&slot.state, State::Up(up) if up.number == link.number)
        {
            slot.state = State::Idle;
        }
    }

    /// The node has answered now.
    pub(super) fn has_answered(&self, node_id: &str) {
        self.slots().answered.insert(node_id.to_owned(), Timestamp::now());
    }

    /// Returns when the node answered last; `None` if it never did.
    pub(super) fn last_answer(&self, node_id: &str) -> Option<Timestamp> {
        self.slots().answered.get(node_id).copied()
    }

    /// The node was too slow for a question.
    pub(super) fn was_slow(&self, node_id: &str) {
        if let Some(slot) = self.slots().by_node.get_mut(node_id) {
            slot.quiet = Some(Instant::now() + QUIET);
        }
    }

    /// Whether the node was too slow for a question a moment ago.
    pub(super) fn is_slow(&self, node_id: &str) -> bool {
        let now = Instant::now();
        self.slots().by_node.get(node_id).is_some_and(|slot| slot.quiet.is_some_and(|until| now < until))
    }

    /// Forgets nodes that are no longer there, whenever discovery finds that nodes came or went.
    pub(super) async fn tidy(self) {
        let mut known = self.0.known.clone();
        while known.changed().await.is_ok() {
            if let Some(members) = known.borrow_and_update().clone() {
                let mut slots = self.slots();
                slots.by_node.retain(|node_id, _| members.with_id(node_id).is_some());
                slots.answered.retain(|node_id, _| members.with_id(node_id).is_some());
            }
        }
    }

    // Nothing that runs under the mutex can panic half-way, so a poisoned one is as good as any.
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn new() -> Self {
        Slot { state: State::Idle, failures: 0, quiet: None }
    }
}

enum Connection {
    Link(Link),
    Attempt(watch::Receiver<Outcome>),
}
