//! The status of a VolumeReplica is lost: an administrator has replaced the object without it, or a backup was restored.

use std::collections::BTreeSet;

use hostloop_fake_kubernetes::{NAMESPACE, key};
use serde_json::{Value, json};

use super::api::Fault;
use super::whole::{in_its_last_step, with_standby};
use super::world::World;
use crate::cluster::moves::resources::ReplicaPhase;

/// More than a move takes whose status is lost: the controller waits for requests that may be on their way.
const LONG: usize = 150;

fn now() -> Value {
    json!({"when": "Now", "target": {"node": "n2"}})
}

fn volume(world: &World) -> Option<Value> {
    world.server.with(|k| k.get("persistentvolumes", "pvc-1"))
}

fn cancel(world: &World) {
    world.server.with(|k| k.remove(&key("volumemoves", NAMESPACE, "m")));
}

fn lose_status(world: &World) {
    world.server.with(|k| {
        let names: Vec<Value> = k.all("volumereplicas").map(|it| it["metadata"]["name"].clone()).collect();
        for name in names {
            k.change("volumereplicas", name.as_str().unwrap(), |replica| {
                replica.as_object_mut().unwrap().remove("status");
            });
        }
    });
}

/// Runs on. An administrator creates the PersistentVolume again if the controller asks for that.
async fn runs_on(world: &mut World, before: &Value) {
    for _ in 0..LONG {
        world.tick().await;
        let message = world.phase().map(|(_, message)| message).unwrap_or_default();
        if volume(world).is_none() && message.contains("create it again") {
            world.server.with(|k| k.create(key("persistentvolumes", "", "pvc-1"), before.clone()));
        }
    }
}

/// Asserts that the pod runs with all its data, and that nothing is left when everything is given up.
async fn is_whole(world: &mut World, which: &str) {
    world.is_fine(which);
    let newest = |world: &World| {
        world.nodes.lock().nodes.values().flat_map(|held| held.values()).map(|held| held.data).max()
    };
    assert_eq!((newest(world), world.down), (Some(world.written), 0), "{which}: {:?}", world.phase());
    cancel(world);
    world.ticks(20).await;
    world.server.with(|k| {
        let names: Vec<Value> = k.all("volumereplicas").map(|it| it["metadata"]["name"].clone()).collect();
        names.iter().for_each(|name| k.mark_deleted(&key("volumereplicas", "", name.as_str().unwrap())));
        k.change("storageclasses", "local", |class| class["parameters"] = json!({}));
        // The record of the reclaim policy was lost as well.
        k.change("persistentvolumes", "pvc-1", |volume| {
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
        });
    });
    world.ticks(60).await;
    let place = world.place();
    world.is_settled(&place, which);
}

/// In each phase in which the volume is at its node. The fence is lifted, or the cutover goes on.
#[tokio::test(start_paused = true)]
async fn a_lost_status_in_any_phase_leaves_no_fence() {
    let mut phases = BTreeSet::new();
    let ends = (1..14).flat_map(|tick| [(tick, false, true), (tick, true, true)]);
    for (tick, is_cancelled, is_now) in ends.chain([(6, false, false), (6, true, false)]) {
        let mut world = World::new(false, json!({}));
        world.nodes.lock().busy_passes = 2;
        world.ticks(2).await;
        let before = volume(&world).unwrap();
        world.ask(if is_now { now() } else { json!({"target": {"node": "n2"}}) });
        world.ticks(tick).await;
        let Some((phase, _)) = world.phase() else { continue };
        phases.insert(phase);
        lose_status(&world);
        if is_cancelled {
            cancel(&world);
        }
        runs_on(&mut world, &before).await;
        is_whole(&mut world, &format!("{phase:?} after {tick}, cancelled: {is_cancelled}")).await;
    }
    use ReplicaPhase::{CuttingOver, Exchanging, LastPass, Ready};
    assert!(
        [Ready, CuttingOver, Exchanging, LastPass].iter().all(|phase| phases.contains(phase)),
        "{phases:?}"
    );
}

/// The copy may have taken over the id of the volume, and the node of the volume may have what is left.
#[tokio::test(start_paused = true)]
async fn a_lost_status_at_the_end_loses_no_volume() {
    for (fault, is_cancelled) in [Fault::Lost, Fault::AnswerLost].iter().flat_map(|f| [(f, false), (f, true)])
    {
        let mut world = in_its_last_step(*fault).await;
        let before = volume(&world).unwrap();
        lose_status(&world);
        if is_cancelled {
            cancel(&world);
        }
        runs_on(&mut world, &before).await;
        is_whole(&mut world, &format!("Completing, {fault:?}, cancelled: {is_cancelled}")).await;
    }
    for ticks in [1, 20] {
        let mut world = in_its_last_step(Fault::AnswerLost).await;
        let before = volume(&world).unwrap();
        if ticks == 1 {
            world.nodes.lock().silent.insert("n1".to_owned());
        }
        world.server.with(|k| {
            k.change("volumereplicas", "pvc-1-0", |replica| replica["spec"]["keepSource"] = json!(true));
        });
        world.ticks(ticks).await;
        let (phase, _) = world.left();
        assert_eq!(phase, if ticks == 1 { ReplicaPhase::Retiring } else { ReplicaPhase::Left });
        lose_status(&world);
        world.nodes.lock().silent.clear();
        runs_on(&mut world, &before).await;
        is_whole(&mut world, &format!("{phase:?}")).await;
    }
}

/// The node of the copy may have the volume, until Kubernetes or an administrator says that it is lost.
#[tokio::test(start_paused = true)]
async fn a_lost_status_waits_for_the_node_of_the_copy() {
    for fault in [Fault::Lost, Fault::AnswerLost] {
        let mut world = in_its_last_step(fault).await;
        let before = volume(&world).unwrap();
        world.lose("n2");
        world.may_be_lost = 0;
        lose_status(&world);
        world.ticks(60).await;
        let (_, message) = world.phase().unwrap();
        assert!(message.contains("node n2, which may have the volume, does not answer"), "{message}");
        assert!(world.holds("n1")[0].sealed, "a pod there may write");
        world.remove_node("n2");
        runs_on(&mut world, &before).await;
        assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "{:?}", world.phase());
        cancel(&world);
        world.add_node("n2");
        world.ticks(30).await;
        is_whole(&mut world, &format!("taken back, {fault:?}")).await;
    }
}

/// The volume came back before that. What each node has kept of it has its own object.
#[tokio::test(start_paused = true)]
async fn a_lost_status_names_what_its_own_move_has_left() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    for (name, target) in [("there", "n2"), ("back", "n1")] {
        let spec = json!({"when": "Now", "target": {"node": target}, "keepSource": true});
        world.ask(spec);
        world.ticks(40).await;
        assert_eq!(world.place(), target, "{name}: {:?}", world.asked());
        cancel(&world);
        world.ticks(2).await;
    }
    let left = |world: &World| {
        world.server.with(|k| {
            let all = k
                .all("volumereplicas")
                .map(|it| (it["spec"]["sourceNode"].clone(), it["status"]["leftId"].clone()));
            all.collect::<Vec<_>>()
        })
    };
    let before = left(&world);
    assert!(before.len() == 2 && before.iter().all(|(_, left)| left.is_string()), "{before:?}");
    lose_status(&world);
    world.ticks(LONG).await;
    world.is_fine("named again");
    assert_eq!(left(&world), before, "{:?}", world.phase());
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "{:?}", world.phase());

    // What the first move has left has gone, and a backup brings its object back without a status. The other one may have lost its
    // status, too.
    let first = world.server.with(|k| k.get("volumereplicas", "pvc-1-0")).expect("the first move");
    world.server.with(|k| k.mark_deleted(&key("volumereplicas", "", "pvc-1-0")));
    world.ticks(20).await;
    assert_eq!((left(&world).len(), world.holds("n1").len()), (1, 1), "{:?}", left(&world));
    for both in [false, true] {
        world.server.with(|k| {
            let mut first = first.clone();
            first.as_object_mut().unwrap().remove("status");
            first["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
            k.create(key("volumereplicas", "", "pvc-1-0"), first);
        });
        if both {
            lose_status(&world);
        }
        world.ticks(LONG).await;
        world.is_fine("restored");
        assert_eq!(left(&world), before[1..], "both: {both}, {:?}", world.phase());
        assert_eq!(world.holds("n2").len(), 1, "what the second move has left, both: {both}");
    }
}

/// Without a status, the copy is still the only one if the node of the volume is lost.
#[tokio::test(start_paused = true)]
async fn a_standby_copy_without_a_status_is_promoted() {
    let (mut world, target) = with_standby().await;
    lose_status(&world);
    world.lose("n1");
    world.remove_node("n1");
    world.ticks(LONG).await;
    world.runs_on(&target, "promoted");
}
