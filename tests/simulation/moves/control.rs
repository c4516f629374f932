//! What looks at the objects all the time: the controllers of Kubernetes, its scheduler, and csi-provisioner, as far as it
//! deletes volumes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::objects::Order;
use super::tenants::Refused;
use super::{Moves, nodes, objects};
use crate::calls::Client;
use crate::harness::Cluster;
use crate::kubernetes::control::{Wants, pod};
use crate::kubernetes::{Kubernetes, NAMESPACE, key};

/// The longest pause of the controller of StatefulSets after a pod that it could not make.
const LONGEST: Duration = Duration::from_secs(300);

/// A claim and its pod.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) claim: String,
    pub(super) pod: String,
    pub(super) order: Order,
    /// The StatefulSet that makes the claim, where one does.
    pub(super) set: Option<String>,
    /// Another claim of the pod.
    pub(super) companion: Option<String>,
    /// Whether it is that of another one's pod.
    is_companion: bool,
    /// Whether nobody makes them again.
    retired: bool,
    /// When its controller looks at it again, after which pause, and which version of it it has looked at last.
    again: Option<Instant>,
    pause: Duration,
    seen: Value,
}

impl Known {
    pub(super) fn new(claim: &str, pod: &str, order: Order, set: Option<&str>) -> Known {
        let (retired, again, pause, seen) = (false, None, Duration::from_millis(5), Value::Null);
        Known {
            claim: claim.to_owned(),
            pod: pod.to_owned(),
            order,
            set: set.map(str::to_owned),
            companion: None,
            is_companion: false,
            retired,
            again,
            pause,
            seen,
        }
    }

    /// A claim that the pod of another one uses as well.
    pub(super) fn companion(claim: &str, pod: &str, order: Order) -> Known {
        Known { is_companion: true, ..Known::new(claim, pod, order, None) }
    }

    /// Nobody makes the claim and the pod again.
    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    /// The controller that makes the pod, and the claim if it is a StatefulSet's. A quota may allow no more of them.
    fn make(&mut self, kubernetes: &mut Kubernetes, is_full: bool) {
        let Some(set) = &self.set else {
            // A Deployment with the strategy Recreate.
            if kubernetes.get("pods", &self.pod).is_none() && !is_full {
                let mut made = pod(&self.pod, &self.claim, "ReplicaSet");
                if let Some(companion) = &self.companion {
                    let log = json!({"name": "log", "persistentVolumeClaim": {"claimName": companion}});
                    made["spec"]["volumes"].as_array_mut().unwrap().push(log);
                }
                kubernetes.create(key("pods", NAMESPACE, &self.pod), made);
            }
            return;
        };
        let version =
            kubernetes.get("statefulsets", set).unwrap_or_default()["metadata"]["resourceVersion"].take();
        if version == self.seen && self.again.is_some_and(|again| Instant::now() < again) {
            return;
        }
        (self.seen, self.again) = (version, None);
        if is_full && kubernetes.get("pods", &self.pod).is_none() {
            return self.try_later();
        }
        match kubernetes.stateful_set(&self.pod, &self.claim) {
            Wants::Nothing => self.pause = Duration::from_millis(5),
            Wants::Claim => {
                let key = key("persistentvolumeclaims", NAMESPACE, &self.claim);
                kubernetes.create(key, objects::claim(&self.claim, &self.order, None));
                crate::log(|| format!("the StatefulSet makes claim {}", self.claim));
            }
            // It does not watch claims.
            Wants::TheOldClaimGone => self.try_later(),
        }
    }

    fn try_later(&mut self) {
        self.again = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
    }
}

/// Works until the end of the simulation.
pub(super) async fn run(moves: Arc<Moves>, cluster: Arc<Cluster>) {
    let deleting: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let mut away = nodes::Away::new();
    loop {
        moves.pause(20, 250).await;
        if moves.standby {
            nodes::look(&moves, &cluster, &mut away);
            moves.delete_what_is_left();
            moves.is_served_once(&cluster);
            moves.goes_on();
        }
        let count = moves.known.lock().unwrap().len();
        for number in 0..count {
            let choice = moves.below(32);
            let is_full = *moves.refused.lock().unwrap() == Refused::Pods;
            let mut known = moves.known.lock().unwrap();
            let known = &mut known[number];
            moves.with(|kubernetes| look(kubernetes, known, choice, is_full));
        }
        for volume in moves.with(|kubernetes| kubernetes.reclaimable()) {
            let name = volume["metadata"]["name"].as_str().unwrap().to_owned();
            if deleting.lock().unwrap().insert(name.clone()) {
                let (moves, cluster, deleting) =
                    (Arc::clone(&moves), Arc::clone(&cluster), Arc::clone(&deleting));
                tokio::spawn(async move {
                    delete(&moves, cluster, &volume).await;
                    deleting.lock().unwrap().remove(&name);
                });
            }
        }
    }
}

/// Each of the controllers looks at a claim now, or a little later.
fn look(kubernetes: &mut Kubernetes, known: &mut Known, choice: usize, is_full: bool) {
    let does = |number: usize| choice & (1 << number) != 0;
    if does(0) {
        kubernetes.offer();
    }
    if does(1) {
        kubernetes.bind(&known.claim);
    }
    if does(2) {
        kubernetes.protect(&known.claim);
        kubernetes.protect_volumes();
    }
    if known.is_companion {
        return;
    }
    if does(3) && !known.retired {
        known.make(kubernetes, is_full);
    }
    if does(4) {
        let avoided = nodes::avoided(kubernetes, &known.claim, known.companion.as_deref());
        kubernetes.schedule(&known.pod, &known.claim, avoided.as_deref());
    }
}

impl Moves {
    /// An administrator looks some time at what a lost node has, and deletes it.
    fn delete_what_is_left(&self) {
        let is_left = |replica: &&Value| replica["status"]["phase"] == "Left";
        let left: Vec<Value> = self.with(|kubernetes| {
            let all = kubernetes.all("volumereplicas").filter(is_left);
            all.map(|replica| replica["metadata"]["name"].clone()).collect()
        });
        for name in left {
            if self.below(200) == 0 {
                let name = name.as_str().unwrap();
                crate::log(|| format!("VolumeReplica {name} is deleted with what is left"));
                self.with(|kubernetes| kubernetes.mark_deleted(&key("volumereplicas", "", name)));
            }
        }
    }

    /// A volume is deleted only after its user has deleted the claim.
    fn is_spare(&self, volume: &str) {
        let known = self.known.lock().unwrap();
        self.with(|kubernetes| {
            let claim =
                kubernetes.get("persistentvolumes", volume).unwrap_or_default()["spec"]["claimRef"]["name"]
                    .take();
            if !known.iter().any(|known| known.retired && claim == known.claim) {
                kubernetes.wrong.push(format!("{volume} is deleted, and claim {claim} is wanted"));
            }
        });
    }
}

/// csi-provisioner deletes a volume and then its object.
async fn delete(moves: &Arc<Moves>, cluster: Arc<Cluster>, volume: &Value) {
    let name = volume["metadata"]["name"].as_str().unwrap();
    let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap();
    crate::log(|| format!("csi-provisioner deletes {name}"));
    moves.is_spare(name);
    let provisioner = Client { cluster, name: "csi-provisioner".to_owned() };
    match provisioner.delete_volume(handle).await {
        Ok(()) => {
            let used = moves.used.lock().unwrap().contains(handle);
            moves.with(|kubernetes| {
                if used {
                    kubernetes.wrong.push(format!("{handle} was deleted while a pod used it"));
                }
                kubernetes.remove(&key("persistentvolumes", "", name));
            });
        }
        // It is still staged.
        Err(why) if why.contains("is answered FailedPrecondition") => moves.pause(500, 2000).await,
        Err(why) => moves.with(|kubernetes| kubernetes.wrong.push(why)),
    }
}
