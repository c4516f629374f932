//! Losses and refusals in a cutover from which the controller has to come back without a person.

use std::time::Duration;

use hostloop_fake_kubernetes::{NAMESPACE, key};
use serde_json::json;
use tokio::time::Instant;

use super::aftermath::promote;
use super::whole::{until_done, with_standby};
use super::world::World;
use crate::cluster::moves::resources::{MovePhase, ReplicaPhase};

/// Runs until the copy is in this phase.
async fn until(world: &mut World, phase: ReplicaPhase) {
    for _ in 0..60 {
        if world.phase().is_some_and(|(now, _)| now == phase) {
            return;
        }
        world.tick().await;
    }
    panic!("{:?}", world.phase());
}

/// The node of the copy has no room for the latest writes of the pod.
#[tokio::test(start_paused = true)]
async fn a_last_pass_without_room_gives_the_volume_back() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"target": {"node": "n2"}}));
    until(&mut world, ReplicaPhase::Ready).await;
    world.nodes.lock().crowded.insert("n2".to_owned());
    world.drain();
    world.ticks(30).await;
    world.is_fine("back");
    let (phase, message) = world.phase().unwrap();
    assert!(phase == ReplicaPhase::Following && message.contains("the pool is full"), "{phase:?} {message}");
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0));
    world.drain();
    world.ticks(30).await;
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "no cutover before a pass has room");
    world.nodes.lock().crowded.clear();
    until(&mut world, ReplicaPhase::Ready).await;
    world.drain();
    until_done(&mut world).await;
    world.is_settled("n2", "there is room");
}

/// A directory can take more than the files took in the image that they come from.
#[tokio::test(start_paused = true)]
async fn a_last_pass_over_the_limit_gives_the_volume_back() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"target": {"node": "n2"}}));
    until(&mut world, ReplicaPhase::Ready).await;
    world.nodes.lock().exceeded_last.insert("n2".to_owned());
    world.drain();
    world.ticks(30).await;
    world.is_fine("back");
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "{:?}", world.phase());
    world.nodes.lock().exceeded_last.clear();
    world.ticks(310).await;
    world.drain();
    until_done(&mut world).await;
    world.is_settled("n2", "it is small enough");
}

/// The pod writes more in each cutover than the node of the copy has room for, and passes before have room.
#[tokio::test(start_paused = true)]
async fn cutovers_that_go_back_become_seldom() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.nodes.lock().crowded_last.insert("n2".to_owned());
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    let (began, mut cutovers, mut before) = (Instant::now(), 0, None);
    while began.elapsed() < Duration::from_secs(20 * 60) {
        world.tick().await;
        let phase = world.phase().map(|(phase, _)| phase);
        cutovers += usize::from(phase != before && phase == Some(ReplicaPhase::CuttingOver));
        before = phase;
    }
    assert!((3..=8).contains(&cutovers), "{cutovers} cutovers in 20 minutes");
    world.nodes.lock().crowded_last.clear();
    world.ticks(310).await;
    until_done(&mut world).await;
    world.is_settled("n2", "there is room");
}

/// The copy takes over without a last pass, so its room does not matter.
#[tokio::test(start_paused = true)]
async fn a_lost_node_ends_the_wait_for_a_cutover() {
    let (mut world, target) = with_standby().await;
    world.nodes.lock().crowded_last.insert(target.clone());
    world.ask(json!({"when": "Now", "target": {"node": target}}));
    world.ticks(200).await;
    while !world.phase().unwrap().1.contains("the next cutover waits") {
        world.tick().await;
    }
    world.lose("n1");
    world.taint("n1");
    world.server.with(|k| k.remove(&key("pods", NAMESPACE, "db-0")));
    world.ticks(60).await;
    world.runs_on(&target, "promoted");
}

/// A standby copy that a move uses has to stay up to date while its cutover is refused or waits: its node may be lost then.
#[tokio::test(start_paused = true)]
async fn a_standby_copy_stays_up_to_date_before_its_cutover() {
    let (mut world, target) = with_standby().await;
    world.nodes.lock().crowded_last.insert(target.clone());
    world.ask(json!({"when": "Now", "target": {"node": target}}));
    world.ticks(60).await;
    let mut oldest = Duration::ZERO;
    for _ in 0..600 {
        world.patient_tick().await;
        let pass = world.replica().and_then(|replica| replica.status).and_then(|status| status.last_pass);
        oldest = oldest.max(world.moves().since(&pass.expect("a pass").asked.0));
    }
    assert!(oldest <= Duration::from_secs(70), "{oldest:?}");
}

/// A cloud deletes the Node of a machine that is gone. No pod could run there.
#[tokio::test(start_paused = true)]
async fn a_target_that_is_gone_gives_the_volume_back() {
    for phase in [ReplicaPhase::CuttingOver, ReplicaPhase::LastPass] {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        world.nodes.lock().busy_passes = if phase == ReplicaPhase::LastPass { 1000 } else { 0 };
        world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
        until(&mut world, phase).await;
        world.lose("n2");
        world.server.with(|k| k.remove(&key("nodes", "", "n2")));
        world.nodes.lock().busy_passes = 0;
        world.ticks(30).await;
        world.is_fine(phase.as_str());
        assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "{phase:?} {:?}", world.phase());
        assert_eq!(world.left().0, ReplicaPhase::Stranded, "{:?}", world.left());
        assert_eq!(world.asked().0, Some(MovePhase::GivingUp), "{:?}", world.asked());
    }
}

/// The class does not say whether the copy is needed. The administrator who promotes it does.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_missing_class_can_be_promoted() {
    let (mut world, target) = with_standby().await;
    world.lose("n1");
    world.remove_node("n1");
    world.server.with(|k| k.remove(&key("storageclasses", "", "local")));
    world.ticks(60).await;
    let (phase, message) = world.phase().unwrap();
    assert!(phase == ReplicaPhase::Standby && message.contains("StorageClass local"), "{phase:?} {message}");
    promote(&world, true);
    world.ticks(90).await;
    world.runs_on(&target, "promoted");
}

/// A connection that is half open shows no changes, for minutes.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_ready_again_is_not_given_up() {
    let (mut world, _) = with_standby().await;
    world.lose("n1");
    world.taint("n1");
    world.server.with(|k| k.remove(&key("pods", NAMESPACE, "db-0")));
    until(&mut world, ReplicaPhase::CuttingOver).await;
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    world.server.with(|k| {
        k.change("nodes", "n1", |node| (node["spec"]["taints"], node["status"]) = (json!([]), ready));
    });
    for _ in 0..20 {
        let replica = world.replica().expect("a copy");
        world.moves().follow(&replica).await.expect("a step");
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    let status = world.replica().expect("a copy").status.expect("a status");
    assert!(!status.stale && status.message.contains("Ready again"), "{status:?}");
}
