//! Moves that are given up after their claims were deleted: each claim is made again for the volume that it had.

use super::*;
use crate::cluster::mover::status::BIND;

/// Takes the wish back once the claim is deleted.
async fn give_up(mover: &Mover, shared: &Shared) {
    until(mover, shared, Phase::Switching).await;
    while !is_deleted(&shared.lock().unwrap()) {
        mover.step_claim("default", "data").await.expect("a step");
    }
    let mut world = shared.lock().unwrap();
    Administrator::GivesUpLate.act(&mut world);
    assert!(!wishes(&world));
}

/// The same, after its pod has been deleted.
async fn give_up_without_pod(mover: &Mover, shared: &Shared) {
    until(mover, shared, Phase::Ready).await;
    shared.lock().unwrap().delete_pod();
    give_up(mover, shared).await;
}

/// The pod runs where it was, and nothing of the move is told, as nobody asks for it any more.
fn assert_given_back(shared: &Shared) {
    let world = shared.lock().unwrap();
    assert_eq!(settled(&world).as_deref(), Ok("node-1"));
    let claim = world.get("persistentvolumeclaims", "data").unwrap();
    let annotations = &claim["metadata"]["annotations"];
    assert!(annotations[MOVE_STATUS].is_null() && annotations[BIND].is_null(), "{annotations}");
}

/// The mover ends as soon as it has let the claim go that was given up: the StatefulSet makes the next one, for any volume.
#[test]
fn a_quicker_stateful_set_gets_its_volume_back() {
    for halves in [false, true] {
        quicker(halves);
    }
}

/// Kubernetes binds the set's claim at once, or by halves, so that it is touched.
fn quicker(halves: bool) {
    let mut world = World::new(json!({MOVE_TO: "node-2"}));
    world.halves = halves;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        give_up_without_pod(&mover, &shared).await;
        for _ in 0..40 {
            mover.step_claim("default", "data").await.expect("a step");
            let mut world = shared.lock().unwrap();
            if world.get("persistentvolumeclaims", "data").is_none() {
                break;
            }
            world.tick();
        }
        for _ in 0..5 {
            let mut world = shared.lock().unwrap();
            world.tick();
            assert_eq!(world.wrong, Vec::<String>::new());
        }
        go_on(&mover, &shared, 20).await;
        assert_given_back(&shared);
    });
}

/// A move is given up whose claim is deleted and whose pod runs on.
#[test]
fn a_claim_that_is_given_back_waits_for_its_pods() {
    let mut world = World::new(json!({MOVE_TO: "node-2", MOVE_NOW: "true"}));
    // The claim is bound at once, and not touched.
    (world.budget, world.halves) = (0, false);
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        give_up(&mover, &shared).await;
        go_on(&mover, &shared, 20).await;
        {
            let mut world = shared.lock().unwrap();
            let status = status(&world).unwrap();
            assert_eq!((status.phase, world.running().as_deref()), (Phase::Returning, Some("node-1")));
            assert!(status.message.contains("as soon as pod db-0 has left"), "{}", status.message);
            assert_eq!(world.volumes.len(), 1, "the copy is gone: {:?}", world.volumes);
            let volume = world.get("persistentvolumes", "pvc-1").unwrap();
            let claim = world.get("persistentvolumeclaims", "data").unwrap();
            assert_eq!(
                volume["spec"]["claimRef"]["uid"], claim["metadata"]["uid"],
                "the pod's claim is bound"
            );
            world.delete_pod();
        }
        go_on(&mover, &shared, 20).await;
        assert_given_back(&shared);
    });
}

/// A pod that has come to the node and cannot start with a claim that is being deleted would hold it for ever.
#[test]
fn a_pod_that_cannot_start_holds_no_returning_claim() {
    let shared = World::new(json!({MOVE_TO: "node-2"})).shared();
    run(async {
        let mover = mover(&shared, 0);
        give_up_without_pod(&mover, &shared).await;
        {
            let mut world = shared.lock().unwrap();
            world.volumes.get_mut("vol-1").unwrap().staged = false;
            world.change("pods", "db-0", |pod| {
                pod["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
                pod["status"] = json!({"phase": "Pending"});
            });
        }
        go_on(&mover, &shared, 30).await;
        assert_given_back(&shared);
    });
}
