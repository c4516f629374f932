//! The life of a claim that moves: it is created, a pod writes to its volume, an administrator moves it and changes their mind,
//! and at the end all that a move writes and creates is gone, and so is the volume of the deleted claim.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop::model::PoolName;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::control::Known;
use super::objects::{Order, Standby};
use super::scenes::Scene;
use super::writer::Log;
use super::{Moves, PATIENCE, objects};
use crate::calls::{Client, Failure};
use crate::harness::{Cluster, NODES};
use crate::kubernetes::control::node_of;
use crate::kubernetes::{Kubernetes, NAMESPACE, key};
use crate::machine::FAST;

/// A claim with its pod.
pub struct Claim {
    pub(super) cluster: Arc<Cluster>,
    pub(super) moves: Arc<Moves>,
    pub(super) claim: String,
    pub(super) pod: String,
    pub(super) order: Order,
    pub(super) scene: Scene,
    /// The StatefulSet that it belongs to.
    set: Option<String>,
    /// Another claim of the pod, which moves with this one.
    pub(super) companion: Option<String>,
    pub(super) log: Arc<Mutex<Log>>,
    over: Mutex<bool>,
    /// Until when the node of a pod that was deleted by force does not know that.
    blind: Mutex<Option<Instant>>,
}

/// What is wanted after a move.
#[derive(PartialEq)]
enum Wish {
    Volume,
    /// Neither the volume nor the claim.
    Nothing,
}

/// What an administrator has in mind.
#[derive(Debug)]
struct Plan {
    target: String,
    now: bool,
    /// When they do not want it any more, and in which phase.
    cancels: Option<Instant>,
    cancels_in: Option<&'static str>,
    /// When they want another node.
    changes: Option<(Instant, String)>,
    /// When they delete the claim, whatever becomes of its move.
    deletes: Option<Instant>,
    /// Whether the node is cordoned before the pod is deleted.
    cordons: bool,
    /// Whether the earlier node keeps its data.
    keeps: bool,
}

pub(super) fn phase(object: &Value) -> Option<&str> {
    object["status"]["phase"].as_str()
}

impl Claim {
    pub fn new(cluster: &Arc<Cluster>, moves: &Arc<Moves>, number: usize) -> Arc<Claim> {
        let scene = moves.scene();
        let order = moves.order(scene);
        let set = (moves.below(3) > 0).then(|| format!("db{number}"));
        let claim = set.as_ref().map_or_else(|| format!("data{number}"), |set| format!("data-{set}-0"));
        // A copy of one claim alone would leave the other one behind.
        let is_pair = moves.pairs && set.is_none() && !order.stands_by();
        let companion = is_pair.then(|| format!("log{number}"));
        let log = Log { owner: moves.between(1, u64::MAX), ..Log::default() };
        Arc::new(Claim {
            cluster: Arc::clone(cluster),
            moves: Arc::clone(moves),
            claim,
            pod: format!("db{number}-0"),
            order,
            scene,
            set,
            companion,
            log: Arc::new(Mutex::new(log)),
            over: Mutex::default(),
            blind: Mutex::default(),
        })
    }

    pub(super) fn client(&self) -> Client {
        Client { cluster: Arc::clone(&self.cluster), name: self.pod.clone() }
    }

    /// Whether its volume has the standby copy that was asked for, and none that was not.
    fn is_guarded(&self, kubernetes: &Kubernetes) -> Result<(), String> {
        let replicas = self.replicas(kubernetes);
        let stand_by = replicas.iter().all(|replica| phase(replica) == Some("Standby"));
        match stand_by && replicas.len() == usize::from(self.order.stands_by()) {
            true => Ok(()),
            false => Err(format!("it has the copies {replicas:?}")),
        }
    }

    /// Whether nobody makes the pod again.
    pub(super) fn is_over(&self) -> bool {
        *self.over.lock().unwrap()
    }

    /// Whether the pod runs on although its object is gone.
    pub(super) fn is_blind(&self) -> bool {
        self.blind.lock().unwrap().is_some_and(|until| Instant::now() < until)
    }

    /// Lives a whole life.
    ///
    /// # Errors
    /// A promise that was broken.
    pub async fn live(self: Arc<Self>) -> Result<(), Failure> {
        // In a crowd, all first copies begin at once.
        if self.moves.crowded.is_none() {
            self.moves.pause(1, 3000).await;
        }
        self.make().await?;
        let mut kubelet = tokio::spawn(Arc::clone(&self).kubelet());
        let failed =
            |ended: Result<Result<(), Failure>, _>| ended.map_err(|error| format!("a panic: {error}"))?;
        tokio::select! {
            ended = &mut kubelet => return failed(ended).and(Err(format!("no kubelet for {}", self.pod))),
            moved = self.is_moved() => moved?,
        }
        self.end().await?;
        failed(kubelet.await)
    }

    async fn make(&self) -> Result<(), Failure> {
        let name = format!("pvc-{}", self.pod);
        let volume = match self.moves.crowded {
            Some(node) => self.client().create_on(&name, self.order.spec, node).await?,
            None => self.client().create(&name, self.order.spec, None).await?,
        };
        let node = &self.cluster.machines[volume.node].id;
        self.moves.with(|kubernetes| {
            kubernetes.create(
                key("persistentvolumes", "", &name),
                objects::volume(&name, &self.claim, node, &volume, &self.order),
            );
            if let Some(set) = &self.set {
                kubernetes.create(key("statefulsets", NAMESPACE, set), objects::set(set));
            }
            let claim = objects::claim(&self.claim, &self.order, Some(&name));
            kubernetes.create(key("persistentvolumeclaims", NAMESPACE, &self.claim), claim);
        });
        let mut known = Known::new(&self.claim, &self.pod, self.order, self.set.as_deref());
        known.companion = self.companion.clone();
        self.moves.known.lock().unwrap().push(known);
        if let Some(companion) = &self.companion {
            self.make_companion(companion, volume.node).await?;
        }
        self.moves.rules.lock().unwrap().knows(&self.claim, &self.log);
        Ok(())
    }

    /// Makes the other claim of the pod, whose volume is on the same node. The pod writes nothing to it.
    async fn make_companion(&self, claim: &str, node: usize) -> Result<(), Failure> {
        let (name, order) = (format!("pvc-{claim}"), Order { standby: Standby::Nobody, ..self.order });
        let volume = self.client().create_on(&name, order.spec, node).await?;
        let id = &self.cluster.machines[node].id;
        self.moves.with(|kubernetes| {
            let object = objects::volume(&name, claim, id, &volume, &order);
            kubernetes.create(key("persistentvolumes", "", &name), object);
            let object = objects::claim(claim, &order, Some(&name));
            kubernetes.create(key("persistentvolumeclaims", NAMESPACE, claim), object);
        });
        self.moves.known.lock().unwrap().push(Known::companion(claim, &self.pod, order));
        self.moves.rules.lock().unwrap().knows(claim, &Arc::default());
        Ok(())
    }

    async fn is_moved(&self) -> Result<(), Failure> {
        self.until("its pod runs", |kubernetes| self.runs(kubernetes)).await?;
        for _ in 0..1 + self.moves.below(2) {
            self.moves.pause(1, 15_000).await;
            self.is_set().await;
            // An administrator loses a node, has the volume moved, or both at once.
            let by_chance = match self.moves.standby && self.moves.crowded.is_none() {
                true => [(true, false), (false, true), (true, true), (true, true)][self.moves.below(4)],
                // Many pods write much while a node is away, and the fake disks grow slow.
                false => (true, false),
            };
            let (moves, loses) = self.scene.acts().unwrap_or(by_chance);
            let in_cutover = moves && loses && (self.moves.below(3) > 0 || self.scene != Scene::Any);
            let follow = async {
                match moves {
                    true => self.follow(self.plan(in_cutover)).await,
                    false => Ok(Wish::Volume),
                }
            };
            let lose = async { if loses { self.lose_a_node(in_cutover).await } else { Ok(()) } };
            let (wish, lost) = tokio::join!(follow, lose);
            lost?;
            if wish? == Wish::Nothing {
                return Ok(());
            }
        }
        self.until("all is as it was", |kubernetes| self.is_settled(kubernetes)).await?;
        self.until("its pod runs again", |kubernetes| self.runs(kubernetes)).await?;
        self.until("it has the copies that it is to have", |kubernetes| self.is_guarded(kubernetes)).await
    }

    /// The place of the volume, and a pool there, if it moves within its node.
    fn pool(&self) -> Option<String> {
        if !crate::run::is_within() || self.moves.below(3) == 0 {
            return None;
        }
        let pool = [PoolName::DEFAULT, FAST, FAST][self.moves.below(3)];
        let (volume, _) = self.moves.with(|kubernetes| kubernetes.volume_of(&self.claim))?;
        Some(format!("{}/{pool}", node_of(&volume)))
    }

    fn node(&self) -> String {
        match self.moves.below(NODES + 1) {
            NODES => "any".to_owned(),
            node => self.cluster.machines[node].id.clone(),
        }
    }

    /// Returns the plan of an administrator, who does not change it if a node is lost in the cutover.
    fn plan(&self, in_cutover: bool) -> Plan {
        let later = |most: u64| Instant::now() + Duration::from_millis(self.moves.between(1, most));
        let (mut cancels, mut cancels_in, mut changes, mut deletes) = (None, None, None, None);
        match self.moves.below(9) {
            _ if in_cutover => {}
            0 | 1 => cancels = Some(later(25_000)),
            2 => cancels_in = Some("CuttingOver"),
            3 => deletes = Some(later(25_000)),
            4 => changes = Some((later(25_000), self.node())),
            _ => {}
        }
        let (now, cordons) = (self.moves.below(2) == 0, self.moves.below(2) == 0);
        // While there is no pod, nothing says that two claims go together: a drain may part them.
        let now = now || self.companion.is_some() || in_cutover;
        let keeps = self.moves.standby && self.moves.below(4) == 0;
        let is_lent = self.moves.below(2) == 0 || self.scene == Scene::Lent;
        let target = self.node_of_copy().filter(|_| is_lent);
        let target = target.or_else(|| self.pool()).unwrap_or_else(|| self.node());
        Plan { target, now, cancels, cancels_in, changes, deletes, cordons, keeps }
    }

    /// Asks for a move to this node, instead of what was asked for before; with `None` for nothing. Tells whether there is a claim
    /// to ask for.
    fn wishes(&self, target: Option<&str>, plan: &Plan) -> bool {
        self.moves.with(|kubernetes| {
            if kubernetes.get("persistentvolumeclaims", &self.claim).is_none() {
                return false;
            }
            self.cancel(kubernetes);
            for (claim, name) in self.wished() {
                let wish = key("volumemoves", NAMESPACE, &name);
                if let Some(target) = target {
                    let (node, pool) = target.split_once('/').map_or((target, None), |(node, pool)| (node, Some(pool)));
                    let node = (node != "any").then_some(node);
                    let when = if plan.now { "Now" } else { "PodsLeave" };
                    let spec = json!({"claimName": claim, "target": {"node": node, "pool": pool}, "when": when, "keepSource": plan.keeps});
                    let metadata = json!({"name": name, "namespace": NAMESPACE});
                    kubernetes.create(wish, json!({"metadata": metadata, "spec": spec}));
                }
            }
            crate::log(|| format!("{} is to be on {target:?}", self.claim));
            true
        })
    }

    /// The claims of the pod, with the names of their VolumeMoves.
    fn wished(&self) -> Vec<(&String, String)> {
        let of_companion = self.companion.as_ref().map(|claim| (claim, format!("move-{claim}")));
        of_companion.into_iter().chain([(&self.claim, self.wish())]).collect()
    }

    /// Deletes the VolumeMoves.
    pub(super) fn cancel(&self, kubernetes: &mut Kubernetes) {
        for (_, name) in self.wished() {
            kubernetes.remove(&key("volumemoves", NAMESPACE, &name));
        }
    }

    /// The name of the VolumeMove.
    fn wish(&self) -> String {
        format!("move-{}", self.pod)
    }

    /// Asks for a move, does what an administrator does meanwhile, and waits for its end.
    async fn follow(&self, mut plan: Plan) -> Result<Wish, Failure> {
        crate::log(|| format!("{} is to move: {plan:?}", self.claim));
        let began = Instant::now();
        while !self.wishes(Some(&plan.target), &plan) {
            self.moves.pause(500, 1500).await;
        }
        let (mut cordoned, mut deleted, mut refused) = (None, Instant::now(), 0);
        let wish = loop {
            self.moves.pause(300, 1200).await;
            self.check(began.max(self.moves.well_since()) + PATIENCE, "the move is over")?;
            let (due, now) = (|at: Instant| Instant::now() >= at, Instant::now());
            if plan.deletes.is_some_and(due) {
                break Wish::Nothing;
            }
            if plan.cancels.is_some_and(due) && self.wishes(None, &plan) {
                plan.cancels = None;
            }
            if plan.changes.as_ref().is_some_and(|(at, _)| due(*at)) {
                let target = plan.changes.take().map(|(_, target)| target);
                self.wishes(target.as_deref(), &plan);
            }
            let (asked, replicas) = self
                .moves
                .with(|kubernetes| (kubernetes.get("volumemoves", &self.wish()), self.replicas(kubernetes)));
            let copy = replicas.first().and_then(phase);
            if plan.cancels_in.is_some() && copy == plan.cancels_in {
                plan.cancels_in = None;
                self.wishes(None, &plan);
            }
            // A pod that is created again before the volume has moved is in the way, too.
            if matches!(copy, Some("Ready" | "CuttingOver")) && due(deleted) && !plan.now {
                let node = self.moves.with(|kubernetes| self.drain(kubernetes, plan.cordons));
                cordoned = cordoned.or(node);
                deleted = now + Duration::from_secs(20);
            }
            let over = self.moves.with(|kubernetes| self.is_settled(kubernetes).is_ok());
            match asked.as_ref().and_then(phase) {
                // Whoever is refused gives up, or waits for the next look.
                Some("Refused") => {
                    refused += 1;
                    if refused == 20 {
                        self.wishes(None, &plan);
                    }
                }
                Some("Done") if over => {
                    self.wishes(None, &plan);
                    break Wish::Volume;
                }
                None if over && asked.is_none() => break Wish::Volume,
                _ => {}
            }
        };
        if let Some(node) = cordoned {
            self.moves.with(|kubernetes| {
                kubernetes.change("nodes", &node, |node| node["spec"]["unschedulable"] = json!(false))
            });
        }
        Ok(wish)
    }

    /// Drains the node of the pod, or just deletes the pod. Returns the node that was cordoned.
    fn drain(&self, kubernetes: &mut Kubernetes, cordons: bool) -> Option<String> {
        let pod = kubernetes.get("pods", &self.pod)?;
        let node = pod["spec"]["nodeName"].as_str()?.to_owned();
        crate::log(|| format!("pod {} is deleted on {node}, cordoned: {cordons}", self.pod));
        if cordons {
            kubernetes.change("nodes", &node, |node| node["spec"]["unschedulable"] = json!(true));
        }
        let pod = key("pods", NAMESPACE, &self.pod);
        match self.moves.below(4) {
            // By force: the object goes, and the pod runs on for a while.
            0 => {
                let late = Duration::from_millis(self.moves.between(1, 25_000));
                crate::log(|| format!("by force; its node knows it after {late:?}"));
                *self.blind.lock().unwrap() = Some(Instant::now() + late);
                kubernetes.remove(&pod);
            }
            _ => kubernetes.mark_deleted(&pod),
        }
        cordons.then_some(node)
    }

    /// The claim is deleted, with what creates it again.
    async fn end(&self) -> Result<(), Failure> {
        *self.over.lock().unwrap() = true;
        self.moves
            .known
            .lock()
            .unwrap()
            .iter_mut()
            .filter(|known| known.pod == self.pod)
            .for_each(Known::retire);
        let began = Instant::now();
        loop {
            let there = self.moves.with(|kubernetes| {
                kubernetes.mark_deleted(&key("pods", NAMESPACE, &self.pod));
                let claims: Vec<&String> = self.companion.iter().chain([&self.claim]).collect();
                for claim in &claims {
                    kubernetes.mark_deleted(&key("persistentvolumeclaims", NAMESPACE, claim));
                }
                let of_claim =
                    |volume: &Value| claims.iter().any(|claim| volume["spec"]["claimRef"]["name"] == **claim);
                claims.iter().any(|claim| kubernetes.get("persistentvolumeclaims", claim).is_some())
                    || kubernetes.all("persistentvolumes").any(of_claim)
                    || !self.replicas(kubernetes).is_empty()
            });
            if !there {
                return Ok(());
            }
            self.check(began.max(self.moves.well_since()) + PATIENCE, "the claim and its volume are gone")?;
            self.moves.pause(500, 5000).await;
        }
    }
}
