//! What EndpointSlices and CSINode objects say about the nodes. No I/O.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::api::storage::v1::CSINode;
use kube::runtime::watcher::Event;

use super::cache::Cache;
use crate::cluster::peers::{Member, Members};

/// The name of the port for controllers.
const PORT_NAME: &str = "peer";

/// The pod of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    node_id: String,
    /// Of two pods of one node, which happens while one replaces the other, the better one counts: one that stays
    /// rather than one that ends, one that is ready rather than one that is not. One that is not ready yet counts
    /// nevertheless: what a node cannot do yet it says itself.
    rank: (bool, bool),
    address: String,
}

/// What is known.
pub(super) struct View {
    driver_name: String,
    slices: Cache<Vec<Pod>>,
    /// Whether the driver is registered on a node.
    nodes: Cache<bool>,
}

impl View {
    pub(super) fn new(driver_name: &str) -> Self {
        View { driver_name: driver_name.to_owned(), slices: Cache::new(), nodes: Cache::new() }
    }

    pub(super) fn slice(&mut self, event: Event<EndpointSlice>) {
        self.slices.take(event, pods);
    }

    pub(super) fn node(&mut self, event: Event<CSINode>) {
        let driver = &self.driver_name;
        self.nodes.take(event, |node| node.spec.drivers.iter().any(|there| there.name == *driver));
    }

    /// The nodes, once all are known. A node is one of them if it has a pod of the driver, or if the driver is
    /// registered there: what is on it is there also when its pod is not. kubelet takes the registration back while
    /// the pod restarts, so that a node that was one of them `before` stays one as long as Kubernetes has it.
    pub(super) fn members(&self, before: Option<&Members>) -> Option<Members> {
        let (slices, nodes) = (self.slices.values()?, self.nodes.values()?);
        let mut best: BTreeMap<&str, &Pod> = BTreeMap::new();
        for pod in slices.values().flatten() {
            let there = best.entry(&pod.node_id).or_insert(pod);
            if (Reverse(pod.rank), &pod.address) < (Reverse(there.rank), &there.address) {
                *there = pod;
            }
        }
        let was = |node_id: &str| before.is_some_and(|before| before.with_id(node_id).is_some());
        let silent = nodes
            .iter()
            .filter(|(node_id, registered)| **registered || was(node_id))
            .filter(|(node_id, _)| !best.contains_key(node_id.as_str()))
            .map(|(node_id, _)| Member { node_id: node_id.clone(), address: None });
        let reachable = best
            .values()
            .map(|pod| Member { node_id: pod.node_id.clone(), address: Some(pod.address.clone()) });
        Some(Members::new(reachable.chain(silent), nodes.keys().cloned().collect()))
    }
}

/// The pods in a slice. One without a node, or in a slice without our port, cannot be a node's.
fn pods(slice: &EndpointSlice) -> Vec<Pod> {
    let mut ports = slice.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some(PORT_NAME)).and_then(|port| port.port);
    let Some(port) = port else { return Vec::new() };
    slice.endpoints.iter().filter_map(|endpoint| pod(endpoint, port)).collect()
}

fn pod(endpoint: &Endpoint, port: i32) -> Option<Pod> {
    let node_id = endpoint.node_name.clone()?;
    let host = endpoint.addresses.first()?;
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let conditions = endpoint.conditions.as_ref();
    let terminating = conditions.and_then(|c| c.terminating).unwrap_or(false);
    // No word on it counts as ready (discovery.k8s.io/v1, EndpointConditions).
    let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
    Some(Pod { node_id, rank: (!terminating, ready), address })
}
