//! Many claims and two drivers: limits, nodes without room, nodes that hang, and names that are taken.

use std::time::Duration;

use hostloop_fake_kubernetes::{NAMESPACE, key};
use serde_json::json;
use tokio::time::Instant;

use super::hostile::{NOW, now_to, set_status};
use super::pods::add_log;
use super::whole::{LONG, standby};
use super::world::World;
use crate::cluster::moves::act::Moves;
use crate::cluster::moves::resources::MovePhase;
use crate::cluster::moves::seen::Seen;
use crate::model::MoveLimits;

/// Two installations with two names have one kind of objects.
#[tokio::test(start_paused = true)]
async fn a_volume_of_another_driver_is_left_alone() {
    let mut world = World::new(false, json!({"standby": "1"}));
    world.server.with(|k| {
        k.change("persistentvolumes", "pvc-1", |volume| {
            volume["spec"]["csi"]["driver"] = json!("other.csi.dev")
        });
    });
    world.ask(now_to("n2"));
    let created = json!("1970-01-01T00:00:00Z");
    world
        .server
        .with(|k| k.change("volumemoves", "m", |asked| asked["metadata"]["creationTimestamp"] = created));
    world.ticks(25).await;
    let copies = |world: &World| world.server.with(|k| k.all("volumereplicas").count());
    assert_eq!((world.asked().0, copies(&world)), (None, 0), "its own controller may look at it");
    world.ticks(10).await;
    let (phase, message) = world.asked();
    assert!(phase == Some(MovePhase::Refused) && message.contains("driver other.csi.dev"), "{message}");
    assert_eq!((copies(&world), world.place()), (0, "n1".to_owned()));
    assert_eq!(world.server.with(|k| k.all("events").count()), 0, "no warning for a claim of others");
    // The other controller writes its own status.
    set_status(&world, "volumemoves", "m", &json!({"phase": "Copying", "message": "3%"}));
    world.ticks(90).await;
    assert_eq!(world.asked(), (Some(MovePhase::Copying), "3%".to_owned()));
}

/// A copy that is gone does not count, not even for the controller that has made it.
#[tokio::test(start_paused = true)]
async fn limits_count_the_copies_that_there_are() {
    let mut world = World::new(false, json!({}));
    world.limit(MoveLimits { all: 1, namespace: 1, node: 1, ..MoveLimits::default() });
    world.ticks(2).await;
    for target in ["n2", "n1", "n2"] {
        world.ask(json!({"when": NOW, "target": {"node": target}}));
        world.ticks(LONG).await;
        assert_eq!(
            (world.asked().0, world.place().as_str()),
            (Some(MovePhase::Done), target),
            "{:?}",
            world.asked()
        );
        world.server.with(|k| k.remove(&key("volumemoves", NAMESPACE, "m")));
        world.ticks(5).await;
    }
}

/// A tenant who may ask for moves may ask again and again, and each one leaves the data at the node before.
#[tokio::test(start_paused = true)]
async fn data_that_moves_leave_count_as_copies() {
    let mut world = World::new(false, json!({}));
    world.limit(MoveLimits { namespace: 3, ..MoveLimits::default() });
    world.ticks(2).await;
    for target in ["n2", "n3", "n1"] {
        world.ask(json!({"when": NOW, "keepSource": true, "target": {"node": target}}));
        world.ticks(LONG).await;
        assert_eq!((world.asked().0, world.place().as_str()), (Some(MovePhase::Done), target));
        world.server.with(|k| k.remove(&key("volumemoves", NAMESPACE, "m")));
        world.ticks(5).await;
    }
    world.ask(json!({"when": NOW, "keepSource": true, "target": {"node": "n2"}}));
    world.ticks(LONG).await;
    let (phase, message) = world.asked();
    assert_eq!((phase, world.place().as_str()), (Some(MovePhase::Refused), "n1"), "{message}");
    assert!(message.contains("default has 3 copies, and --move-limits allows 3"), "{message}");
}

/// A node that hangs is asked once for each copy, and the copies do not wait for each other.
#[tokio::test(start_paused = true)]
async fn a_slow_node_delays_no_other_copy() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    add_log(&world);
    world.server.with(|k| k.change("storageclasses", "local", |class| class["parameters"] = standby()));
    let slow = Duration::from_secs(10);
    for node in ["n2", "n3"] {
        world.nodes.lock().slow.insert(node.to_owned(), slow);
    }
    let (seen, mut writers) = Seen::new();
    world.server.show(&mut writers);
    let claims = seen.claims.state();
    let moves = Moves { seen, ..world.moves().clone() };
    assert_eq!(claims.len(), 2);
    let began = Instant::now();
    let (one, other) = tokio::join!(moves.stand_by(&claims[0]), moves.stand_by(&claims[1]));
    one.and(other).expect("answers");
    assert_eq!(world.server.with(|k| k.all("volumereplicas").count()), 2);
    assert!(began.elapsed() < 2 * slow, "{:?}", began.elapsed());
}

/// Otherwise only the log would say why a volume has no copy.
#[tokio::test(start_paused = true)]
async fn a_refused_standby_copy_is_an_event() {
    let mut world = World::new(false, standby());
    world.nodes.lock().full.extend(["n2".to_owned(), "n3".to_owned()]);
    world.ticks(20).await;
    let events = world.server.with(|k| k.all("events").cloned().collect::<Vec<_>>());
    let refused: Vec<_> = events.iter().filter(|event| event["reason"] == "StandbyRefused").collect();
    assert_eq!(refused.len(), 1, "{events:?}");
    assert_eq!(refused[0]["note"], "There is no standby copy: no other node has room for it");
    assert_eq!(refused[0]["regarding"]["name"], "data-db-0");
}

/// A PersistentVolume of the same name had a copy before.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_is_said() {
    let mut world = World::new(false, json!({}));
    world.add_left("pvc-1-0", NAMESPACE);
    world.ticks(2).await;
    world.ask(json!({"when": NOW}));
    world.ticks(20).await;
    let (phase, message) = world.asked();
    assert_eq!(phase, Some(MovePhase::Refused), "{message}");
    assert!(message.contains("VolumeReplica pvc-1-0 exists already"), "{message}");
}

/// Each copy takes the size of its volume on another node, and no ResourceQuota counts it.
#[tokio::test(start_paused = true)]
async fn no_namespace_has_more_copies_than_allowed() {
    let default = MoveLimits::default();
    for (limits, namespace, place) in [
        (MoveLimits { all: 2, ..default }, "other", Err("there are 2 copies, and --move-limits allows 2")),
        (MoveLimits { all: 3, namespace: 2, ..default }, "other", Ok("n2")),
        (
            MoveLimits { namespace: 2, ..default },
            NAMESPACE,
            Err("default has 2 copies, and --move-limits allows 2"),
        ),
        (MoveLimits { node: 2, ..default }, "other", Ok("n3")),
        (MoveLimits { node: 3, ..default }, "other", Ok("n2")),
        (
            MoveLimits { node: 0, ..default },
            "other",
            Err("no other node has room for it within --move-limits"),
        ),
        (MoveLimits { node_size: Some((5 << 30) - 1), ..default }, "other", Ok("n3")),
        (MoveLimits { node_size: Some(5 << 30), ..default }, "other", Ok("n2")),
    ] {
        let mut world = World::new(false, json!({}));
        world.limit(limits);
        world.add_left("first", namespace);
        world.add_left("second", namespace);
        world.ticks(2).await;
        world.ask(json!({"when": NOW}));
        world.ticks(LONG).await;
        let (phase, message) = world.asked();
        match place {
            Ok(node) => {
                assert_eq!((phase, world.place().as_str()), (Some(MovePhase::Done), node), "{limits:?}")
            }
            Err(why) => {
                assert!(phase == Some(MovePhase::Refused) && message.contains(why), "{limits:?}: {message}");
            }
        }
        world.is_fine(&format!("{limits:?}"));
    }
}

/// If no limit is the reason, the message does not send the owner to the administrator for a larger one.
#[tokio::test(start_paused = true)]
async fn a_move_to_full_nodes_is_refused_for_their_room() {
    let mut world = World::new(false, json!({}));
    for node in ["n2", "n3"] {
        let others = (0..100).map(|n| (format!("other-{n}"), Default::default()));
        world.nodes.lock().nodes.get_mut(node).unwrap().extend(others);
    }
    world.ticks(2).await;
    world.ask(json!({"when": NOW}));
    world.ticks(10).await;
    let (phase, message) = world.asked();
    assert_eq!(phase, Some(MovePhase::Refused));
    assert!(message.contains("no other node has room for it"), "{message}");
    assert!(!message.contains("--move-limits"), "{message}");
    world.is_fine("refused");
}
