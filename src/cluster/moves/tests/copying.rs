//! What a copy is made with, when it is up to date enough, and what is recorded of it.

use std::time::Duration;

use hostloop_fake_kubernetes::{NAMESPACE, key};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::whole::{LONG, until_done, with_standby};
use super::world::World;
use crate::cluster::moves::copies::Access;
use crate::cluster::moves::objects::Objects;
use crate::cluster::moves::resources::{MovePhase, ReplicaPhase};
use crate::cluster::moves::seen::trim_pod;

const SLOW: Duration = Duration::from_secs(4);
const QUICK: Duration = Duration::from_secs(2);
const MIB: u64 = 1 << 20;

fn change_volume(world: &World, change: impl FnOnce(&mut Value)) {
    world.server.with(|k| k.change("persistentvolumes", "pvc-1", change));
}

/// Returns how many passes there were until the copy was ready.
async fn passes_until_ready(sends: &[(u64, Duration)]) -> usize {
    let mut world = World::new(false, json!({}));
    world.nodes.lock().sends = sends.iter().copied().collect();
    world.ticks(2).await;
    world.ask(json!({"target": {"node": "n2"}}));
    for _ in 0..LONG {
        world.tick().await;
        if world.phase().is_some_and(|(phase, _)| phase == ReplicaPhase::Ready) {
            return world.nodes.lock().passes.len();
        }
    }
    panic!("{:?}", world.phase());
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_ready_after_a_small_or_quick_pass() {
    let small = [(100 * MIB, SLOW), (32 * MIB, SLOW), (32 * MIB - 1, SLOW), (0, SLOW)];
    assert_eq!(passes_until_ready(&small).await, 3);
    let quick = [(100 * MIB, SLOW), (64 * MIB, QUICK), (0, SLOW)];
    assert_eq!(passes_until_ready(&quick).await, 2);
    let no_less = [(100 * MIB, SLOW), (64 * MIB, SLOW), (64 * MIB, SLOW), (0, SLOW)];
    assert_eq!(passes_until_ready(&no_less).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_last_pass_over_a_volume_in_use_is_repeated() {
    let mut world = World::new(false, json!({}));
    world.nodes.lock().busy_passes = 2;
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    until_done(&mut world).await;
    world.is_settled("n2", "after three passes");
    assert_eq!(world.nodes.lock().busy_passes, 0);
    let last: Vec<bool> = world.nodes.lock().passes.iter().map(|pass| pass.last).collect();
    assert!(last.len() > 3 && last.ends_with(&[true; 3]), "nodes have a place for these: {last:?}");
    assert_eq!(last.iter().filter(|last| **last).count(), 3, "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pass_is_whole_for_a_standby_copy_only() {
    let (world, _) = with_standby().await;
    let whole: Vec<bool> = world.nodes.lock().passes.iter().map(|pass| pass.whole).collect();
    assert!(!whole.is_empty() && whole.iter().all(|whole| *whole), "{whole:?}");
    let last = world.replica().unwrap().status.unwrap().last_pass.unwrap();
    let age = Timestamp::now().duration_since(last.cut.expect("a time").0);
    assert!(age.as_secs().abs() < 3600, "{age:?}");

    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"target": {"node": "n2"}}));
    world.ticks(10).await;
    let whole: Vec<bool> = world.nodes.lock().passes.iter().map(|pass| pass.whole).collect();
    assert!(!whole.is_empty() && whole.iter().all(|whole| !*whole), "{whole:?}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_without_its_cut_is_made_again() {
    let (mut world, target) = with_standby().await;
    let uid = world.replica().unwrap().metadata.uid;
    world.nodes.lock().cuts.clear();
    world.ticks(3 * LONG).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Standby);
    assert_ne!(world.replica().unwrap().metadata.uid, uid);
    assert_eq!(world.holds(&target).len(), 1);
    world.is_fine("made again");
}

#[tokio::test(start_paused = true)]
async fn a_copy_without_its_cut_or_its_source_stays() {
    let (mut world, target) = with_standby().await;
    let uid = world.replica().unwrap().metadata.uid;
    let id = world.id.clone();
    world.nodes.lock().cuts.clear();
    world.nodes.lock().nodes.get_mut("n1").unwrap().get_mut(&id).unwrap().generation = 5;
    world.ticks(LONG).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Standby);
    assert_eq!((world.replica().unwrap().metadata.uid, world.holds(&target).len()), (uid, 1));
}

#[tokio::test(start_paused = true)]
async fn a_copy_has_the_parameters_of_both_classes() {
    let mut world = World::new(false, json!({"backend": "image"}));
    let class = json!({"metadata": {"name": "fast"}, "driverName": "hostloop.csi.dev", "parameters": {"directIO": "true"}});
    change_volume(&world, |volume| volume["spec"]["volumeAttributesClassName"] = json!("fast"));
    world.ticks(2).await;
    world.ask(json!({"target": {"node": "n2", "pool": "ssd"}}));
    world.ticks(10).await;
    let (phase, why) = world.phase().unwrap();
    assert!(
        phase <= ReplicaPhase::Copying && why.contains("VolumeAttributesClass fast does not exist"),
        "{why}"
    );
    world.server.with(|k| k.create(key("volumeattributesclasses", "", "fast"), class));
    world.ticks(LONG).await;
    let made = world.nodes.lock().made.first().cloned().expect("a copy");
    assert_eq!(made.mutable_parameters, [("directIO".to_owned(), "true".to_owned())].into());
    let claim = ["pv/name", "pvc/name", "pvc/namespace"].map(|name| format!("csi.storage.k8s.io/{name}"));
    let names: Vec<&str> = made.parameters.keys().map(String::as_str).collect();
    assert_eq!(names, ["backend", &claim[0], &claim[1], &claim[2], "pool"]);
    assert_eq!([&made.parameters["backend"], &made.parameters["pool"]], ["image", "ssd"]);
    let access =
        Access { fs_type: "xfs".to_owned(), modes: vec!["ReadWriteOnce".to_owned()], ..Access::default() };
    assert_eq!((made.access, made.bytes), (access, 1 << 30));
}

/// A controller that takes over has to know that the volume may be fenced.
#[tokio::test(start_paused = true)]
async fn a_fence_is_recorded_before_it_is_set() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    for _ in 0..LONG {
        world.tick().await;
        let Some(status) = world.replica().and_then(|replica| replica.status) else { continue };
        if status.phase == ReplicaPhase::CuttingOver {
            return assert!(status.maybe_fenced, "{status:?}");
        }
    }
    panic!("{:?}", world.phase());
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_the_same_pod_is_named() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    let volume = world.server.with(|k| k.get("persistentvolumes", "pvc-1")).unwrap();
    let claim = world.server.with(|k| k.get("persistentvolumeclaims", "data-db-0")).unwrap();
    world.server.with(|k| {
        let (mut volume, mut claim) = (volume, claim);
        claim["metadata"] = json!({"name": "log", "namespace": NAMESPACE});
        claim["spec"]["volumeName"] = json!("pvc-2");
        let claim = k.create(key("persistentvolumeclaims", NAMESPACE, "log"), claim);
        volume["metadata"]["name"] = json!("pvc-2");
        volume["spec"]["claimRef"] =
            json!({"namespace": NAMESPACE, "name": "log", "uid": claim["metadata"]["uid"]});
        k.create(key("persistentvolumes", "", "pvc-2"), volume);
        k.change("pods", "db-0", |pod| {
            let volumes = pod["spec"]["volumes"].as_array_mut().expect("volumes");
            volumes.push(json!({"name": "log", "persistentVolumeClaim": {"claimName": "log"}}));
        });
    });
    world.ask(json!({"target": {"node": "n2"}}));
    world.ticks(10).await;
    let (phase, why) = world.asked();
    assert!(phase == Some(MovePhase::Refused) && why.contains("claim log"), "{phase:?} {why}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_being_deleted_is_not_lent() {
    let (mut world, target) = with_standby().await;
    let replica = world.replica().unwrap().metadata.name.unwrap();
    world.server.with(|k| k.mark_deleted(&key("volumereplicas", "", &replica)));
    world.ask(json!({"target": {"node": target}}));
    world.tick().await;
    let (phase, why) = world.asked();
    assert!(
        phase == Some(MovePhase::Refused) && why.contains("wait until that has ended"),
        "{phase:?} {why}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_another_drivers_volume_is_not_evicted() {
    let mut world = World::new(false, json!({}));
    change_volume(&world, |volume| volume["spec"]["csi"]["driver"] = json!("other.example"));
    world.tick().await;
    world.server.with(|k| {
        k.change("pods", "db-0", |pod| {
            (pod["spec"]["nodeName"], pod["status"]) = (json!("n2"), json!({"phase": "Pending"}));
        });
    });
    world.ticks(10).await;
    let pod = world.server.with(|k| k.get("pods", "db-0")).expect("a pod");
    assert_eq!(
        (&pod["spec"]["nodeName"], &pod["metadata"]["deletionTimestamp"]),
        (&json!("n2"), &Value::Null)
    );
}

#[tokio::test(start_paused = true)]
async fn events_and_metrics_name_the_claim() {
    let (world, _) = with_standby().await;
    let claim = world.server.with(|k| k.get("persistentvolumeclaims", "data-db-0")).unwrap();
    let events = world.server.with(|k| k.all("events").cloned().collect::<Vec<_>>());
    assert!(!events.is_empty());
    for event in events {
        let regarding = &event["regarding"];
        assert_eq!(regarding["uid"], claim["metadata"]["uid"], "{event}");
        assert_eq!(
            (&regarding["kind"], &regarding["apiVersion"]),
            (&json!("PersistentVolumeClaim"), &json!("v1"))
        );
    }
    let figures = world.figures();
    assert_eq!(figures.standby(), Vec::new(), "it does not lead");
    figures.leads(Some(("other.csi.dev", world.seen())));
    assert_eq!((figures.under_way(), figures.standby()), ([].into(), Vec::new()), "it is of another driver");
    figures.leads(Some(("hostloop.csi.dev", world.seen())));
    assert_eq!(figures.under_way(), [(ReplicaPhase::Standby, 1)].into());
    let standby: Vec<(String, f64)> =
        figures.standby().into_iter().map(|(claim, _, interval)| (claim, interval)).collect();
    assert_eq!(standby, [(format!("{NAMESPACE}/data-db-0"), 10.0)]);
    let passes = world.nodes.lock().passes.len() as u64;
    let (counted, sent, changed) = figures.traffic();
    assert!(counted == passes && passes > 1, "{passes} {counted}");
    assert!(sent > 0 && sent == changed, "{sent} {changed}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_is_created_once() {
    let (world, _) = with_standby().await;
    let mut replica = world.replica().unwrap();
    replica.metadata.resource_version = None;
    let created = Objects::new(world.server.client()).create_replica(&replica).await;
    assert!(created.expect("an answer").is_none());
}

#[test]
fn a_pod_is_kept_without_its_containers() {
    let mut pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "managedFields": [{"manager": "kubelet"}],
        "annotations": {"a": "b"}}, "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}}))
        .unwrap();
    trim_pod(&mut pod);
    assert_eq!(
        serde_json::to_value(pod).unwrap()["metadata"].get("managedFields").unwrap_or(&json!([])),
        &json!([])
    );
}

/// The move is cancelled after its last pass has waited for long.
#[tokio::test(start_paused = true)]
async fn a_policy_is_kept_on_the_way_back() {
    let mut world = World::new(false, json!({}));
    world.nodes.lock().busy_passes = usize::MAX;
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    world.ticks(60).await;
    assert_eq!((world.phase().unwrap().0, world.place()), (ReplicaPhase::LastPass, "n2".to_owned()));
    change_volume(&world, |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        volume["metadata"]["labels"] = json!({"kept": "yes"});
    });
    world.server.with(|k| k.remove(&key("volumemoves", NAMESPACE, "m")));
    world.ticks(60).await;
    world.is_fine("cancelled");
    assert_eq!((world.phase(), world.place(), world.down), (None, "n1".to_owned(), 0));
    let volume = world.server.with(|k| k.get("persistentvolumes", "pvc-1")).unwrap();
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(volume["metadata"]["labels"]["kept"], "yes");
}

fn cordon(world: &World, node: &str, is: bool) {
    world.server.with(|k| k.change("nodes", node, |node| node["spec"]["unschedulable"] = json!(is)));
}

/// Pods would be evicted, and could not follow.
#[tokio::test(start_paused = true)]
async fn a_move_waits_for_a_node_that_was_cordoned() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    world.tick().await;
    cordon(&world, "n2", true);
    world.ticks(60).await;
    let (phase, why) = world.phase().unwrap();
    assert!(phase == ReplicaPhase::Ready && why.contains("node n2 is cordoned"), "{phase:?} {why}");
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0));
    cordon(&world, "n2", false);
    until_done(&mut world).await;
    world.is_settled("n2", "uncordoned");
}

#[tokio::test(start_paused = true)]
async fn a_copy_on_a_cordoned_node_is_not_lent() {
    let (mut world, target) = with_standby().await;
    cordon(&world, &target, true);
    world.ask(json!({"when": "Now"}));
    world.tick().await;
    let (phase, why) = world.asked();
    assert!(phase == Some(MovePhase::Refused) && why.contains("is cordoned"), "{phase:?} {why}");
}

/// It keeps none of the places that first copies have.
#[tokio::test(start_paused = true)]
async fn a_first_copy_that_fails_waits_with_the_others() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"when": "Now", "target": {"node": "n2"}}));
    world.tick().await;
    world.nodes.lock().silent.insert("n2".to_owned());
    world.ticks(60).await;
    let status = world.replica().unwrap().status.unwrap();
    assert!(status.first_copy_failed.is_some(), "{status:?}");
    assert_eq!(status.phase, ReplicaPhase::Pending, "{}", status.message);
    world.nodes.lock().silent.clear();
    until_done(&mut world).await;
    world.is_settled("n2", "made later");
}

/// Another controller, whose clock is an hour ahead, has written it.
#[tokio::test(start_paused = true)]
async fn a_pass_in_the_future_delays_no_other_one() {
    let (mut world, _) = with_standby().await;
    let replica = world.replica().unwrap();
    let (name, passes) = (replica.metadata.name.unwrap(), replica.status.unwrap().passes);
    world.server.with(|k| {
        k.change("volumereplicas", &name, |replica| {
            replica["status"]["lastPass"]["asked"] = json!("1970-01-01T02:00:00Z");
        });
    });
    world.ticks(3).await;
    let status = world.replica().unwrap().status.unwrap();
    assert_eq!(status.passes, passes + 1);
    assert!(
        status.last_pass.unwrap().asked.0
            < k8s_openapi::jiff::Timestamp::UNIX_EPOCH + Duration::from_secs(3600)
    );
}
