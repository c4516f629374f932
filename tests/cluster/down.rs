//! Nodes that are down or slow: calls to them end with their name, and calls to others do not notice.

use std::time::{Duration, Instant};

use hostloop::wire::csi;
use tonic::{Code, Request};

use crate::harness::{Cluster, Fault, LONG, Way, address, fails, id_on, volume};
use crate::requests::MIB;
use crate::wait::until;

const SIZE: i64 = 512 * MIB;

#[tokio::test]
async fn a_node_that_is_down_is_named_quickly() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let made = cluster.controller.create(volume("v", SIZE, &["a"])).await.unwrap();
    for way in [Way::Refused, Way::Silent] {
        cluster.net.cut(&address("a"));
        cluster.net.set_way(&address("a"), way);
        let id = &made.volume_id;
        fails(cluster.controller.get(id).await, Code::Unavailable, "node \"a\"");
        fails(cluster.controller.delete(id).await, Code::Unavailable, "node \"a\"");
        fails(cluster.controller.snapshot("s", id).await, Code::Unavailable, "node \"a\"");
        let expand = crate::requests::expand(id, 2 * SIZE);
        let expanded = cluster.controller.client.call(expand).await;
        fails(expanded, Code::Unavailable, "node \"a\"");
        fails(cluster.controller.capacity(Some("a")).await, Code::Unavailable, "node \"a\"");
        fails(cluster.controller.create(volume("w", SIZE, &["a"])).await, Code::Unavailable, "node \"a\"");
    }
    cluster.directory.set(&[("a", None), ("b", Some("b:9443"))], &[]);
    fails(cluster.controller.get(&made.volume_id).await, Code::Unavailable, "no process of the driver");
}

#[tokio::test]
async fn a_silent_node_delays_nobody_else() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    cluster.net.set_way(&address("a"), Way::Silent);
    cluster.node("c").fault("ControllerGetVolume", Fault::Swallow);
    let mut hanging = Vec::new();
    for id in ["a", "c"] {
        for name in 0..20 {
            let client = cluster.controller.client.clone();
            let volume_id = id_on(id, &name.to_string());
            hanging.push(tokio::spawn(async move {
                let request = csi::ControllerGetVolumeRequest { volume_id };
                let mut request = Request::new(request);
                request.set_timeout(LONG);
                client.send(request).await
            }));
        }
    }
    until("both nodes are asked", async || {
        cluster.net.tries(&address("a")) > 0 && !cluster.node("c").calls("ControllerGetVolume").is_empty()
    })
    .await;
    let begun = Instant::now();
    for _ in 0..20 {
        cluster.controller.capacity(Some("b")).await.expect("b answers");
    }
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    assert!(hanging.iter().skip(20).all(|call| !call.is_finished()), "c has answered to nobody");
    for call in hanging.drain(..20) {
        fails(call.await.unwrap(), Code::Unavailable, "node \"a\"");
    }
    assert_eq!(cluster.net.tries(&address("a")), 1, "one attempt for all of them");
    // The others are asked whether they have what b does not have.
    let begun = Instant::now();
    for name in 0..20 {
        let missing = cluster.controller.get(&id_on("b", &name.to_string())).await;
        fails(missing, Code::NotFound, "does not exist");
    }
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn the_callers_time_goes_with_the_call() {
    let cluster = Cluster::start(&["a"]).await;
    let node = cluster.node("a");
    let ask = async |timeout: Option<Duration>| {
        let volume_id = id_on("a", "v");
        let mut request = Request::new(csi::ControllerGetVolumeRequest { volume_id });
        timeout.into_iter().for_each(|timeout| request.set_timeout(timeout));
        cluster.controller.client.send(request).await
    };
    fails(ask(Some(LONG)).await, Code::NotFound, "");
    fails(ask(None).await, Code::NotFound, "");
    let calls = node.calls("ControllerGetVolume");
    assert!(calls[0].timeout.is_some() && calls[1].timeout.is_none(), "{calls:?}");

    node.fault("ControllerGetVolume", Fault::Swallow);
    let (code, _) = crate::harness::refused(ask(Some(Duration::from_millis(200))).await);
    assert!(matches!(code, Code::DeadlineExceeded | Code::Cancelled), "{code:?}");
}

/// While a node is asked only for what others can do as well, it costs its time once.
#[tokio::test]
async fn a_slow_candidate_is_not_asked_again_and_again() {
    let cluster = Cluster::start(&["a", "b"]).await;
    cluster.node("b").fault("FindVolume", Fault::Swallow);
    for name in ["1", "2"] {
        cluster.controller.create(volume(name, SIZE, &["a", "b"])).await.unwrap();
    }
    assert_eq!(cluster.node("b").calls("FindVolume").len(), 1);
}

#[tokio::test]
async fn capacity_of_all_is_without_a_node_that_is_down() {
    let cluster = Cluster::with_room(&["a", "b"], 10 << 30).await;
    let both = cluster.controller.capacity(None).await.unwrap();
    let one = cluster.controller.capacity(Some("a")).await.unwrap();
    assert_eq!(both.available_capacity, 2 * one.available_capacity);
    assert_eq!(both.maximum_volume_size, one.maximum_volume_size);
    cluster.controller.create(volume("v", 2 * SIZE, &["b"])).await.unwrap();
    let less = cluster.controller.capacity(None).await.unwrap();
    assert_eq!(less.maximum_volume_size, one.maximum_volume_size, "the largest is that of one node");
    assert!(less.available_capacity < both.available_capacity);

    cluster.net.cut(&address("b"));
    cluster.net.set_way(&address("b"), Way::Refused);
    assert_eq!(cluster.controller.capacity(None).await.unwrap(), one);
    let elsewhere = cluster.controller.capacity(Some("x")).await.unwrap();
    assert_eq!((elsewhere.available_capacity, elsewhere.maximum_volume_size), (0, None));
}
