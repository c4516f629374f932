//! Limits on work that may take long: how much at a time, and how much for one caller, so that a node's own short calls
//! always find a thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::driver::locks::guarded::Guarded;
use crate::error::{Error, Result};
use crate::model::{Limits, SnapshotId};

/// The caller of copies within this node.
const OWN: &str = "";

/// How urgent a copy from or to another node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nobody waits for it, or its caller can wait.
    Usual,
    /// It is the last pass over a sealed volume. Pods wait for it.
    LastPass,
}

/// The turns of one kind of work. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: usize,
    each: usize,
    taken: Guarded<Taken>,
    refused: AtomicU64,
}

/// How many turns each caller has. Callers without a turn are left out.
#[derive(Debug, Default)]
struct Taken {
    usual: HashMap<String, usize>,
    /// Those that are kept for last passes, by the key of the other node.
    kept: HashMap<String, usize>,
}

impl Taken {
    fn of(&mut self, kind: Kind) -> &mut HashMap<String, usize> {
        match kind {
            Kind::Usual => &mut self.usual,
            Kind::Kept => &mut self.kept,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Usual,
    Kept,
}

/// One turn, which is free again with the value.
#[derive(Debug)]
pub struct Turn {
    turns: Turns,
    kind: Kind,
    who: String,
}

/// The turns at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TurnFigures {
    /// How many are taken, those that are kept for last passes included.
    pub running: usize,
    /// How many there are, without those that are kept for last passes.
    pub limit: usize,
    /// How often there was none since the process began.
    pub refused: u64,
}

impl Turns {
    /// So many in all, and for each caller.
    pub(crate) fn new(all: usize, each: usize) -> Self {
        Turns(Arc::new(Inner { all, each, taken: Guarded::default(), refused: AtomicU64::new(0) }))
    }

    /// Returns a turn for this caller, if one is free. A last pass for the node with the key `last_pass` may take one that is kept
    /// for it.
    pub(crate) fn take(&self, who: &str, last_pass: Option<&str>) -> Option<Turn> {
        self.take_if(who, last_pass, |_, own| own < self.0.each)
    }

    /// Returns a turn for a copy from or to the node with this key, if one is free. A node gets at most half
    /// of the turns, and all other nodes together leave one for copies within this node. A last pass may also take one that
    /// is kept for it.
    pub(crate) fn take_for_node(&self, node_key: &str, urgency: Urgency) -> Option<Turn> {
        let all = self.0.all;
        let (each, together) = (all.div_ceil(2), all.saturating_sub(1).max(1));
        let last_pass = (urgency == Urgency::LastPass).then_some(node_key);
        self.take_if(node_key, last_pass, |taken, own| {
            let of_this_node = taken.get(OWN).copied().unwrap_or_default();
            own < each && taken.values().sum::<usize>() - of_this_node < together
        })
    }

    /// Returns a turn for this caller, if one is free and `may_have` allows it. Its arguments are the taken
    /// turns by caller, and the number of this caller's. Otherwise a last pass gets the turn that is kept for its node.
    fn take_if(
        &self,
        who: &str,
        last_pass: Option<&str>,
        may_have: impl FnOnce(&HashMap<String, usize>, usize) -> bool,
    ) -> Option<Turn> {
        let mut taken = self.0.taken.lock();
        let Taken { usual, kept } = &*taken;
        let own = usual.get(who).copied().unwrap_or_default();
        let is_free = count(usual) < self.0.all && may_have(usual, own);
        let is_kept = |node: &&str| count(kept) < Limits::LAST_PASSES && !kept.contains_key(*node);
        let (kind, who) = match (is_free, last_pass.filter(is_kept)) {
            (true, _) => (Kind::Usual, who),
            (false, Some(node_key)) => (Kind::Kept, node_key),
            (false, None) => {
                self.0.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        };
        *taken.of(kind).entry(who.to_owned()).or_default() += 1;
        drop(taken);
        Some(Turn { turns: self.clone(), kind, who: who.to_owned() })
    }

    pub(crate) fn figures(&self) -> TurnFigures {
        let taken = self.0.taken.lock();
        let running = count(&taken.usual) + count(&taken.kept);
        drop(taken);
        TurnFigures { running, limit: self.0.all, refused: self.0.refused.load(Ordering::Relaxed) }
    }
}

fn count(taken: &HashMap<String, usize>) -> usize {
    taken.values().sum()
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.turns.0.taken.lock();
        let taken = taken.of(self.kind);
        match taken.get_mut(&self.who) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.remove(&self.who);
            }
        }
    }
}

/// Bytes in a second, together for all who spend them. Each waits for what the others before it spent; last passes overtake them.
#[derive(Debug)]
pub(crate) struct Rate {
    /// `None` for no limit.
    bytes_per_second: Option<u64>,
    paid: Guarded<Paid>,
}

/// When the bytes are paid for that were spent so far,
#[derive(Debug)]
struct Paid {
    all: Instant,
    /// and those of last passes, if these have half of the rate.
    last_passes: Instant,
}

impl Rate {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        let now = Instant::now();
        Rate { bytes_per_second, paid: Guarded::new(Paid { all: now, last_passes: now }) }
    }

    /// Spends so many bytes: waits until those before them are paid for.
    pub(crate) fn spend(&self, bytes: u64, urgency: Urgency) {
        let wait = self.book(bytes, urgency, Instant::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    /// Returns how long the caller has to wait. However many streams there are, last passes together have at least half of the
    /// rate, and without others all of it.
    fn book(&self, bytes: u64, urgency: Urgency, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let cost = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        let mut paid = self.paid.lock();
        let all = paid.all.max(now);
        paid.all = all + cost;
        if urgency == Urgency::Usual {
            return all - now;
        }
        let from = paid.last_passes.max(now).min(all);
        paid.last_passes = from + 2 * cost;
        from - now
    }
}

impl Driver {
    /// A turn for a copy, to be kept until it has ended.
    ///
    /// # Errors
    /// [`Error::Crowded`] where there is none: nothing has begun then.
    pub(crate) fn copy_turn(&self) -> Result<Turn> {
        self.copy_turns.take(OWN, None).ok_or_else(|| {
            let limit = self.copy_turns.figures().limit;
            Error::Crowded(format!("{limit} copies run on this node (--max-copies); try again"))
        })
    }

    /// Returns a turn for a copy from or to the node with this key. The caller keeps it until the copy has
    /// ended.
    ///
    /// # Errors
    /// [`Error::Crowded`] if no turn is free, or if that node has its share.
    pub(crate) fn copy_turn_for(&self, node_key: &str, urgency: Urgency) -> Result<Turn> {
        self.copy_turns.take_for_node(node_key, urgency).ok_or_else(|| {
            let TurnFigures { running, limit, .. } = self.copy_turns.figures();
            Error::Crowded(format!(
                "{running} of {limit} copies run on this node (--max-copies), and copies with one other node get at most half \
                 of them; try again"
            ))
        })
    }

    /// Returns a turn for a stream to this caller, which may read a source for another node. The caller keeps it until the
    /// stream has ended.
    ///
    /// # Errors
    /// [`Error::Crowded`] if no turn is free.
    pub fn stream_turn(&self, who: &str, reads: Option<&SnapshotId>) -> Result<Turn> {
        let cut = reads.and_then(|id| self.store.snapshot(id));
        let last_pass = cut.as_ref().filter(|cut| self.urgency_of(cut) == Urgency::LastPass);
        let node_key = last_pass.and_then(|cut| cut.pulled_for.as_ref()).map(|copy| copy.node_key());
        self.stream_turns.take(who, node_key).ok_or_else(|| {
            let TurnFigures { running, limit, .. } = self.stream_turns.figures();
            Error::Crowded(format!(
                "{running} of {limit} streams run on this node (--max-streams), and one caller gets at most half of them; try again"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_limited_and_no_caller_has_all() {
        let turns = Turns::new(3, 2);
        let (one, two) = (turns.take("a", None), turns.take("a", None));
        assert!(one.is_some() && two.is_some() && turns.take("a", None).is_none(), "its share");
        let other = turns.take("b", None);
        assert!(other.is_some() && turns.take("c", None).is_none(), "all of them");
        assert_eq!(turns.figures(), TurnFigures { running: 3, limit: 3, refused: 2 });
        drop((one, other));
        assert!(turns.take("c", None).is_some());
        drop(two);
        assert_eq!(turns.figures().running, 0);
    }

    #[test]
    fn nodes_leave_turns_for_each_other() {
        for (all, each, together) in [(1, 1, 1), (2, 1, 1), (5, 3, 4), (16, 8, 15)] {
            let turns = Turns::new(all, all);
            let take = |node: &str| {
                std::iter::from_fn(|| turns.take_for_node(node, Urgency::Usual)).collect::<Vec<_>>()
            };
            let one = take("a");
            assert_eq!(one.len(), each, "{all}");
            let other = take("b");
            assert_eq!(one.len() + other.len(), together, "{all}");
            let of_this_node = || std::iter::from_fn(|| turns.take(OWN, None)).collect::<Vec<_>>();
            let own = of_this_node();
            assert_eq!(own.len(), usize::from(all > together), "{all}");
            drop((one, own));
            let own = of_this_node();
            assert_eq!(own.len(), all - other.len(), "{all}: its own work may take all that is free");
        }
    }

    #[test]
    fn last_passes_have_turns_when_all_are_taken() {
        let turns = Turns::new(2, 2);
        let own: Vec<_> = std::iter::from_fn(|| turns.take(OWN, None)).collect();
        let take = |node: &str| turns.take_for_node(node, Urgency::LastPass);
        let one = take("a");
        assert!(one.is_some() && take("a").is_none(), "one for each node");
        assert!(turns.take_for_node("b", Urgency::Usual).is_none(), "not for others");
        let others: Vec<_> = (0..10).filter_map(|n| take(&n.to_string())).collect();
        assert_eq!(others.len(), Limits::LAST_PASSES - 1, "whoever asks for them");
        assert_eq!(turns.figures().running, 2 + Limits::LAST_PASSES);
        drop(one);
        assert!(turns.take("caller", Some("a")).is_some(), "of a stream");
        drop((own, others));
        let usual: Vec<_> = std::iter::from_fn(|| turns.take("b", Some("b"))).collect();
        assert_eq!(usual.len(), 2 + 1, "one that is kept is taken last");
        drop(usual);
        assert_eq!(turns.figures().running, 0);
    }

    #[test]
    fn last_passes_have_half_of_the_rate() {
        let (rate, start) = (Rate::new(Some(1000)), Instant::now() + Duration::from_secs(1));
        let book = |urgency, now| rate.book(1000, urgency, now).as_secs();
        for second in 0..5 {
            let now = start + Duration::from_secs(second);
            assert_eq!(book(Urgency::LastPass, now), 0, "alone it has all of it");
        }
        let now = start + Duration::from_secs(5);
        let usual: Vec<_> = (0..8).map(|_| book(Urgency::Usual, now)).collect();
        assert_eq!(usual, [0, 1, 2, 3, 4, 5, 6, 7]);
        let last: Vec<_> = (0..3).map(|_| book(Urgency::LastPass, now)).collect();
        assert_eq!(last, [1, 3, 5], "after its own bytes only");
        assert_eq!(book(Urgency::Usual, now), 11, "all of them are paid for");
    }

    #[test]
    fn spent_bytes_have_to_be_paid_for() {
        let (rate, now) = (Rate::new(Some(1000)), Instant::now() + Duration::from_secs(1));
        assert_eq!(rate.book(500, Urgency::Usual, now), Duration::ZERO);
        assert_eq!(rate.book(500, Urgency::Usual, now), Duration::from_millis(500));
        assert_eq!(
            rate.book(1, Urgency::Usual, now + Duration::from_secs(5)),
            Duration::ZERO,
            "nothing is owed any more"
        );
        assert_eq!(Rate::new(None).book(u64::MAX, Urgency::Usual, now), Duration::ZERO);
    }
    #[test]
    fn whoever_spends_waits_for_those_before_it() {
        let (rate, began) = (Rate::new(Some(1000)), Instant::now());
        rate.spend(50, Urgency::Usual);
        rate.spend(0, Urgency::Usual);
        assert!(began.elapsed() >= Duration::from_millis(50));
    }
    #[test]
    fn whoever_has_no_turn_any_more_is_forgotten() {
        let turns = Turns::new(3, 3);
        let mut held = vec![turns.take("a", None), turns.take("a", None), turns.take("a", None)];
        for left in [2, 1, 0] {
            held.truncate(left);
            assert_eq!(turns.figures().running, left);
        }
        assert!(turns.0.taken.lock().usual.is_empty());
    }
}
