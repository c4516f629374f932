//! What the moves of this process have come to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::status::{Phase, seconds_since};

/// Counts since the start of the process, and what is under way in it.
#[derive(Debug, Default)]
pub struct Figures {
    /// The phase of each claim that is being moved, by namespace and name.
    phases: Mutex<BTreeMap<(String, String), Phase>>,
    /// When the data of each copy that stands by were cut, in RFC 3339, and how old they may become.
    standby: Mutex<BTreeMap<(String, String), (String, Duration)>>,
    ended: Mutex<BTreeMap<Phase, u64>>,
    rounds: AtomicU64,
    sent_bytes: AtomicU64,
    changed_bytes: AtomicU64,
    failures: AtomicU64,
}

impl Figures {
    pub(super) fn is_in(&self, namespace: &str, name: &str, phase: Phase) {
        lock(&self.phases).insert((namespace.to_owned(), name.to_owned()), phase);
    }

    pub(super) fn is_over(&self, namespace: &str, name: &str) {
        let claim = (namespace.to_owned(), name.to_owned());
        lock(&self.phases).remove(&claim);
        lock(&self.standby).remove(&claim);
    }

    pub(super) fn stands_by(&self, namespace: &str, name: &str, standby: Option<(&str, Duration)>) {
        let claim = (namespace.to_owned(), name.to_owned());
        match standby {
            Some((cut, interval)) => drop(lock(&self.standby).insert(claim, (cut.to_owned(), interval))),
            None => drop(lock(&self.standby).remove(&claim)),
        }
    }

    /// Each claim with a copy that stands by as `NAMESPACE/NAME`, the age of the copy's data and how old they may become, in
    /// seconds.
    pub fn standby(&self) -> Vec<(String, f64, f64)> {
        let age = |cut: &str| seconds_since(cut).unwrap_or(0).max(0) as f64;
        let all = lock(&self.standby);
        let all = all.iter().map(|((namespace, name), (cut, interval))| {
            (format!("{namespace}/{name}"), age(cut), interval.as_secs_f64())
        });
        all.collect()
    }

    /// Another process leads, and counts what goes on.
    pub(super) fn none_is_under_way(&self) {
        lock(&self.phases).clear();
        lock(&self.standby).clear();
    }

    pub(super) fn ended(&self, phase: Phase) {
        *lock(&self.ended).entry(phase).or_default() += 1;
    }

    pub(super) fn round(&self, sent_bytes: u64, changed_bytes: u64) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
        self.changed_bytes.fetch_add(changed_bytes, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// How many claims are in each phase.
    pub fn under_way(&self) -> BTreeMap<Phase, u64> {
        let mut counts = BTreeMap::new();
        lock(&self.phases).values().for_each(|phase| *counts.entry(*phase).or_default() += 1);
        counts
    }

    /// Moves that ended, by what they ended in.
    pub fn ends(&self) -> BTreeMap<Phase, u64> {
        lock(&self.ended).clone()
    }

    /// Rounds, bytes sent, bytes changed.
    pub fn traffic(&self) -> (u64, u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.rounds), load(&self.sent_bytes), load(&self.changed_bytes))
    }

    /// Steps that failed and are tried again.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

// Nothing that runs under these can panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
