//! What the moves of this process have come to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt as _;

use super::copies::Updated;
use super::look::standby_of;
use super::resources::{ReplicaPhase, VolumeReplica};
use super::seen::Seen;
use super::view::Wanted;

/// Counts since the start of the process, and what is under way if it leads.
#[derive(Default)]
pub struct Figures {
    /// The driver, and what this process sees as long as it leads.
    seen: Mutex<Option<(String, Seen)>>,
    done: AtomicU64,
    given_up: AtomicU64,
    passes: AtomicU64,
    sent_bytes: AtomicU64,
    changed_bytes: AtomicU64,
    failures: AtomicU64,
}

/// A standby copy: its claim as `NAMESPACE/NAME`, the age of its data and how old they may become, in seconds.
pub type StandbyAge = (String, f64, f64);

impl Figures {
    /// This process moves the volumes of this driver, and sees this; or it does not lead.
    pub(super) fn leads(&self, seen: Option<(&str, Seen)>) {
        *self.lock() = seen.map(|(driver, seen)| (driver.to_owned(), seen));
    }

    fn lock(&self) -> MutexGuard<'_, Option<(String, Seen)>> {
        // Nothing that runs under the mutex can panic half-way.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn passed(&self, updated: &Updated) {
        self.passes.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(updated.sent_bytes, Ordering::Relaxed);
        self.changed_bytes.fetch_add(updated.changed_bytes, Ordering::Relaxed);
    }

    pub(super) fn entered(&self, phase: ReplicaPhase) {
        match phase {
            ReplicaPhase::Retiring => self.done.fetch_add(1, Ordering::Relaxed),
            ReplicaPhase::Abandoning => self.given_up.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many copies are in each phase.
    pub fn under_way(&self) -> BTreeMap<ReplicaPhase, u64> {
        let mut counts = BTreeMap::new();
        let all = |(driver, seen): &(String, Seen)| {
            seen.replicas.state_filter(|replica| replica.spec.driver == *driver)
        };
        for replica in self.lock().iter().flat_map(all) {
            *counts.entry(replica.phase()).or_default() += 1;
        }
        counts
    }

    /// Returns each claim with which no pod can start, because its volume is cut over, as `NAMESPACE/NAME`, with the phase. The
    /// VolumeReplica names the claim, whether it exists or not.
    pub fn cutovers(&self) -> Vec<(String, ReplicaPhase)> {
        let all = |(driver, seen): &(String, Seen)| {
            seen.replicas
                .state_filter(|replica| replica.spec.driver == *driver && replica.phase().is_of_a_cutover())
        };
        let of = |replica: Arc<VolumeReplica>| {
            let claim = &replica.spec.claim;
            (format!("{}/{}", claim.namespace, claim.name), replica.phase())
        };
        self.lock().iter().flat_map(all).map(of).collect()
    }

    /// Returns the standby copies.
    pub fn standby(&self) -> Vec<StandbyAge> {
        let now = k8s_openapi::jiff::Timestamp::now();
        let seen = self.lock();
        let Some((driver, seen)) = seen.as_ref() else { return Vec::new() };
        let age_of = |replica: &VolumeReplica| {
            let asked = &replica.status.as_ref()?.last_pass.as_ref()?.asked.0;
            let claim = seen.claim(&replica.spec.claim.namespace, &replica.spec.claim.name)?;
            let class = claim.spec.as_ref()?.storage_class_name.clone()?;
            let Wanted::Standby { interval } = standby_of(&claim, Seen::get(&seen.classes, &class)?.as_ref())
            else {
                return None;
            };
            let name = format!("{}/{}", claim.namespace()?, claim.name_any());
            Some((name, now.duration_since(*asked).as_secs_f64().max(0.0), interval.as_secs_f64()))
        };
        let standby = |replica: &VolumeReplica| {
            replica.phase() == ReplicaPhase::Standby && replica.spec.driver == *driver
        };
        seen.replicas.state_filter(standby).iter().filter_map(|replica| age_of(replica)).collect()
    }

    /// Returns the volumes that came to another node, and the copies that were given up.
    pub fn ends(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.given_up.load(Ordering::Relaxed))
    }

    /// Returns passes, bytes sent, and bytes changed.
    pub fn traffic(&self) -> (u64, u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.passes), load(&self.sent_bytes), load(&self.changed_bytes))
    }

    /// Returns the number of steps that failed and are tried again.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    fn replica(name: &str, driver: &str, phase: &str) -> VolumeReplica {
        let claim = json!({"namespace": "shop", "name": name, "uid": name});
        serde_json::from_value(json!({
            "apiVersion": "hostloop.csi.dev/v1alpha1", "kind": "VolumeReplica", "metadata": {"name": name},
            "spec": {"driver": driver, "volumeId": name, "generation": 0, "persistentVolume": {"name": name, "uid": "u"},
                "claim": claim, "sourceNode": "n2", "targetNode": "n1", "copyName": name, "copyId": name, "purpose": "Move"},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn cutover_names_a_claim_that_may_be_gone() {
        let (seen, mut writers) = Seen::new();
        let others = ["Pending", "Copying", "Ready", "Standby", "Retiring", "Left", "Abandoning", "Stranded"];
        let cutovers = ["CuttingOver", "Exchanging", "LastPass", "Completing"];
        for phase in others.iter().chain(&cutovers) {
            let replica = replica(&phase.to_lowercase(), "hostloop.csi.dev", phase);
            writers.replicas.apply_watcher_event(&Event::Apply(replica));
        }
        let of_another = replica("theirs", "other.csi.dev", "LastPass");
        writers.replicas.apply_watcher_event(&Event::Apply(of_another));
        let figures = Figures::default();
        assert_eq!(figures.cutovers(), [], "it does not lead");
        figures.leads(Some(("hostloop.csi.dev", seen)));
        let text = |(claim, phase): (String, ReplicaPhase)| format!("{claim} {}", phase.as_str());
        let mut found: Vec<String> = figures.cutovers().into_iter().map(text).collect();
        found.sort();
        let mut expected = cutovers.map(|phase| format!("shop/{} {phase}", phase.to_lowercase()));
        expected.sort();
        assert_eq!(found, expected);
    }
}
