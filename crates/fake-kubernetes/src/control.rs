//! What the control plane does with claims, PersistentVolumes and pods, one look after the other, apart from binding them
//! (`binding.rs`).

use serde_json::{Value, json};

use super::{Key, Kubernetes, NAMESPACE, Namespace, key};

/// Holds a claim while a scheduled pod uses it.
pub const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Holds a PersistentVolume while it is bound.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

/// Adds a finalizer, once.
pub(super) fn add_finalizer(object: &mut Value, finalizer: &str) {
    let finalizers = &mut object["metadata"]["finalizers"];
    let mut all = finalizers.as_array().cloned().unwrap_or_default();
    if !all.iter().any(|there| there == finalizer) {
        all.push(json!(finalizer));
    }
    *finalizers = json!(all);
}

/// The claim of a pod.
pub fn claim_of(pod: &Value) -> Option<&str> {
    pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str()
}

pub(super) fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

pub(super) fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The node of a PersistentVolume.
pub fn node_of(volume: &Value) -> &str {
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    terms[0]["matchExpressions"][0]["values"][0].as_str().unwrap_or_default()
}

/// A pod of a controller, which uses one claim.
pub fn pod(name: &str, claim: &str, controller: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences":
            [{"apiVersion": "apps/v1", "kind": controller, "name": "db", "uid": "u", "controller": true}]},
        "spec": {"containers": [], "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": claim}}]},
        "status": {"phase": "Pending"}})
}

/// What the controller of StatefulSets cannot make a pod without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wants {
    Nothing,
    /// A claim, which it makes.
    Claim,
    /// That the claim that is being deleted is gone.
    TheOldClaimGone,
}

impl Kubernetes {
    /// Somebody deletes the namespace with all that is in it.
    pub fn delete_namespace(&mut self) {
        self.namespace = Namespace::Terminating;
        let inside: Vec<Key> = self.objects.keys().filter(|key| key.1 == NAMESPACE).cloned().collect();
        inside.iter().for_each(|key| self.mark_deleted(key));
    }

    /// A namespace that is being deleted is gone when nothing is in it any more.
    pub fn end_namespace(&mut self) {
        if self.namespace == Namespace::Terminating && !self.objects.keys().any(|key| key.1 == NAMESPACE) {
            self.namespace = Namespace::Gone;
        }
    }

    /// The PersistentVolume of a claim that a pod may use, and its volume.
    pub fn volume_of(&self, claim: &str) -> Option<(Value, String)> {
        let claim = self.get("persistentvolumeclaims", claim)?;
        let volume = self.get("persistentvolumes", claim["spec"]["volumeName"].as_str()?)?;
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str()?.to_owned();
        let usable = claim["status"]["phase"] == "Bound" && !is_deleted(&claim);
        usable.then_some((volume, handle))
    }

    /// A claim that is deleted is held as long as a scheduled pod uses it.
    pub fn protect(&mut self, name: &str) {
        let Some(claim) = self.get("persistentvolumeclaims", name) else { return };
        let used =
            self.all("pods").any(|pod| claim_of(pod) == Some(name) && !pod["spec"]["nodeName"].is_null());
        let protected = claim["metadata"]["finalizers"].to_string().contains("pvc-protection");
        if is_deleted(&claim) && !used && protected {
            self.change("persistentvolumeclaims", name, |claim| {
                let all = claim["metadata"]["finalizers"].as_array_mut().unwrap();
                all.retain(|finalizer| finalizer != PROTECTION);
            });
        }
    }

    /// Checks the finalizers of PersistentVolumes: one that is being deleted is held as long as it is Bound. A volume that is
    /// not being deleted gets a missing finalizer again.
    pub fn protect_volumes(&mut self) {
        let names: Vec<String> = self.all("persistentvolumes").map(name_of).collect();
        for name in names {
            self.change("persistentvolumes", &name, |volume| match is_deleted(volume) {
                true if volume["status"]["phase"] != "Bound" => {
                    let all = volume["metadata"]["finalizers"].as_array_mut();
                    all.into_iter().for_each(|all| all.retain(|finalizer| finalizer != VOLUME_PROTECTION));
                }
                true => {}
                false => add_finalizer(volume, VOLUME_PROTECTION),
            });
        }
    }

    /// The controller of StatefulSets makes the pod, and says what it waits for.
    pub fn stateful_set(&mut self, name: &str, claim: &str) -> Wants {
        if self.get("pods", name).is_some() {
            return Wants::Nothing;
        }
        match self.get("persistentvolumeclaims", claim) {
            Some(claim) if is_deleted(&claim) => return Wants::TheOldClaimGone,
            Some(_) => {}
            None => return Wants::Claim,
        }
        self.create(key("pods", NAMESPACE, name), pod(name, claim, "StatefulSet"));
        Wants::Nothing
    }

    /// The scheduler puts a pod on the node of its volume, unless that is cordoned or `away`.
    pub fn schedule(&mut self, name: &str, claim: &str, away: Option<&str>) {
        let Some(pod) = self.get("pods", name) else { return };
        let Some((volume, _)) = self.volume_of(claim) else { return };
        let node = node_of(&volume).to_owned();
        let cordoned = self.get("nodes", &node).is_some_and(|node| node["spec"]["unschedulable"] == true);
        if pod["spec"]["nodeName"].is_null() && !cordoned && away != Some(node.as_str()) {
            self.change("pods", name, |pod| pod["spec"]["nodeName"] = json!(node));
        }
    }
}
