//! Whole moves and promotions: a controller, the nodes, and Kubernetes.

use std::collections::BTreeSet;

use serde_json::json;

use super::api::Fault;
use super::world::World;
use crate::cluster::moves::resources::{MovePhase, ReplicaPhase};

/// More than any move takes.
pub(super) const LONG: usize = 60;

/// Runs until the volume has moved, or so long.
pub(super) async fn until_done(world: &mut World) {
    for _ in 0..LONG {
        world.tick().await;
        if world.asked().0 == Some(MovePhase::Done) && world.replica().is_none() && world.down == 0 {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_moves_when_its_pods_are_told_to_leave() {
    for mutable in [false, true] {
        let mut world = World::new(mutable, json!({}));
        world.ticks(5).await;
        world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
        until_done(&mut world).await;
        let which = format!("mutable {mutable}: {:?}", world.asked());
        world.is_settled("n2", &which);
        assert_eq!(world.asked().0, Some(MovePhase::Done), "{which}");
        world.ticks(20).await;
        world.is_settled("n2", "it does not move again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_moves_when_its_pods_leave_by_themselves() {
    let mut world = World::new(false, json!({}));
    world.ticks(3).await;
    world.ask(json!({}));
    world.ticks(20).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Ready);
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "its pod runs");
    assert!(world.asked().1.contains("pod db-0 has left"), "{:?}", world.asked());
    world.drain();
    until_done(&mut world).await;
    // The node with the most room.
    world.is_settled("n2", "it has moved");
}

/// Each request to the API server is lost, or its answer, and another process goes on.
#[tokio::test(start_paused = true)]
async fn whatever_ends_a_controller_a_move_goes_on() {
    for mutable in [false, true] {
        let mut requests = 0;
        for (fault, number) in (0..200).flat_map(|n| [(Fault::Lost, n), (Fault::AnswerLost, n)]) {
            let mut world = World::new(mutable, json!({}));
            world.server.fail(number, fault);
            world.ticks(2).await;
            world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
            for _ in 0..LONG {
                world.tick().await;
                world.restart();
            }
            let which = format!("mutable {mutable}, request {number} {fault:?}: {:?}", world.phase());
            world.is_settled("n2", &which);
            assert_eq!(world.asked().0, Some(MovePhase::Done), "{which}");
            requests = world.server.calls().len();
            if number >= requests {
                break;
            }
        }
        assert!(requests > 10, "{requests}");
    }
}

/// Each call to a node is lost, or its answer.
#[tokio::test(start_paused = true)]
async fn whatever_a_node_does_not_answer_a_move_goes_on() {
    for (fault, number) in (0..40).flat_map(|n| [(Fault::Lost, n), (Fault::AnswerLost, n)]) {
        let mut world = World::new(false, json!({}));
        world.nodes.lock().fault = Some((number, fault));
        world.ticks(2).await;
        world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
        world.ticks(LONG).await;
        let which = format!("call {number} {fault:?}: {:?}", world.phase());
        world.is_settled("n2", &which);
    }
}

/// Whenever the request is deleted, the volume is in one place, and its pod runs there.
#[tokio::test(start_paused = true)]
async fn a_move_can_be_cancelled_at_any_time() {
    let mut places = BTreeSet::new();
    for tick in 0..20 {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
        world.ticks(tick).await;
        world.server.with(|k| k.remove(&hostloop_fake_kubernetes::key("volumemoves", "default", "m")));
        world.ticks(LONG).await;
        world.is_settled(&world.place(), &format!("after {tick}"));
        places.insert(world.place());
    }
    assert_eq!(places.len(), 2, "both ends were seen: {places:?}");
}

/// Makes a move and cancels it as soon as what is of this number has failed; another process goes on. `fail` has it fail, and
/// `count` returns how many there were so far. Returns where the volume is; `None` if there were fewer.
async fn cancelled(
    mutable: bool,
    number: usize,
    fail: impl Fn(&World),
    count: impl Fn(&World) -> usize,
) -> Option<String> {
    let mut world = World::new(mutable, json!({}));
    fail(&world);
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    for _ in 0..LONG {
        if count(&world) > number {
            world.server.with(|k| k.remove(&hostloop_fake_kubernetes::key("volumemoves", "default", "m")));
            world.restart();
            world.ticks(LONG).await;
            world.is_settled(&world.place(), &format!("mutable {mutable}, number {number}"));
            return Some(world.place());
        }
        world.tick().await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_move_can_be_cancelled_after_any_request() {
    for mutable in [false, true] {
        let mut places = BTreeSet::new();
        for (fault, number) in (0..).flat_map(|n| [(Fault::Lost, n), (Fault::AnswerLost, n)]) {
            let fail = |world: &World| world.server.fail(number, fault);
            match cancelled(mutable, number, fail, |world| world.server.calls().len()).await {
                Some(place) => places.insert(place),
                None => break,
            };
        }
        assert_eq!(places.len(), 2, "both ends were seen: {places:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_move_can_be_cancelled_after_any_node_call() {
    let mut places = BTreeSet::new();
    for (fault, number) in (0..).flat_map(|n| [(Fault::Lost, n), (Fault::AnswerLost, n)]) {
        let fail = |world: &World| world.nodes.lock().fault = Some((number, fault));
        match cancelled(false, number, fail, |world| world.nodes.lock().calls.len()).await {
            Some(place) => places.insert(place),
            None => break,
        };
    }
    assert_eq!(places.len(), 2, "both ends were seen: {places:?}");
}

/// A scheduler that has not seen the exchange puts a pod on the earlier node, also when the move has ended.
#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_to_the_earlier_node_is_sent_on() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    until_done(&mut world).await;
    world.server.with(|k| {
        k.remove(&hostloop_fake_kubernetes::key("pods", "default", "db-0"));
        let mut pod = hostloop_fake_kubernetes::control::pod("db-0", "data-db-0", "StatefulSet");
        pod["spec"]["nodeName"] = json!("n1");
        k.create(hostloop_fake_kubernetes::key("pods", "default", "db-0"), pod);
    });
    world.ticks(10).await;
    world.is_settled("n2", "it was evicted");
    world.drain();
    world.ticks(5).await;
    world.is_settled("n2", "a pod where the volume is, is not");
}

pub(super) fn standby() -> serde_json::Value {
    json!({"standby": "1", "standbyInterval": "10s"})
}

/// A volume with a standby copy on another node, which it returns.
pub(super) async fn with_standby() -> (World, String) {
    let mut world = World::new(false, standby());
    world.ticks(20).await;
    let replica = world.replica().expect("a copy");
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Standby, "{:?}", world.phase());
    let target = replica.spec.target_node;
    assert_eq!(world.holds(&target).len(), 1);
    (world, target)
}

#[tokio::test(start_paused = true)]
async fn a_standby_copy_takes_over_if_the_node_is_lost() {
    let (mut world, target) = with_standby().await;
    world.lose("n1");
    world.ticks(60).await;
    assert_eq!(world.place(), "n1", "Kubernetes does not say that the node is lost");
    world.remove_node("n1");
    world.ticks(60).await;
    world.runs_on(&target, "promoted");
    // The node comes back with its old disk.
    world.add_node("n1");
    world.ticks(30).await;
    let (phase, message) = world.left();
    assert!(phase == ReplicaPhase::Left && message.contains("node n1"), "{phase:?} {message}");
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Standby, "the volume has another copy by now");
    assert!(world.holds("n1").iter().any(|held| held.was.is_some()) && world.down == 0);
    world.server.with(|k| k.mark_deleted(&hostloop_fake_kubernetes::key("volumereplicas", "", "pvc-1-0")));
    world.ticks(20).await;
    world.is_fine("cleaned");
    assert!(world.holds("n1").iter().all(|held| held.was.is_none()), "{:?}", world.holds("n1"));
}

/// A disk that was replaced has nothing, which is no reason to delete the only copy.
#[tokio::test(start_paused = true)]
async fn a_copy_stays_if_its_volumes_disk_was_replaced() {
    let (mut world, target) = with_standby().await;
    world.lose("n1");
    world.nodes.lock().nodes.get_mut("n1").unwrap().clear();
    world.nodes.lock().silent.clear();
    world.server.with(|k| k.remove(&hostloop_fake_kubernetes::key("pods", "default", "db-0")));
    world.ticks(60).await;
    world.is_fine("kept");
    assert_eq!(world.holds(&target).len(), 1, "{:?}", world.phase());
    assert!(world.phase().unwrap().1.contains("does not exist"), "{:?}", world.phase());
    world.server.with(|k| {
        k.change("volumereplicas", "pvc-1-0", |replica| {
            replica["metadata"]["annotations"] = json!({"hostloop.csi.dev/promote": "true"});
        });
    });
    world.ticks(60).await;
    world.runs_on(&target, "promoted");
}

#[tokio::test(start_paused = true)]
async fn a_copy_whose_own_node_is_away_is_not_promoted() {
    let (mut world, target) = with_standby().await;
    world.nodes.lock().silent.insert(target.clone());
    world.ticks(100).await;
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "{:?}", world.phase());
    // The node of the volume has the taint and still answers: the silence of the other one is not its own.
    world.taint("n1");
    world.drain();
    world.ticks(100).await;
    let stale =
        |world: &World| world.replica().is_some_and(|it| it.status.is_some_and(|status| status.stale));
    assert!(!stale(&world), "{:?}", world.phase());
    world.nodes.lock().silent.clear();
    world.drain();
    world.ticks(60).await;
    world.runs_on(&target, "promoted with a last pass");
}

#[tokio::test(start_paused = true)]
async fn a_copy_goes_with_its_claim_not_with_its_class() {
    let (mut world, target) = with_standby().await;
    world.server.with(|k| k.remove(&hostloop_fake_kubernetes::key("storageclasses", "", "local")));
    world.ticks(30).await;
    assert_eq!(world.holds(&target).len(), 1, "{:?}", world.phase());
    assert!(world.phase().unwrap().1.contains("StorageClass local does not exist"), "{:?}", world.phase());
    world.server.with(|k| {
        k.mark_deleted(&hostloop_fake_kubernetes::key("persistentvolumeclaims", "default", "data-db-0"))
    });
    world.ticks(10).await;
    world.is_fine("deleted");
    assert!(world.replica().is_none() && world.holds(&target).is_empty(), "{:?}", world.phase());
}

#[tokio::test(start_paused = true)]
async fn a_move_uses_the_standby_copy_that_is_there() {
    let (mut world, target) = with_standby().await;
    let copies = world.nodes.lock().calls.iter().filter(|call| **call == "create").count();
    world.ask(json!({"when": "Now"}));
    until_done(&mut world).await;
    assert_eq!(world.place(), target, "{:?} {:?}", world.asked(), world.phase());
    world.is_fine("moved");
    world.ticks(30).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Standby, "it gets another standby copy");
    assert_ne!(world.replica().unwrap().spec.target_node, target);
    let all = world.nodes.lock().calls.iter().filter(|call| **call == "create").count();
    assert_eq!((copies, all), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_must_not_be_evicted_is_not_disturbed() {
    let mut world = World::new(false, json!({}));
    world.server.with(|k| k.budget = 0);
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    world.ticks(30).await;
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0));
    assert!(world.phase().unwrap().1.contains("may not be evicted yet"), "{:?}", world.phase());
    assert!(!world.holds("n1")[0].sealed, "other pods are not kept away");
    world.server.with(|k| k.budget = 1);
    until_done(&mut world).await;
    world.is_settled("n2", "its budget lets it");
}

/// Moves the volume until its copy is to take over the id, and the node has not done that, or its answer is lost.
pub(super) async fn in_its_last_step(fault: Fault) -> World {
    let moving = async |fault| {
        let mut world = World::new(false, json!({}));
        world.nodes.lock().fault = fault;
        world.ticks(2).await;
        world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
        while !world.nodes.lock().calls.contains(&"complete") {
            world.tick().await;
        }
        world
    };
    let number = moving(None).await.nodes.lock().calls.iter().position(|call| *call == "complete").unwrap();
    let world = moving(Some((number, fault))).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Completing);
    world
}

/// Moves the volume that far, and then loses the node of the copy.
async fn lost_in_its_last_step(fault: Fault) -> World {
    let mut world = in_its_last_step(fault).await;
    world.lose("n2");
    world.may_be_lost = 0;
    world.ticks(60).await;
    assert_eq!(
        (world.phase().unwrap().0, world.down > 60),
        (ReplicaPhase::Completing, true),
        "it may come back"
    );
    world.remove_node("n2");
    world.ticks(60).await;
    world.runs_on("n1", "taken back");
    assert_eq!(world.holds("n1")[0].generation, 2);
    world
}

/// The node of the copy may have taken over the id, and a pod may have written there.
#[tokio::test(start_paused = true)]
async fn a_volume_is_taken_back_from_a_lost_node() {
    let mut world = lost_in_its_last_step(Fault::Lost).await;
    world.server.with(|k| k.remove(&hostloop_fake_kubernetes::key("volumemoves", "default", "m")));
    world.add_node("n2");
    world.ticks(20).await;
    world.is_settled("n1", "its copy is deleted");

    let mut world = lost_in_its_last_step(Fault::AnswerLost).await;
    world.server.with(|k| k.remove(&hostloop_fake_kubernetes::key("volumemoves", "default", "m")));
    world.add_node("n2");
    world.ticks(20).await;
    let (phase, message) = world.left();
    assert!(phase == ReplicaPhase::Left && message.contains("node n2"), "{phase:?} {message}");
    assert!(world.holds("n2").iter().all(|held| held.was.is_some()), "{:?}", world.holds("n2"));
    world.server.with(|k| k.mark_deleted(&hostloop_fake_kubernetes::key("volumereplicas", "", "pvc-1-0")));
    world.ticks(20).await;
    world.is_settled("n1", "what it had is deleted");
}

/// A later move goes to the same node, which has data of the earlier generation.
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_taken_back_moves_again() {
    let mut world = lost_in_its_last_step(Fault::AnswerLost).await;
    world.add_node("n2");
    world.ticks(5).await;
    world.server.with(|k| k.mark_deleted(&hostloop_fake_kubernetes::key("volumereplicas", "", "pvc-1-0")));
    until_done(&mut world).await;
    world.is_settled("n2", "the VolumeMove was begun again");
    assert_eq!(world.holds("n2")[0].generation, 3);
}
