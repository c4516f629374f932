//! Volumes that another node has adopted (`hostloop state adopt-node`): their PersistentVolumes get that node, and nothing is copied.

use std::collections::BTreeMap;

use hostloop_fake_kubernetes::{NAMESPACE, key};
use kube::ResourceExt as _;
use serde_json::json;

use super::hostile::now_to;
use super::nodes::Held;
use super::whole::until_done;
use super::world::World;
use crate::cluster::moves::resources::ReplicaPhase;

/// Node `n1` is switched off, and its disk is in `n2`.
fn with_disk_elsewhere(mutable: bool) -> World {
    let mut world = World::new(mutable, json!({}));
    world.lose("n1");
    world.may_be_lost = 0;
    adopt(&world);
    world
}

fn adopt(world: &World) {
    let mut cluster = world.nodes.lock();
    let volume = cluster.nodes["n1"][&world.id].clone();
    let adopted = Held { generation: 2, in_use: false, adopted_from: vec!["n1".to_owned()], ..volume };
    cluster.nodes.get_mut("n2").unwrap().insert(world.id.clone(), adopted);
}

fn message(world: &World) -> String {
    world.phase().expect("a VolumeReplica").1
}

#[tokio::test(start_paused = true)]
async fn a_volume_follows_the_disk_of_a_lost_node() {
    for mutable in [true, false] {
        let mut world = with_disk_elsewhere(mutable);
        world.remove_node("n1");
        world.ask(now_to("n2"));
        until_done(&mut world).await;
        world.runs_on("n2", "adopted");
        assert_eq!(world.holds("n2").len(), 1, "nothing was copied");
        let calls: Vec<_> = world.nodes.lock().calls.clone();
        assert!(!calls.iter().any(|call| ["create", "update", "complete"].contains(call)), "{calls:?}");
    }
}

/// It may only be cut off, and its pods may write.
#[tokio::test(start_paused = true)]
async fn a_volume_waits_until_its_node_is_given_up() {
    let mut world = with_disk_elsewhere(false);
    world.ask(now_to("n2"));
    world.ticks(120).await;
    assert_eq!(world.place(), "n1");
    assert!(
        message(&world).contains("may have the volume as well; delete its Node object"),
        "{}",
        message(&world)
    );
    world.taint("n1");
    world.ticks(120).await;
    assert_eq!(world.place(), "n2", "{}", message(&world));
}

#[tokio::test(start_paused = true)]
async fn a_volume_on_both_nodes_stays_where_it_is() {
    let mut world = World::new(false, json!({}));
    world.ticks(5).await;
    adopt(&world);
    world.ask(now_to("n2"));
    world.ticks(60).await;
    assert_eq!(world.place(), "n1");
    assert!(message(&world).starts_with("nodes n1 and n2 both have the volume"), "{}", message(&world));
    world.runs_on("n1", "it goes on");
}

/// Its machine is the same, and has another name.
#[tokio::test(start_paused = true)]
async fn a_volume_follows_its_renamed_node() {
    let mut world = with_disk_elsewhere(false);
    world.nodes.lock().nodes.remove("n1");
    world.remove_node("n1");
    world.ask(now_to("n2"));
    until_done(&mut world).await;
    world.runs_on("n2", "renamed");
}

/// The earlier node comes back with what it had: that is not the volume.
#[tokio::test(start_paused = true)]
async fn a_copy_that_comes_back_is_retired_and_kept() {
    let mut world = with_disk_elsewhere(false);
    world.taint("n1");
    world.ask(now_to("n2"));
    world.ticks(120).await;
    assert_eq!(world.place(), "n2", "{}", message(&world));
    world.add_node("n1");
    world.ticks(60).await;
    let left: BTreeMap<_, _> = world.nodes.lock().nodes["n1"].clone();
    let (id, volume) = left.iter().next().expect("it is kept");
    assert!(*id != world.id && volume.was.as_ref() == Some(&world.id), "{left:?}");
    assert_eq!(world.phase().expect("a VolumeReplica").0, ReplicaPhase::Left);
}

/// A node that has an earlier generation has adopted nothing.
#[tokio::test(start_paused = true)]
async fn an_earlier_generation_is_no_adoption() {
    let mut world = with_disk_elsewhere(false);
    let id = world.id.clone();
    world.nodes.lock().nodes.get_mut("n2").unwrap().get_mut(&id).unwrap().adopted_from.clear();
    world.remove_node("n1");
    world.ask(now_to("n2"));
    world.ticks(120).await;
    assert_eq!((world.place().as_str(), world.replica().is_none()), ("n1", true));
}

/// It would begin by itself when the node is lost, months later.
#[tokio::test(start_paused = true)]
async fn an_adoption_that_waits_can_be_cancelled() {
    let mut world = World::new(false, json!({}));
    world.ticks(5).await;
    adopt(&world);
    world.ask(now_to("n2"));
    world.ticks(60).await;
    assert!(world.replica().is_some());
    world.server.with(|k| k.remove(&key("volumemoves", NAMESPACE, "m")));
    world.ticks(60).await;
    assert!(world.replica().is_none(), "{}", message(&world));
    world.lose("n1");
    world.remove_node("n1");
    world.ticks(60).await;
    assert_eq!(world.place(), "n1");
}

/// The record outlives the disk of a node that goes on with its other pools.
#[tokio::test(start_paused = true)]
async fn a_record_without_its_disk_needs_an_administrator() {
    let mut world = World::new(false, json!({}));
    adopt(&world);
    world.nodes.lock().broken.insert("n1".to_owned());
    world.server.with(|k| k.remove(&key("pods", NAMESPACE, "db-0")));
    world.ask(now_to("n2"));
    world.ticks(120).await;
    assert_eq!(world.place(), "n1");
    assert!(
        message(&world).contains("is not available; if the disk stays in node n2"),
        "{}",
        message(&world)
    );
    let replica = world.replica().expect("a VolumeReplica").name_any();
    world.server.with(|k| {
        k.change("volumereplicas", &replica, |replica| {
            replica["metadata"]["annotations"] = json!({"hostloop.csi.dev/promote": "true"});
        });
    });
    world.ticks(120).await;
    assert_eq!(world.place(), "n2", "{}", message(&world));
}

/// What can be refused is asked for before anything is changed (rule 8).
#[tokio::test(start_paused = true)]
async fn an_adoption_that_is_refused_changes_nothing() {
    let mut world = with_disk_elsewhere(false);
    world.remove_node("n1");
    world.server.with(|k| {
        k.change("persistentvolumes", "pvc-1", |volume| {
            volume["metadata"]["finalizers"] = json!(["example.com/backup"]);
        });
    });
    world.ask(now_to("n2"));
    world.ticks(120).await;
    assert_eq!(world.place(), "n1");
    assert!(message(&world).contains("is held by example.com/backup"), "{}", message(&world));
}
