//! Answers that are lost, and that no second volume is made for them.

use tonic::Code;

use crate::harness::{Cluster, Fault, Way, address, fails, place, volume};
use crate::requests::MIB;
use crate::wait::{until, until_answered};

const SIZE: i64 = 512 * MIB;

#[tokio::test]
async fn a_lost_answer_is_unavailable_and_the_retry_finds_the_volume() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    cluster.node("a").fault("CreateVolume", Fault::LoseAnswer);
    let lost = cluster.controller.create(volume("v", SIZE, &["a", "b", "c"])).await;
    fails(lost, Code::Unavailable, "node \"a\"");
    cluster.node("a").heal();
    // Whatever is preferred by now.
    let made = cluster.controller.create(volume("v", SIZE, &["c", "a", "b"])).await.unwrap();
    assert_eq!(place(&made), "a");
    assert_eq!(cluster.holders("v").await, ["a"]);
}

#[tokio::test]
async fn the_answer_of_the_second_choice_is_lost_and_the_first_has_room_again() {
    let cluster = Cluster::with_room(&["a", "b"], 4 << 30).await;
    cluster.fill("a").await;
    cluster.node("b").fault("CreateVolume", Fault::LoseAnswer);
    let lost = cluster.controller.create(volume("v", SIZE, &["a", "b"])).await;
    fails(lost, Code::Unavailable, "node \"b\"");
    cluster.node("b").heal();
    let id = crate::harness::id_on("a", "fills a");
    cluster.controller.delete(&id).await.unwrap();
    let made = cluster.controller.create(volume("v", SIZE, &["a", "b"])).await.unwrap();
    assert_eq!(place(&made), "b");
    assert_eq!(cluster.holders("v").await, ["b"]);
}

#[tokio::test]
async fn a_second_node_is_not_tried_while_another_cannot_say_whether_it_has_the_volume() {
    let cluster = Cluster::with_room(&["a", "b", "c"], 4 << 30).await;
    // The answer of c is lost, and then c with it.
    cluster.node("c").fault("CreateVolume", Fault::LoseAnswer);
    cluster.controller.create(volume("v", SIZE, &["c", "a", "b"])).await.unwrap_err();
    cluster.node("c").heal();
    cluster.net.cut(&address("c"));
    cluster.net.set_way(&address("c"), Way::Refused);
    cluster.fill("a").await;
    let unsure = cluster.controller.create(volume("v", SIZE, &["a", "b", "c"])).await;
    fails(unsure, Code::Unavailable, "node \"c\"");
    assert_eq!(cluster.holders("v").await, ["c"], "b had room and was not tried");
    assert!(cluster.node("b").calls("CreateVolume").is_empty());

    cluster.net.set_way(&address("c"), Way::Open);
    // The controller waits a moment before it tries c again.
    let create = || cluster.controller.create(volume("v", SIZE, &["a", "b", "c"]));
    let made = until_answered(&[Code::Unavailable], create).await.unwrap();
    assert_eq!(place(&made), "c");
    assert_eq!(cluster.holders("v").await, ["c"]);
}

#[tokio::test]
async fn a_candidate_that_is_down_does_not_keep_the_first_choice_from_making_the_volume() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    cluster.net.set_way(&address("b"), Way::Silent);
    cluster.net.set_way(&address("c"), Way::Refused);
    let made = cluster.controller.create(volume("v", SIZE, &["a", "b", "c"])).await.unwrap();
    assert_eq!(place(&made), "a");
}

/// It takes longer to make a volume than its caller waits. The retry finds the node at work.
#[tokio::test]
async fn a_volume_that_is_being_made_is_not_made_again() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let kernel = &cluster.node("b").kernel;
    kernel.hold("set_size");
    let call = tokio::spawn({
        let client = cluster.controller.client.clone();
        async move { client.call(volume("v", SIZE, &["b", "a"])).await }
    });
    until("it is being made", async || {
        assert!(!call.is_finished(), "it answers before it is made");
        kernel.waiting() > 0
    })
    .await;
    call.abort();
    // The scheduler has chosen another node by now.
    let wanted = || volume("v", SIZE, &["a", "b"]);
    for _ in 0..3 {
        fails(cluster.controller.create(wanted()).await, Code::Aborted, "running");
    }
    kernel.release();
    let create = || cluster.controller.create(wanted());
    let made = until_answered(&[Code::Aborted], create).await.unwrap();
    assert_eq!(place(&made), "b");
    assert_eq!(cluster.holders("v").await, ["b"]);
    assert!(cluster.node("a").calls("CreateVolume").is_empty());
}

/// Answers are lost, nodes fill up and get room again, and the scheduler thinks again, in many ways.
#[tokio::test]
async fn whatever_is_lost_there_is_one_volume() {
    const NODES: [&str; 3] = ["a", "b", "c"];
    let cluster = Cluster::with_room(&NODES, 4 << 30).await;
    let mut state: u64 = 1;
    let mut random = move |below: usize| {
        // Knuth's MMIX generator: the same rounds in every run.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..25 {
        let name = format!("v-{round}");
        let mut tries = 0;
        let made = loop {
            let mut order = NODES;
            order.rotate_left(random(3));
            cluster.nodes.iter().for_each(crate::harness::Node::heal);
            let full = NODES[random(3)];
            let filled = crate::harness::id_on(full, &format!("fills {full}"));
            match random(2) {
                0 if cluster.controller.get(&filled).await.is_err() => cluster.fill(full).await,
                _ => cluster.controller.delete(&filled).await.unwrap(),
            }
            if tries < 4 && random(3) > 0 {
                cluster.nodes[random(3)].fault("CreateVolume", Fault::LoseAnswer);
            }
            tries += 1;
            match cluster.controller.create(volume(&name, SIZE, &order)).await {
                Ok(made) => break made,
                Err(status) => assert!(
                    matches!(status.code(), Code::Unavailable | Code::ResourceExhausted | Code::Aborted),
                    "{status:?}"
                ),
            }
        };
        assert_eq!(cluster.holders(&name).await, [place(&made)], "round {round}");
        cluster.nodes.iter().for_each(crate::harness::Node::heal);
        cluster.controller.delete(&made.volume_id).await.unwrap();
    }
}
