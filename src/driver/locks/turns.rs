//! Limits on work that may take long: how much at a time, and how much for one caller, so that a node's own short calls
//! always find a thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::driver::locks::guarded::Guarded;
use crate::error::{Error, Result};

/// The caller of copies within this node.
const OWN: &str = "";

/// The turns of one kind of work. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: usize,
    each: usize,
    /// How many each caller has, those with none left out.
    taken: Guarded<HashMap<String, usize>>,
    refused: AtomicU64,
}

/// One turn, which is free again with the value.
#[derive(Debug)]
pub struct Turn {
    turns: Turns,
    who: String,
}

/// The turns at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TurnFigures {
    /// How many are taken.
    pub running: usize,
    /// How many there are.
    pub limit: usize,
    /// How often there was none since the process began.
    pub refused: u64,
}

impl Turns {
    /// So many in all, and for each caller.
    pub(crate) fn new(all: usize, each: usize) -> Self {
        Turns(Arc::new(Inner { all, each, taken: Guarded::default(), refused: AtomicU64::new(0) }))
    }

    /// A turn for this caller, if there is one.
    pub(crate) fn take(&self, who: &str) -> Option<Turn> {
        self.take_if(who, |_, own| own < self.0.each)
    }

    /// Returns a turn for a copy from or to the node with this key, if one is free. A node gets at most half
    /// of the turns, and all other nodes together leave one for copies within this node.
    pub(crate) fn take_for_node(&self, node_key: &str) -> Option<Turn> {
        let all = self.0.all;
        let (each, together) = (all.div_ceil(2), all.saturating_sub(1).max(1));
        self.take_if(node_key, |taken, own| {
            let of_this_node = taken.get(OWN).copied().unwrap_or_default();
            own < each && taken.values().sum::<usize>() - of_this_node < together
        })
    }

    /// Returns a turn for this caller, if one is free and `may_have` allows it. Its arguments are the taken
    /// turns by caller, and the number of this caller's.
    fn take_if(
        &self,
        who: &str,
        may_have: impl FnOnce(&HashMap<String, usize>, usize) -> bool,
    ) -> Option<Turn> {
        let mut taken = self.0.taken.lock();
        let (all, own) = (taken.values().sum::<usize>(), taken.get(who).copied().unwrap_or_default());
        if all >= self.0.all || !may_have(&taken, own) {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        taken.insert(who.to_owned(), own + 1);
        drop(taken);
        Some(Turn { turns: self.clone(), who: who.to_owned() })
    }

    pub(crate) fn figures(&self) -> TurnFigures {
        let running = self.0.taken.lock().values().sum();
        TurnFigures { running, limit: self.0.all, refused: self.0.refused.load(Ordering::Relaxed) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.turns.0.taken.lock();
        match taken.get_mut(&self.who) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.remove(&self.who);
            }
        }
    }
}

/// Bytes in a second, together for all who spend them; each waits for what the others before it spent.
#[derive(Debug)]
pub(crate) struct Rate {
    /// `None` for no limit.
    bytes_per_second: Option<u64>,
    /// When the bytes are paid for that were spent so far.
    paid: Guarded<Instant>,
}

impl Rate {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Rate { bytes_per_second, paid: Guarded::new(Instant::now()) }
    }

    /// Spends so many bytes: waits until those before them are paid for.
    pub(crate) fn spend(&self, bytes: u64) {
        let wait = self.book(bytes, Instant::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    fn book(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let cost = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        let mut paid = self.paid.lock();
        let from = (*paid).max(now);
        *paid = from + cost;
        from - now
    }
}

impl Driver {
    /// A turn for a copy, to be kept until it has ended.
    ///
    /// # Errors
    /// [`Error::Crowded`] where there is none: nothing has begun then.
    pub(crate) fn copy_turn(&self) -> Result<Turn> {
        self.copy_turns.take(OWN).ok_or_else(|| {
            let limit = self.copy_turns.figures().limit;
            Error::Crowded(format!("{limit} copies run on this node (--max-copies); try again"))
        })
    }

    /// Returns a turn for a copy from or to the node with this key. The caller keeps it until the copy has
    /// ended.
    ///
    /// # Errors
    /// [`Error::Crowded`] if no turn is free, or if that node has its share.
    pub(crate) fn copy_turn_for(&self, node_key: &str) -> Result<Turn> {
        self.copy_turns.take_for_node(node_key).ok_or_else(|| {
            let TurnFigures { running, limit, .. } = self.copy_turns.figures();
            Error::Crowded(format!(
                "{running} of {limit} copies run on this node (--max-copies), and copies with one other node get at most half \
                 of them; try again"
            ))
        })
    }

    /// A turn for a stream to this caller, to be kept until it has ended.
    ///
    /// # Errors
    /// [`Error::Crowded`] where there is none.
    pub fn stream_turn(&self, who: &str) -> Result<Turn> {
        self.stream_turns.take(who).ok_or_else(|| {
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
        let (one, two) = (turns.take("a"), turns.take("a"));
        assert!(one.is_some() && two.is_some() && turns.take("a").is_none(), "its share");
        let other = turns.take("b");
        assert!(other.is_some() && turns.take("c").is_none(), "all of them");
        assert_eq!(turns.figures(), TurnFigures { running: 3, limit: 3, refused: 2 });
        drop((one, other));
        assert!(turns.take("c").is_some());
        drop(two);
        assert_eq!(turns.figures().running, 0);
    }

    #[test]
    fn nodes_leave_turns_for_each_other() {
        for (all, each, together) in [(1, 1, 1), (2, 1, 1), (5, 3, 4), (16, 8, 15)] {
            let turns = Turns::new(all, all);
            let take = |node: &str| std::iter::from_fn(|| turns.take_for_node(node)).collect::<Vec<_>>();
            let one = take("a");
            assert_eq!(one.len(), each, "{all}");
            let other = take("b");
            assert_eq!(one.len() + other.len(), together, "{all}");
            let of_this_node = || std::iter::from_fn(|| turns.take(OWN)).collect::<Vec<_>>();
            let own = of_this_node();
            assert_eq!(own.len(), usize::from(all > together), "{all}");
            drop((one, own));
            let own = of_this_node();
            assert_eq!(own.len(), all - other.len(), "{all}: its own work may take all that is free");
        }
    }

    #[test]
    fn spent_bytes_have_to_be_paid_for() {
        let (rate, now) = (Rate::new(Some(1000)), Instant::now() + Duration::from_secs(1));
        assert_eq!(rate.book(500, now), Duration::ZERO);
        assert_eq!(rate.book(500, now), Duration::from_millis(500));
        assert_eq!(rate.book(1, now + Duration::from_secs(5)), Duration::ZERO, "nothing is owed any more");
        assert_eq!(Rate::new(None).book(u64::MAX, now), Duration::ZERO);
    }
    #[test]
    fn whoever_spends_waits_for_those_before_it() {
        let (rate, began) = (Rate::new(Some(1000)), Instant::now());
        rate.spend(50);
        rate.spend(0);
        assert!(began.elapsed() >= Duration::from_millis(50));
    }
    #[test]
    fn whoever_has_no_turn_any_more_is_forgotten() {
        let turns = Turns::new(3, 3);
        let mut held = vec![turns.take("a"), turns.take("a"), turns.take("a")];
        for left in [2, 1, 0] {
            held.truncate(left);
            assert_eq!(turns.figures().running, left);
        }
        assert!(turns.0.taken.lock().is_empty());
    }
}
