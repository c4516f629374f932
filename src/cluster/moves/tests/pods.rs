//! Pods that a move has to reckon with beside that of its claim: others of the same claim, of another claim, and of a node.

use hostloop_fake_kubernetes::{NAMESPACE, control, key};
use serde_json::{Value, json};

use super::whole::{until_done, with_standby};
use super::world::World;
use crate::cluster::moves::resources::{MovePhase, ReplicaPhase};
use crate::model::{NodeKey, VolumeId};

/// Creates a pod that runs on the first node.
fn run(world: &World, name: &str, claim: &str, controller: &str) {
    world.server.with(|k| {
        let mut pod = control::pod(name, claim, controller);
        pod["spec"]["nodeName"] = json!("n1");
        pod["status"] =
            json!({"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]});
        k.create(key("pods", NAMESPACE, name), pod);
    });
}

fn end(world: &World, name: &str) {
    world.server.with(|k| k.remove(&key("pods", NAMESPACE, name)));
}

fn uid(world: &World) -> Value {
    world.server.with(|k| k.get("pods", "db-0")).map_or(Value::Null, |pod| pod["metadata"]["uid"].clone())
}

/// What the controller creates instead of the first one needs the volume, and the budget needs it before the second one may leave.
#[tokio::test(start_paused = true)]
async fn pods_of_one_budget_get_their_volume_back() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    run(&world, "web-0", "data-db-0", "ReplicaSet");
    world.server.with(|k| k.max_unavailable = Some(1));
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    world.ticks(60).await;
    world.is_fine("back");
    let (phase, message) = world.phase().unwrap();
    assert!(
        phase == ReplicaPhase::Ready && message.contains("after another one had left"),
        "{phase:?} {message}"
    );
    assert_eq!((world.place(), world.down, world.holds("n1")[0].sealed), ("n1".to_owned(), 0, false));
    let successor = uid(&world);
    world.ticks(200).await;
    assert_eq!((uid(&world), world.down), (successor, 0), "pods are not evicted again and again");
    end(&world, "web-0");
    world.drain();
    until_done(&mut world).await;
    world.is_settled("n2", "they have left");
}

/// Another claim with a volume on the first node, and a pod that waits for both claims. Returns the claim.
pub(super) fn add_log(world: &World) -> Value {
    let id = VolumeId::of_name(&NodeKey::of("n1"), "pvc-log").to_string();
    world.nodes.lock().nodes.get_mut("n1").unwrap().insert(id.clone(), Default::default());
    world.server.with(|k| {
        let mut claim = k.get("persistentvolumeclaims", "data-db-0").expect("a claim");
        claim["metadata"] = json!({"name": "log", "namespace": NAMESPACE, "uid": "uid-log"});
        claim["spec"]["volumeName"] = json!("pvc-log");
        k.create(key("persistentvolumeclaims", NAMESPACE, "log"), claim);
        let claim = k.get("persistentvolumeclaims", "log").expect("a claim");
        let mut volume = k.get("persistentvolumes", "pvc-1").expect("a volume");
        let annotations = volume["metadata"]["annotations"].clone();
        volume["metadata"] = json!({"name": "pvc-log", "annotations": annotations});
        volume["spec"]["csi"] = json!({"driver": "hostloop.csi.dev", "volumeHandle": id});
        volume["spec"]["claimRef"] =
            json!({"namespace": NAMESPACE, "name": "log", "uid": claim["metadata"]["uid"]});
        k.create(key("persistentvolumes", "", "pvc-log"), volume);
        let mut waiting = control::pod("both-0", "data-db-0", "ReplicaSet");
        let log = json!({"name": "log", "persistentVolumeClaim": {"claimName": "log"}});
        waiting["spec"]["volumes"].as_array_mut().unwrap().push(log);
        k.create(key("pods", NAMESPACE, "both-0"), waiting);
        claim
    })
}

/// The pod of both claims runs on the first node.
fn run_both(world: &World) {
    world.server.with(|k| {
        k.change("pods", "both-0", |pod| {
            pod["spec"]["nodeName"] = json!("n1");
            pod["status"] =
                json!({"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]});
        });
    });
}

/// Adds a copy of the volume of that claim, of another driver.
fn add_copy(world: &World, claim: &Value, target: &str, copy: &Value) {
    let id = json!({"name": "log", "namespace": NAMESPACE, "uid": claim["metadata"]["uid"]});
    let spec = json!({"driver": "other.csi.dev", "volumeId": "log", "generation": 0, "claim": id, "sourceNode": "n1",
        "persistentVolume": {"name": "pvc-log", "uid": "u"}, "targetNode": target, "copyName": "c", "copyId": "i",
        "purpose": copy["purpose"]});
    let object = json!({"metadata": {"name": "pvc-log-0"}, "spec": spec, "status": {"phase": copy["phase"]}});
    world.server.with(|k| {
        k.create(key("volumereplicas", "", "pvc-log-0"), object);
        if let Some(created) = copy["created"].as_str() {
            k.change("volumereplicas", "pvc-log-0", |copy| {
                copy["metadata"]["creationTimestamp"] = json!(created);
            });
        }
    });
}

/// A move of one claim alone would leave their pods without a node; that it was asked for once is not enough.
#[tokio::test(start_paused = true)]
async fn claims_of_one_pod_move_only_together() {
    let spec = json!({"target": {"node": "n2"}});
    for (status, is_refused) in [(None, true), (Some("Done"), true), (Some(""), false)] {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        add_log(&world);
        if let Some(phase) = status {
            let mut asked = json!({"metadata": {"name": "log", "namespace": NAMESPACE}, "spec": spec});
            asked["spec"]["claimName"] = json!("log");
            if !phase.is_empty() {
                asked["status"] = json!({"phase": phase});
            }
            world.server.with(|k| k.create(key("volumemoves", NAMESPACE, "log"), asked));
        }
        world.ask(spec.clone());
        world.ticks(20).await;
        let (phase, message) = world.asked();
        assert_eq!(phase == Some(MovePhase::Refused), is_refused, "{status:?}: {phase:?} {message}");
        let says = message.contains("claim log, which stays behind; create a VolumeMove for it too");
        assert_eq!(says, is_refused, "{status:?}: {message}");
        world.is_fine("asked");
    }
}

/// The volume of the other claim would stay with the pod that uses only that one.
#[tokio::test(start_paused = true)]
async fn claims_of_one_pod_wait_for_pods_of_either() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    let claim = add_log(&world);
    // This controller leaves it alone, as it is of another driver.
    add_copy(&world, &claim, "n2", &json!({"purpose": "Move", "phase": "Ready"}));
    run(&world, "log-0", "log", "ReplicaSet");
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    world.ticks(40).await;
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0));
    let (_, message) = world.asked();
    assert!(message.contains("use claim log, which pod log-0 keeps"), "{message}");
    end(&world, "log-0");
    until_done(&mut world).await;
    assert_eq!(world.place(), "n2", "{:?}", world.asked());
}

/// Each would choose another node by its room alone, and their pod could run on neither.
#[tokio::test(start_paused = true)]
async fn claims_of_one_pod_choose_one_node() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    add_log(&world);
    let log = VolumeId::of_name(&NodeKey::of("n1"), "pvc-log").to_string();
    for (volume, roomy) in [(world.id.clone(), "n2"), (log, "n3")] {
        world.nodes.lock().rooms.insert((volume, roomy.to_owned()), 1000 << 30);
    }
    world.server.with(|k| {
        let spec = json!({"claimName": "log"});
        let object = json!({"metadata": {"name": "log", "namespace": NAMESPACE}, "spec": spec});
        k.create(key("volumemoves", NAMESPACE, "log"), object);
    });
    world.ask(json!({}));
    world.ticks(30).await;
    let copies = world.server.with(|k| k.all("volumereplicas").cloned().collect::<Vec<_>>());
    let targets: Vec<&Value> = copies.iter().map(|copy| &copy["spec"]["targetNode"]).collect();
    assert!(targets.len() == 2 && targets[0] == targets[1], "{targets:?}");
}

/// Once the first claim is fenced, the pods of both are down until the other one has moved as well.
#[tokio::test(start_paused = true)]
async fn a_claim_is_tried_with_the_others_of_its_pods() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    add_log(&world);
    world.server.with(|k| {
        k.change("persistentvolumes", "pvc-log", |volume| {
            volume["metadata"]["finalizers"] = json!(["backup.example/hold"]);
        });
        let spec = json!({"claimName": "log", "when": "Now", "target": {"node": "n2"}});
        let object = json!({"metadata": {"name": "log", "namespace": NAMESPACE}, "spec": spec});
        k.create(key("volumemoves", NAMESPACE, "log"), object);
    });
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    world.ticks(40).await;
    world.is_fine("refused");
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "{:?}", world.asked());
    assert!(world.holds("n1").iter().all(|held| !held.sealed), "{:?}", world.holds("n1"));
    let (phase, message) = world.asked();
    assert_eq!(phase, Some(MovePhase::Ready));
    assert!(
        message.contains("use claim log: PersistentVolume pvc-log is held by backup.example/hold"),
        "{message}"
    );
    world.server.with(|k| {
        k.change("persistentvolumes", "pvc-log", |volume| volume["metadata"]["finalizers"] = json!([]));
    });
    for _ in 0..60 {
        world.server.with(|k| k.bind("log"));
        world.tick().await;
    }
    world.is_fine("moved");
    let log = world.server.with(|k| k.get("persistentvolumes", "pvc-log")).expect("a volume");
    assert_eq!((world.place().as_str(), control::node_of(&log)), ("n2", "n2"), "{:?}", world.asked());
}

/// The other claim has left the node, and its pods can run on the other one only.
#[tokio::test(start_paused = true)]
async fn a_cancelled_claim_follows_one_that_has_gone() {
    for (other, place) in [("Ready", "n1"), ("Exchanging", "n2"), ("Completing", "n2")] {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        let claim = add_log(&world);
        add_copy(&world, &claim, "n2", &json!({"purpose": "Move", "phase": "Ready"}));
        world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
        while world.phase().is_none_or(|(phase, _)| phase != ReplicaPhase::CuttingOver) {
            world.tick().await;
        }
        world.server.with(|k| {
            k.change("volumereplicas", "pvc-log-0", |copy| copy["status"]["phase"] = json!(other));
            k.remove(&key("volumemoves", NAMESPACE, "m"));
        });
        world.ticks(60).await;
        world.is_fine(other);
        assert_eq!((world.place().as_str(), world.down), (place, 0), "{other}: {:?}", world.phase());
    }
}

/// The copy is kept, and the volume follows when its pod leaves. What an earlier node has kept may be years old.
#[tokio::test(start_paused = true)]
async fn a_claim_cancelled_while_the_other_retires_follows() {
    for (other, follows) in [("Left", false), ("Retiring", true)] {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        let claim = add_log(&world);
        add_copy(&world, &claim, "n2", &json!({"purpose": "Move", "phase": "Following"}));
        world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
        while world.phase().is_none_or(|(phase, _)| phase != ReplicaPhase::Ready) {
            world.tick().await;
        }
        world.server.with(|k| {
            k.change("volumereplicas", "pvc-log-0", |copy| copy["status"]["phase"] = json!(other));
            k.change("persistentvolumes", "pvc-log", |volume| {
                let terms = &mut volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
                terms[0]["matchExpressions"][0]["values"] = json!(["n2"]);
            });
            k.remove(&key("volumemoves", NAMESPACE, "m"));
        });
        world.ticks(60).await;
        let copy = world.server.with(|k| k.get("volumereplicas", "pvc-1-0"));
        assert_eq!(copy.is_some(), follows, "{other}: {copy:?}");
        let message = copy.map(|copy| copy["status"]["message"].to_string()).unwrap_or_default();
        assert!(!follows || message.contains("waiting until pod db-0 has left"), "{other}: {message}");
    }
}

/// Whatever its template says, a pod with a fixed node would be created there and evicted every second.
#[tokio::test(start_paused = true)]
async fn a_pod_bound_to_the_wrong_node_is_evicted_rarely() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    until_done(&mut world).await;
    let before = world.server.calls().len();
    for _ in 0..1000 {
        world.server.with(|k| {
            let pinned = k.get("pods", "pinned");
            if pinned.as_ref().is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
                return;
            }
            k.remove(&key("pods", NAMESPACE, "pinned"));
            let mut pod = control::pod("pinned", "data-db-0", "ReplicaSet");
            pod["spec"]["nodeName"] = json!("n1");
            k.create(key("pods", NAMESPACE, "pinned"), pod);
        });
        world.tick().await;
    }
    let requests = world.server.calls().split_off(before);
    let evictions = requests.iter().filter(|request| request.contains("/pods/pinned/eviction")).count();
    // After 0, 1, 3, 7, 15, 31, 63, 127, 255, 511 and 811 seconds, and the answers of the API server in between.
    assert!((9..=11).contains(&evictions), "{evictions}");
    assert!(requests.len() < 40, "{}: {requests:?}", requests.len());
    assert_eq!((world.place(), world.down), ("n2".to_owned(), 0));
    // Another pod of the claim does not wait for that one.
    world.server.with(|k| {
        let mut pod = control::pod("placed-0", "data-db-0", "ReplicaSet");
        pod["metadata"]["ownerReferences"][0]["uid"] = json!("another");
        pod["spec"]["nodeName"] = json!("n1");
        k.create(key("pods", NAMESPACE, "placed-0"), pod);
    });
    let before = world.server.calls().len();
    world.ticks(10).await;
    let requests = world.server.calls().split_off(before);
    assert!(requests.iter().any(|request| request.contains("/pods/placed-0/eviction")), "{requests:?}");
}

/// A pod of a DaemonSet would wait for its volume for ever.
#[tokio::test(start_paused = true)]
async fn a_standby_copy_is_not_lent_against_a_daemonset() {
    let (mut world, _) = with_standby().await;
    run(&world, "agent", "data-db-0", "DaemonSet");
    world.ask(json!({"when": "Now"}));
    world.ticks(20).await;
    let (phase, message) = world.asked();
    assert!(phase == Some(MovePhase::Refused) && message.contains("belongs to one node"), "{message}");
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Standby);
    end(&world, "agent");
    until_done(&mut world).await;
    assert_ne!(world.place(), "n1");
}

/// The copies were made before the first pod that uses both claims, such as with volumeBindingMode Immediate.
#[tokio::test(start_paused = true)]
async fn standby_copies_of_one_pod_come_together() {
    for (created, comes) in [("1960-01-01T00:00:00Z", true), ("2090-01-01T00:00:00Z", false)] {
        let (mut world, target) = with_standby().await;
        let other = if target == "n2" { "n3" } else { "n2" };
        let copy = json!({"purpose": "Standby", "phase": "Standby", "created": created});
        let claim = add_log(&world);
        run_both(&world);
        add_copy(&world, &claim, other, &copy);
        world.ticks(60).await;
        world.is_fine(created);
        let replicas = world.server.with(|k| k.all("volumereplicas").cloned().collect::<Vec<_>>());
        let of_data = replicas.iter().find(|replica| replica["spec"]["claim"]["name"] == "data-db-0");
        let of_data = of_data.expect("a copy");
        let expected = if comes { other } else { target.as_str() };
        assert_eq!(of_data["spec"]["targetNode"], expected, "{created}");
        assert_eq!(of_data["status"]["phase"], "Standby", "{created}: {of_data}");
        assert_eq!(world.holds(&target).len(), usize::from(!comes), "{created}");
    }
}

/// Whoever creates a pod decides nothing about a copy, and a copy is not given up for one that cannot be made.
#[tokio::test(start_paused = true)]
async fn a_standby_copy_stays_if_its_place_has_no_room() {
    for why in ["the pod has never run", "the node is cordoned", "the node is full"] {
        let (mut world, target) = with_standby().await;
        let other = if target == "n2" { "n3" } else { "n2" };
        let copy = json!({"purpose": "Standby", "phase": "Standby", "created": "1960-01-01T00:00:00Z"});
        let claim = add_log(&world);
        match why {
            "the pod has never run" => {}
            "the node is cordoned" => {
                run_both(&world);
                world
                    .server
                    .with(|k| k.change("nodes", other, |node| node["spec"]["unschedulable"] = json!(true)));
            }
            _ => {
                run_both(&world);
                world.nodes.lock().full.insert(other.to_owned());
            }
        }
        add_copy(&world, &claim, other, &copy);
        world.ticks(60).await;
        world.is_fine(why);
        let of_data = world.server.with(|k| k.get("volumereplicas", "pvc-1-0")).expect("a copy");
        assert_eq!(
            (&of_data["spec"]["targetNode"], &of_data["status"]["phase"]),
            (&json!(target), &json!("Standby")),
            "{why}"
        );
        assert_eq!(world.holds(&target).len(), 1, "{why}");
    }
}

/// A webhook keeps one of them, whichever it is, and nothing else waits for it.
#[tokio::test(start_paused = true)]
async fn a_pod_that_stays_keeps_no_other_one() {
    for (stays, leaves) in [("a", "b"), ("b", "a")] {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
        until_done(&mut world).await;
        world.server.with(|k| {
            k.never_evicted.push(stays.to_owned());
            for name in [stays, leaves] {
                let mut pod = control::pod(name, "data-db-0", "ReplicaSet");
                pod["spec"]["nodeName"] = json!("n1");
                pod["metadata"]["ownerReferences"][0]["uid"] = json!(name);
                k.create(key("pods", NAMESPACE, name), pod);
            }
        });
        world.ticks(20).await;
        let is_leaving = |name: &str| {
            let pod = world.server.with(|k| k.get("pods", name)).unwrap_or_default();
            !pod["metadata"]["deletionTimestamp"].is_null()
        };
        assert_eq!((is_leaving(stays), is_leaving(leaves)), (false, true), "{stays} stays");
    }
}
