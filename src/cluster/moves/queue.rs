//! Which first copies are made now. A first copy carries a whole volume: too many at once would slow each other, and the passes of
//! volumes that wait for their last one (rule 10). One that has failed comes after all others: it keeps no place while it waits. No I/O.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::resources::{ReplicaPhase, VolumeReplica};

/// First copies that a node sends or receives at a time.
const AT_ONCE: usize = 2;

/// The first copies that this controller has begun, by the uid of the VolumeReplica, each with the time at which the last try failed.
/// The watch shows them as waiting until it is up to date.
#[derive(Clone, Default)]
pub struct Begun(Arc<Mutex<HashMap<String, Option<Time>>>>);

/// Returns the message of a copy that waits for its turn.
pub fn comes_after(queue: usize) -> String {
    format!("{queue} first copies are made before this one")
}

impl Begun {
    /// Returns how many first copies of the same driver come before this one; 0 if it can be made now.
    pub fn ahead(&self, all: &[Arc<VolumeReplica>], of: &VolumeReplica) -> usize {
        let begun = self.lock();
        ahead(all, of, |replica| is_in(&begun, replica))
    }

    /// Returns how many first copies come before this one, and remembers it as begun if none does.
    pub fn begin(&self, all: &[Arc<VolumeReplica>], of: &VolumeReplica) -> usize {
        let mut begun = self.lock();
        let queue = ahead(all, of, |replica| is_in(&begun, replica));
        if queue == 0 {
            let shown: Vec<String> = all
                .iter()
                .filter(|replica| is_in(&begun, replica))
                .filter_map(|replica| replica.uid())
                .collect();
            begun.retain(|uid, _| shown.contains(uid));
            begun.insert(of.uid().unwrap_or_default(), failed(of));
        }
        queue
    }

    /// Forgets that a copy has begun if the watch shows it as waiting and it does not begin now. Its status was not written.
    pub fn forget(&self, replica: &VolumeReplica) {
        let mut begun = self.lock();
        if is_in(&begun, replica) {
            begun.remove(&replica.uid().unwrap_or_default());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Option<Time>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports whether a VolumeReplica is shown as waiting whose first copy has begun.
fn is_in(begun: &HashMap<String, Option<Time>>, replica: &VolumeReplica) -> bool {
    replica.phase() == ReplicaPhase::Pending
        && replica.metadata.uid.as_ref().and_then(|uid| begun.get(uid)) == Some(&failed(replica))
}

/// Returns how many first copies come before this one. The namespaces take turns, so that one with many volumes does not delay the others. The watch may show an
/// earlier state of the VolumeReplica that asks.
fn ahead(
    all: &[impl AsRef<VolumeReplica>],
    of: &VolumeReplica,
    is_begun: impl Fn(&VolumeReplica) -> bool,
) -> usize {
    let others = all.iter().map(AsRef::as_ref).filter(|replica| replica.uid() != of.uid());
    let all: Vec<&VolumeReplica> =
        others.filter(|replica| replica.spec.driver == of.spec.driver).chain([of]).collect();
    let is_busy = |replica: &VolumeReplica| replica.phase() == ReplicaPhase::Copying || is_begun(replica);
    let mut busy = HashMap::<&str, usize>::new();
    for replica in all.iter().filter(|replica| is_busy(replica)) {
        take(&mut busy, replica);
    }
    let is_in_turn =
        |replica: &&VolumeReplica| is_waiting(replica) && !is_deleted(replica) && !is_begun(replica);
    let mut waiting: Vec<&VolumeReplica> = all.into_iter().filter(is_in_turn).collect();
    waiting.sort_by_key(|replica| (replica.creation_timestamp(), replica.name_any()));
    let mut turns = HashMap::<&str, usize>::new();
    let mut in_turn: Vec<(usize, &VolumeReplica)> = waiting
        .into_iter()
        .map(|replica| {
            let turn = turns.entry(&replica.spec.claim.namespace).or_default();
            *turn += 1;
            (*turn, replica)
        })
        .collect();
    in_turn.sort_by_key(|(turn, replica)| (has_failed(replica), *turn));
    let mut ahead = 0;
    for (_, replica) in in_turn {
        let fits = has_room(&busy, replica);
        if replica.uid() == of.uid() {
            return if fits { 0 } else { ahead + 1 };
        }
        match fits {
            true => take(&mut busy, replica),
            false => ahead += 1,
        }
    }
    0
}

/// Reports whether a first copy can be made when its turn comes. Without a status, the nodes have to answer first.
fn is_waiting(replica: &VolumeReplica) -> bool {
    replica.phase() == ReplicaPhase::Pending && replica.status.as_ref().is_some_and(|status| status.begun)
}

fn failed(replica: &VolumeReplica) -> Option<Time> {
    replica.status.as_ref().and_then(|status| status.first_copy_failed.clone())
}

fn has_failed(replica: &VolumeReplica) -> bool {
    failed(replica).is_some()
}

fn is_deleted(replica: &VolumeReplica) -> bool {
    replica.metadata.deletion_timestamp.is_some()
}

fn has_room(busy: &HashMap<&str, usize>, replica: &VolumeReplica) -> bool {
    let free = |node: &String| busy.get(node.as_str()).is_none_or(|count| *count < AT_ONCE);
    free(&replica.spec.source_node) && free(&replica.spec.target_node)
}

fn take<'a>(busy: &mut HashMap<&'a str, usize>, replica: &'a VolumeReplica) {
    for node in [&replica.spec.source_node, &replica.spec.target_node] {
        *busy.entry(node).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Named by their numbers, created in this order.
    fn replicas(all: &[(&str, &str, (&str, &str))]) -> Vec<Arc<VolumeReplica>> {
        let replica = |(number, (phase, namespace, (from, to))): (usize, &(&str, &str, (&str, &str)))| {
            let claim = json!({"namespace": namespace, "name": "c", "uid": "u"});
            let spec = json!({"driver": "d", "volumeId": "v", "generation": 0, "claim": claim, "sourceNode": from,
                "persistentVolume": {"name": "p", "uid": "u"}, "targetNode": to, "copyName": "c", "copyId": "i",
                "purpose": "Move"});
            let created = format!("2026-01-01T00:00:{number:02}Z");
            let metadata = json!({"name": format!("r{number}"), "uid": number.to_string(), "creationTimestamp": created});
            let object = json!({"apiVersion": "hostloop.csi.dev/v1alpha1", "kind": "VolumeReplica",
                "metadata": metadata, "spec": spec, "status": {"phase": phase, "begun": true}});
            Arc::new(serde_json::from_value(object).unwrap())
        };
        all.iter().enumerate().map(replica).collect()
    }

    fn queue(all: &[(&str, &str, (&str, &str))]) -> Vec<usize> {
        let all = replicas(all);
        all.iter().map(|of| Begun::default().ahead(&all, of)).collect()
    }

    #[test]
    fn two_first_copies_of_a_node_are_made_at_a_time() {
        let pending = ("Pending", "a", ("n1", "n2"));
        assert_eq!(queue(&[pending; 4]), [0, 0, 1, 2]);
        let copying = ("Copying", "a", ("n1", "n2"));
        assert_eq!(queue(&[copying, pending, pending])[1..], [0, 1]);
        assert_eq!(queue(&[copying, copying, pending])[2], 1);
        assert_eq!(queue(&[("Ready", "a", ("n1", "n2")), pending, pending])[1..], [0, 0]);
        // The other nodes are free.
        assert_eq!(queue(&[copying, copying, ("Pending", "a", ("n3", "n4"))])[2], 0);
        assert_eq!(queue(&[copying, copying, ("Pending", "a", ("n3", "n2"))])[2], 1);
    }

    #[test]
    fn a_first_copy_that_has_failed_comes_last() {
        let mut all = replicas(&[("Pending", "a", ("n1", "n2")); 4]);
        for failed in &mut all[..2] {
            let status = Arc::make_mut(failed).status.as_mut().unwrap();
            status.first_copy_failed = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        }
        let queue: Vec<usize> = all.iter().map(|of| Begun::default().ahead(&all, of)).collect();
        assert_eq!(queue, [1, 2, 0, 0]);
    }

    /// A node may be silent for days, and its copies have no turn until it answers.
    #[test]
    fn a_copy_without_a_status_delays_no_other_one() {
        let mut all = replicas(&[("Pending", "a", ("n1", "n2")); 4]);
        for lost in &mut all[..2] {
            Arc::make_mut(lost).status = None;
        }
        assert_eq!([2, 3].map(|of: usize| Begun::default().ahead(&all, &all[of])), [0, 0]);
    }

    /// Its controllers may be gone, and its copies are never made.
    #[test]
    fn a_copy_of_another_driver_delays_none() {
        let mut all = replicas(&[("Copying", "a", ("n1", "n2")); 4]);
        for other in &mut all[..3] {
            Arc::make_mut(other).spec.driver = "other".to_owned();
        }
        Arc::make_mut(&mut all[3]).status.as_mut().unwrap().phase = ReplicaPhase::Pending;
        assert_eq!(Begun::default().ahead(&all, &all[3]), 0);
    }

    #[test]
    fn namespaces_take_turns() {
        let of = |namespace| ("Pending", namespace, ("n1", "n2"));
        assert_eq!(queue(&[of("a"), of("a"), of("a"), of("b")]), [0, 1, 2, 0]);
    }

    /// VolumeReplicas that were created in one second are ordered by name, so the first one that asks may not be the first in the order.
    #[test]
    fn a_begun_copy_counts_before_the_watch_shows_it() {
        let mut all = replicas(&[("Pending", "a", ("n1", "n2")); 4]);
        let begun = Begun::default();
        let unseen = Arc::clone(&all[0]);
        Arc::make_mut(&mut all[0]).status = None;
        assert_eq!([1, 2].map(|of: usize| begun.begin(&all, &all[of])), [0, 0]);
        assert_eq!(begun.begin(&all, &unseen), 1, "its status was written, and the watch does not show it");
        assert_eq!(begun.begin(&all, &all[2]), 0, "a retry");
        // It has failed, and waits again.
        let status = Arc::make_mut(&mut all[1]).status.as_mut().unwrap();
        status.first_copy_failed = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!([begun.begin(&all, &unseen), begun.begin(&all, &all[3])], [0, 1]);
    }
}
