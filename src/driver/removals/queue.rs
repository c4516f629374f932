//! Which trees wait to be removed, what went wrong with them, and which pools have a thread at work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::model::{PoolName, VolumeId};

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// For so long a removal works, and then rests: neither its processor nor its disk is taken from others for more than half of
/// the time.
const TURN: Duration = Duration::from_millis(20);
/// For so long the end of the process waits for a thread that is in the middle of a call.
const LAST_CALL: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    trees: BTreeMap<VolumeId, Tree>,
    /// Pools with a thread.
    running: BTreeSet<PoolName>,
    stopped: bool,
}

#[derive(Debug, Clone)]
struct Tree {
    pool: PoolName,
    failures: u32,
    error: Option<String>,
    /// When it is tried again.
    due: Option<Instant>,
}

/// The trees of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting {
    pub trees: usize,
    /// Those of them that could not be removed when it was tried last.
    pub failing: usize,
    /// Why one of these could not.
    pub error: Option<String>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, pause: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
    }

    /// One more; fine if it waits already.
    pub(super) fn push(&self, id: &VolumeId, pool: &PoolName) {
        let tree = Tree { pool: pool.clone(), failures: 0, error: None, due: None };
        self.lock().trees.entry(id.clone()).or_insert(tree);
        self.changed.notify_all();
    }

    /// The pools that have trees and no thread: from here on they are taken to have one, which says [`leave`](Self::leave).
    pub(super) fn take_pools(&self) -> Vec<PoolName> {
        let mut state = self.lock();
        if state.stopped {
            return Vec::new();
        }
        let pools: BTreeSet<PoolName> = state.trees.values().map(|tree| tree.pool.clone()).collect();
        pools.into_iter().filter(|pool| state.running.insert(pool.clone())).collect()
    }

    /// Waits for the next tree of a pool that is to be tried. `None` where the pool has none any more, or at the end of the
    /// process: the thread has left then.
    pub(super) fn next(&self, pool: &PoolName) -> Option<VolumeId> {
        let mut state = self.lock();
        while !state.stopped {
            let now = Instant::now();
            let of_pool = || state.trees.iter().filter(|(_, tree)| tree.pool == *pool);
            let Some((id, tree)) = of_pool().min_by_key(|(_, tree)| tree.due) else { break };
            match tree.due.and_then(|due| due.checked_duration_since(now)).filter(|left| !left.is_zero()) {
                None => return Some(id.clone()),
                Some(left) => state = self.wait(state, left),
            }
        }
        state.running.remove(pool);
        self.changed.notify_all();
        None
    }

    /// The thread of a pool has ended some other way.
    pub(super) fn leave(&self, pool: &PoolName) {
        self.lock().running.remove(pool);
        self.changed.notify_all();
    }

    /// It is gone.
    pub(super) fn done(&self, id: &VolumeId) {
        self.lock().trees.remove(id);
    }

    /// It could not be removed, and is tried again later. How long later, where this was not said before of the same error.
    pub(super) fn failed(&self, id: &VolumeId, error: String) -> Option<Duration> {
        let mut state = self.lock();
        let tree = state.trees.get_mut(id)?;
        let pause = FIRST_PAUSE.saturating_mul(1 << tree.failures.min(16)).min(LONGEST_PAUSE);
        tree.failures = tree.failures.saturating_add(1);
        tree.due = Some(Instant::now() + pause);
        let is_new = tree.error.as_ref() != Some(&error);
        tree.error = Some(error);
        is_new.then_some(pause)
    }

    pub(crate) fn waiting(&self, pool: &PoolName) -> Waiting {
        let state = self.lock();
        let trees = state.trees.values().filter(|tree| tree.pool == *pool);
        trees.fold(Waiting::default(), |all, tree| Waiting {
            trees: all.trees + 1,
            failing: all.failing + usize::from(tree.error.is_some()),
            error: all.error.or_else(|| tree.error.clone()),
        })
    }

    /// Ends the threads, and waits a moment for calls that they are in.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        self.changed.notify_all();
        let last = Instant::now() + LAST_CALL;
        while let Some(left) = last.checked_duration_since(Instant::now())
            && !state.running.is_empty()
        {
            state = self.wait(state, left);
        }
    }
}

/// How fast a tree is removed.
pub(super) struct Pace<'a> {
    queue: &'a Queue,
    since: Instant,
}

impl<'a> Pace<'a> {
    pub(super) fn new(queue: &'a Queue) -> Self {
        Pace { queue, since: Instant::now() }
    }

    /// Rests where it is time for that. `false` at the end of the process.
    pub(super) fn go_on(&mut self) -> bool {
        let worked = self.since.elapsed();
        if worked < TURN {
            return true;
        }
        let (mut state, rested) = (self.queue.lock(), Instant::now());
        while !state.stopped
            && let Some(left) = worked.min(LONGEST_PAUSE).checked_sub(rested.elapsed())
            && !left.is_zero()
        {
            state = self.queue.wait(state, left);
        }
        self.since = Instant::now();
        !state.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeKey;

    fn id(name: &str) -> VolumeId {
        VolumeId::of_name(&NodeKey::of("node"), name)
    }

    #[test]
    fn each_pool_has_one_thread_as_long_as_it_has_trees() {
        let (queue, pools) = (Queue::default(), ["a", "b"].map(|name| name.parse::<PoolName>().unwrap()));
        let [a, b] = &pools;
        queue.push(&id("1"), a);
        queue.push(&id("2"), b);
        assert_eq!((queue.take_pools(), queue.take_pools()), (pools.to_vec(), vec![]));
        assert_eq!(queue.next(a), Some(id("1")));
        queue.push(&id("1"), a);
        assert_eq!(queue.waiting(a), Waiting { trees: 1, ..Waiting::default() });
        queue.done(&id("1"));
        assert_eq!(queue.next(a), None, "nothing is left");
        queue.push(&id("3"), a);
        assert_eq!(queue.take_pools(), std::slice::from_ref(a));
        queue.leave(a);
        assert_eq!(queue.take_pools(), std::slice::from_ref(a));
    }

    #[test]
    fn a_failed_removal_is_retried_last_and_told_once() {
        let (queue, pool) = (Queue::default(), PoolName::default());
        queue.push(&id("1"), &pool);
        queue.push(&id("2"), &pool);
        let first = queue.next(&pool).unwrap();
        let said = |error: &str| queue.failed(&first, error.to_owned());
        assert_eq!(said("EIO"), Some(FIRST_PAUSE));
        assert_eq!((said("EIO"), said("EBUSY")), (None, Some(FIRST_PAUSE * 4)));
        (0..20).for_each(|_| assert_ne!(said("EIO"), Some(LONGEST_PAUSE * 2)));
        assert_eq!(said("EXDEV"), Some(LONGEST_PAUSE));
        assert_ne!(queue.next(&pool), Some(first), "the others do not wait for it");
        assert_eq!(queue.waiting(&pool), Waiting { trees: 2, failing: 1, error: Some("EXDEV".to_owned()) });
    }

    #[test]
    fn the_end_of_the_process_ends_every_wait() {
        let (queue, pool) = (Queue::default(), PoolName::default());
        queue.push(&id("1"), &pool);
        assert_eq!(queue.take_pools().len(), 1);
        (1..=20).for_each(|n| assert!(queue.failed(&id("1"), n.to_string()).is_some()));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| queue.next(&pool));
            queue.stop();
            assert_eq!(thread.join().unwrap(), None);
        });
        let mut pace = Pace { queue: &queue, since: Instant::now() };
        assert!(pace.go_on(), "it has just begun");
        pace.since = Instant::now().checked_sub(TURN).unwrap();
        assert!(!pace.go_on());
        queue.push(&id("2"), &pool);
        assert_eq!(queue.take_pools(), []);
    }
}
