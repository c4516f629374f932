//! Copies that stand by: kept up to date, promoted when a node is lost, fenced, made anew.

use std::time::Duration;

use super::*;
use crate::cluster::mover::status::{FENCE, MOVE_RECORD, MOVED_TO, PROMOTE, STANDBY, STANDBY_INTERVAL};

fn wish() -> Value {
    json!({STANDBY: "1", STANDBY_INTERVAL: "1m"})
}

/// Steps and lets the cluster work, until what is waited for is so.
async fn work_until(mover: &Mover, shared: &Shared, what: &str, is_so: impl Fn(&World) -> bool) {
    for _ in 0..60 {
        if is_so(&shared.lock().unwrap()) {
            return;
        }
        step(mover, shared).await;
        let mut world = shared.lock().unwrap();
        world.tick();
        assert_eq!(world.wrong, Vec::<String>::new());
    }
    let world = shared.lock().unwrap();
    panic!("not so: {what}: {:?}\n{:#?}\n{:#?}", status(&world), world.calls, world.events);
}

fn copies(world: &World) -> Vec<Volume> {
    world.volumes.values().filter(|volume| volume.copy_of.is_some()).cloned().collect()
}

fn annotate(world: &mut World, annotation: &str, value: Value) {
    world.change("persistentvolumeclaims", "data", |claim| {
        let annotations = claim["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.insert(annotation.to_owned(), value);
        annotations.retain(|_, value| !value.is_null());
    });
}

/// A world whose copy stands by.
async fn standing(mover: &Mover, shared: &Shared) {
    work_until(mover, shared, "a copy stands by", |world| phase(world) == Some(Phase::Standby)).await;
}

#[test]
fn a_copy_follows_its_volume_as_long_as_asked() {
    let shared = World::new(wish()).shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        let rounds = status(&shared.lock().unwrap()).unwrap().rounds;
        for _ in 0..5 {
            step(&mover, &shared).await;
        }
        assert_eq!(status(&shared.lock().unwrap()).unwrap().rounds, rounds, "nothing is due yet");
        shared.lock().unwrap().age = 90;
        for _ in 0..3 {
            step(&mover, &shared).await;
            shared.lock().unwrap().tick();
        }
        // The one that was told with an age of 0 is not due.
        assert_eq!(status(&shared.lock().unwrap()).unwrap().rounds, rounds);
        annotate(&mut shared.lock().unwrap(), STANDBY_INTERVAL, json!("10s"));
        {
            let mut world = shared.lock().unwrap();
            assert_eq!(world.running().as_deref(), Some("node-1"));
            annotate(&mut world, STANDBY, json!("0"));
        }
        work_until(&mover, &shared, "the copy is gone", |world| {
            world.volumes.len() == 1 && phase(world).is_none()
        })
        .await;
        assert_eq!(settled(&shared.lock().unwrap()).as_deref(), Ok("node-1"));
    });
}

/// What keeps a copy from its promotion is a pod that runs, not another claim of that pod.
#[test]
fn a_promotion_waits_for_pods_but_not_other_claims() {
    let shared = World::new(wish()).shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        {
            let mut world = shared.lock().unwrap();
            refusals::second_claim(&mut world, None);
            annotate(&mut world, PROMOTE, json!("true"));
        }
        for _ in 0..3 {
            step(&mover, &shared).await;
        }
        let status = status(&shared.lock().unwrap()).unwrap();
        assert_eq!(
            (status.phase, status.message.as_str()),
            (Phase::Standby, "to be promoted as soon as its pods have left: db-0")
        );
    });
}

#[test]
fn rounds_come_when_they_are_due() {
    let mut world = World::new(wish());
    world.age = 61;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        for _ in 0..5 {
            let before = status(&shared.lock().unwrap()).unwrap().rounds;
            step(&mover, &shared).await;
            let mut world = shared.lock().unwrap();
            assert_eq!(status(&world).unwrap().rounds, before + 1);
            let (source, copy) = (world.volumes["vol-1"].data, copies(&world)[0].data);
            assert_eq!(source, copy);
            world.tick();
        }
        // No other one is due.
        annotate(&mut shared.lock().unwrap(), STANDBY_INTERVAL, json!("1h"));
        step(&mover, &shared).await;
        let [(claim, age, interval)] = mover.figures.standby().try_into().expect("one");
        assert_eq!((claim.as_str(), interval), ("default/data", 3600.0));
        assert!((60.0..120.0).contains(&age), "{age}");
    });
}

/// Leads a volume with a copy that stands by through the loss of its node. Gives the world when a pod runs again.
fn lost(fault: Option<(usize, Fault)>, by_word: bool) -> Shared {
    let mut world = World::new(wish());
    world.age = 61;
    let shared = world.shared();
    run(async {
        standing(&mover(&shared, 0), &shared).await;
        let mut mover_now = mover(&shared, 0);
        {
            let mut world = shared.lock().unwrap();
            world.tick();
            world.lose("node-1", !by_word);
            if by_word {
                annotate(&mut world, PROMOTE, json!("true"));
            }
            world.calls.clear();
            world.fault = fault;
        }
        for _ in 0..80 {
            step(&mover_now, &shared).await;
            let mut world = shared.lock().unwrap();
            if std::mem::take(&mut world.dead) {
                drop(world);
                mover_now = mover(&shared, 0);
                world = shared.lock().unwrap();
            }
            world.tick();
            assert_eq!(world.wrong, Vec::<String>::new(), "{fault:?}: {:#?}", world.calls);
            let recorded = |volume: &Value| !volume["metadata"]["annotations"][MOVE_RECORD].is_null();
            if world.running().is_some() && !world.all("persistentvolumes").any(recorded) {
                break;
            }
        }
    });
    shared
}

#[track_caller]
fn assert_promoted(shared: &Shared, which: &str) {
    let world = shared.lock().unwrap();
    let node = world.running().unwrap_or_else(|| panic!("{which}: no pod runs: {:?}", status(&world)));
    assert_ne!(node, "node-1", "{which}");
    let old = world.get("persistentvolumes", "pvc-1").unwrap_or_else(|| panic!("{which}: it is gone"));
    assert_eq!(old["spec"]["persistentVolumeReclaimPolicy"], "Retain", "{which}: it has the last data");
    let told = old["metadata"]["annotations"][MOVED_TO].as_str();
    assert!(told.is_some_and(|name| name.starts_with("pvc-1-moved-")), "{which}: {old}");
    assert!(!world.volumes["vol-1"].sealed, "{which}: nobody has reached it");
    let claim = world.get("persistentvolumeclaims", "data").unwrap();
    assert!(claim["metadata"]["annotations"][PROMOTE].is_null(), "{which}: {claim}");
    let new = world.get("persistentvolumes", claim["spec"]["volumeName"].as_str().unwrap()).unwrap();
    assert_eq!(new["spec"]["persistentVolumeReclaimPolicy"], "Delete", "{which}");
}

#[test]
fn a_copy_replaces_a_volume_whose_node_is_lost() {
    let shared = lost(None, false);
    assert_promoted(&shared, "without a fault");
    {
        let world = shared.lock().unwrap();
        let said = |reason: &str| world.events.iter().find(|event| event.starts_with(reason)).cloned();
        assert!(said("StandbyPromoted").is_some(), "{:?}", world.events);
        let event = said("Promoted").expect("an event");
        assert!(event.contains("as it was at 2") && event.contains("PersistentVolume pvc-1"), "{event}");
    }
    run(async {
        let mover = mover(&shared, 0);
        // Another copy stands by, on the node that is left.
        work_until(&mover, &shared, "another copy", |world| copies(world).len() == 1).await;
        let third = copies(&shared.lock().unwrap())[0].node.clone();
        assert_ne!(third, "node-1");
        let promoted = {
            let world = shared.lock().unwrap();
            let in_use = |(_, volume): &(&String, &Volume)| volume.staged && volume.node != "node-1";
            world.volumes.iter().find(in_use).unwrap().0.clone()
        };
        shared.lock().unwrap().find_again("node-1");
        work_until(&mover, &shared, "the old volume is sealed", |world| world.volumes["vol-1"].sealed).await;
        for _ in 0..3 {
            step(&mover, &shared).await;
        }
        let world = shared.lock().unwrap();
        assert!(world.released.contains(&promoted), "{:?}", world.released);
        let old = world.get("persistentvolumes", "pvc-1").expect("an administrator may look at it");
        assert!(old["metadata"]["annotations"][FENCE].is_null(), "{old}");
        assert!(old["metadata"]["labels"][MOVING].is_null(), "{old}");
    });
}

fn survives_every_end(by_word: bool) {
    let calls = lost(None, by_word).lock().unwrap().calls.len();
    let part = Part::of(SHARE);
    for at in 0..calls {
        for (done, ends) in [(false, false), (true, false), (false, true), (true, true)] {
            if !part.takes((at, done, ends)) {
                continue;
            }
            let shared = lost(Some((at, Fault::Fail { done, ends })), by_word);
            assert_promoted(&shared, &format!("call {at}, by word: {by_word}, {done}, {ends}"));
        }
    }
}

#[test]
fn the_promotion_by_taint_survives_every_end() {
    survives_every_end(false);
}

#[test]
fn the_promotion_by_word_survives_every_end() {
    survives_every_end(true);
}

/// A node that answers at all is asked until the last round is there, and one hiccup is no loss of a node.
#[test]
fn a_call_that_fails_once_loses_nothing() {
    for call in ["seal", "update"] {
        let shared = World::new(wish()).shared();
        run(async {
            let mover = mover(&shared, 0).with_patience(Duration::from_secs(3600));
            standing(&mover, &shared).await;
            for _ in 0..3 {
                shared.lock().unwrap().tick();
            }
            {
                let mut world = shared.lock().unwrap();
                annotate(&mut world, PROMOTE, json!("true"));
                world.change("nodes", "node-1", |node| node["spec"]["unschedulable"] = json!(true));
                world.delete_pod();
                world.failing = Some((call.to_owned(), 3));
            }
            // Were it stale, the pod would find less than it had written.
            work_until(&mover, &shared, "it runs elsewhere", |world| {
                world.running().is_some_and(|node| node != "node-1")
            })
            .await;
            assert!(shared.lock().unwrap().failing.is_none(), "{call} was not called");
            assert!(!status(&shared.lock().unwrap()).unwrap().stale, "{call}");
        });
    }
}

/// Without patience, a node that is up but whose last round fails is not given up either.
#[test]
fn a_sealed_volume_is_never_given_up() {
    let shared = World::new(wish()).shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        shared.lock().unwrap().tick();
        {
            let mut world = shared.lock().unwrap();
            annotate(&mut world, PROMOTE, json!("true"));
            world.change("nodes", "node-1", |node| node["spec"]["unschedulable"] = json!(true));
            world.delete_pod();
            world.failing = Some(("update".to_owned(), 5));
        }
        work_until(&mover, &shared, "it runs elsewhere", |world| {
            world.running().is_some_and(|node| node != "node-1")
        })
        .await;
        assert!(!status(&shared.lock().unwrap()).unwrap().stale);
    });
}

/// The word of the administrator is not needed where the node answers: then nothing is lost.
#[test]
fn a_node_that_answers_gives_its_last_data() {
    let shared = World::new(wish()).shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        for _ in 0..3 {
            shared.lock().unwrap().tick();
        }
        annotate(&mut shared.lock().unwrap(), PROMOTE, json!("true"));
        for _ in 0..5 {
            step(&mover, &shared).await;
        }
        {
            let mut world = shared.lock().unwrap();
            let status = status(&world).unwrap();
            assert_eq!(status.phase, Phase::Standby);
            assert!(status.message.contains("as soon as its pods have left: db-0"), "{}", status.message);
            world.change("nodes", "node-1", |node| node["spec"]["unschedulable"] = json!(true));
            world.delete_pod();
        }
        work_until(&mover, &shared, "it runs elsewhere", |world| {
            world.running().is_some_and(|node| node != "node-1")
        })
        .await;
        work_until(&mover, &shared, "the old volume goes", |world| !world.volumes.contains_key("vol-1"))
            .await;
    });
}

#[test]
fn a_node_that_comes_back_in_time_has_its_volume() {
    let shared = World::new(wish()).shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        shared.lock().unwrap().lose("node-1", true);
        until(&mover, &shared, Phase::Switching).await;
        {
            let mut world = shared.lock().unwrap();
            let copy = copies(&world)[0].data;
            assert!(copy <= world.volumes["vol-1"].data);
            world.find_again("node-1");
            let data = world.volumes["vol-1"].data;
            world.wrote(data);
        }
        work_until(&mover, &shared, "it runs where it was", |world| {
            world.running().as_deref() == Some("node-1")
        })
        .await;
    });
}

#[test]
fn a_copy_whose_node_is_lost_is_made_on_another_one() {
    let mut world = World::new(wish());
    world.age = 61;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        let first = copies(&shared.lock().unwrap())[0].node.clone();
        shared.lock().unwrap().lose(&first, true);
        // The pod of this test is on node-1, and runs on.
        work_until(&mover, &shared, "another copy", |world| copies(world).len() == 2).await;
        standing(&mover, &shared).await;
        let now = status(&shared.lock().unwrap()).unwrap();
        assert_eq!(now.abandoned.len(), 1);
        assert_ne!(now.target, first);
        shared.lock().unwrap().find_again(&first);
        work_until(&mover, &shared, "the first one is deleted", |world| copies(world).len() == 1).await;
        assert_eq!(copies(&shared.lock().unwrap())[0].node, now.target);
    });
}

#[test]
fn a_move_to_the_node_of_the_copy_uses_it() {
    let shared = World::new(wish()).shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        let before = status(&shared.lock().unwrap()).unwrap();
        annotate(&mut shared.lock().unwrap(), MOVE_TO, json!(before.target));
        work_until(&mover, &shared, "ready", |world| phase(world) == Some(Phase::Ready)).await;
        let ready = status(&shared.lock().unwrap()).unwrap();
        assert_eq!((ready.copy, ready.standby), (before.copy.clone(), false));
        // Taken back, it stands by again.
        annotate(&mut shared.lock().unwrap(), MOVE_TO, json!(null));
        standing(&mover, &shared).await;
        assert_eq!(status(&shared.lock().unwrap()).unwrap().copy, before.copy);
        let other = if before.target == "node-2" { "node-3" } else { "node-2" };
        annotate(&mut shared.lock().unwrap(), MOVE_TO, json!(other));
        work_until(&mover, &shared, "a copy elsewhere", |world| {
            status(world).is_some_and(|status| status.target == other && status.phase == Phase::Ready)
        })
        .await;
        assert_eq!(copies(&shared.lock().unwrap()).len(), 1);
    });
}

#[test]
fn a_claim_that_is_deleted_takes_its_copy_along() {
    let mut world = World::new(wish());
    world.bare = true;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        {
            let mut world = shared.lock().unwrap();
            world.delete_pod();
            world.mark_deleted(&key("persistentvolumeclaims", "default", "data"));
        }
        work_until(&mover, &shared, "all is gone", |world| world.volumes.is_empty()).await;
        assert!(shared.lock().unwrap().get("persistentvolumeclaims", "data").is_none());
    });
}

#[test]
fn a_claim_may_refuse_the_standby_of_its_class() {
    let mut world = World::new(json!({}));
    let class = key("storageclasses", "", "local");
    let mut object = world.objects.get(&class).cloned().unwrap();
    object["parameters"]["standby"] = json!("1");
    world.put(class, object);
    world.also_in_class = true;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        standing(&mover, &shared).await;
        annotate(&mut shared.lock().unwrap(), STANDBY, json!("0"));
        work_until(&mover, &shared, "the copy is gone", |world| world.volumes.len() == 1).await;
        annotate(&mut shared.lock().unwrap(), STANDBY, json!("many"));
        work_until(&mover, &shared, "refused", |world| phase(world) == Some(Phase::Refused)).await;
        let why = status(&shared.lock().unwrap()).unwrap().message;
        assert!(why.contains("it must be 0 or 1"), "{why}");
    });
}
