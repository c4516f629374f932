//! Nodes that change: a pod with a new address, a node that comes back, an address that becomes another node's.

use hostloop::wire::csi;
use tonic::Code;

use crate::harness::{Cluster, Controller, Directory, Net, Node, Way, address, fails, id_on, place, volume};
use crate::requests::MIB;
use crate::wait::{until, until_answered};

const SIZE: i64 = 512 * MIB;
/// The controller waits a moment before it tries a node again.
const REFUSED: [Code; 1] = [Code::Unavailable];

#[tokio::test]
async fn it_is_not_ready_until_the_nodes_are_known() {
    let (net, directory) = (Net::default(), Directory::new());
    let controller = Controller::start(&net, &directory, &[]).await;
    let ready = async || {
        let probe = controller.client.call(csi::ProbeRequest {}).await.unwrap();
        probe.ready
    };
    assert_eq!(ready().await, Some(false));
    fails(controller.create(volume("v", SIZE, &[])).await, Code::Unavailable, "not known yet");
    fails(controller.list(0, "").await, Code::Unavailable, "not known yet");
    fails(controller.get(&id_on("a", "v")).await, Code::Unavailable, "not known yet");
    // A node that is down does not keep it from being ready.
    directory.set(&[("a", Some("a:9443"))], &[]);
    assert_eq!(ready().await, Some(true));
    let info = controller.client.call(csi::GetPluginInfoRequest {}).await.unwrap();
    assert_eq!(info.name, "hostloop.csi.dev");
}

#[tokio::test]
async fn a_restarted_node_is_found_by_the_next_call() {
    let mut cluster = Cluster::start(&["a"]).await;
    let made = cluster.controller.create(volume("v", SIZE, &["a"])).await.unwrap();
    let node = cluster.nodes.remove(0).start_again("a:9443").await;
    assert_eq!(cluster.controller.get(&made.volume_id).await.unwrap(), made, "without an error in between");
    drop(node);
}

#[tokio::test]
async fn a_pod_with_a_new_address_is_found_there() {
    let mut cluster = Cluster::start(&["a"]).await;
    let made = cluster.controller.create(volume("v", SIZE, &["a"])).await.unwrap();
    let node = cluster.nodes.remove(0).start_again("10.0.0.2:9443").await;
    cluster.directory.set(&[("a", Some("10.0.0.2:9443"))], &[]);
    assert_eq!(cluster.controller.get(&made.volume_id).await.unwrap(), made);
    drop(node);
}

/// A call waits at the old address, where nothing answers, while discovery learns of the new one.
#[tokio::test]
async fn a_call_that_waits_at_the_old_address_goes_on_to_the_new_one() {
    let cluster = Cluster::start(&["a"]).await;
    cluster.net.set_way("10.0.0.1:9443", Way::Silent);
    cluster.directory.set(&[("a", Some("10.0.0.1:9443"))], &[]);
    let old = cluster.controller.client.clone();
    let call = tokio::spawn(async move {
        let volume_id = id_on("a", "v");
        old.call(csi::ControllerGetVolumeRequest { volume_id }).await
    });
    until("it dials", async || cluster.net.tries("10.0.0.1:9443") > 0).await;
    cluster.introduce();
    fails(cluster.controller.get(&id_on("a", "v")).await, Code::NotFound, "does not exist");
    fails(call.await.unwrap(), Code::NotFound, "does not exist");
}

#[tokio::test]
async fn a_node_that_comes_back_is_used_again() {
    let mut cluster = Cluster::start(&["a", "b"]).await;
    let made = cluster.controller.create(volume("v", SIZE, &["a"])).await.unwrap();
    let mut node = cluster.nodes.remove(0);
    node.stop().await;
    cluster.directory.set(&[("a", None), ("b", Some("b:9443"))], &[]);
    fails(cluster.controller.get(&made.volume_id).await, Code::Unavailable, "node \"a\"");
    fails(cluster.controller.list(0, "").await, Code::Unavailable, "node \"a\"");
    let node = node.start_again("a:9443").await;
    cluster.directory.set(&[("a", Some("a:9443")), ("b", Some("b:9443"))], &[]);
    let found = until_answered(&REFUSED, || cluster.controller.get(&made.volume_id)).await;
    assert_eq!(found.unwrap(), made);
    drop(node);
}

/// An address that discovery still gives for a node is another node's by now.
#[tokio::test]
async fn no_call_reaches_the_wrong_node() {
    let (net, directory) = (Net::default(), Directory::new());
    let other = Node::start(&net, "b", "10.0.0.1:9443", 1 << 40).await;
    directory.set(&[("a", Some("10.0.0.1:9443")), ("b", Some("10.0.0.1:9443"))], &[]);
    let controller = Controller::start(&net, &directory, &[]).await;
    fails(controller.create(volume("v", SIZE, &["a"])).await, Code::Unavailable, "there is the node \"b\"");
    assert!(other.calls("CreateVolume").is_empty());
    assert_eq!(other.calls("Hello").len(), 1);
    // Its own address comes with the next look at discovery.
    let node = Node::start(&net, "a", "10.0.0.2:9443", 1 << 40).await;
    directory.set(&[("a", Some("10.0.0.2:9443")), ("b", Some("10.0.0.1:9443"))], &[]);
    assert_eq!(place(&controller.create(volume("v", SIZE, &["a"])).await.unwrap()), "a");
    drop(node);
}

/// The machine gets another name. Its driver refuses the old state (docs/configuration.md), so this is a new node;
/// the old name is not taken for it.
#[tokio::test]
async fn a_node_with_a_new_name_is_another_node() {
    let mut cluster = Cluster::start(&["a"]).await;
    let made = cluster.controller.create(volume("v", SIZE, &["a"])).await.unwrap();
    cluster.nodes.remove(0).stop().await;
    let renamed = Node::start(&cluster.net, "z", "a:9443", 1 << 40).await;
    fails(cluster.controller.get(&made.volume_id).await, Code::Unavailable, "there is the node \"z\"");
    cluster.directory.set(&[("z", Some("a:9443"))], &[]);
    fails(cluster.controller.get(&made.volume_id).await, Code::NotFound, "no node of the cluster");
    let new = cluster.controller.create(volume("v", SIZE, &["z"])).await.unwrap();
    assert_eq!(place(&new), "z");
    assert_ne!(new.volume_id, made.volume_id);
    drop(renamed);
}

#[tokio::test]
async fn a_way_that_opens_is_found_without_word_from_discovery() {
    let cluster = Cluster::start(&["a"]).await;
    cluster.net.set_way(&address("a"), Way::Refused);
    fails(cluster.controller.get(&id_on("a", "v")).await, Code::Unavailable, "node \"a\"");
    cluster.net.set_way(&address("a"), Way::Open);
    let missing = until_answered(&REFUSED, || async { cluster.controller.get(&id_on("a", "v")).await }).await;
    fails(missing, Code::NotFound, "does not exist");
}
