//! kubelet, for the pod of one claim on whichever node it is: gives the pod its volume, runs it, and takes the volume away.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::life::Claim;
use super::writer::{Place, Trouble};
use crate::calls::{Failure, OFF};
use crate::kubernetes::control::node_of;
use crate::kubernetes::{NAMESPACE, key};
use crate::life::Volume;
use crate::requests;

/// A pod that has come to a node.
struct Pod {
    uid: Value,
    node: usize,
    /// The volume that it has, or is about to get.
    volume: Option<Volume>,
    /// Whether its containers run.
    runs: bool,
}

/// Whether it is the caller's fault, who tries again.
fn is_refused(failure: &Failure) -> bool {
    failure.contains("is answered FailedPrecondition")
        || failure.contains("is answered NotFound")
        || failure.contains("cannot be published")
}

impl Claim {
    /// Works until the pod and its controller are gone.
    ///
    /// # Errors
    /// A volume that is not what it has to be, or an answer that kubelet has not deserved.
    pub(super) async fn kubelet(self: Arc<Self>) -> Result<(), Failure> {
        let (mut here, mut leaving) = (None::<Pod>, JoinSet::new());
        loop {
            self.moves.pause(20, 400).await;
            while let Some(left) = leaving.try_join_next() {
                left.map_err(|error| format!("a panic: {error}"))??;
            }
            let there = self.moves.with(|kubernetes| kubernetes.get("pods", &self.pod));
            let is = |pod: &Pod, there: &Value| {
                pod.uid == there["metadata"]["uid"] && there["metadata"]["deletionTimestamp"].is_null()
            };
            match (&mut here, &there) {
                (None, None) if self.is_over() && leaving.is_empty() => return Ok(()),
                (None, None) => {}
                (Some(pod), there) if self.is_off(pod.node) => {
                    let is_same = |there: &Value| there["metadata"]["uid"] == pod.uid;
                    if !there.as_ref().is_some_and(is_same) {
                        // It ended with its machine.
                        if let Some(volume) = &pod.volume {
                            self.moves.used.lock().unwrap().remove(&volume.id);
                        }
                        here = None;
                    }
                }
                (Some(pod), _) if pod.runs && (self.is_blind() || self.moves.is_cut_off(pod.node)) => {
                    self.run(pod).await?
                }
                (Some(pod), _) if self.stands_still(pod.node) || self.moves.is_cut_off(pod.node) => {}
                (Some(pod), Some(there)) if is(pod, there) => self.run(pod).await?,
                (Some(pod), _) => {
                    self.stop(pod, &mut leaving).await?;
                    here = None;
                }
                (None, Some(there)) if !there["metadata"]["deletionTimestamp"].is_null() => {
                    self.forget(&there["metadata"]["uid"])
                }
                (None, Some(there)) => {
                    let name = there["spec"]["nodeName"].as_str();
                    let node =
                        self.cluster.machines.iter().position(|machine| Some(machine.id.as_str()) == name);
                    // What goes away of the last pod comes first.
                    let can = |node: &usize| {
                        leaving.is_empty() && !self.is_off(*node) && !self.moves.is_cut_off(*node)
                    };
                    if let Some(node) = node.filter(can) {
                        here = Some(Pod {
                            uid: there["metadata"]["uid"].clone(),
                            node,
                            volume: None,
                            runs: false,
                        });
                    }
                }
            }
        }
    }

    fn stands_still(&self, node: usize) -> bool {
        self.cluster.net.is_frozen(&self.cluster.machines[node].id)
    }

    fn is_off(&self, node: usize) -> bool {
        self.cluster.machines[node].is_off()
    }

    /// A pod that has left is an object no more.
    fn forget(&self, uid: &Value) {
        self.moves.with(|kubernetes| {
            if kubernetes.get("pods", &self.pod).is_some_and(|pod| pod["metadata"]["uid"] == *uid) {
                kubernetes.remove(&key("pods", NAMESPACE, &self.pod));
            }
        });
    }

    async fn run(&self, pod: &mut Pod) -> Result<(), Failure> {
        if self.stands_still(pod.node) {
            return Ok(());
        }
        if !pod.runs {
            return self.start(pod).await;
        }
        let Some(volume) = &pod.volume else { return Ok(()) };
        if !self.is_mounted(volume) {
            // The machine has lost its power.
            crate::log(|| format!("pod {} has lost its volume", self.pod));
            pod.runs = false;
            return Ok(());
        }
        self.work(volume).await;
        Ok(())
    }

    /// Gives the pod the volume of its claim, as far as it may have it, and starts it.
    async fn start(&self, pod: &mut Pod) -> Result<(), Failure> {
        let node = &self.cluster.machines[pod.node].id;
        let found = self.moves.with(|kubernetes| {
            let claim = kubernetes.get("persistentvolumeclaims", &self.claim)?;
            let (volume, handle) = kubernetes.volume_of(&self.claim)?;
            let bound = volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"];
            (bound && node_of(&volume) == *node).then_some(handle)
        });
        let Some(handle) = found else { return Ok(()) };
        let volume = pod.volume.get_or_insert_with(|| {
            let name = format!("{}-{}", self.pod, pod.uid.as_str().unwrap());
            Volume {
                name,
                id: handle.clone(),
                node: pod.node,
                spec: self.order.spec,
                written: Default::default(),
            }
        });
        if volume.id != handle {
            return Ok(());
        }
        self.moves.used.lock().unwrap().insert(handle.clone());
        match self.client().publish(volume).await {
            Ok(()) => {}
            Err(why) if is_refused(&why) => {
                crate::log(|| format!("pod {} does not start: {why}", self.pod));
                // kubelet knows then that nothing is mounted: the pod waits where the volume is not yet, or not any longer.
                if why.contains(&format!("Stage {handle} is answered NotFound")) {
                    pod.volume = None;
                    self.moves.used.lock().unwrap().remove(&handle);
                }
                self.moves.pause(500, 3000).await;
                return Ok(());
            }
            Err(why) => return Err(why),
        }
        if self.stands_still(pod.node) || !self.is_mounted(volume) {
            return Ok(());
        }
        match self.place(volume, &requests::target_path(&volume.name)).open(&mut self.log.lock().unwrap()) {
            Ok(()) => {}
            Err(Trouble::Lost) => return Ok(()),
            Err(Trouble::Wrong(why)) => {
                return Err(format!("pod {} got volume {handle} on {node}: {why}", self.pod));
            }
        }
        crate::log(|| {
            format!("pod {} runs on {node} with {handle}: {:?}", self.pod, self.log.lock().unwrap())
        });
        pod.runs = true;
        self.moves.with(|kubernetes| {
            if kubernetes.get("pods", &self.pod).is_some_and(|there| there["metadata"]["uid"] == pod.uid) {
                let running = json!({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]});
                kubernetes.change("pods", &self.pod, |pod| pod["status"] = running);
            }
        });
        Ok(())
    }

    /// Ends the pod. Its object goes when the volume is not published any more; it is unstaged after that.
    async fn stop(&self, pod: &Pod, leaving: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
        let Some(volume) = pod.volume.clone() else {
            self.forget(&pod.uid);
            return Ok(());
        };
        let unpublish = requests::unpublish(&volume.id, &volume.name);
        match self.client().node(&format!("Unpublish {}", volume.id), volume.node, &unpublish).await {
            Err(why) if !why.contains(OFF) => return Err(why),
            Ok(_) | Err(_) => {}
        }
        crate::log(|| format!("pod {} has left {}", self.pod, self.cluster.machines[volume.node].id));
        self.moves.used.lock().unwrap().remove(&volume.id);
        self.forget(&pod.uid);
        let (client, moves) = (self.client(), Arc::clone(&self.moves));
        leaving.spawn(async move {
            moves.pause(0, 3000).await;
            let unstage = requests::unstage(&volume.id);
            match client.node(&format!("Unstage {}", volume.id), volume.node, &unstage).await {
                // The machine has lost its power, and csi-provisioner was quicker.
                Err(why) if !why.contains("is answered NotFound") && !why.contains(OFF) => return Err(why),
                Ok(_) | Err(_) => {}
            }
            Ok(())
        });
        Ok(())
    }

    fn place<'a>(&'a self, volume: &Volume, target: &'a str) -> Place<'a> {
        Place { kernel: &self.cluster.machines[volume.node].kernel, target, kind: self.order.spec.kind }
    }

    fn is_mounted(&self, volume: &Volume) -> bool {
        let target = requests::target_path(&volume.name);
        let mounts = self.cluster.machines[volume.node].kernel.mounts();
        mounts.iter().any(|mount| mount.target.as_os_str() == target.as_str())
    }

    /// Writes a few records.
    async fn work(&self, volume: &Volume) {
        self.moves.pause(1, 2500).await;
        let target = requests::target_path(&volume.name);
        let place = self.place(volume, &target);
        let records = 1 + self.moves.below(3);
        if self.stands_still(volume.node) || !self.is_mounted(volume) {
            return;
        }
        for _ in 0..records {
            if place.append(&mut self.log.lock().unwrap()).is_err() {
                return;
            }
        }
        self.moves.pause(1, 1500).await;
        while self.stands_still(volume.node) && !self.is_off(volume.node) {
            self.moves.pause(100, 500).await;
        }
        if self.is_mounted(volume) && place.commit(&mut self.log.lock().unwrap()).is_ok() {
            let log = self.log.lock().unwrap().clone();
            crate::log(|| format!("{} has {} records", self.claim, log.acknowledged));
        }
    }
}
