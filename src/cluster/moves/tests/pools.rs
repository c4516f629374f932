//! Moves to another pool of the node that has the volume. Its PersistentVolume does not change.

use std::collections::BTreeSet;

use hostloop_fake_kubernetes::{NAMESPACE, key};
use serde_json::{Value, json};

use super::api::Fault;
use super::whole::{LONG, until_done};
use super::world::World;
use crate::cluster::moves::resources::{MovePhase, ReplicaPhase};

fn to_pool(pool: &str) -> Value {
    json!({"when": "Now", "target": {"node": "n1", "pool": pool}})
}

/// A volume in pool `default` of the first node, whose pod runs.
async fn world() -> World {
    let mut world = World::new(false, json!({}));
    let id = world.id.clone();
    let in_default = |volume: &mut super::nodes::Held| volume.pool = "default".to_owned();
    world
        .nodes
        .lock()
        .nodes
        .get_mut("n1")
        .and_then(|held| held.get_mut(&id))
        .map(in_default)
        .expect("a volume");
    world.ticks(2).await;
    world
}

/// The pool of the volume.
fn pool(world: &World) -> String {
    world.nodes.lock().nodes["n1"][&world.id].pool.clone()
}

fn cancel(world: &World) {
    world.server.with(|k| k.remove(&key("volumemoves", NAMESPACE, "m")));
}

/// Asserts that the volume is in one pool of its node, that its pod runs, and that nothing is left of a move.
#[track_caller]
fn is_settled(world: &World, which: &str) {
    world.is_settled("n1", which);
    let changed: Vec<String> =
        world.server.calls().into_iter().filter(|call| call.contains("persistentvolumes/")).collect();
    let reads = changed.iter().filter(|call| call.starts_with("GET"));
    assert_eq!(reads.count(), changed.len(), "{which}: the PersistentVolume is only read: {changed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_moves_to_another_pool_of_its_node() {
    let mut world = world().await;
    world.ask(to_pool("fast"));
    until_done(&mut world).await;
    is_settled(&world, "it has moved");
    assert_eq!((pool(&world).as_str(), world.asked().0), ("fast", Some(MovePhase::Done)));
    assert!(world.asked().1.contains("pool fast of node n1"), "{:?}", world.asked());
    world.ticks(20).await;
    is_settled(&world, "it does not move again");
}

#[tokio::test(start_paused = true)]
async fn a_move_within_a_node_waits_until_pods_leave() {
    let mut world = world().await;
    world.ask(json!({"target": {"node": "n1", "pool": "fast"}}));
    world.ticks(20).await;
    assert_eq!((world.phase().unwrap().0, pool(&world).as_str()), (ReplicaPhase::Ready, "default"));
    world.drain();
    until_done(&mut world).await;
    is_settled(&world, "its pod has left once");
    assert_eq!(pool(&world), "fast");
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_a_move_within_a_node_goes_on() {
    for (fault, number) in (0..60).flat_map(|n| [(Fault::Lost, n), (Fault::AnswerLost, n)]) {
        for of_node in [false, true] {
            let mut world = world().await;
            let (requests, calls) = (world.server.calls().len(), world.nodes.lock().calls.len());
            match of_node {
                true => world.nodes.lock().fault = Some((calls + number, fault)),
                false => world.server.fail(requests + number, fault),
            }
            world.ask(to_pool("fast"));
            for _ in 0..LONG {
                world.tick().await;
                world.restart();
            }
            let which = format!("{number} {fault:?}, of a node: {of_node}: {:?}", world.phase());
            is_settled(&world, &which);
            assert_eq!(pool(&world), "fast", "{which}");
        }
    }
}

/// Whenever the request is deleted, the volume is in one pool, and its pod runs.
#[tokio::test(start_paused = true)]
async fn a_move_within_a_node_can_be_cancelled() {
    let mut pools = BTreeSet::new();
    for number in 0..60 {
        let mut world = world().await;
        world.ask(to_pool("fast"));
        for _ in 0..LONG {
            if world.nodes.lock().calls.len() > number {
                break;
            }
            world.tick().await;
        }
        cancel(&world);
        world.restart();
        world.ticks(LONG).await;
        is_settled(&world, &format!("after {number}"));
        pools.insert(pool(&world));
    }
    assert_eq!(pools.len(), 2, "both ends were seen: {pools:?}");
}

/// The status was removed at some moment: by an administrator, or by a backup that was restored without it.
#[tokio::test(start_paused = true)]
async fn a_move_within_a_node_survives_a_lost_status() {
    for tick in 1..16 {
        let mut world = world().await;
        world.ask(to_pool("fast"));
        world.ticks(tick).await;
        world.server.with(|k| {
            if k.get("volumereplicas", "pvc-1-0").is_some() {
                k.change("volumereplicas", "pvc-1-0", |replica| replica["status"] = json!({}));
            }
        });
        world.ticks(4 * LONG).await;
        let which = format!("after {tick}: {:?}", world.phase());
        world.runs_on("n1", &which);
        assert_eq!(pool(&world), "fast", "{which}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_move_to_where_the_volume_is_is_refused() {
    for (target, why) in [
        (json!({"node": "n1"}), "name the pool"),
        (json!({"node": "n1", "pool": "fast", "storageClass": "none"}), "there is no StorageClass none"),
    ] {
        let mut world = world().await;
        world.ask(json!({"when": "Now", "target": target}));
        world.ticks(5).await;
        let (phase, message) = world.asked();
        assert!(phase == Some(MovePhase::Refused) && message.contains(why), "{message}");
        is_settled(&world, why);
    }
}

#[tokio::test(start_paused = true)]
async fn a_move_to_its_own_pool_is_done() {
    let mut world = world().await;
    world.ask(to_pool("default"));
    world.ticks(5).await;
    assert_eq!(world.asked(), (Some(MovePhase::Done), "the volume is in pool default of node n1".to_owned()));
    is_settled(&world, "nothing was done");
    assert_eq!(world.nodes.lock().made.len(), 0);
}

/// `crossNodeCopy: "false"` says that volumes do not leave their nodes, and this one does not.
#[tokio::test(start_paused = true)]
async fn a_volume_that_stays_on_its_node_may_move_there() {
    let mut world = World::new(false, json!({"crossNodeCopy": "false"}));
    world.ticks(2).await;
    world.ask(to_pool("fast"));
    until_done(&mut world).await;
    assert_eq!(pool(&world), "fast", "{:?}", world.asked());
}

/// Creates a StorageClass of the driver.
fn create_class(world: &World, name: &str, parameters: &Value) {
    let class =
        json!({"metadata": {"name": name}, "provisioner": "hostloop.csi.dev", "parameters": parameters});
    world.server.with(|k| k.create(key("storageclasses", "", name), class));
}

fn to_class(pool: &str, class: &str) -> Value {
    json!({"when": "Now", "target": {"node": "n1", "pool": pool, "storageClass": class}})
}

/// The class that is written on the PersistentVolume.
fn class_of(world: &World) -> Value {
    let volume = world.server.with(|k| k.get("persistentvolumes", "pvc-1")).expect("a volume");
    volume["metadata"]["annotations"]["hostloop.csi.dev/storage-class"].clone()
}

/// The PersistentVolume cannot name another class. The next move asks for no class, and the volume keeps what it has.
#[tokio::test(start_paused = true)]
async fn a_volume_keeps_what_another_class_has_made_of_it() {
    for (parameters, fs_type) in
        [(json!({"backend": "directory"}), ""), (json!({"csi.storage.k8s.io/fstype": "ext4"}), "ext4")]
    {
        let mut world = world().await;
        create_class(&world, "other", &parameters);
        // Another backend is another place: the pool can be the same.
        world.ask(to_class("default", "other"));
        until_done(&mut world).await;
        world.is_settled("n1", "it was converted");
        assert_eq!(class_of(&world), "other");
        cancel(&world);
        world.ask(to_class("default", "other"));
        world.ticks(5).await;
        assert_eq!(
            world.asked(),
            (Some(MovePhase::Done), "the volume is in pool default of node n1".to_owned())
        );
        cancel(&world);
        world.ask(to_pool("fast"));
        until_done(&mut world).await;
        world.is_settled("n1", "it has moved");
        assert_eq!((pool(&world).as_str(), class_of(&world)), ("fast", json!("other")));
        let made = world.nodes.lock().made.clone();
        assert_eq!(made.len(), 2, "{made:?}");
        for copy in made {
            assert!(copy.convert, "{copy:?}");
            assert_eq!(copy.access.fs_type, fs_type);
            assert_eq!(
                copy.parameters.get("backend").cloned(),
                parameters["backend"].as_str().map(str::to_owned)
            );
        }
    }
}

/// The volume has the files of one class, and its PersistentVolume names the other.
#[tokio::test(start_paused = true)]
async fn a_volume_gets_the_class_of_its_claim_back() {
    let mut world = world().await;
    create_class(&world, "other", &json!({"backend": "directory"}));
    world.ask(to_class("fast", "other"));
    until_done(&mut world).await;
    cancel(&world);
    let own = world.server.with(|k| k.get("persistentvolumes", "pvc-1")).expect("a volume");
    let own = own["spec"]["storageClassName"].as_str().expect("a class").to_owned();
    world.ask(to_class("default", &own));
    until_done(&mut world).await;
    world.is_settled("n1", "it is what it was");
    assert_eq!((pool(&world).as_str(), class_of(&world)), ("default", json!(own)));
    let made = world.nodes.lock().made.last().cloned().expect("a copy");
    assert!(made.convert, "a directory becomes an image: {made:?}");
    cancel(&world);
    world.ask(to_pool("fast"));
    until_done(&mut world).await;
    let made = world.nodes.lock().made.last().cloned().expect("a copy");
    assert!(!made.convert, "it is what its PersistentVolume says: {made:?}");
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_a_volume_gets_its_class() {
    for (fault, number) in (0..60).flat_map(|n| [(Fault::Lost, n), (Fault::AnswerLost, n)]) {
        let mut world = world().await;
        create_class(&world, "other", &json!({"backend": "directory"}));
        world.server.fail(world.server.calls().len() + number, fault);
        world.ask(to_class("fast", "other"));
        for _ in 0..LONG {
            world.tick().await;
            world.restart();
        }
        let which = format!("{number} {fault:?}: {:?}", world.phase());
        world.is_settled("n1", &which);
        assert_eq!((pool(&world).as_str(), class_of(&world)), ("fast", json!("other")), "{which}");
    }
}

/// A move that is given up converts nothing.
#[tokio::test(start_paused = true)]
async fn a_move_that_is_cancelled_writes_no_class() {
    let mut world = world().await;
    create_class(&world, "other", &json!({"backend": "directory"}));
    world.ask(json!({"target": {"node": "n1", "pool": "fast", "storageClass": "other"}}));
    world.ticks(20).await;
    cancel(&world);
    world.ticks(LONG).await;
    is_settled(&world, "it was cancelled");
    assert_eq!((pool(&world).as_str(), class_of(&world)), ("default", Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_raw_block_volume_becomes_no_directory() {
    let mut world = world().await;
    create_class(&world, "other", &json!({"backend": "directory"}));
    world.server.with(|k| {
        k.change("persistentvolumes", "pvc-1", |volume| volume["spec"]["volumeMode"] = json!("Block"));
    });
    world.ticks(2).await;
    world.ask(to_class("fast", "other"));
    world.ticks(5).await;
    let (phase, message) = world.asked();
    let why = "asks for a directory, which has no blocks";
    assert!(phase == Some(MovePhase::Refused) && message.contains(why), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_class_that_leaves_the_node_out_is_refused() {
    let mut world = world().await;
    let terms =
        json!([{"matchLabelExpressions": [{"key": "topology.hostloop.csi.dev/node", "values": ["n2"]}]}]);
    let class =
        json!({"metadata": {"name": "other"}, "provisioner": "hostloop.csi.dev", "allowedTopologies": terms});
    world.server.with(|k| k.create(key("storageclasses", "", "other"), class));
    world.ask(json!({"when": "Now", "target": {"node": "n1", "pool": "fast", "storageClass": "other"}}));
    world.ticks(5).await;
    let (phase, message) = world.asked();
    assert!(phase == Some(MovePhase::Refused) && message.contains("allowedTopologies"), "{message}");
}

/// The copy gets the parameters of the class that is asked for, and the claim keeps its own.
#[tokio::test(start_paused = true)]
async fn a_copy_gets_the_parameters_of_a_class() {
    let mut world = world().await;
    let class = json!({"metadata": {"name": "thick"}, "provisioner": "hostloop.csi.dev",
        "parameters": {"provisioning": "thick"}});
    world.server.with(|k| k.create(key("storageclasses", "", "thick"), class));
    world.ask(json!({"when": "Now", "target": {"node": "n1", "pool": "fast", "storageClass": "thick"}}));
    until_done(&mut world).await;
    world.is_settled("n1", "it has moved");
    assert_eq!(class_of(&world), "thick");
    let made = world.nodes.lock().made.last().cloned().expect("a copy");
    assert_eq!(made.parameters.get("provisioning").map(String::as_str), Some("thick"));
    assert_eq!(made.parameters.get("pool").map(String::as_str), Some("fast"));
}
