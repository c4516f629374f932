//! What is not moved, what it says, and the choice of a node.

use serde_json::json;

use super::*;
use crate::cluster::mover::status::{KEEP_SOURCE, MOVE_BARE_PODS};

/// The message of the refusal after a change of the world.
fn refused(target: &str, change: impl FnOnce(&mut World)) -> String {
    let mut world = World::new(json!({MOVE_TO: target}));
    change(&mut world);
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        for _ in 0..3 {
            step(&mover, &shared).await;
        }
        let world = shared.lock().unwrap();
        let status = status(&world).expect("a status");
        assert_eq!(status.phase, Phase::Refused, "{status:?}");
        let claim = world.get("persistentvolumeclaims", "data").unwrap();
        assert_eq!(claim["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
        assert_eq!(world.volumes.len(), 1, "nothing was made");
        assert_eq!(world.events, [format!("MoveRefused The volume is not moved: {}", status.message)]);
        status.message
    })
}

fn owner(world: &mut World, kind: Option<&str>) {
    world.change("pods", "db-0", |pod| match kind {
        Some(kind) => pod["metadata"]["ownerReferences"][0]["kind"] = json!(kind),
        None => drop(pod["metadata"].as_object_mut().unwrap().remove("ownerReferences")),
    });
}

#[test]
fn a_claim_that_cannot_move_says_what_to_do() {
    let unbound = |world: &mut World| {
        world.change("persistentvolumeclaims", "data", |claim| claim["status"]["phase"] = json!("Pending"));
    };
    let volume = |path: &'static str, value: serde_json::Value| {
        move |world: &mut World| {
            world.change("persistentvolumes", "pvc-1", |volume| *volume.pointer_mut(path).unwrap() = value);
        }
    };
    assert!(refused("node-2", unbound).contains("is not bound"));
    assert!(
        refused("node-2", volume("/spec/csi/driver", json!("other"))).contains("not one of hostloop.csi.dev")
    );
    let annotations = "/metadata/annotations";
    assert!(refused("node-2", volume(annotations, json!({}))).contains("not made by csi-provisioner"));
    assert!(refused("node-1", |_| {}).contains("on node node-1 already"));
    assert!(refused("node-9", |_| {}).contains("there is no node node-9"));
    let cordoned = |world: &mut World| {
        world.change("nodes", "node-2", |node| node["spec"]["unschedulable"] = json!(true))
    };
    assert!(refused("node-2", cordoned).contains("uncordon it"));
    assert!(refused("node-2", |world| owner(world, None)).contains(MOVE_BARE_PODS));
    assert!(refused("node-2", |world| owner(world, Some("DaemonSet"))).contains("belongs to one node"));
    let pinned = |world: &mut World| {
        world.change("pods", "db-0", |pod| pod["spec"]["nodeSelector"] = json!({"disk": "ssd"}));
    };
    assert!(refused("node-2", pinned).contains("no pod could follow to node node-2"));
    let class = |change: serde_json::Value| {
        move |world: &mut World| {
            let key = key("storageclasses", "", "local");
            match change.is_null() {
                true => drop(world.objects.remove(&key)),
                false => world.objects.get_mut(&key).unwrap()["parameters"] = change,
            }
        }
    };
    assert!(refused("node-2", class(json!({"crossNodeCopy": "false"}))).contains("crossNodeCopy"));
    assert!(refused("node-2", class(serde_json::Value::Null)).contains("StorageClass does not exist"));
    let growing = |world: &mut World| {
        world.change("persistentvolumeclaims", "data", |claim| {
            claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        });
    };
    assert!(refused("node-2", growing).contains("being expanded"));
    let of_pod = |world: &mut World| {
        world.change("persistentvolumeclaims", "data", |claim| {
            claim["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]);
        });
    };
    assert!(refused("node-2", of_pod).contains("belongs to one pod"));
}

/// Gives the pod another claim on its node, which is to move there.
pub(super) fn second_claim(world: &mut World, target: Option<&str>) {
    world.change("pods", "db-0", |pod| {
        let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
        volumes.push(json!({"name": "l", "persistentVolumeClaim": {"claimName": "log"}}));
    });
    let mut volume = world.get("persistentvolumes", "pvc-1").unwrap();
    volume["metadata"]["name"] = json!("pvc-2");
    world.create(key("persistentvolumes", "", "pvc-2"), volume);
    let annotations = target.map_or_else(|| json!({}), |target| json!({MOVE_TO: target}));
    world.create(
        key("persistentvolumeclaims", "default", "log"),
        json!({"metadata": {"name": "log", "namespace": "default", "annotations": annotations},
            "spec": {"volumeName": "pvc-2"}, "status": {"phase": "Bound"}}),
    );
}

#[test]
fn a_claim_of_the_same_pods_has_to_come_along() {
    let second = |target: Option<&'static str>| move |world: &mut World| second_claim(world, target);
    assert!(refused("node-2", second(None)).contains("the same pods use claim log, which stays behind"));
    assert!(refused("node-2", second(Some("node-3"))).contains("claim log"));
    let mut world = World::new(json!({MOVE_TO: "node-2", MOVE_NOW: "true"}));
    second(Some("node-2"))(&mut world);
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        for _ in 0..20 {
            step(&mover, &shared).await;
        }
        let world = shared.lock().unwrap();
        let status = status(&world).unwrap();
        assert_eq!(status.phase, Phase::Ready, "it waits for the other one");
        assert!(status.message.contains("claim log of the same pods is not ready"), "{}", status.message);
    });
}

#[test]
fn any_is_the_fitting_node_with_the_most_room() {
    let chosen = |world: World| {
        let shared = world.shared();
        run(async {
            let mover = mover(&shared, 0);
            step(&mover, &shared).await;
            let status = status(&shared.lock().unwrap()).unwrap();
            status.target
        })
    };
    assert_eq!(chosen(World::new(json!({MOVE_TO: "any"}))), "node-3");
    let mut world = World::new(json!({MOVE_TO: "any"}));
    world.change("nodes", "node-3", |node| {
        node["spec"]["taints"] = json!([{"key": "gpu", "effect": "NoSchedule"}]);
    });
    assert_eq!(chosen(world), "node-2");
}

#[test]
fn a_full_target_leaves_all_as_it_was() {
    let mut world = World::new(json!({MOVE_TO: "node-2"}));
    world.full = true;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        until(&mover, &shared, Phase::Cancelling).await;
        step(&mover, &shared).await;
        let world = shared.lock().unwrap();
        let status = status(&world).unwrap();
        assert_eq!((status.phase, status.message.as_str()), (Phase::Refused, "the pool is full"));
        assert_eq!(settled(&world).as_deref(), Ok("node-1"));
    });
}

#[test]
fn the_first_copy_tells_how_far_it_is() {
    let mut world = World::new(json!({MOVE_TO: "node-2"}));
    world.slow = 1;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        step(&mover, &shared).await;
        step(&mover, &shared).await;
        let told = status(&shared.lock().unwrap()).unwrap();
        assert_eq!(
            (told.phase, told.message.as_str()),
            (Phase::Copying, "the first copy is being made: 50 %")
        );
        step(&mover, &shared).await;
        assert_eq!(phase(&shared.lock().unwrap()), Some(Phase::CatchingUp));
    });
}

#[test]
fn the_old_volume_stays_if_it_is_asked_for() {
    let world = World::new(json!({MOVE_TO: "node-2", MOVE_NOW: "true", KEEP_SOURCE: "true"}));
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        for _ in 0..30 {
            step(&mover, &shared).await;
            shared.lock().unwrap().tick();
        }
        let world = shared.lock().unwrap();
        assert_eq!(world.running().as_deref(), Some("node-2"));
        let old = world.get("persistentvolumes", "pvc-1").expect("the old volume");
        assert_eq!(old["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        let new = status(&world).unwrap().name;
        assert_eq!(old["metadata"]["annotations"]["hostloop.csi.dev/moved-to"], json!(new));
        assert!(!world.volumes["vol-1"].sealed, "whoever wants its data can use it");
    });
}

#[test]
fn a_volume_moves_back_and_forth() {
    let mut world = World::new(json!({MOVE_TO: "node-2", MOVE_NOW: "true"}));
    for round in 0..10 {
        world.budget = 1;
        let node = if round % 2 == 0 { "node-2" } else { "node-1" };
        world.change("persistentvolumeclaims", "data", |claim| {
            claim["metadata"]["annotations"][MOVE_TO] = json!(node);
            claim["metadata"]["annotations"][MOVE_NOW] = json!("true");
        });
        world.calls.clear();
        let (ended, shared) = moved(Administrator::IsInAHurry, world, None);
        assert_eq!(ended, node);
        let shared = Arc::into_inner(shared).expect("nobody else has it");
        world = shared.into_inner().unwrap();
    }
    let volume =
        world.all("persistentvolumes").next().unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(volume.matches("-moved-").count(), 1, "{volume}");
}
