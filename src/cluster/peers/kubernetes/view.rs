//! What EndpointSlices and CSINode objects say about the nodes. No I/O.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;
use kube::runtime::reflector::Lookup;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;

use crate::cluster::peers::{Member, Members};

/// The name of the port for controllers.
const PORT_NAME: &str = "peer";

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    node_id: String,
    /// Of two pods of one node, which happens while one replaces the other, the better one counts: one that stays
    /// rather than one that ends, one that is ready rather than one that is not. One that is not ready yet counts
    /// nevertheless: what a node cannot do yet it says itself.
    rank: (bool, bool),
    address: String,
}

impl Pod {
    /// The better one comes first.
    fn order(&self) -> (Reverse<(bool, bool)>, &str) {
        (Reverse(self.rank), &self.address)
    }
}

/// What the API server has told. A new list replaces what was known at its end: one that breaks off changes nothing.
pub(super) struct View {
    driver_name: String,
    slices: Writer<EndpointSlice>,
    nodes: Writer<CSINode>,
}

impl View {
    pub(super) fn new(driver_name: &str) -> Self {
        View { driver_name: driver_name.to_owned(), slices: Writer::default(), nodes: Writer::default() }
    }

    pub(super) fn slice(&mut self, event: &Event<EndpointSlice>) {
        self.slices.apply_watcher_event(event);
    }

    pub(super) fn node(&mut self, event: &Event<CSINode>) {
        self.nodes.apply_watcher_event(event);
    }

    /// The nodes, once all are known. A node is one of them if it has a pod of the driver, or if the driver is
    /// registered there: what is on it is there also when its pod is not. kubelet takes the registration back while
    /// the pod restarts, so that a node that was one of them `before` stays one as long as Kubernetes has it.
    pub(super) fn members(&self, before: Option<&Members>) -> Option<Members> {
        let (slices, nodes) = (listed(&self.slices)?, listed(&self.nodes)?);
        let mut best: BTreeMap<String, Pod> = BTreeMap::new();
        for pod in slices.iter().flat_map(|slice| pods(slice)) {
            match best.get(&pod.node_id) {
                Some(there) if pod.order() >= there.order() => {}
                _ => drop(best.insert(pod.node_id.clone(), pod)),
            }
        }
        let registered =
            |node: &CSINode| node.spec.drivers.iter().any(|there| there.name == self.driver_name);
        let was = |node_id: &str| before.is_some_and(|before| before.with_id(node_id).is_some());
        let silent = nodes
            .iter()
            .filter(|node| registered(node) || was(&node.name_any()))
            .map(|node| Member { node_id: node.name_any(), address: None })
            .filter(|member| !best.contains_key(&member.node_id));
        let reachable = best
            .values()
            .map(|pod| Member { node_id: pod.node_id.clone(), address: Some(pod.address.clone()) });
        Some(Members::new(reachable.chain(silent), nodes.iter().map(|node| node.name_any()).collect()))
    }
}

/// Every object; `None` until there was a whole list.
fn listed<K>(objects: &Writer<K>) -> Option<Vec<Arc<K>>>
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    let store = objects.as_reader();
    store.wait_until_ready().now_or_never()?.ok()?;
    Some(store.state())
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
