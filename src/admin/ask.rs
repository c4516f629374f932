//! Requests for moves: which VolumeMove has to be created, followed or deleted for a claim. And how that is done.

use super::Session;
use super::api::{Failure, permitted};
use super::follow::{AS_BEFORE, Ending, Follow, Goal};
use super::seen::{Move, Name, Replica};
use crate::cluster::moves::resources::{Target, VolumeMoveSpec, When};

/// How often the VolumeMoves are read again that another client has changed meanwhile.
const TRIES: usize = 8;

/// A move that a user asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Wish {
    /// The same for each claim. The name of the claim is empty.
    pub(super) spec: VolumeMoveSpec,
    /// The node that is being emptied: a claim that goes elsewhere already stays on its way.
    pub(super) away_from: Option<String>,
    /// The volume stays on its node, in the pool of the target.
    pub(super) in_place: bool,
}

/// What is to be done for a claim before its move is followed.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// This VolumeMove asks for it already.
    Follow(Move),
    /// Create a VolumeMove, after this one is deleted.
    Create {
        name: String,
        spec: VolumeMoveSpec,
        instead_of: Option<Move>,
    },
    End(Ending),
}

impl Wish {
    /// Returns what is to be done for a claim. `moves` are all VolumeMoves of its namespace, `node` has its volume.
    pub(super) fn plan(&self, claim: &Name, moves: &[Move], node: Option<&str>) -> Plan {
        let mut spec = VolumeMoveSpec { claim_name: claim.name.clone(), ..self.spec.clone() };
        if self.in_place {
            let Some(node) = node else {
                return Plan::End(Ending::Refused(
                    "its PersistentVolume names no node, or you may not read it; name the node with --to"
                        .to_owned(),
                ));
            };
            spec.target.node = Some(node.to_owned());
        }
        if let Some(asked) = under_way(claim, moves).next() {
            return match asked.spec.as_ref().is_some_and(|asked| self.is_met_by(asked, &spec)) {
                true => Plan::Follow(asked.clone()),
                false => Plan::End(Ending::Refused(format!(
                    "VolumeMove {} asks for another move already{}, and cannot change: wait for its end, or give it up with \
                     --cancel and run the command again",
                    asked.name,
                    asked.spec.as_ref().map(described).unwrap_or_default()
                ))),
            };
        }
        // The controller knows in which pool it is.
        let to = spec.target.node.as_deref().filter(|to| node == Some(to));
        if let Some(to) = to.filter(|_| spec.target.pool.is_none()) {
            return Plan::End(Ending::Done(format!("the volume is on node {to} already")));
        }
        let named = |name: &str| moves.iter().find(|asked| asked.name == name);
        let is_free = |name: &String| {
            named(name).is_none_or(|there| there.claim == *claim && there.is_over() && !there.being_deleted)
        };
        let others = (2..).map(|number: u64| format!("{}-{number}", claim.name));
        let mut names = std::iter::once(claim.name.clone()).chain(others);
        let name = names.find(is_free).unwrap_or_default();
        let instead_of = named(&name).cloned();
        let refused = instead_of.as_ref().filter(|old| old.told.is(&["Refused"]) && self.away_from.is_some());
        let spec = match refused.and_then(|old| old.spec.as_ref()) {
            // Its owner has said more than a command for a whole node does.
            Some(VolumeMoveSpec { keep_source, evict_bare_pods, .. }) => {
                VolumeMoveSpec { keep_source: *keep_source, evict_bare_pods: *evict_bare_pods, ..spec }
            }
            None => spec,
        };
        Plan::Create { name, spec, instead_of }
    }

    fn is_met_by(&self, asked: &VolumeMoveSpec, wanted: &VolumeMoveSpec) -> bool {
        let Some(from) = &self.away_from else { return asked == wanted };
        let leaves = match &wanted.target.node {
            Some(to) if to == from => {
                asked.target == wanted.target || asked.target.node.as_ref() != Some(from)
            }
            Some(to) => asked.target.node.as_ref() == Some(to),
            None => asked.target.node.as_ref() != Some(from),
        };
        leaves && (wanted.when == When::PodsLeave || asked.when == When::Now)
    }
}

/// Returns the VolumeMoves of a claim that are not at their end.
fn under_way<'a>(claim: &'a Name, moves: &'a [Move]) -> impl Iterator<Item = &'a Move> {
    moves.iter().filter(move |asked| asked.claim == *claim && !asked.is_over() && !asked.being_deleted)
}

/// Returns what a VolumeMove asks for, in parentheses.
fn described(spec: &VolumeMoveSpec) -> String {
    let Target { node, pool, storage_class } = &spec.target;
    let to = node.as_ref().map_or_else(|| "to any node".to_owned(), |node| format!("to node {node}"));
    let pool = pool.as_ref().map(|pool| format!(", pool {pool}")).unwrap_or_default();
    let class =
        storage_class.as_ref().map(|class| format!(", with StorageClass {class}")).unwrap_or_default();
    let when = match spec.when {
        When::PodsLeave => "when its pods leave",
        When::Now => "now",
        When::Unknown => "at a time that this release does not know",
    };
    let keeps = if spec.keep_source { ", keeping the source" } else { "" };
    let bare = if spec.evict_bare_pods { ", evicting bare pods" } else { "" };
    format!(" ({to}{pool}{class}, {when}{keeps}{bare})")
}

impl Session {
    /// Asks for a move, and returns what is to be followed.
    pub(super) async fn ask(&mut self, claim: Name, wish: &Wish) -> Result<Follow, Failure> {
        for _ in 0..TRIES {
            let moves = self.cluster.moves(Some(&claim.namespace)).await?;
            // Without the right to read claims, the controller says whether there is one.
            let found = permitted(self.cluster.claim(&claim).await)?;
            let plan = match &found {
                Some(None) => Plan::End(Ending::Gone),
                Some(Some(found)) => wish.plan(&claim, &moves, found.node.as_deref()),
                None => wish.plan(&claim, &moves, None),
            };
            let (name, spec, instead_of) = match plan {
                Plan::Follow(asked) => return Ok(Follow::of_move(&asked)),
                Plan::End(ending) => return Ok(self.ended(claim, Goal::Moved, ending)),
                Plan::Create { name, spec, instead_of } => (name, spec, instead_of),
            };
            if let Some(old) = instead_of
                && !self.cluster.delete_move(&old, true).await?
            {
                continue;
            }
            if let Some(created) = self.cluster.create_move(&claim.namespace, &name, &spec).await? {
                return Ok(Follow::of_move(&created));
            }
        }
        Err(Failure::Outdated)
    }

    /// Deletes the VolumeMoves of a claim, and returns what is to be followed.
    pub(super) async fn cancel(&mut self, claim: Name, driver: &str) -> Result<Follow, Failure> {
        let moves = self.cluster.moves(Some(&claim.namespace)).await?;
        let asked: Vec<&Move> =
            moves.iter().filter(|asked| asked.claim == claim && !asked.told.is(&["Done"])).collect();
        for asked in &asked {
            self.cluster.delete_move(asked, false).await?;
        }
        let end = |how: &str| Ending::GivenUp(how.to_owned());
        let nothing = if asked.is_empty() { "no move is under way" } else { AS_BEFORE };
        let Some(replicas) = permitted(self.cluster.replicas(driver).await)? else {
            let how = match asked.iter().any(|asked| asked.told.is(&["CuttingOver"])) {
                true => "if it was not too late: you may not read the VolumeReplica, which says that",
                false if asked.is_empty() => nothing,
                false => "the controller deletes the copy",
            };
            return Ok(self.ended(claim, Goal::GivenUp, end(how)));
        };
        // Also one whose VolumeMove was deleted before: its end is waited for as well.
        let is_its = |replica: &&Replica| {
            asked.iter().any(|asked| asked.uid == replica.spec.requested_by.uid)
                || replica.claim == claim && !replica.stands_by() && !replica.told.is(&["Retiring", "Left"])
        };
        match replicas.iter().find(is_its) {
            Some(replica) => Ok(Follow::of_replica(replica, Goal::GivenUp)),
            None => Ok(self.ended(claim, Goal::GivenUp, end(nothing))),
        }
    }

    /// Prints an end that came before the beginning, and returns it.
    pub(super) fn ended(&mut self, claim: Name, goal: Goal, ending: Ending) -> Follow {
        let follow = Follow::ended(claim, goal, ending);
        self.screen.ended(&follow);
        follow
    }
}
