//! What the control plane does with claims, PersistentVolumes and pods, one look after the other.

use serde_json::{Value, json};

use super::{Key, Kubernetes, NAMESPACE, Namespace, key};

/// Holds a claim while a scheduled pod uses it.
pub const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The claim of a pod.
pub fn claim_of(pod: &Value) -> Option<&str> {
    pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str()
}

fn name_of(object: &Value) -> String {
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
    fn is_available(&self, volume: &str) -> bool {
        self.get("persistentvolumes", volume).is_some_and(|volume| volume["status"]["phase"] == "Available")
    }

    /// A claim of this name is made.
    pub(super) fn is_made(&mut self, name: &str, claim: &Value) {
        let volume = claim["spec"]["volumeName"].as_str();
        if volume.is_some_and(|volume| !self.is_available(volume)) {
            self.too_early.insert(name.to_owned(), self.resync);
        }
    }

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

    /// The controller of PersistentVolumes looks at those that are reserved.
    pub fn offer(&mut self) {
        let reserved = |volume: &&Value| {
            volume["spec"]["claimRef"]["uid"].is_null() && volume["status"]["phase"] != "Available"
        };
        let reserved: Vec<String> = self.all("persistentvolumes").filter(reserved).map(name_of).collect();
        for name in reserved {
            self.change("persistentvolumes", &name, |volume| {
                volume["status"] = json!({"phase": "Available"})
            });
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

    /// The controller of PersistentVolumes looks at a claim: binds the volume to it, and then it to the volume. A claim for
    /// which no volume is reserved gets a new one, which is empty.
    pub fn bind(&mut self, name: &str) {
        let Some(claim) = self.get("persistentvolumeclaims", name) else { return };
        match claim["status"]["phase"].as_str() {
            Some("Bound") => return self.lose(&claim),
            Some("Lost") => return,
            _ => {}
        }
        if let Some(left) = self.too_early.get_mut(name).filter(|left| **left > 0) {
            *left -= 1;
            return;
        }
        let named = claim["spec"]["volumeName"].as_str().map(str::to_owned);
        let uid = claim["metadata"]["uid"].clone();
        let fits = |volume: &&Value| {
            let reserved = &volume["spec"]["claimRef"];
            reserved["name"] == name
                && (reserved["uid"].is_null() || reserved["uid"] == uid)
                && named.as_ref().is_none_or(|name| volume["metadata"]["name"] == *name)
        };
        let Some(found) = self.all("persistentvolumes").find(fits).map(name_of) else {
            if named.is_none() {
                self.wrong.push(format!("claim {name} without a volume got an empty one"));
            }
            return;
        };
        self.change("persistentvolumes", &found, |volume| {
            volume["spec"]["claimRef"]["uid"] = uid;
            volume["status"] = json!({"phase": "Bound"});
        });
        if self.halves {
            let version = claim["metadata"]["resourceVersion"].clone();
            let resync = self.resync;
            let (before, left) =
                self.half_bound.entry(name.to_owned()).or_insert_with(|| (version.clone(), resync));
            if *before == version && *left > 0 {
                *left -= 1;
                return;
            }
            self.half_bound.remove(name);
        }
        self.change("persistentvolumeclaims", name, |claim| {
            claim["spec"]["volumeName"] = json!(found);
            claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
            claim["status"] = json!({"phase": "Bound"});
        });
    }

    /// A claim that is bound, and whose volume does not name it, is *Lost* for ever.
    fn lose(&mut self, claim: &Value) {
        let volume =
            claim["spec"]["volumeName"].as_str().and_then(|name| self.get("persistentvolumes", name));
        if volume.is_none_or(|volume| volume["spec"]["claimRef"]["uid"] != claim["metadata"]["uid"]) {
            let name = claim["metadata"]["name"].as_str().unwrap();
            self.change("persistentvolumeclaims", name, |claim| claim["status"]["phase"] = json!("Lost"));
        }
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

    /// The PersistentVolumes of claims that are gone whose volumes csi-provisioner may delete.
    pub fn reclaimable(&self) -> Vec<Value> {
        let claims: Vec<&Value> =
            self.all("persistentvolumeclaims").map(|claim| &claim["metadata"]["uid"]).collect();
        let is_reclaimable = |volume: &&Value| {
            let uid = &volume["spec"]["claimRef"]["uid"];
            !uid.is_null()
                && !claims.contains(&uid)
                && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        };
        self.all("persistentvolumes").filter(is_reclaimable).cloned().collect()
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
