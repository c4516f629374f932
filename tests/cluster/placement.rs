//! Which node makes a volume.

use tonic::Code;

use crate::harness::{Cluster, GIB, Way, address, fails, place, volume};
use crate::log::listen;
use crate::requests::MIB;

const SIZE: i64 = 512 * MIB;

#[tokio::test]
async fn the_first_preferred_node_makes_it_and_keeps_it() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let wanted = || volume("v", SIZE, &["b", "c", "a"]);
    let made = cluster.controller.create(wanted()).await.unwrap();
    assert_eq!(place(&made), "b");
    assert_eq!(cluster.controller.create(wanted()).await.unwrap(), made);
    // Also where another node is preferred by now: the scheduler has thought again.
    let other = volume("v", SIZE, &["c", "b", "a"]);
    assert_eq!(cluster.controller.create(other).await.unwrap(), made);
    assert_eq!(cluster.holders("v").await, ["b"]);
}

#[tokio::test]
async fn a_full_node_is_followed_by_the_next_one() {
    let cluster = Cluster::with_room(&["a", "b", "c"], 4 << 30).await;
    cluster.fill("a").await;
    let made = cluster.controller.create(volume("v", SIZE, &["a", "c", "b"])).await.unwrap();
    assert_eq!(place(&made), "c");
    assert_eq!(cluster.holders("v").await, ["c"]);
    // Where it must be on the full one there is no way out.
    let only = cluster.controller.create(volume("w", SIZE, &["a"])).await;
    fails(only, Code::ResourceExhausted, "");
    cluster.fill("b").await;
    cluster.controller.create(volume("x", 3 * GIB, &["c"])).await.unwrap();
    let all = cluster.controller.create(volume("w", SIZE, &["a", "b", "c"])).await;
    fails(all, Code::ResourceExhausted, "node \"b\"");
    assert!(cluster.holders("w").await.is_empty());
}

#[tokio::test]
async fn a_made_volume_is_in_the_controllers_line_once() {
    let cluster = Cluster::with_room(&["a", "b"], 4 << 30).await;
    cluster.fill("a").await;
    let (lines, _listening) = listen();
    let made = cluster.controller.create(volume("v", SIZE, &["a", "b"])).await.unwrap();
    let text = lines.text();
    let of_ok = |line: &&str| line.contains("Controller/CreateVolume") && line.contains("code=\"OK\"");
    let lines: Vec<&str> = text.lines().filter(of_ok).collect();
    assert!(!lines.is_empty(), "{text}");
    for line in lines {
        assert_eq!(line.matches("volume.id=").count(), 1, "{line}");
        assert!(line.contains(&format!("volume.id=\"{}\"", made.volume_id)), "{line}");
    }
}

#[tokio::test]
async fn the_most_room_gets_it_without_a_requirement() {
    let cluster = Cluster::with_room(&["a", "b", "c"], 10 << 30).await;
    for (name, bytes, node) in [("1", 3 * GIB, "a"), ("2", GIB, "b"), ("3", 2 * GIB, "c")] {
        cluster.controller.create(volume(name, bytes, &[node])).await.unwrap();
    }
    let made = cluster.controller.create(volume("v", 5 * GIB, &[])).await.unwrap();
    assert_eq!(place(&made), "b");
    let made = cluster.controller.create(volume("w", SIZE, &[])).await.unwrap();
    assert_eq!(place(&made), "c");
    // It is where it is, also once another node has more room.
    cluster.controller.create(volume("x", 6 * GIB, &["c"])).await.unwrap();
    assert_eq!(place(&cluster.controller.create(volume("w", SIZE, &[])).await.unwrap()), "c");
    assert_eq!(cluster.holders("w").await, ["c"]);
}

#[tokio::test]
async fn nodes_that_the_cluster_does_not_have_are_left_out() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let made = cluster.controller.create(volume("v", SIZE, &["x", "b", "a"])).await.unwrap();
    assert_eq!(place(&made), "b");
    let nowhere = cluster.controller.create(volume("w", SIZE, &["x", "y"])).await;
    fails(nowhere, Code::ResourceExhausted, "accessibility_requirements");
}

#[tokio::test]
async fn a_node_that_is_down_is_passed_over() {
    let cluster = Cluster::start(&["a", "b"]).await;
    cluster.net.set_way(&address("a"), Way::Refused);
    let made = cluster.controller.create(volume("v", SIZE, &[])).await.unwrap();
    assert_eq!(place(&made), "b");
    // Not where it is the one that was asked for: it may have made the volume already.
    let down = cluster.controller.create(volume("w", SIZE, &["a", "b"])).await;
    fails(down, Code::Unavailable, "node \"a\"");
    assert!(cluster.holders("w").await.is_empty());
    let made = cluster.controller.create(volume("w", SIZE, &["b", "a"])).await.unwrap();
    assert_eq!(place(&made), "b");
}
