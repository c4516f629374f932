//! Moves of volumes in the simulated cluster: the controllers that can lead, the API server between them and Kubernetes
//! (crates/fake-kubernetes, `api.rs`), what works there (`control.rs`), the pods with their volumes (`kubelet.rs`, `writer.rs`),
//! and an administrator who moves their claims (`life.rs`).

mod api;
mod control;
mod kubelet;
mod life;
mod nodes;
mod objects;
mod orders;
mod outage;
mod rules;
mod scenes;
mod settled;
mod tenants;
mod without;
mod writer;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop::model::MoveLimits;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::calls::Failure;
use crate::harness::{Cluster, NODES};
use crate::kubernetes::Kubernetes;
use crate::random::Random;
use crate::requests::{Kind, MIB, Spec};

pub use self::api::client;
pub use self::life::Claim;
use self::objects::{Order, Standby};
pub use self::orders::is_checked;
use self::scenes::Scene;

/// How long a move may take when all is well: a StatefulSet that could not make its pod looks again after up to five minutes.
const PATIENCE: Duration = Duration::from_secs(1800);

/// How many claims there are if all of them begin at one node.
const CROWD: usize = 4;

/// Returns limits that are enough for a copy of each claim, and for what some have left.
fn limits(pairs: bool, claims: usize) -> MoveLimits {
    let each = if pairs { 2 } else { 1 };
    let all = 2 * claims.max(2) * each;
    MoveLimits { all, namespace: all, node: each * claims.div_ceil(2), node_size: None }
}

/// Whether volumes move in the run of this seed: they take their time.
pub fn are_in(seed: u64) -> bool {
    seed % 3 == 2
}

/// Whether some of these volumes have standby copies.
pub fn stand_by_in(seed: u64) -> bool {
    seed % 6 == 5
}

/// Kubernetes, and the way to it.
pub struct Moves {
    /// Whether volumes have standby copies, and nodes are lost.
    pub standby: bool,
    /// Whether some pods have two claims.
    pairs: bool,
    /// Where all volumes begin, if that is one node: their first copies wait for each other.
    pub crowded: Option<usize>,
    /// How many claims there are.
    pub claims: usize,
    kubernetes: Mutex<Kubernetes>,
    changed: Notify,
    random: Mutex<Random>,
    way: Mutex<api::Way>,
    /// The claims that there are, with their pods.
    known: Mutex<Vec<control::Known>>,
    /// Volumes that a pod has or is about to get.
    used: Mutex<BTreeSet<String>>,
    /// What works there by itself.
    working: Mutex<Vec<JoinHandle<()>>>,
    /// What a webhook or a quota refuses.
    refused: Arc<Mutex<tenants::Refused>>,
    /// How many copies there may be.
    pub limits: MoveLimits,
    /// Since when all is well.
    healed: Mutex<Option<Instant>>,
    rules: Mutex<rules::Rules>,
    /// Held by an administrator who loses a node: one at a time.
    losing: tokio::sync::Mutex<()>,
    outages: Mutex<outage::Outages>,
}

impl Moves {
    pub fn new(mut random: Random, standby: bool) -> Arc<Moves> {
        let way = api::Way::new(&mut random);
        let halves = random.below(2) == 0;
        let pairs = standby && random.below(2) == 0;
        let crowded = (standby && random.below(3) == 0).then(|| random.below(NODES));
        let claims = if crowded.is_some() { CROWD } else { 1 + random.below(2) };
        let limits = if standby { limits(pairs, claims) } else { MoveLimits::default() };
        let mut kubernetes = Kubernetes::default();
        (kubernetes.budget, kubernetes.resync) = (1, 60);
        (kubernetes.halves, kubernetes.watched) = (halves, true);
        let moves = Moves {
            standby,
            pairs,
            crowded,
            claims,
            kubernetes: Mutex::new(kubernetes),
            changed: Notify::new(),
            random: Mutex::new(random),
            way: Mutex::new(way),
            known: Mutex::default(),
            used: Mutex::default(),
            working: Mutex::default(),
            refused: Arc::default(),
            limits,
            healed: Mutex::default(),
            rules: Mutex::new(rules::Rules::new(limits)),
            losing: tokio::sync::Mutex::default(),
            outages: Mutex::default(),
        };
        let interval = if standby { ["10s", "20s", "1m"][moves.below(3)] } else { "" };
        moves.with(|kubernetes| {
            objects::cluster(kubernetes, NODES);
            if standby {
                objects::standby_classes(kubernetes, interval);
                tenants::victim(kubernetes);
                tenants::refuse(kubernetes, &moves.refused);
            }
        });
        Arc::new(moves)
    }

    /// What a new claim asks for.
    fn order(&self, scene: Scene) -> Order {
        let kind = [Kind::Block, Kind::Directory][self.below(2)];
        // Directories have one pool only.
        let kind = if crate::run::is_within() { Kind::Block } else { kind };
        let spec = |kind| Spec { bytes: 64 * MIB, ..Spec::new(kind) };
        if !self.standby {
            return Order { spec: spec(kind), standby: Standby::Nobody };
        }
        let all = [Standby::Nobody, Standby::InVain, Standby::Class, Standby::Class, Standby::Claim];
        let standby = if self.crowded.is_some() { Standby::Class } else { all[self.below(all.len())] };
        let standby = scene.standby().unwrap_or(standby);
        let order = Order { spec: spec(kind), standby };
        // A directory on xfs is cut only while no pod uses it.
        if order.stands_by() { Order { spec: spec(Kind::Block), standby } } else { order }
    }

    /// Looks at the objects or changes them, and tells those who watch.
    fn with<T>(&self, work: impl FnOnce(&mut Kubernetes) -> T) -> T {
        let mut kubernetes = self.kubernetes.lock().unwrap();
        let before = kubernetes.version;
        let done = work(&mut kubernetes);
        let changed = kubernetes.version != before;
        if changed && self.standby {
            self.rules.lock().unwrap().look(&mut kubernetes, before);
        }
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
        let mut all = self.working.lock().unwrap();
        all.push(working);
        if self.standby {
            all.push(tokio::spawn(tenants::run(Arc::clone(self))));
        }
    }

    /// Nothing works there any more.
    pub fn end(&self) {
        self.working.lock().unwrap().iter().for_each(JoinHandle::abort);
    }

    /// Nothing was ever what it must not be.
    ///
    /// # Errors
    /// What was.
    pub fn is_right(&self) -> Result<(), Failure> {
        let wrong = self.with(|kubernetes| kubernetes.wrong.clone());
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Nothing goes wrong from here on.
    pub fn heal(&self) {
        self.way.lock().unwrap().heal();
        *self.healed.lock().unwrap() = Some(Instant::now());
    }

    /// Since when all is well; now, where it is not yet.
    fn well_since(&self) -> Instant {
        let healed = self.healed.lock().unwrap().unwrap_or_else(Instant::now);
        self.outages.lock().unwrap().ended().map_or(healed, |ended| healed.max(ended))
    }
}
