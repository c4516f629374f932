//! A node in wrong hands, with a valid certificate: its answers take at most the time and memory of right ones, and
//! the controller still reaches all other nodes.

use hostloop::wire::{csi, peer};
use prost::Message;
use tonic::Code;

use crate::harness::{Cluster, Fault, fails, place, volume, within};
use crate::requests::MIB;

const SIZE: i64 = 512 * MIB;

fn message(message: &impl Message) -> &'static [u8] {
    message.encode_to_vec().leak()
}

/// tonic stops waiting only for an answer that does not begin.
#[tokio::test]
async fn an_answer_that_only_begins_holds_nobody_up() {
    let cluster = Cluster::start(&["a", "b"]).await;
    cluster.node("b").fault("FindVolume", Fault::Begins);
    let made = within(cluster.controller.create(volume("v", SIZE, &["a", "b"]))).await.unwrap();
    assert_eq!(place(&made), "a");
    assert!(!cluster.node("b").calls("FindVolume").is_empty());
    cluster.node("a").fault("ReserveName", Fault::Begins);
    let late = within(cluster.controller.create(volume("w", SIZE, &["a", "b"]))).await;
    fails(late, Code::Unavailable, "node \"a\" did not answer within 2 s");
}

/// Each entry has 2 bytes in the message, and some hundred in memory.
#[tokio::test]
async fn a_list_with_more_than_was_asked_for_is_refused() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let entries = vec![csi::list_volumes_response::Entry::default(); 1001];
    let page = csi::ListVolumesResponse { entries, next_token: String::new() };
    cluster.node("a").fault("ListVolumes", Fault::Answers(message(&page)));
    let listed = within(cluster.controller.list(0, "")).await;
    fails(listed, Code::Unavailable, "node \"a\" answers with more than the 1000 entries");
    cluster.node("a").heal();
    assert_eq!(within(cluster.controller.list(0, "")).await.unwrap().0.len(), 0);
}

/// What fits into one answer is all that is kept of a node's pages.
#[tokio::test]
async fn a_list_that_does_not_end_is_cut_off() {
    let cluster = Cluster::start(&["a"]).await;
    let context = [("key".to_owned(), "x".repeat(64 << 10))].into();
    let volume = csi::Volume { volume_id: "vol-1".to_owned(), volume_context: context, ..Default::default() };
    let entry = csi::list_volumes_response::Entry { volume: Some(volume), status: None };
    let page = csi::ListVolumesResponse { entries: vec![entry; 20], next_token: "more".to_owned() };
    cluster.node("a").fault("ListVolumes", Fault::Answers(message(&page)));
    let (ids, next) = within(cluster.controller.list(0, "")).await.unwrap();
    assert!((40..80).contains(&ids.len()) && !next.is_empty(), "{} entries", ids.len());
    // 10000 entries would be 500 pages.
    assert!(cluster.node("a").calls("ListVolumes").len() < 6);
}

#[tokio::test]
async fn a_node_with_a_long_name_is_shortened() {
    let cluster = Cluster::start(&["a"]).await;
    let node_id = "n\u{1b}[31m\n".repeat(6000);
    let hello =
        peer::HelloResponse { driver_name: crate::harness::DRIVER.to_owned(), node_id, ..Default::default() };
    cluster.node("a").fault("Hello", Fault::Answers(message(&hello)));
    cluster.net.cut(&crate::harness::address("a"));
    let status = within(cluster.controller.list(0, "")).await.expect_err("it is another node");
    assert!(status.message().contains("there is the node"), "{status}");
    assert!(status.message().len() < 5000 && !status.message().contains('\n'), "{status}");
}
