//! Objects as the API server sends them, and the nodes that follow of them.

use futures_util::stream;
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::cluster::peers::Member;

const DRIVER: &str = "hostloop.csi.dev";

/// An endpoint: node, address, ready, terminating.
type Pod = (&'static str, &'static str, bool, bool);

fn slice(name: &str, pods: &[Pod]) -> EndpointSlice {
    let endpoint = |(node, address, ready, terminating): &Pod| {
        json!({"nodeName": node, "addresses": [address],
               "conditions": {"ready": ready, "serving": ready, "terminating": terminating}})
    };
    serde_json::from_value(json!({
        "metadata": {"name": name}, "addressType": "IPv4",
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "metrics", "port": 9090}, {"name": "peer", "port": 9443}]
    }))
    .unwrap()
}

fn node(name: &str, drivers: &[&str]) -> CSINode {
    let driver = |driver: &&str| json!({"name": driver, "nodeID": name, "topologyKeys": []});
    let drivers: Vec<_> = drivers.iter().map(driver).collect();
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"drivers": drivers}})).unwrap()
}

fn listed<T>(objects: Vec<T>) -> Vec<Event<T>> {
    let each = objects.into_iter().map(Event::InitApply);
    std::iter::once(Event::Init).chain(each).chain([Event::InitDone]).collect()
}

/// A view after these lists.
fn view(slices: Vec<EndpointSlice>, nodes: Vec<CSINode>) -> View {
    let mut view = View::new(DRIVER);
    listed(slices).into_iter().for_each(|event| view.slice(&event));
    listed(nodes).into_iter().for_each(|event| view.node(&event));
    view
}

/// The members in the order of their ids.
fn found(members: &Members) -> Vec<(String, Option<String>)> {
    let pair = |member: &Arc<Member>| (member.node_id.clone(), member.address.clone());
    let mut found: Vec<_> = members.iter().map(|(_, member)| pair(member)).collect();
    found.sort();
    found
}

fn at(node_id: &str, address: &str) -> (String, Option<String>) {
    (node_id.to_owned(), Some(address.to_owned()))
}

fn silent(node_id: &str) -> (String, Option<String>) {
    (node_id.to_owned(), None)
}

#[test]
fn pods_and_registrations_together_are_the_nodes() {
    let slices = vec![
        slice("s-1", &[("a", "10.0.0.1", true, false), ("b", "10.0.0.2", false, false)]),
        slice("s-2", &[("c", "fd00::3", true, false)]),
    ];
    let nodes =
        vec![node("a", &[DRIVER]), node("d", &["other", DRIVER]), node("e", &["other"]), node("f", &[])];
    let members = view(slices, nodes).members(None).unwrap();
    let expected =
        [at("a", "10.0.0.1:9443"), at("b", "10.0.0.2:9443"), at("c", "[fd00::3]:9443"), silent("d")];
    assert_eq!(found(&members), expected);
    assert!(!members.is_gone("e") && members.is_gone("g"), "a machine without the driver is there");
}

#[test]
fn the_pod_that_stays_counts_of_two() {
    let members = |pods: &[Pod]| found(&view(vec![slice("s", pods)], Vec::new()).members(None).unwrap());
    let (old, new) = (("a", "10.0.0.1", true, true), ("a", "10.0.0.2", false, false));
    assert_eq!(members(&[old, new]), [at("a", "10.0.0.2:9443")]);
    assert_eq!(members(&[new, old]), [at("a", "10.0.0.2:9443")]);
    assert_eq!(members(&[old]), [at("a", "10.0.0.1:9443")], "it may still answer");
    let ready = ("a", "10.0.0.3", true, false);
    assert_eq!(members(&[new, ready]), [at("a", "10.0.0.3:9443")]);
}

#[test]
fn an_endpoint_without_node_or_port_is_no_node() {
    let mut nameless = slice("s", &[("a", "10.0.0.1", true, false)]);
    nameless.endpoints[0].node_name = None;
    let mut other = slice("t", &[("b", "10.0.0.2", true, false)]);
    other.ports.as_mut().unwrap().pop();
    let mut portless = slice("u", &[("c", "10.0.0.3", true, false)]);
    portless.ports = None;
    let mut unconditional = slice("v", &[("d", "10.0.0.4", true, false)]);
    unconditional.endpoints[0].conditions = None;
    let members = view(vec![nameless, other, portless, unconditional], Vec::new()).members(None).unwrap();
    assert_eq!(found(&members), [at("d", "10.0.0.4:9443")]);
}

#[test]
fn nothing_is_known_until_both_are_listed() {
    let mut view = View::new(DRIVER);
    listed(vec![slice("s", &[("a", "10.0.0.1", true, false)])])
        .into_iter()
        .for_each(|event| view.slice(&event));
    assert_eq!(view.members(None), None);
    view.node(&Event::Init);
    view.node(&Event::InitApply(node("a", &[DRIVER])));
    assert_eq!(view.members(None), None, "the list is not complete");
    view.node(&Event::InitDone);
    assert_eq!(found(&view.members(None).unwrap()), [at("a", "10.0.0.1:9443")]);
}

#[test]
fn a_node_stays_while_kubernetes_has_it() {
    let pods = [("a", "10.0.0.1", true, false)];
    let mut view = view(vec![slice("s", &pods)], vec![node("a", &[DRIVER]), node("b", &[])]);
    let before = view.members(None).unwrap();
    // The pod restarts: kubelet takes the registration back.
    view.slice(&Event::Apply(slice("s", &[])));
    view.node(&Event::Apply(node("a", &[])));
    let restarting = view.members(Some(&before)).unwrap();
    assert_eq!(found(&restarting), [silent("a")]);
    // It is back at another address.
    view.slice(&Event::Apply(slice("s", &[("a", "10.0.0.9", true, false)])));
    assert_eq!(found(&view.members(Some(&restarting)).unwrap()), [at("a", "10.0.0.9:9443")]);
    // The node is taken out of the cluster.
    view.slice(&Event::Delete(slice("s", &[])));
    view.node(&Event::Delete(node("a", &[])));
    let without = view.members(Some(&restarting)).unwrap();
    assert_eq!(found(&without), []);
    assert!(without.is_gone("a") && !without.is_gone("b"));
}

#[test]
fn a_list_that_breaks_off_changes_nothing() {
    let mut view = view(
        vec![slice("s", &[("a", "10.0.0.1", true, false)]), slice("t", &[("b", "10.0.0.2", true, false)])],
        Vec::new(),
    );
    let before = view.members(None).unwrap();
    view.slice(&Event::Init);
    view.slice(&Event::InitApply(slice("s", &[("a", "10.0.0.1", true, false)])));
    assert_eq!(view.members(Some(&before)), Some(before.clone()));
    view.slice(&Event::Init);
    view.slice(&Event::InitApply(slice("t", &[("b", "10.0.0.2", true, false)])));
    view.slice(&Event::InitDone);
    assert_eq!(found(&view.members(Some(&before)).unwrap()), [at("b", "10.0.0.2:9443")]);
}

/// The loop itself: what the watches bring is told on, and an error between them is survived.
#[tokio::test]
async fn changes_are_told() {
    let failure = || Err(watcher::Error::NoResourceVersion);
    let slices = listed(vec![slice("s", &[("a", "10.0.0.1", true, false)])]);
    let later = Event::Apply(slice("s", &[("a", "10.0.0.2", true, false)]));
    let slices = slices.into_iter().map(Ok).chain([failure(), Ok(later)]);
    let nodes = listed(vec![node("a", &[DRIVER])]).into_iter().map(Ok);
    let known = watch::Sender::new(None);
    follow(View::new(DRIVER), stream::iter(slices), stream::iter(nodes), known.clone()).await;
    let members = known.borrow().clone().expect("the nodes are known");
    assert_eq!(found(&members), [at("a", "10.0.0.2:9443")]);
}
