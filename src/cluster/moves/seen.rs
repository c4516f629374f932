//! What watches have shown of Kubernetes. It is never older than what it showed before, and may be older than what is there. So
//! it shows that an object exists, and not that one does not: before anything is given up for that, the API server is asked.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, ObjectRef, Store, store};
use std::sync::Arc;

use super::resources::{VolumeMove, VolumeReplica};

/// The objects that a move has to do with.
#[derive(Clone)]
pub struct Seen {
    pub replicas: Store<VolumeReplica>,
    pub moves: Store<VolumeMove>,
    pub claims: Store<PersistentVolumeClaim>,
    pub volumes: Store<PersistentVolume>,
    pub pods: Store<Pod>,
    pub nodes: Store<Node>,
    pub classes: Store<StorageClass>,
}

/// The other ends of [`Seen`].
pub struct Writers {
    pub replicas: Writer<VolumeReplica>,
    pub moves: Writer<VolumeMove>,
    pub claims: Writer<PersistentVolumeClaim>,
    pub volumes: Writer<PersistentVolume>,
    pub pods: Writer<Pod>,
    pub nodes: Writer<Node>,
    pub classes: Writer<StorageClass>,
}

impl Seen {
    pub fn new() -> (Seen, Writers) {
        let (replicas, to_replicas) = store();
        let (moves, to_moves) = store();
        let (claims, to_claims) = store();
        let (volumes, to_volumes) = store();
        let (pods, to_pods) = store();
        let (nodes, to_nodes) = store();
        let (classes, to_classes) = store();
        let writers = Writers {
            replicas: to_replicas,
            moves: to_moves,
            claims: to_claims,
            volumes: to_volumes,
            pods: to_pods,
            nodes: to_nodes,
            classes: to_classes,
        };
        (Seen { replicas, moves, claims, volumes, pods, nodes, classes }, writers)
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&ObjectRef::new(name).within(namespace))
    }

    pub fn a_move(&self, namespace: &str, name: &str) -> Option<Arc<VolumeMove>> {
        self.moves.get(&ObjectRef::new(name).within(namespace))
    }

    /// Returns an object that is in no namespace.
    pub fn get<K>(all: &Store<K>, name: &str) -> Option<Arc<K>>
    where
        K: Lookup<DynamicType = ()> + Clone + 'static,
    {
        all.get(&ObjectRef::new(name))
    }

    /// Returns the copies of the volume of a claim, without what earlier nodes have left.
    pub fn replicas_of(&self, claim_uid: &str) -> Vec<Arc<VolumeReplica>> {
        let is_its =
            |replica: &VolumeReplica| replica.spec.claim.uid == claim_uid && replica.phase().is_of_a_copy();
        self.replicas.state_filter(is_its)
    }
}

/// Removes from a pod what no move asks for: a cluster may have thousands.
pub fn trim_pod(pod: &mut Pod) {
    trim(pod);
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        spec.containers.clear();
        spec.init_containers = None;
        spec.ephemeral_containers = None;
    }
}

/// Removes from an object what says who has written which field.
pub fn trim<K: kube::Resource>(object: &mut K) {
    object.managed_fields_mut().clear();
}
