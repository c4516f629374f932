//! Wishes on claims: what has to be written for one, given what is there. And how that is written.

use super::Session;
use super::api::Failure;
use super::follow::{Ending, Follow, Goal};
use super::seen::{Claim, Name, PROMOTE, Seen, is_asked_for};
use crate::cluster::mover::status::{ANY, KEEP_SOURCE, MOVE_BARE_PODS, MOVE_NOW, MOVE_STATUS, MOVE_TO};

/// How often a claim is looked at again that was changed meanwhile.
const TRIES: usize = 8;

/// What is to be done with a claim before it is followed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    /// Annotations to write; `None` removes one.
    pub(super) changes: Vec<(&'static str, Option<String>)>,
    /// How it has ended then; `None` where it is to be followed.
    pub(super) ending: Option<Ending>,
}

impl Plan {
    fn end(ending: Ending) -> Self {
        Plan { changes: Vec::new(), ending: Some(ending) }
    }

    fn write(changes: Vec<(&'static str, Option<String>)>) -> Self {
        Plan { changes, ending: None }
    }
}

/// Something that is asked of the mover.
pub(super) trait Asking {
    fn goal(&self) -> Goal;
    fn plan(&self, seen: &Seen) -> Plan;
}

/// A move to this node. A flag that is `None` stays as it is.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) to: String,
    pub(super) now: Option<bool>,
    pub(super) keep_source: Option<bool>,
    pub(super) bare_pods: Option<bool>,
}

impl Asking for Wish {
    fn goal(&self) -> Goal {
        Goal::Moved(self.to.clone())
    }

    fn plan(&self, seen: &Seen) -> Plan {
        let told = seen.told();
        let under_way = seen.record.is_some() || told.is_some_and(|told| told.is_under_way());
        let last = seen.record.is_some() || told.is_some_and(|told| told.is(&["Rebinding"]));
        if let Some(told) = told.filter(|_| last) {
            // The claim is about to be made again, without what is asked of this one.
            return match is_asked_for(&self.to, &told.target) {
                true => Plan::write(Vec::new()),
                false => Plan::end(Ending::Refused(format!(
                    "it is moving to node {}, and cannot be given up any more; run the command again when that is done",
                    told.target
                ))),
            };
        }
        let Some(claim) = &seen.claim else { return Plan::end(Ending::Gone) };
        if claim.being_deleted && !under_way {
            return Plan::end(Ending::Refused("the claim is being deleted".to_owned()));
        }
        if seen.node.as_deref() == Some(self.to.as_str()) && !under_way {
            let changes = if claim.wanted().is_some() { taken_back(claim) } else { Vec::new() };
            let there = format!("the volume is on node {} already", self.to);
            return Plan { changes, ending: Some(Ending::Done(there)) };
        }
        let truth = |wanted: bool| wanted.then(|| "true".to_owned());
        let mut changes = vec![(MOVE_TO, Some(self.to.clone()))];
        changes.extend(self.now.map(|now| (MOVE_NOW, truth(now))));
        changes.extend(self.keep_source.map(|keep| (KEEP_SOURCE, truth(keep))));
        changes.extend(self.bare_pods.map(|bare| (MOVE_BARE_PODS, truth(bare))));
        changes.retain(|(key, value)| claim.annotations.get(*key) != value.as_ref());
        changes.extend(stale(claim));
        Plan::write(changes)
    }
}

/// No move.
pub(super) struct Cancel;

impl Asking for Cancel {
    fn goal(&self) -> Goal {
        Goal::GivenUp
    }

    fn plan(&self, seen: &Seen) -> Plan {
        let Some(claim) = &seen.claim else {
            return match seen.record {
                Some(_) => Plan::write(Vec::new()),
                None => Plan::end(Ending::Gone),
            };
        };
        let stands_by = seen.told().is_some_and(|told| told.stands_by());
        let moves = !stands_by && (claim.held || seen.told().is_some_and(|told| told.is_under_way()));
        if claim.wanted().is_none() && !moves {
            return Plan::end(Ending::GivenUp("no move was asked for".to_owned()));
        }
        Plan::write(taken_back(claim))
    }
}

/// The copy that stands by.
pub(super) struct Promotion {
    /// The node of the copy.
    pub(super) to: String,
}

impl Asking for Promotion {
    fn goal(&self) -> Goal {
        Goal::Promoted(self.to.clone())
    }

    fn plan(&self, seen: &Seen) -> Plan {
        let asked = seen.claim.as_ref().is_some_and(|claim| claim.annotations.contains_key(PROMOTE));
        if asked || seen.claim.is_none() {
            return Plan::write(Vec::new());
        }
        Plan::write(vec![(PROMOTE, Some("true".to_owned()))])
    }
}

/// What was asked of a claim, and what the mover has answered if nothing came of it.
fn taken_back(claim: &Claim) -> Vec<(&'static str, Option<String>)> {
    let wishes = [MOVE_TO, MOVE_NOW, KEEP_SOURCE, MOVE_BARE_PODS];
    let there = wishes.into_iter().filter(|key| claim.annotations.contains_key(*key));
    let refused = claim.told.as_ref().is_some_and(|told| told.is(&["Refused"])) && !claim.held;
    there.map(|key| (key, None)).chain(refused.then_some((MOVE_STATUS, None))).collect()
}

/// The answer to an earlier wish: without it, the next one is the answer to this one.
fn stale(claim: &Claim) -> Option<(&'static str, Option<String>)> {
    let ended = claim.told.as_ref().is_some_and(|told| told.is(&["Refused", "Done"]));
    (ended && !claim.held).then_some((MOVE_STATUS, None))
}

impl Session {
    /// Asks for something, and returns what is to be followed.
    pub(super) async fn ask(&mut self, name: Name, asking: &impl Asking) -> Result<Follow, Failure> {
        let mut tries = 0;
        loop {
            let seen = self.cluster.look(&name).await?;
            let Plan { changes, ending } = asking.plan(&seen);
            if let (Some(claim), false) = (&seen.claim, changes.is_empty()) {
                let changes: Vec<(&str, Option<&str>)> =
                    changes.iter().map(|(key, value)| (*key, value.as_deref())).collect();
                match self.cluster.annotate(&name, claim, &changes).await {
                    Ok(()) => {}
                    Err(Failure::Outdated) if tries < TRIES => {
                        tries = tries.saturating_add(1);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            let follow = match ending {
                None => return Ok(Follow::new(name, asking.goal())),
                Some(ending) => Follow::ended(name, asking.goal(), ending),
            };
            self.screen.ended(&follow);
            return Ok(follow);
        }
    }
}

/// The node to ask for when a node is emptied: a claim that goes elsewhere already stays on its way.
pub(super) fn away_from(node: &str, to: &str, seen: &Seen) -> String {
    match seen.wanted() {
        Some(wanted) if to == ANY && wanted != node => wanted.to_owned(),
        _ => to.to_owned(),
    }
}
