//! What copies that wait cost the API server.

use serde_json::json;

use super::whole::{LONG, with_standby};
use super::world::World;
use crate::cluster::moves::resources::ReplicaPhase;

const MINUTES: usize = 10;

/// Runs for ten minutes, in which every object is looked at each second. Returns the requests to the API server, and the passes.
async fn of_ten_minutes(world: &mut World) -> (Vec<String>, usize) {
    let passes = |world: &World| world.nodes.lock().calls.iter().filter(|call| **call == "update").count();
    let (requests, before) = (world.server.calls().len(), passes(world));
    world.ticks(MINUTES * 60).await;
    (world.server.calls().split_off(requests), passes(world) - before)
}

#[tokio::test(start_paused = true)]
async fn a_standby_copy_costs_one_request_for_each_pass() {
    let (mut world, _) = with_standby().await;
    let (requests, passes) = of_ten_minutes(&mut world).await;
    assert!((MINUTES * 6 - 1..=MINUTES * 6 + 1).contains(&passes), "{passes}");
    assert_eq!(requests.len(), passes, "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_move_that_waits_costs_one_request_for_each_pass() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"target": {"node": "n2"}}));
    world.ticks(20).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Ready, "its pod runs");
    let (requests, passes) = of_ten_minutes(&mut world).await;
    assert!((MINUTES - 1..=MINUTES + 1).contains(&passes), "{passes}");
    assert_eq!(requests.len(), passes, "{requests:?}");
}

/// A budget may refuse the eviction for days.
#[tokio::test(start_paused = true)]
async fn a_refused_cutover_is_checked_ever_less_often() {
    let mut world = World::new(false, json!({}));
    world.server.with(|k| k.budget = 0);
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    world.ticks(20).await;
    let (phase, message) = world.phase().unwrap();
    assert!(phase == ReplicaPhase::Ready && message.contains("may not be evicted"), "{phase:?} {message}");
    let (before, mut checks) = (world.server.calls().len(), Vec::new());
    for second in 0..3600 {
        let seen = world.server.calls().len();
        world.patient_tick().await;
        if world.server.calls()[seen..].iter().any(|call| call.contains("/eviction")) {
            checks.push(second);
        }
    }
    let (requests, passes) = (world.server.calls().len() - before, 60);
    assert!((12..30).contains(&checks.len()), "{checks:?}");
    assert!(requests <= passes + 2 * checks.len() + 10, "{requests}");
    // The budget allows it again.
    world.server.with(|k| k.budget = 1);
    for _ in 0..600 {
        world.patient_tick().await;
    }
    world.is_settled("n2", "it has moved");
}

/// The claim of such data may be gone for weeks.
#[tokio::test(start_paused = true)]
async fn data_that_were_left_cost_next_to_nothing() {
    let mut world = World::new(false, json!({}));
    world.add_left("earlier", "default");
    world.ticks(2).await;
    let before = world.server.calls().len();
    for _ in 0..MINUTES * 60 {
        world.patient_tick().await;
    }
    let requests = world.server.calls().split_off(before);
    assert!((1..=4).contains(&requests.len()), "{requests:?}");
}

/// Returns how many of these requests read the Node.
fn reads(requests: &[String], node: &str) -> usize {
    let path = format!("GET /api/v1/nodes/{node}?");
    requests.iter().filter(|request| **request == path).count()
}

/// The copy takes over as soon as its own node answers.
#[tokio::test(start_paused = true)]
async fn a_lost_node_is_not_asked_for_at_each_look() {
    let (mut world, target) = with_standby().await;
    world.lose("n1");
    world.remove_node("n1");
    world.nodes.lock().silent.insert(target);
    world.ticks(5).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::CuttingOver);
    let before = world.server.calls().len();
    world.ticks(LONG).await;
    let reads = reads(&world.server.calls()[before..], "n1");
    assert!((LONG / 6..=LONG / 5 + 1).contains(&reads), "{reads}");
}

/// A Node that was not found may be there again.
#[tokio::test(start_paused = true)]
async fn a_lost_node_is_asked_for_before_giving_up() {
    let (mut world, target) = with_standby().await;
    world.nodes.lock().silent.insert(target.clone());
    world.server.with(|k| k.remove(&hostloop_fake_kubernetes::key("nodes", "", &target)));
    for _ in 0..600 {
        let before = world.server.calls().len();
        world.tick().await;
        if world.left().0 == ReplicaPhase::Stranded {
            let requests = world.server.calls().split_off(before);
            assert!(reads(&requests, &target) > 0, "{requests:?}");
            return;
        }
    }
    panic!("{:?}", world.left());
}
