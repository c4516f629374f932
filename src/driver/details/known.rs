//! What was measured last of volumes, snapshots and pools, and which pools are being measured.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::model::details::{OnDisk, PoolBytes};
use crate::model::{ObjectId, PoolName, VolumeId};

/// The last measurements.
#[derive(Default)]
pub(crate) struct Known {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    objects: HashMap<ObjectId, Measured>,
    pools: HashMap<PoolName, PoolBytes>,
    /// The allocated bytes of the volumes of each pool, for metrics.
    allocated: HashMap<PoolName, HashMap<VolumeId, u64>>,
    /// When each task began that has not ended.
    running: HashMap<Task, Instant>,
    /// When each task ended last, and how long it took.
    done: HashMap<Task, (Instant, Duration)>,
}

/// What is done for an answer, each in a thread of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Task {
    /// To measure a pool with what is in it.
    Measure(PoolName),
    /// To measure a pool without what is in it.
    Figures(PoolName),
    /// To ask for the allocated bytes of the volumes of a pool alone.
    Allocated(PoolName),
    /// To examine the health of volumes that no examination has seen yet.
    Examine,
}

/// One volume or snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// What its filesystem says; `None` if it is not mounted or has none.
    pub(crate) used_bytes: Option<u64>,
    pub(crate) disk: OnDisk,
    /// Uids of the pods that have it.
    pub(crate) pods: Vec<String>,
    /// Why a part of it could not be measured.
    pub(crate) error: Option<String>,
}

impl Known {
    /// Returns whether the caller is to do the task now: no other thread does, and it was done a second ago, or longer ago if it
    /// took long, so that it takes at most a twentieth of the time. [`Known::end`] ends it.
    pub(super) fn begin(&self, task: &Task) -> bool {
        let mut state = self.lock();
        let fresh = state.done.get(task).is_some_and(|(ended, cost)| {
            ended.elapsed() < Duration::from_secs(1).max(cost.saturating_mul(20))
        });
        if fresh || state.running.contains_key(task) {
            return false;
        }
        state.running.insert(task.clone(), Instant::now());
        true
    }

    /// Ends a task.
    pub(super) fn end(&self, task: &Task) {
        let mut state = self.lock();
        if let Some(began) = state.running.remove(task) {
            state.done.insert(task.clone(), (Instant::now(), began.elapsed()));
        }
        self.ended.notify_all();
    }

    /// Waits until none of these tasks runs that began less than `patience` ago, for `patience` at most: others may begin tasks
    /// meanwhile.
    pub(super) fn wait(&self, patience: Duration, is_wanted: impl Fn(&Task) -> bool) {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            let wanted = state.running.iter().filter(|(task, _)| is_wanted(task));
            let left = wanted.filter_map(|(_, began)| patience.checked_sub(began.elapsed()));
            let left = left.max().map(|left| left.min(until.saturating_duration_since(Instant::now())));
            let Some(left) = left.filter(|left| !left.is_zero()) else { return };
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn put(&self, id: ObjectId, measured: Measured) {
        self.lock().objects.insert(id, measured);
    }

    pub(super) fn put_pool(&self, name: &PoolName, figures: PoolBytes) {
        self.lock().pools.insert(name.clone(), figures);
    }

    pub(super) fn put_allocated(&self, name: &PoolName, bytes: HashMap<VolumeId, u64>) {
        self.lock().allocated.insert(name.clone(), bytes);
    }

    /// Returns the allocated bytes of the volumes of a pool that could be measured.
    pub(super) fn allocated(&self, name: &PoolName) -> HashMap<VolumeId, u64> {
        self.lock().allocated.get(name).cloned().unwrap_or_default()
    }

    pub(in crate::driver) fn get(&self, id: &ObjectId) -> Measured {
        self.lock().objects.get(id).cloned().unwrap_or_default()
    }

    pub(super) fn pool(&self, name: &PoolName) -> Option<PoolBytes> {
        self.lock().pools.get(name).copied()
    }

    /// Forgets all objects but these.
    pub(super) fn retain(&self, there: &HashSet<ObjectId>) {
        self.lock().objects.retain(|id, _| there.contains(id));
    }

    // Nothing that runs under the mutex can panic half-way, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn a_pool_is_measured_by_one_thread_at_a_time() {
        let (known, pool) = (Known::default(), Task::Measure(PoolName::default()));
        assert!(known.begin(&pool));
        assert!(!known.begin(&pool), "it runs");
        let began = Instant::now();
        known.wait(Duration::from_millis(20), |_| true);
        assert!(began.elapsed() >= Duration::from_millis(15), "it is waited for");
        known.wait(Duration::from_millis(1), |_| true);
        assert!(known.begin(&Task::Examine), "another task");
        known.end(&Task::Examine);
        known.end(&pool);
        assert!(!known.begin(&pool), "it is fresh");
        known.wait(Duration::from_secs(60), |_| true);
    }

    #[test]
    fn an_answer_waits_for_no_task_of_later_callers() {
        let (known, begun) = (Known::default(), std::sync::atomic::AtomicUsize::new(0));
        let has_answered = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while begun.load(Relaxed) < 2000 && !has_answered.load(Relaxed) {
                    let number = begun.fetch_add(1, Relaxed);
                    known.begin(&Task::Measure(format!("pool-{number}").parse().expect("a name")));
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            while begun.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            known.wait(Duration::from_millis(50), |_| true);
            has_answered.store(true, Relaxed);
        });
        assert!(begun.into_inner() < 2000, "it has waited for the last of them");
    }

    #[test]
    fn objects_that_are_gone_are_forgotten() {
        let known = Known::default();
        let id = ObjectId::Volume(crate::model::VolumeId::of_name(&crate::model::NodeKey::of("n"), "v"));
        let measured = Measured { used_bytes: Some(1), ..Measured::default() };
        known.put(id.clone(), measured.clone());
        assert_eq!(known.get(&id), measured);
        known.retain(&HashSet::from([id.clone()]));
        assert_eq!(known.get(&id), measured);
        known.retain(&HashSet::new());
        assert_eq!(known.get(&id), Measured::default());
    }
}
