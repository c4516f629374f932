//! What goes on around a move: pods in the way, a claim with another volume, a volume that grows.

use std::time::Duration;

use super::*;

/// A pod that was put on the old node just before the claim was deleted never starts, and would hold the claim for ever.
#[test]
fn a_pod_that_cannot_start_any_more_is_sent_away() {
    let shared = World::new(json!({MOVE_TO: "node-2"})).shared();
    run(async {
        let mover = mover(&shared, 0);
        until(&mover, &shared, Phase::Ready).await;
        shared.lock().unwrap().delete_pod();
        until(&mover, &shared, Phase::Switching).await;
        {
            let mut world = shared.lock().unwrap();
            // kubelet has stopped the old one; the new one has come to the node in the same moment.
            world.volumes.get_mut("vol-1").unwrap().staged = false;
            let pod = world.get("pods", "db-0").unwrap();
            world.objects.remove(&key("pods", "default", "db-0"));
            world.create(key("pods", "default", "db-0"), pod);
            world.change("pods", "db-0", |pod| {
                pod["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
                pod["status"] = json!({"phase": "Pending"});
            });
        }
        for _ in 0..3 {
            step(&mover, &shared).await;
        }
        let pod = shared.lock().unwrap().get("pods", "db-0").unwrap();
        assert!(!pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
        go_on(&mover, &shared, 20).await;
        assert_eq!(settled(&shared.lock().unwrap()).as_deref(), Ok("node-2"));
    });
}

/// A pod that runs is sent away only by those who ask for it.
#[test]
fn a_pod_that_runs_stays_until_it_is_deleted() {
    let shared = World::new(json!({MOVE_TO: "node-2"})).shared();
    run(async {
        let mover = mover(&shared, 0);
        go_on(&mover, &shared, 40).await;
        let world = shared.lock().unwrap();
        let status = status(&world).unwrap();
        assert_eq!((status.phase, world.running().as_deref()), (Phase::Ready, Some("node-1")));
        assert!(status.message.contains("waiting until pod db-0 has left"), "{}", status.message);
        let claim = world.get("persistentvolumeclaims", "data").unwrap();
        assert!(claim["metadata"]["deletionTimestamp"].is_null(), "pods can restart with it");
    });
}

#[test]
fn a_claim_with_another_volume_is_left_alone() {
    let shared = World::new(json!({MOVE_TO: "node-2", MOVE_NOW: "true"})).shared();
    run(async {
        let mover = mover(&shared, 0);
        until(&mover, &shared, Phase::Ready).await;
        for _ in 0..40 {
            mover.step_claim("default", "data").await.expect("a step");
            let mut world = shared.lock().unwrap();
            if world.get("persistentvolumeclaims", "data").is_none() {
                break;
            }
            world.tick();
        }
        let moved = {
            let mut world = shared.lock().unwrap();
            let key = key("persistentvolumeclaims", "default", "data");
            let other = json!({"metadata": {"name": "data", "namespace": "default"},
                "spec": {"volumeName": "other"}, "status": {"phase": "Bound"}});
            world.create(key, other);
            let moved = world.all("persistentvolumes").find(|volume| volume["metadata"]["name"] != "pvc-1");
            moved.unwrap()["metadata"]["name"].as_str().unwrap().to_owned()
        };
        tokio::time::pause();
        for minute in 1..4 {
            for _ in 0..5 {
                step(&mover, &shared).await;
            }
            let counts: Vec<i64> = {
                let world = shared.lock().unwrap();
                let blocked = world.all("events").filter(|event| event["reason"] == "MoveBlocked");
                blocked.map(|event| event["series"]["count"].as_i64().unwrap_or(1)).collect()
            };
            assert_eq!(counts, [minute], "it is one event, whose count is raised once in a minute");
            tokio::time::advance(Duration::from_secs(61)).await;
        }
        let world = shared.lock().unwrap();
        let event = world.events.last().unwrap();
        assert!(
            event.starts_with("MoveBlocked") && event.contains("other") && event.contains(&moved),
            "{event}"
        );
        for volume in ["pvc-1", moved.as_str()] {
            let volume = world.get("persistentvolumes", volume).expect("both volumes are there");
            assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        }
        assert_eq!(world.volumes.len(), 2);
    });
}

#[test]
fn a_volume_that_grows_gets_another_copy() {
    let shared = World::new(json!({MOVE_TO: "node-2"})).shared();
    run(async {
        let mover = mover(&shared, 0);
        until(&mover, &shared, Phase::Ready).await;
        let first = status(&shared.lock().unwrap()).unwrap();
        shared.lock().unwrap().change("persistentvolumes", "pvc-1", |volume| {
            volume["spec"]["capacity"]["storage"] = json!("2Gi");
        });
        until(&mover, &shared, Phase::Cancelling).await;
        until(&mover, &shared, Phase::Refused).await;
        assert_eq!(shared.lock().unwrap().volumes.len(), 1, "the first copy is gone");
        until(&mover, &shared, Phase::Copying).await;
        let second = status(&shared.lock().unwrap()).unwrap();
        assert_eq!((first.bytes, second.bytes), (1 << 30, 2 << 30));
        assert_ne!(first.copy, second.copy);
    });
}
