//! Which notices are due. A look finds the same things again and again; an Event is written when something begins, and now and then
//! while it lasts, because Kubernetes forgets Events after an hour.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::wrong::{Notice, Rank};
use crate::model::Claim;

/// What lasts is said again after so long.
const LASTING: Duration = Duration::from_secs(30 * 60);
/// What comes and goes is said again after so long.
const FLAPPING: Duration = Duration::from_secs(5 * 60);
/// Events of one look at most, in the whole cluster. The others wait for the next one: a pool that is gone concerns all its volumes.
pub(super) const MOST: usize = 20;
/// The reason of an Event of a volume that is as it should be again.
const HEALTHY: &str = "VolumeHealthy";

/// A claim, as a node has it, and a reason.
type Key = (String, String, String, String);

/// What was said.
#[derive(Default)]
pub(super) struct Said(HashMap<Key, Entry>);

struct Entry {
    node: String,
    at: Instant,
    /// The last look has found it.
    lasts: bool,
    /// An earlier look has found it, and the last one has not.
    ended: bool,
}

fn key(claim: &Claim, reason: &str) -> Key {
    let Claim { namespace, name, persistent_volume } = claim;
    (namespace.clone(), name.clone(), persistent_volume.clone(), reason.to_owned())
}

fn is_of(key: &Key, claim: &Claim) -> bool {
    (&key.0, &key.1, &key.2) == (&claim.namespace, &claim.name, &claim.persistent_volume)
}

impl Said {
    /// Returns what is to be said now, the worst first, and how much has to wait. `answered` are the nodes that said something:
    /// what another one has said does not change. `healthy` are the claims of which nothing is wrong.
    pub(super) fn due<'a>(
        &mut self,
        wrong: Vec<Notice>,
        answered: &HashSet<String>,
        healthy: impl Iterator<Item = (&'a str, &'a Claim)>,
        now: Instant,
    ) -> (Vec<Notice>, usize) {
        let found: HashSet<Key> = wrong.iter().map(|notice| key(&notice.claim, &notice.reason)).collect();
        for (key, entry) in self.0.iter_mut().filter(|(_, entry)| answered.contains(&entry.node)) {
            (entry.lasts, entry.ended) =
                (found.contains(key), entry.ended || entry.lasts && !found.contains(key));
        }
        let right: Vec<Notice> = healthy.filter_map(|(node, claim)| self.right(node, claim)).collect();
        self.0.retain(|_, entry| {
            entry.lasts && answered.contains(&entry.node) || now.duration_since(entry.at) < LASTING
        });
        let mut due: Vec<Notice> =
            wrong.into_iter().chain(right).filter(|notice| self.is_due(notice, now)).collect();
        // What was never said comes before what was said long ago: otherwise the claims of the last namespaces never have their turn.
        due.sort_by_cached_key(|notice| {
            let key = key(&notice.claim, &notice.reason);
            (Reverse(notice.rank), self.0.get(&key).map(|entry| entry.at), key)
        });
        let waiting = due.len().saturating_sub(MOST);
        due.truncate(MOST);
        (due, waiting)
    }

    /// Returns that a volume is as it should be again, if something else was said before.
    fn right(&self, node: &str, claim: &Claim) -> Option<Notice> {
        let is_its =
            |key: &Key, entry: &Entry| is_of(key, claim) && key.3 != HEALTHY && entry.ended && !entry.lasts;
        self.0.iter().any(|(key, entry)| is_its(key, entry)).then(|| Notice {
            claim: claim.clone(),
            node: node.to_owned(),
            rank: Rank::Right,
            reason: HEALTHY.to_owned(),
            message: format!("the volume on node {node} is as it should be again"),
        })
    }

    fn is_due(&self, notice: &Notice, now: Instant) -> bool {
        let Some(entry) = self.0.get(&key(&notice.claim, &notice.reason)) else { return true };
        let wait = if entry.ended || notice.rank == Rank::Right { FLAPPING } else { LASTING };
        now.duration_since(entry.at) >= wait
    }

    /// Remembers that it was said.
    pub(super) fn said(&mut self, notice: &Notice, now: Instant) {
        let lasts = notice.rank != Rank::Right;
        if !lasts {
            // It is said once of what has ended.
            self.0
                .iter_mut()
                .filter(|(key, _)| is_of(key, &notice.claim))
                .for_each(|(_, entry)| entry.ended = false);
        }
        let entry = Entry { node: notice.node.clone(), at: now, lasts, ended: false };
        self.0.insert(key(&notice.claim, &notice.reason), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(number: usize) -> Notice {
        let name = format!("data-{number:05}");
        Notice {
            claim: Claim { namespace: "shop".to_owned(), name: name.clone(), persistent_volume: name },
            node: "node-1".to_owned(),
            rank: Rank::Degraded,
            reason: "PoolNearlyFull".to_owned(),
            message: "it is nearly full".to_owned(),
        }
    }

    /// Twenty a look are six hundred in the time after which the first ones are due again.
    #[test]
    fn each_of_a_thousand_claims_has_its_turn() {
        let (mut said, mut now, mut heard) = (Said::default(), Instant::now(), HashSet::new());
        let answered: HashSet<String> = ["node-1".to_owned()].into();
        for _ in 0..50 {
            let wrong: Vec<Notice> = (0..1000).map(notice).collect();
            let (due, _) = said.due(wrong, &answered, std::iter::empty(), now);
            for notice in &due {
                said.said(notice, now);
                heard.insert(notice.claim.name.clone());
            }
            now += Duration::from_secs(60);
        }
        assert_eq!(heard.len(), 1000);
    }
}
