//! The controller of PersistentVolumes: which claim gets which volume, and the phases of both. It follows syncClaim, syncVolume
//! and FindMatchingVolume of Kubernetes.

use hostloop_model::parse_quantity;
use serde_json::{Value, json};

use super::control::{is_deleted, name_of};
use super::writes::set;
use super::{Kubernetes, NAMESPACE};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Returns the text of a field, which is empty if the field is missing.
fn text<'a>(spec: &'a Value, field: &str) -> &'a str {
    spec[field].as_str().unwrap_or_default()
}

/// Returns whether `claimRef` of a volume has the name and the namespace of a claim, and its uid if it has any.
fn is_reserved_for(volume: &Value, claim: &Value) -> bool {
    let reserved = &volume["spec"]["claimRef"];
    let is_same = |field: &str| reserved[field] == claim["metadata"][field];
    is_same("name") && is_same("namespace") && (text(reserved, "uid").is_empty() || is_same("uid"))
}

/// Returns a quantity in bytes. One that is missing is zero, one that cannot be read is nothing.
fn bytes(quantity: &Value) -> Option<u64> {
    match quantity {
        Value::Null => Some(0),
        Value::String(text) => parse_quantity(text).ok(),
        number => parse_quantity(&number.to_string()).ok(),
    }
}

fn capacity(volume: &Value) -> Option<u64> {
    bytes(&volume["spec"]["capacity"]["storage"])
}

/// Returns whether a claim accepts a volume, apart from the class.
fn fits(volume: &Value, claim: &Value) -> bool {
    let (has, wants) = (&volume["spec"], &claim["spec"]);
    let mode = |spec: &Value| spec["volumeMode"].as_str().unwrap_or("Filesystem").to_owned();
    let attributes = "volumeAttributesClassName";
    let no_modes = Vec::new();
    let modes = |spec: &'_ Value| spec["accessModes"].as_array().unwrap_or(&no_modes).clone();
    let wanted = bytes(&wants["resources"]["requests"]["storage"]);
    let is_large_enough = wanted.is_some_and(|wanted| capacity(volume).is_some_and(|bytes| bytes >= wanted));
    is_large_enough
        && mode(has) == mode(wants)
        && text(has, attributes) == text(wants, attributes)
        && modes(wants).iter().all(|mode| modes(has).contains(mode))
        && !is_deleted(volume)
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

    /// Checks the phase of each PersistentVolume, as the controller does when it looks at them.
    pub fn offer(&mut self) {
        let volumes: Vec<Value> = self.all("persistentvolumes").cloned().collect();
        volumes.iter().for_each(|volume| self.sync_volume(volume));
    }

    fn sync_volume(&mut self, volume: &Value) {
        let (name, reserved) = (name_of(volume), &volume["spec"]["claimRef"]);
        if text(reserved, "uid").is_empty() {
            return self.set_phase(&name, "Available");
        }
        let claim = self.get("persistentvolumeclaims", text(reserved, "name"));
        let is_its_own = |claim: &Value| is_reserved_for(volume, claim);
        let Some(claim) = claim.filter(is_its_own) else { return self.set_phase(&name, "Released") };
        let provisioned = !volume["metadata"]["annotations"][PROVISIONED_BY].is_null();
        match claim["spec"]["volumeName"].as_str() {
            // The claim is bound when the controller looks at the claim.
            None | Some("") => {}
            Some(bound) if bound == name => self.set_phase(&name, "Bound"),
            // The claim has another volume: one that was provisioned for it is deleted, one of an administrator is free again.
            Some(_) if provisioned && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" => {
                self.set_phase(&name, "Released");
            }
            Some(_) => self.unbind(&name),
        }
    }

    fn set_phase(&mut self, volume: &str, phase: &str) {
        self.change("persistentvolumes", volume, |volume| {
            // A failure is kept until an administrator has seen it.
            if phase != "Released" || volume["status"]["phase"] != "Failed" {
                volume["status"]["phase"] = json!(phase);
            }
        });
    }

    fn unbind(&mut self, volume: &str) {
        self.change("persistentvolumes", volume, |volume| {
            match volume["metadata"]["annotations"][BOUND_BY_CONTROLLER].is_null() {
                true => drop(volume["spec"]["claimRef"].as_object_mut().unwrap().remove("uid")),
                false => drop(volume["spec"].as_object_mut().unwrap().remove("claimRef")),
            }
            volume["status"]["phase"] = json!("Available");
        });
    }

    /// Returns the volume that a claim which was never bound gets.
    fn match_for(&self, claim: &Value) -> Option<Value> {
        let is_free = |volume: &Value| {
            let class = "storageClassName";
            volume["spec"]["claimRef"].is_null()
                && text(&volume["spec"], class) == text(&claim["spec"], class)
                && fits(volume, claim)
        };
        let named = text(&claim["spec"], "volumeName");
        if !named.is_empty() {
            let volume = self.get("persistentvolumes", named)?;
            // If each names the other, Kubernetes compares nothing else.
            return (is_free(&volume) || is_reserved_for(&volume, claim)).then_some(volume);
        }
        // Kubernetes does not compare the class if the volume names the claim.
        let reserved = |volume: &&Value| is_reserved_for(volume, claim) && fits(volume, claim);
        let class = self.get("storageclasses", text(&claim["spec"], "storageClassName")).unwrap_or_default();
        let by_scheduler = class["volumeBindingMode"] == "WaitForFirstConsumer";
        let free =
            |volume: &&Value| !by_scheduler && volume["status"]["phase"] == "Available" && is_free(volume);
        let smallest = || self.all("persistentvolumes").filter(free).min_by_key(|volume| capacity(volume));
        self.all("persistentvolumes").find(reserved).or_else(smallest).cloned()
    }

    /// Checks a claim, as the controller of PersistentVolumes does when it looks at it: binds the volume to it, and then it to
    /// the volume. A claim for which there is no volume gets a new one, which is empty.
    pub fn bind(&mut self, name: &str) {
        let Some(claim) = self.get("persistentvolumeclaims", name) else { return };
        if !claim["metadata"]["annotations"][BIND_COMPLETED].is_null() {
            return self.check_bound(&claim);
        }
        if let Some(left) = self.too_early.get_mut(name).filter(|left| **left > 0) {
            *left -= 1;
            return;
        }
        let Some(volume) = self.match_for(&claim) else {
            let is_provisioned = |spec: &Value| {
                text(spec, "volumeName").is_empty() && !text(spec, "storageClassName").is_empty()
            };
            if is_provisioned(&claim["spec"]) {
                self.wrong.push(format!("claim {name} without a volume got an empty one"));
            }
            return;
        };
        self.bind_volume(&volume, &claim);
        if self.halves && self.waits(&claim) {
            return;
        }
        self.bind_claim(name, &volume);
    }

    /// Checks a claim that was bound before: it is Bound if its volume exists and has its uid, and Lost otherwise. A Lost claim
    /// is checked again when it changes, or at the resync: a new volume alone does not make the controller check it.
    fn check_bound(&mut self, claim: &Value) {
        if claim["status"]["phase"] == "Lost" && self.waits(claim) {
            return;
        }
        let volume = self.get("persistentvolumes", text(&claim["spec"], "volumeName")).filter(|volume| {
            let reserved = &volume["spec"]["claimRef"];
            reserved.is_null() || reserved["uid"] == claim["metadata"]["uid"]
        });
        let name = name_of(claim);
        let Some(volume) = volume else {
            return self.change("persistentvolumeclaims", &name, |claim| {
                let status = &mut claim["status"];
                for field in ["accessModes", "capacity", "currentVolumeAttributesClassName"] {
                    set(status, field, &Value::Null);
                }
                status["phase"] = json!("Lost");
            });
        };
        self.bind_volume(&volume, claim);
        self.bind_claim(&name, &volume);
    }

    /// Returns whether the controller does not look at a claim yet, which has not changed and whose resync has not come.
    fn waits(&mut self, claim: &Value) -> bool {
        let (name, version) = (name_of(claim), &claim["metadata"]["resourceVersion"]);
        let (before, left) =
            self.waiting.entry(name.clone()).or_insert_with(|| (version.clone(), self.resync));
        if before == version && *left > 0 {
            *left -= 1;
            return true;
        }
        self.waiting.remove(&name);
        false
    }

    fn bind_volume(&mut self, volume: &Value, claim: &Value) {
        self.change("persistentvolumes", &name_of(volume), |volume| {
            if !is_reserved_for(volume, claim) {
                volume["metadata"]["annotations"][BOUND_BY_CONTROLLER] = json!("yes");
            }
            let metadata = &claim["metadata"];
            if volume["spec"]["claimRef"]["uid"] != metadata["uid"] {
                volume["spec"]["claimRef"] = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": NAMESPACE, "name": metadata["name"], "uid": metadata["uid"],
                    "resourceVersion": metadata["resourceVersion"]});
            }
            volume["status"]["phase"] = json!("Bound");
        });
    }

    fn bind_claim(&mut self, name: &str, volume: &Value) {
        self.change("persistentvolumeclaims", name, |claim| {
            let annotations = &mut claim["metadata"]["annotations"];
            annotations[BIND_COMPLETED] = json!("yes");
            if text(&claim["spec"], "volumeName").is_empty() {
                claim["metadata"]["annotations"][BOUND_BY_CONTROLLER] = json!("yes");
                claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
            }
            let attributes = &volume["spec"]["volumeAttributesClassName"];
            let status = &mut claim["status"];
            // A claim that was Lost does not get this back: from then on the field is the resizer's.
            if !attributes.is_null() && matches!(text(status, "phase"), "" | "Pending") {
                status["currentVolumeAttributesClassName"] = attributes.clone();
            }
            // A claim that was Bound keeps the size that its filesystem has.
            if status["phase"] != "Bound" {
                status["capacity"] = volume["spec"]["capacity"].clone();
            }
            status["accessModes"] = volume["spec"]["accessModes"].clone();
            status["phase"] = json!("Bound");
        });
    }

    /// Returns the PersistentVolumes whose volumes csi-provisioner deletes. One whose finalizer was taken away while it was
    /// deleted is left alone.
    pub fn reclaimable(&self) -> Vec<Value> {
        let is_reclaimable = |volume: &&Value| {
            let held = volume["metadata"]["finalizers"].to_string().contains("external-provisioner");
            volume["status"]["phase"] == "Released"
                && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
                && !volume["metadata"]["annotations"][PROVISIONED_BY].is_null()
                && (held || !is_deleted(volume))
        };
        self.all("persistentvolumes").filter(is_reclaimable).cloned().collect()
    }
}
