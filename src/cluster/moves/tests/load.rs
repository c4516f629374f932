//! What copies that wait cost the API server.

use serde_json::json;

use super::whole::with_standby;
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
