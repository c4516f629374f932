//! What earlier losses, failed disks and policies leave for a later move: disks without data under a record, an earlier generation of
//! the volume, an expansion that cannot end, a change that a webhook takes back.

use std::sync::Arc;

use hostloop_fake_kubernetes::{NAMESPACE, key};
use serde_json::{Value, json};

use super::api::Fault;
use super::hostile::now_to;
use super::whole::{in_its_last_step, until_done, with_standby};
use super::world::World;
use crate::cluster::moves::resources::ReplicaPhase;

fn break_disk(world: &mut World, node: &str) {
    world.nodes.lock().broken.insert(node.to_owned());
    world.may_be_lost = u64::MAX;
}

pub(super) fn promote(world: &World, is: bool) {
    world.server.with(|k| {
        k.change("volumereplicas", "pvc-1-0", |replica| {
            replica["metadata"]["annotations"] = json!({"hostloop.csi.dev/promote": is.to_string()});
        });
    });
}

fn end_pod(world: &World) {
    world.server.with(|k| k.remove(&key("pods", NAMESPACE, "db-0")));
}

/// The node answers, and has its record of the volume.
#[tokio::test(start_paused = true)]
async fn a_copy_stays_if_its_volumes_disk_has_failed() {
    let (mut world, target) = with_standby().await;
    break_disk(&mut world, "n1");
    world.server.with(|k| k.change("storageclasses", "local", |class| class["parameters"] = json!({})));
    world.ticks(60).await;
    world.is_fine("kept");
    assert_eq!(world.holds(&target).len(), 1, "{:?}", world.phase());
    let (phase, message) = world.phase().unwrap();
    assert!(phase == ReplicaPhase::Abandoning && message.contains("may be the only one"), "{message}");
    assert!(message.contains("is not available"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_failed_disk_can_be_promoted() {
    let (mut world, target) = with_standby().await;
    break_disk(&mut world, "n1");
    end_pod(&world);
    world.ticks(30).await;
    assert_eq!(world.place(), "n1", "nobody has said that the data are lost");
    promote(&world, true);
    world.ticks(60).await;
    world.runs_on(&target, "promoted");
}

/// Nothing asks for the copy any more, which is kept because it may be the only one (rule 7).
#[tokio::test(start_paused = true)]
async fn a_copy_that_may_be_the_only_one_can_be_promoted() {
    let (mut world, target) = with_standby().await;
    break_disk(&mut world, "n1");
    world.server.with(|k| k.change("storageclasses", "local", |class| class["parameters"] = json!({})));
    end_pod(&world);
    world.ticks(60).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Abandoning);
    world.server.with(|k| {
        k.change("volumereplicas", "pvc-1-0", |replica| {
            replica["status"]["exact"] = json!(true);
        });
    });
    promote(&world, true);
    world.ticks(2).await;
    let status = world.replica().unwrap().status.unwrap();
    assert!(!status.exact, "that was of a cutover that was given up: {status:?}");
    world.ticks(90).await;
    world.runs_on(&target, "promoted");

    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"target": {"node": "n2"}}));
    world.ticks(20).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Ready);
    break_disk(&mut world, "n1");
    world.server.with(|k| k.remove(&key("volumemoves", NAMESPACE, "m")));
    end_pod(&world);
    world.ticks(30).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Abandoning);
    promote(&world, true);
    world.ticks(90).await;
    world.runs_on("n2", "promoted");
}

/// A node whose state was restored from a backup has an earlier generation: it refuses the fence, and no pod has to leave.
#[tokio::test(start_paused = true)]
async fn a_restored_generation_is_not_fenced() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"target": {"node": "n2"}}));
    world.ticks(20).await;
    assert_eq!(world.phase().unwrap().0, ReplicaPhase::Ready);
    let id = world.id.clone();
    world.nodes.lock().nodes.get_mut("n1").unwrap().get_mut(&id).unwrap().generation = 7;
    world.server.with(|k| k.change("volumemoves", "m", |asked| asked["spec"]["when"] = json!("Now")));
    let pod = world.server.with(|k| k.get("pods", "db-0")).unwrap()["metadata"]["uid"].clone();
    world.ticks(60).await;
    let after = world.server.with(|k| k.get("pods", "db-0")).map(|pod| pod["metadata"]["uid"].clone());
    assert_eq!((after, world.down, world.place().as_str()), (Some(pod), 0, "n1"), "{:?}", world.phase());
    world.server.with(|k| k.remove(&key("volumemoves", NAMESPACE, "m")));
    world.server.with(|k| k.mark_deleted(&key("volumereplicas", "", "pvc-1-0")));
    world.ticks(60).await;
    assert_eq!((world.replica().is_none(), world.down), (true, 0), "{:?}", world.phase());
}

/// The node was lost, its copy was promoted, and the node is back before the copy has taken over: its pod started in that moment.
#[tokio::test(start_paused = true)]
async fn a_promoted_copy_follows_a_pod_that_is_back() {
    let (mut world, target) = with_standby().await;
    promote(&world, true);
    world.server.with(|k| {
        k.change("volumereplicas", "pvc-1-0", |replica| {
            replica["status"]["phase"] = json!("CuttingOver");
            replica["status"]["maybeFenced"] = json!(true);
        });
    });
    world.nodes.lock().nodes.get_mut("n1").unwrap().values_mut().for_each(|volume| volume.sealed = true);
    world.ticks(20).await;
    world.is_fine("back");
    let (phase, message) = world.phase().unwrap();
    assert!(phase == ReplicaPhase::Standby && message.contains("place when pod db-0 has left"), "{message}");
    let passes = |world: &World| world.replica().unwrap().status.unwrap().passes;
    let before = passes(&world);
    world.ticks(600).await;
    assert!(passes(&world) > before, "the copy follows the volume: {:?}", world.phase());
    assert!(!world.holds("n1")[0].sealed && world.down == 0, "{:?}", world.holds("n1"));
    world.drain();
    world.ticks(60).await;
    world.is_fine("promoted");
    assert_eq!((world.place(), world.down, world.may_be_lost), (target, 0, 0), "{:?}", world.phase());
}

/// An administrator who has deleted the VolumeReplica of a promotion too early.
#[tokio::test(start_paused = true)]
async fn pods_never_get_an_earlier_generation() {
    let (mut world, target) = with_standby().await;
    world.lose("n1");
    world.remove_node("n1");
    world.ticks(60).await;
    world.server.with(|k| {
        k.mark_deleted(&key("volumereplicas", "", "pvc-1-0"));
        k.change("storageclasses", "local", |class| class["parameters"] = json!({}));
    });
    world.ticks(60).await;
    assert_eq!((world.place(), world.down), (target.clone(), 0), "{:?}", world.phase());
    world.add_node("n1");
    world.ask(now_to("n1"));
    world.ticks(90).await;
    world.runs_on("n1", "moved");
    let named = |object: &Value| object["metadata"]["name"].as_str().unwrap().ends_with("-earlier");
    let earlier = world.server.with(|k| k.all("volumereplicas").find(|object| named(object)).cloned());
    let earlier = earlier.expect("a VolumeReplica");
    let name = earlier["metadata"]["name"].as_str().unwrap();
    let message = earlier["status"]["message"].as_str().unwrap();
    assert!(earlier["status"]["phase"] == "Left" && message.contains("node n1"), "{earlier}");
    assert_eq!(world.holds("n1").iter().filter(|held| held.was.is_some()).count(), 1);
    // Its status is lost when the volume is there again.
    world.server.with(|k| {
        k.change("volumereplicas", name, |object| drop(object.as_object_mut().unwrap().remove("status")))
    });
    world.ticks(30).await;
    let again = world.server.with(|k| k.get("volumereplicas", name)).unwrap();
    assert_eq!(
        (&again["status"]["phase"], &again["status"]["leftId"]),
        (&json!("Left"), &earlier["status"]["leftId"]),
        "{again}"
    );
    world.server.with(|k| k.mark_deleted(&key("volumereplicas", "", name)));
    until_done(&mut world).await;
    world.ticks(20).await;
    // The node removes the cut of the first copy after a day.
    world.nodes.lock().cuts.clear();
    world.is_settled("n1", "its earlier data are deleted");
}

/// The phase in which the copy takes over the id, with a target whose disk was replaced meanwhile.
#[tokio::test(start_paused = true)]
async fn a_volume_is_taken_back_from_an_empty_disk() {
    let mut world = in_its_last_step(Fault::Lost).await;
    world.nodes.lock().nodes.get_mut("n2").unwrap().clear();
    world.ticks(60).await;
    let (phase, message) = world.phase().unwrap();
    assert!(phase == ReplicaPhase::Completing && message.contains("has neither"), "{phase:?} {message}");
    world.server.with(|k| {
        k.remove(&key("volumemoves", NAMESPACE, "m"));
        k.mark_deleted(&key("volumereplicas", "", "pvc-1-0"));
    });
    world.ticks(60).await;
    world.is_settled("n1", "taken back");
}

/// A StatefulSet at zero: its expansion ends when a pod has the volume, which cannot be before the promotion.
#[tokio::test(start_paused = true)]
async fn a_promotion_does_not_wait_for_an_expansion() {
    let (mut world, target) = with_standby().await;
    world.server.with(|k| {
        k.change("persistentvolumeclaims", "data-db-0", |claim| {
            claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        });
    });
    world.lose("n1");
    world.remove_node("n1");
    world.ticks(60).await;
    world.runs_on(&target, "promoted");
}

/// A volume was expanded and modified after the copy was made.
#[tokio::test(start_paused = true)]
async fn a_promoted_copy_gets_size_and_attributes() {
    let (mut world, target) = with_standby().await;
    world.server.with(|k| {
        let class = json!({"metadata": {"name": "quick"}, "driverName": "hostloop.csi.dev", "parameters": {"directIO": "true"}});
        k.create(key("volumeattributesclasses", "", "quick"), class);
        k.change("persistentvolumes", "pvc-1", |volume| {
            volume["spec"]["capacity"]["storage"] = json!("2Gi");
            volume["spec"]["volumeAttributesClassName"] = json!("quick");
        });
    });
    world.lose("n1");
    world.remove_node("n1");
    world.ticks(60).await;
    assert_eq!((world.place(), world.down), (target, 0), "{:?}", world.phase());
    let cluster = world.nodes.lock();
    assert_eq!(cluster.completed_with.last(), Some(&(2 << 30)));
    assert_eq!(
        cluster.modified.last().and_then(|parameters| parameters.get("directIO")),
        Some(&"true".to_owned())
    );
}

/// A webhook is installed after the check.
#[tokio::test(start_paused = true)]
async fn a_refused_request_is_in_the_message() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.server.with(|k| {
        k.admission = Some(Arc::new(|operation, key, object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let is_it = key.0 == "persistentvolumes" && !name.ends_with("-check");
            (is_it && operation == hostloop_fake_kubernetes::Operation::Create)
                .then(|| "volumes are frozen today".to_owned())
        }));
    });
    world.ask(now_to("n2"));
    world.ticks(40).await;
    let (phase, message) = world.phase().unwrap();
    assert!(phase == ReplicaPhase::Exchanging && message.contains("frozen today"), "{phase:?} {message}");
    world.server.with(|k| k.admission = None);
    until_done(&mut world).await;
    world.is_settled("n2", "the webhook is gone");
}

/// A policy of the cluster that keeps every volume, from some moment on.
#[tokio::test(start_paused = true)]
async fn a_policy_that_changes_back_delays_no_pod() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.server.with(|k| {
        k.mutation = Some(Arc::new(|_, key, object| {
            if key.0 == "persistentvolumes" {
                object["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
            }
        }));
    });
    world.ask(now_to("n2"));
    until_done(&mut world).await;
    assert_eq!((world.place(), world.down), ("n2".to_owned(), 0), "{:?}", world.phase());
    assert!(world.server.calls().len() < 400, "{} requests", world.server.calls().len());
}

/// Two nodes with copies are gone, and the one that went first is back: its copy is deleted, and the volume gets another one.
#[tokio::test(start_paused = true)]
async fn a_copy_gets_a_name_that_is_free() {
    let (mut world, first) = with_standby().await;
    let lose = |world: &World, node: &str| {
        world.server.with(|k| k.remove(&key("nodes", "", node)));
        world.nodes.lock().silent.insert(node.to_owned());
    };
    lose(&world, &first);
    world.ticks(500).await;
    let second = world.replica().expect("a copy").spec.target_node;
    assert_ne!(second, first);
    lose(&world, &second);
    world.ticks(400).await;
    world.add_node(&first);
    world.ticks(100).await;
    world.is_fine("another copy");
    let target = world.replica().expect("a copy").spec.target_node;
    assert_eq!((target, world.phase().unwrap().0), (first, ReplicaPhase::Standby), "{:?}", world.phase());
}

/// A webhook that changes what is created, and lets patches through.
#[tokio::test(start_paused = true)]
async fn a_creation_that_is_changed_is_refused_before() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.server.with(|k| {
        k.mutation = Some(Arc::new(|operation, key, object| {
            if key.0 == "persistentvolumes" && operation == hostloop_fake_kubernetes::Operation::Create {
                object["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": []}});
            }
        }));
    });
    world.ask(now_to("n2"));
    world.ticks(60).await;
    let (phase, message) = world.phase().unwrap();
    assert!(
        phase == ReplicaPhase::Ready && message.contains("takes back each change"),
        "{phase:?} {message}"
    );
    assert_eq!((world.place(), world.down), ("n1".to_owned(), 0));
}

/// The claim was deleted, as with its namespace, and a later one of its name is there before the controller looks again.
#[tokio::test(start_paused = true)]
async fn a_later_claim_of_the_name_gets_no_copy() {
    let (mut world, target) = with_standby().await;
    world.server.with(|k| {
        k.change("persistentvolumes", "pvc-1", |volume| {
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        });
        let mut claim = k.get("persistentvolumeclaims", "data-db-0").expect("a claim");
        k.remove(&key("persistentvolumeclaims", NAMESPACE, "data-db-0"));
        claim["metadata"] = json!({"name": "data-db-0", "namespace": NAMESPACE});
        k.create(key("persistentvolumeclaims", NAMESPACE, "data-db-0"), claim);
    });
    world.ask(now_to(&target));
    world.ticks(60).await;
    world.is_fine("deleted");
    assert_eq!((world.phase(), world.holds(&target)), (None, Vec::new()));
    assert!(world.asked().1.contains("is bound to another claim"), "{:?}", world.asked());
}
