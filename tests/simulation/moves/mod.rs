//! Moves of volumes in the simulated cluster: the controllers that can lead, the API server between them and Kubernetes
//! (crates/fake-kubernetes, `api.rs`), what works there (`control.rs`), the pods with their volumes (`kubelet.rs`, `writer.rs`),
//! and an administrator who moves their claims (`life.rs`).

mod api;
mod control;
mod kubelet;
mod life;
mod objects;
mod writer;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::harness::{Cluster, NODES};
use crate::kubernetes::Kubernetes;
use crate::random::Random;

pub use self::api::client;
pub use self::life::Claim;

/// How long a move may take when all is well: a StatefulSet that could not make its pod looks again after up to five minutes.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Whether volumes move in the run of this seed: they take their time.
pub fn are_in(seed: u64) -> bool {
    seed % 3 == 2
}

/// Kubernetes, and the way to it.
pub struct Moves {
    kubernetes: Mutex<Kubernetes>,
    changed: Notify,
    random: Mutex<Random>,
    way: Mutex<api::Way>,
    /// The claims that there are, with their pods.
    known: Mutex<Vec<control::Known>>,
    /// Volumes that a pod has or is about to get.
    used: Mutex<BTreeSet<String>>,
    /// What works there by itself.
    working: Mutex<Option<JoinHandle<()>>>,
    /// Since when all is well.
    healed: Mutex<Option<Instant>>,
}

impl Moves {
    pub fn new(mut random: Random) -> Arc<Moves> {
        let way = api::Way::new(&mut random);
        let halves = random.below(2) == 0;
        let mut kubernetes = Kubernetes::default();
        (kubernetes.budget, kubernetes.resync) = (1, 60);
        (kubernetes.halves, kubernetes.watched) = (halves, true);
        let moves = Moves {
            kubernetes: Mutex::new(kubernetes),
            changed: Notify::new(),
            random: Mutex::new(random),
            way: Mutex::new(way),
            known: Mutex::default(),
            used: Mutex::default(),
            working: Mutex::default(),
            healed: Mutex::default(),
        };
        moves.with(|kubernetes| objects::cluster(kubernetes, NODES));
        Arc::new(moves)
    }

    /// Looks at the objects or changes them, and tells those who watch.
    fn with<T>(&self, work: impl FnOnce(&mut Kubernetes) -> T) -> T {
        let mut kubernetes = self.kubernetes.lock().unwrap();
        let before = kubernetes.version;
        let done = work(&mut kubernetes);
        let changed = kubernetes.version != before;
        drop(kubernetes);
        if changed {
            self.changed.notify_waiters();
        }
        done
    }

    pub fn below(&self, limit: usize) -> usize {
        self.random.lock().unwrap().below(limit)
    }

    fn between(&self, from: u64, to: u64) -> u64 {
        self.random.lock().unwrap().between(from, to)
    }

    async fn pause(&self, from: u64, to: u64) {
        let milliseconds = self.between(from, to);
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    }

    /// Begins with what the control plane does by itself.
    pub fn begin(self: &Arc<Self>, cluster: &Arc<Cluster>) {
        let working = tokio::spawn(control::run(Arc::clone(self), Arc::clone(cluster)));
        *self.working.lock().unwrap() = Some(working);
    }

    /// Nothing works there any more.
    pub fn end(&self) {
        self.working.lock().unwrap().iter().for_each(JoinHandle::abort);
    }

    /// Nothing goes wrong from here on.
    pub fn heal(&self) {
        self.way.lock().unwrap().heal();
        *self.healed.lock().unwrap() = Some(Instant::now());
    }

    /// Since when all is well; now, where it is not yet.
    fn well_since(&self) -> Instant {
        self.healed.lock().unwrap().unwrap_or_else(Instant::now)
    }
}
