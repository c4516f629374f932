//! Makes two controllers that are asked for one name at the same time make one volume (docs/decisions/0008).
//!
//! Each reserves the name on the node that it has chosen, and then asks the others. Of two that do so, at least one finds
//! the other's reservation, because both reserve before they look. The one with the smaller key stays: a controller that
//! finds it goes there, and its owner takes the others back before the volume is made. A volume is made only while the
//! reservation lives with which its controller has looked. So one that was taken back, or has ended, makes nothing.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

use super::Router;
use super::forward::{Envelope, ask_each};
use crate::cluster::peers::Member;
use crate::error::{Busy, Error, Subject};
use crate::model::answer::{Found, Reserved};
use crate::model::{NodeKey, VolumeId};
use crate::service::table;
use crate::wire::{peer, reserve};

/// How long a node may take to say whether it has a volume, or to reserve a name. Both are in its memory.
const QUESTION: Duration = Duration::from_secs(2);
/// Whoever is sent from node to node more often lets its caller try again.
const MOVES: u32 = 4;
/// The token of a volume that is there: a node that has it not makes none with it. An empty one is none.
pub(super) const HELD: &str = "held";

/// What a node says when it is asked for a volume.
#[derive(Debug)]
pub(super) enum Holds {
    Answer(Found),
    /// It did not say.
    Unknown(Status),
}

/// How an attempt to reserve a name ended.
enum Reservation {
    /// It is reserved with this token.
    Token(String),
    /// The volume is there.
    Held,
}

/// What a controller does that has reserved a name on one node and looked at the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision<K> {
    /// The volume is there: leave it there.
    Elsewhere(K),
    /// Another controller is about to make it there, and comes first.
    Follow(K),
    /// The volume is made once these reservations are taken back.
    Make(Vec<K>),
}

/// The rule that every controller computes. Of the nodes that have told, by their keys.
pub(super) fn decide<K: Ord + Clone>(own: &K, others: &[(K, Found)]) -> Decision<K> {
    let with = |wanted| others.iter().filter(move |(_, found)| *found == wanted).map(|(key, _)| key);
    if let Some(key) = with(Found::Held).min() {
        return Decision::Elsewhere(key.clone());
    }
    match with(Found::Reserved).min() {
        Some(key) if key < own => Decision::Follow(key.clone()),
        _ => Decision::Make(with(Found::Reserved).cloned().collect()),
    }
}

/// How one try ended.
enum Attempt {
    /// The volume may be made here, with this token.
    May(String),
    /// It is to be made, or is, on this node.
    Instead(Arc<Member>),
}

/// The candidates for one volume, and which of them did not answer at first.
pub(super) struct Round<'a> {
    pub(super) router: &'a Router,
    pub(super) envelope: &'a Envelope,
    pub(super) name: &'a str,
    pub(super) nodes: &'a [Arc<Member>],
    /// Nodes that could not say at first whether they have it.
    pub(super) silent: Vec<String>,
}

impl Router {
    /// Asks every node at once whether it has the volume with this name.
    pub(super) async fn look(
        &self,
        envelope: &Envelope,
        nodes: Vec<Arc<Member>>,
        name: &str,
    ) -> Vec<(Arc<Member>, Holds)> {
        let ask = |member: Arc<Member>| {
            let volume_id = id_on(&member, name);
            async move {
                let holds = self.find_on(&member, envelope, volume_id).await;
                (member, holds)
            }
        };
        ask_each(nodes, ask).await
    }

    async fn find_on(&self, member: &Member, envelope: &Envelope, volume_id: String) -> Holds {
        let question = peer::FindVolumeRequest { volume_id };
        let bytes = table::encode(&question);
        match self.ask::<peer::FindVolumeRequest>(member, envelope, bytes, QUESTION).await {
            Ok(answer) => Holds::Answer(reserve::decode(answer.presence())),
            Err(status) => Holds::Unknown(status),
        }
    }
}

impl Round<'_> {
    /// Makes sure that the volume is made on one node only: on this one, or where another controller is making it.
    ///
    /// # Errors
    /// UNAVAILABLE, with its name, for a node that has to be asked and cannot be any more; ABORTED where other
    /// controllers are at it.
    pub(super) async fn settle(&self, member: &Arc<Member>) -> Result<(Arc<Member>, String), Status> {
        let mut member = Arc::clone(member);
        for _ in 0..MOVES {
            match self.attempt(&member).await? {
                Attempt::May(token) => return Ok((member, token)),
                Attempt::Instead(other) => member = other,
            }
        }
        let what = Subject::Name(self.name.to_owned());
        Err(Error::Busy(Busy { what, why: Some("by other controllers".to_owned()) }).into())
    }

    /// Reserves and looks. Tells with what the volume may be made here, or where to go instead.
    async fn attempt(&self, member: &Arc<Member>) -> Result<Attempt, Status> {
        let token = match self.reserve(member).await? {
            Reservation::Held => return Ok(Attempt::May(HELD.to_owned())),
            Reservation::Token(token) => token,
        };
        let others: Vec<Arc<Member>> =
            self.nodes.iter().filter(|node| node.node_id != member.node_id).cloned().collect();
        let mut told = Vec::new();
        for (node, holds) in self.router.look(self.envelope, others, self.name).await {
            match holds {
                Holds::Answer(found) => told.push((Key::of(node), found)),
                // It did not answer at first either: as long as it is down, the first choice is tried nevertheless.
                Holds::Unknown(_) if self.silent.contains(&node.node_id) => {}
                Holds::Unknown(status) => {
                    self.release(member).await;
                    return Err(status);
                }
            }
        }
        match decide(&Key::of(Arc::clone(member)), &told) {
            Decision::Elsewhere(other) | Decision::Follow(other) => {
                self.release(member).await;
                Ok(Attempt::Instead(other.member))
            }
            Decision::Make(others) => {
                for other in others {
                    if self.take_back(&other.member).await? == Found::Held {
                        self.release(member).await;
                        return Ok(Attempt::Instead(other.member));
                    }
                }
                Ok(Attempt::May(token))
            }
        }
    }

    async fn reserve(&self, member: &Member) -> Result<Reservation, Status> {
        let request = peer::ReserveNameRequest { volume_id: id_on(member, self.name) };
        let envelope = self.envelope.within(QUESTION);
        match self.router.call(member, &envelope, request).await {
            Ok(answer) => Ok(match reserve::decode_reserved(answer) {
                Reserved::Token(token) => Reservation::Token(token),
                Reserved::Held => Reservation::Held,
            }),
            // The caller has more time than the node took for nothing.
            Err(status) if status.code() == Code::DeadlineExceeded => Err(late(member)),
            Err(status) => Err(status),
        }
    }

    /// Takes the reservation of another controller back.
    async fn take_back(&self, member: &Member) -> Result<Found, Status> {
        let request = peer::ReleaseNameRequest { volume_id: id_on(member, self.name) };
        let answer = self.router.call(member, &self.envelope.within(QUESTION), request).await;
        let found = answer.map(|answer| reserve::decode(answer.presence()));
        found.map_err(|status| if status.code() == Code::DeadlineExceeded { late(member) } else { status })
    }

    /// Gives way. Where it cannot be said, the reservation ends by itself.
    async fn release(&self, member: &Member) {
        let _ = self.take_back(member).await;
    }
}

/// A node in the order that all controllers have.
#[derive(Debug, Clone)]
struct Key {
    key: String,
    member: Arc<Member>,
}

impl Key {
    fn of(member: Arc<Member>) -> Self {
        Key { key: NodeKey::of(&member.node_id).to_string(), member }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

fn late(member: &Member) -> Status {
    let seconds = QUESTION.as_secs();
    let node_id = &member.node_id;
    Error::Unavailable(format!("node {node_id:?} did not answer within {seconds} s; try again")).into()
}

fn id_on(member: &Member, name: &str) -> String {
    VolumeId::of_name(&NodeKey::of(&member.node_id), name).to_string()
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(node_id: &str) -> Key {
        Key::of(Arc::new(Member { node_id: node_id.to_owned(), address: None }))
    }

    #[test]
    fn a_found_volume_decides_before_the_order() {
        use Found::{Held, Nothing, Reserved};
        assert_eq!(decide(&2, &[(3, Nothing)]), Decision::Make(vec![]));
        assert_eq!(decide(&2, &[(3, Reserved), (4, Reserved)]), Decision::Make(vec![3, 4]));
        assert_eq!(decide(&2, &[(2, Reserved)]), Decision::Make(vec![2]), "its own is not before it");
        assert_eq!(decide(&2, &[(3, Reserved), (1, Reserved)]), Decision::Follow(1));
        assert_eq!(decide(&2, &[(1, Reserved), (9, Held), (8, Held)]), Decision::Elsewhere(8));
    }

    #[test]
    fn nodes_are_in_the_order_of_their_keys_everywhere() {
        let mut keys = ["a", "b", "c"].map(key);
        keys.sort();
        let [first, own, last] = &keys;
        assert!(first.key < own.key && own.key < last.key);
        let reserved = |key: &Key| [(key.clone(), Found::Reserved)];
        assert!(matches!(decide(own, &reserved(first)), Decision::Follow(found) if found == *first));
        assert!(matches!(decide(own, &reserved(last)), Decision::Make(found) if found == [last.clone()]));
    }
}
