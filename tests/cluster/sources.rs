//! Volumes that are copies: made beside their source where that is allowed, and otherwise with word of where it is.

use hostloop::wire::csi;
use tonic::Code;

use crate::harness::{Cluster, GIB, Way, address, fails, id_on, place, refused, volume};
use crate::requests::{MIB, MadeFrom};

const SIZE: i64 = 512 * MIB;

fn copy(name: &str, source: &MadeFrom, nodes: &[&str]) -> csi::CreateVolumeRequest {
    source.source_of(volume(name, SIZE, nodes))
}

/// A volume on a, and a snapshot of it.
async fn sources(cluster: &Cluster) -> [MadeFrom; 2] {
    let volume = cluster.controller.create(volume("source", SIZE, &["a"])).await.unwrap().volume_id;
    let snapshot = cluster.controller.snapshot("s", &volume).await.unwrap().snapshot_id;
    [MadeFrom::Volume(volume), MadeFrom::Snapshot(snapshot)]
}

#[tokio::test]
async fn the_sources_node_comes_first_where_it_is_allowed() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    for (number, source) in sources(&cluster).await.iter().enumerate() {
        let name = |text: &str| format!("{text}-{number}");
        let made =
            cluster.controller.create(copy(&name("preferred"), source, &["c", "b", "a"])).await.unwrap();
        assert_eq!(place(&made), "a");
        assert!(made.content_source.is_some());
        let made = cluster.controller.create(copy(&name("any"), source, &[])).await.unwrap();
        assert_eq!(place(&made), "a");
    }
    let calls = cluster.node("a").calls("CreateVolume");
    assert!(calls.iter().all(|call| call.source_address.is_none()), "{calls:?}");
}

/// What the chosen node was told of where the source is. Whether it can fetch it is its own matter.
fn told(cluster: &Cluster, node: &str) -> Vec<Option<String>> {
    cluster.node(node).calls("CreateVolume").into_iter().map(|call| call.source_address).collect()
}

#[tokio::test]
async fn another_node_is_told_where_the_source_is() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let [of_volume, of_snapshot] = sources(&cluster).await;
    let _ = cluster.controller.create(copy("v", &of_volume, &["b", "c"])).await;
    assert_eq!(told(&cluster, "b"), [Some("a:9443".to_owned())]);
    let _ = cluster.controller.create(copy("w", &of_snapshot, &["c"])).await;
    assert_eq!(told(&cluster, "c"), [Some("a:9443".to_owned())]);
    // Nobody knows where this is.
    let unknown = MadeFrom::Volume(id_on("x", "v"));
    fails(cluster.controller.create(copy("y", &unknown, &["b"])).await, Code::NotFound, "");
    assert_eq!(told(&cluster, "b")[1..], [None]);
}

#[tokio::test]
async fn a_full_source_node_is_followed_by_another_one() {
    let cluster = Cluster::with_room(&["a", "b"], 4 << 30).await;
    let [source, _] = sources(&cluster).await;
    cluster.fill("a").await;
    let larger = source.source_of(volume("v", GIB, &["b", "a"]));
    let _ = cluster.controller.create(larger).await;
    assert_eq!(told(&cluster, "b"), [Some("a:9443".to_owned())]);
}

#[tokio::test]
async fn a_class_can_forbid_copies_between_nodes() {
    let cluster = Cluster::with_room(&["a", "b"], 4 << 30).await;
    let [source, _] = sources(&cluster).await;
    let strict = |name: &str, bytes: i64, nodes: &[&str]| {
        let mut request = source.source_of(volume(name, bytes, nodes));
        request.parameters.insert("crossNodeCopy".to_owned(), "false".to_owned());
        request
    };
    let elsewhere = cluster.controller.create(strict("v", SIZE, &["b"])).await;
    fails(elsewhere, Code::ResourceExhausted, "crossNodeCopy is false, and the source is on node \"a\"");
    let made = cluster.controller.create(strict("w", SIZE, &["b", "a"])).await.unwrap();
    assert_eq!(place(&made), "a");
    assert!(!made.volume_context.contains_key("crossNodeCopy"), "it is not a property of the volume");
    cluster.fill("a").await;
    let full = cluster.controller.create(strict("x", GIB, &["b", "a"])).await;
    fails(full, Code::ResourceExhausted, "crossNodeCopy");
    assert!(told(&cluster, "b").is_empty());
    // Without a source it forbids nothing.
    let mut request = volume("y", SIZE, &["b"]);
    request.parameters.insert("crossNodeCopy".to_owned(), "false".to_owned());
    cluster.controller.create(request.clone()).await.unwrap();
    request.parameters.insert("crossNodeCopy".to_owned(), "no".to_owned());
    fails(cluster.controller.create(request).await, Code::InvalidArgument, "crossNodeCopy");
}

#[tokio::test]
async fn a_source_on_a_node_that_is_down() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let [source, _] = sources(&cluster).await;
    cluster.net.cut(&address("a"));
    cluster.net.set_way(&address("a"), Way::Refused);
    let (code, message) = refused(cluster.controller.create(copy("v", &source, &["b", "a"])).await);
    assert!(code == Code::Unavailable && message.contains("node \"a\""), "{message}");
    assert!(told(&cluster, "b").is_empty());
    cluster.directory.set(&[("a", None), ("b", Some("b:9443"))], &[]);
    let silent = cluster.controller.create(copy("v", &source, &["b"])).await;
    fails(silent, Code::Unavailable, "it has the source");
}
