//! Two controllers at once: neither knows anything that the other one needs.

use std::time::Duration;

use hostloop::wire::csi;
use tokio::task::{JoinHandle, JoinSet};
use tonic::{Code, Status};

use crate::harness::{Cluster, Controller, Fault, LONG, Node, by_key, fails, id_on, place, volume};
use crate::requests::MIB;
use crate::wait::{until, until_answered};

const SIZE: i64 = 512 * MIB;

#[tokio::test]
async fn either_goes_on_where_the_other_one_stopped() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let other = Controller::start(&cluster.net, &cluster.directory, &[]).await;
    cluster.node("b").fault("CreateVolume", Fault::LoseAnswer);
    cluster.controller.create(volume("v", SIZE, &["b", "a"])).await.unwrap_err();
    cluster.node("b").heal();
    let made = other.create(volume("v", SIZE, &["a", "b"])).await.unwrap();
    assert_eq!(place(&made), "b");
    let cut = cluster.controller.snapshot("s", &made.volume_id).await.unwrap();
    assert_eq!(other.snapshot("s", &made.volume_id).await.unwrap(), cut);
    let (ids, token) = cluster.controller.list(1, "").await.unwrap();
    assert_eq!((ids, token.as_str()), (vec![made.volume_id.clone()], ""));
    other.delete(&made.volume_id).await.unwrap();
    cluster.controller.delete(&made.volume_id).await.unwrap();
}

#[tokio::test]
async fn tokens_of_one_are_good_for_the_other() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let other = Controller::start(&cluster.net, &cluster.directory, &[]).await;
    for name in ["1", "2", "3", "4"] {
        let node = if name < "3" { "a" } else { "b" };
        cluster.controller.create(volume(name, SIZE, &[node])).await.unwrap();
    }
    let (mut all, token) = cluster.controller.list(1, "").await.unwrap();
    let (more, token) = other.list(2, &token).await.unwrap();
    all.extend(more);
    let (rest, token) = cluster.controller.list(0, &token).await.unwrap();
    all.extend(rest);
    assert!(all.len() == 4 && all.is_sorted() && token.is_empty(), "{all:?}");
}

/// The same calls to both at the same time, as after a change of leaders.
#[tokio::test]
async fn the_same_volume_through_both_is_made_once() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let other = Controller::start(&cluster.net, &cluster.directory, &[]).await;
    let mut calls = JoinSet::new();
    for name in 0..8 {
        for controller in [&cluster.controller, &other] {
            let client = controller.client.clone();
            calls.spawn(async move {
                loop {
                    let request = volume(&format!("v-{name}"), SIZE, &["b", "c", "a"]);
                    match client.call(request).await {
                        // A node of a busy machine may be silent for longer than a controller waits.
                        Err(status) if matches!(status.code(), Code::Aborted | Code::Unavailable) => {
                            tokio::task::yield_now().await;
                        }
                        answer => return answer,
                    }
                }
            });
        }
    }
    let mut places = Vec::new();
    let all = async {
        while let Some(made) = calls.join_next().await {
            let made: Result<csi::CreateVolumeResponse, Status> = made.unwrap();
            places.push(place(&made.unwrap().volume.unwrap()));
        }
    };
    tokio::time::timeout(LONG, all).await.unwrap();
    assert_eq!(places, ["b"; 16]);
    assert_eq!(cluster.controller.list(0, "").await.unwrap().0.len(), 8);
}

/// A caller that tries again as callers do, with what it wants each time.
fn persistent(
    controller: &Controller,
    mut wanted: impl FnMut() -> csi::CreateVolumeRequest + Send + 'static,
) -> JoinHandle<csi::Volume> {
    let client = controller.client.clone();
    tokio::spawn(async move {
        let passing = [Code::Aborted, Code::Unavailable, Code::ResourceExhausted];
        let made = until_answered(&passing, || client.call(wanted())).await;
        made.unwrap().volume.unwrap()
    })
}

/// Names raced by two controllers, while the room of the nodes changes under them.
#[tokio::test]
async fn two_controllers_that_choose_differently_make_one_volume() {
    const NODES: [&str; 3] = ["a", "b", "c"];
    let cluster = Cluster::with_room(&NODES, 4 << 30).await;
    let other = Controller::start(&cluster.net, &cluster.directory, &[]).await;
    let fill = |node: &str| {
        let (name, node) = (format!("fills {node}"), node.to_owned());
        (volume(&name, 3 << 30, &[&node]), id_on(&node, &name))
    };
    for round in 0..120 {
        let name = format!("v-{round}");
        let full = NODES[round % 3];
        let (filling, filled) = fill(full);
        // Some have the room decide, some a preference that has changed.
        let order = |turn: usize| -> Vec<&'static str> {
            let mut order = NODES.to_vec();
            order.rotate_left(turn % 3);
            if round % 2 == 0 { Vec::new() } else { order }
        };
        let (first, second) = (volume(&name, SIZE, &order(round)), volume(&name, SIZE, &order(round + 1)));
        let calls = [
            persistent(&cluster.controller, move || first.clone()),
            persistent(&other, move || second.clone()),
        ];
        let _ = cluster.controller.create(filling).await;
        let mut places = Vec::new();
        for call in calls {
            places.push(place(&tokio::time::timeout(LONG, call).await.unwrap().unwrap()));
        }
        let holders = cluster.holders(&name).await;
        assert_eq!((holders.len(), &places[0], &places[1]), (1, &holders[0], &holders[0]), "round {round}");
        cluster.controller.delete(&id_on(&holders[0], &name)).await.unwrap();
        other.delete(&filled).await.unwrap();
    }
}

/// Nodes by their keys, the smaller first: which of two reservations stays depends on them.
async fn pair() -> (Cluster, Controller, [&'static str; 2]) {
    let cluster = Cluster::start(&["a", "b"]).await;
    let other = Controller::start(&cluster.net, &cluster.directory, &[]).await;
    let keys = by_key(&["a", "b"]);
    (cluster, other, [keys[0], keys[1]])
}

async fn comes(node: &Node, rpc: &'static str) {
    until(&format!("{rpc} comes"), async || !node.calls(rpc).is_empty()).await;
}

/// The order of the first is on its way while the second one chooses the other node.
#[tokio::test]
async fn an_order_on_its_way_is_seen_by_another_controller() {
    for turned in [false, true] {
        let (cluster, other, [low, high]) = pair().await;
        let (one, two) = if turned { (high, low) } else { (low, high) };
        cluster.node(one).fault("CreateVolume", Fault::FirstLate);
        let first = persistent(&cluster.controller, move || volume("v", SIZE, &[one, two]));
        comes(cluster.node(one), "CreateVolume").await;
        let second = persistent(&other, move || volume("v", SIZE, &[two, one]));
        let second = place(&tokio::time::timeout(LONG, second).await.unwrap().unwrap());
        cluster.node(one).heal();
        let first = place(&tokio::time::timeout(LONG, first).await.unwrap().unwrap());
        assert_eq!(first, second);
        assert_eq!(cluster.holders("v").await, [first]);
    }
}

/// The caller of the first has given up, and its controller with it; the order arrives all the same.
#[tokio::test]
async fn an_order_that_comes_after_the_retry_makes_no_second_volume() {
    for turned in [false, true] {
        let (cluster, other, [low, high]) = pair().await;
        let (one, two) = if turned { (high, low) } else { (low, high) };
        cluster.node(one).fault("CreateVolume", Fault::FirstLate);
        let first = persistent(&cluster.controller, move || volume("v", SIZE, &[one, two]));
        comes(cluster.node(one), "CreateVolume").await;
        first.abort();
        let second = persistent(&other, move || volume("v", SIZE, &[two, one]));
        let second = place(&tokio::time::timeout(LONG, second).await.unwrap().unwrap());
        cluster.node(one).heal();
        until("nothing runs", async || cluster.nodes.iter().all(|node| node.running() == 0)).await;
        // The late one went on without its caller: ask again until it must have come to its end.
        for _ in 0..50 {
            assert_eq!(cluster.holders("v").await, [second.as_str()]);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Both have reserved, and neither has looked.
#[tokio::test]
async fn of_two_that_have_begun_one_gives_way() {
    let (cluster, other, [low, high]) = pair().await;
    for node in &cluster.nodes {
        node.fault("ReserveName", Fault::Late);
    }
    let first = persistent(&cluster.controller, move || volume("v", SIZE, &[low, high]));
    let second = persistent(&other, move || volume("v", SIZE, &[high, low]));
    for node in &cluster.nodes {
        comes(node, "ReserveName").await;
    }
    cluster.nodes.iter().for_each(Node::heal);
    let places = [first.await.unwrap(), second.await.unwrap()].map(|made| place(&made));
    let holders = cluster.holders("v").await;
    assert_eq!((places[0].as_str(), places[1].as_str(), holders.len()), (&*holders[0], &*holders[0], 1));
}

/// A controller has reserved and is gone. Whoever comes next takes it over, at once.
#[tokio::test]
async fn a_reservation_that_was_left_is_taken_over() {
    for turned in [false, true] {
        let (cluster, other, [low, high]) = pair().await;
        let (one, two) = if turned { (high, low) } else { (low, high) };
        cluster.node(one).fault("CreateVolume", Fault::Swallow);
        let first = persistent(&cluster.controller, move || volume("v", SIZE, &[one, two]));
        comes(cluster.node(one), "CreateVolume").await;
        first.abort();
        cluster.node(one).heal();
        let made = other.create(volume("v", SIZE, &[two, one])).await.unwrap();
        assert_eq!(cluster.holders("v").await, [place(&made)]);
    }
}

/// A node answered at first and does not when it is asked again: it may have begun in between.
#[tokio::test]
async fn a_node_that_falls_silent_in_between_keeps_the_volume_from_being_made() {
    let (cluster, _other, [low, high]) = pair().await;
    cluster.node(low).fault("ReserveName", Fault::Late);
    let client = cluster.controller.client.clone();
    let call = tokio::spawn(async move { client.call(volume("v", SIZE, &[low, high])).await });
    comes(cluster.node(low), "ReserveName").await;
    cluster.net.cut(&crate::harness::address(high));
    cluster.net.set_way(&crate::harness::address(high), crate::harness::Way::Refused);
    cluster.node(low).heal();
    fails(call.await.unwrap(), Code::Unavailable, &format!("node {high:?}"));
    assert!(cluster.holders("v").await.is_empty());
    // While it stays away the first choice is tried all the same (decision 8).
    let made = cluster.controller.create(volume("v", SIZE, &[low, high])).await.unwrap();
    assert_eq!(place(&made), low);
}
