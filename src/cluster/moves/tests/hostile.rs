//! What tenants write, and nodes that go in the worst moment. The first design lost or gave away volumes in these situations.

use hostloop_fake_kubernetes::{NAMESPACE, key};
use serde_json::{Value, json};

use super::whole::{LONG, until_done, with_standby};
use super::world::World;
use crate::cluster::moves::resources::{MovePhase, ReplicaPhase, VolumeMove};

pub(super) const NOW: &str = "Now";

pub(super) fn now_to(node: &str) -> Value {
    json!({"when": NOW, "target": {"node": node}})
}

pub(super) fn set_status(world: &World, kind: &str, name: &str, status: &Value) {
    world.server.with(|k| k.change(kind, name, |object| object["status"] = status.clone()));
}

/// Takes a node from the cluster, as the controller of a cloud does it, and has its volumes answer nothing.
fn switch_off(world: &mut World, node: &str) {
    world.lose(node);
    world.server.with(|k| k.remove(&key("nodes", "", node)));
}

fn end_pod(world: &World) {
    world.server.with(|k| k.remove(&key("pods", NAMESPACE, "db-0")));
}

/// A volume of another tenant, on the node of the one that moves.
fn victim(world: &World) -> String {
    let id = world.id.replace("vol-", "vol-0");
    world.nodes.lock().nodes.get_mut("n1").unwrap().insert(id.clone(), Default::default());
    let volume = json!({"metadata": {"name": "pvc-victim"}, "spec": {"csi": {"driver": "hostloop.csi.dev", "volumeHandle": id},
        "claimRef": {"namespace": "other", "name": "data", "uid": "of-another"}}});
    world.server.with(|k| k.create(key("persistentvolumes", "", "pvc-victim"), volume));
    id
}

/// The owner of a claim can write the status of a VolumeMove, and anything into the claim.
#[tokio::test(start_paused = true)]
async fn a_forged_status_decides_nothing() {
    for phase in ["Refused", "Copying", "Ready", "CuttingOver", "GivingUp", "Levitating"] {
        for tick in 1..8 {
            let mut world = World::new(false, json!({}));
            let victim = victim(&world);
            world.ticks(2).await;
            world.ask(now_to("n2"));
            world.ticks(tick).await;
            let forged =
                json!({"phase": phase, "replica": "pvc-victim-0", "sourceNode": "n1", "targetNode": "n3"});
            set_status(&world, "volumemoves", "m", &forged);
            let status =
                json!({"phase": phase, "copy": victim, "source": victim, "abandoned": [victim]}).to_string();
            world.server.with(|k| {
                k.change("persistentvolumeclaims", "data-db-0", |claim| {
                    claim["metadata"]["annotations"] = json!({"hostloop.csi.dev/move-status": status});
                });
            });
            let objects = world.server.with(|k| k.get("persistentvolumes", "pvc-victim"));
            until_done(&mut world).await;
            let which = format!("{phase} after {tick}");
            assert_eq!(world.server.with(|k| k.get("persistentvolumes", "pvc-victim")), objects, "{which}");
            let held = world.nodes.lock().nodes.get_mut("n1").unwrap().remove(&victim);
            assert_eq!(held, Some(Default::default()), "{which}");
            world.is_settled("n2", &which);
        }
    }
}

/// A forged end ends its own request, and no other.
#[tokio::test(start_paused = true)]
async fn a_move_that_its_user_calls_done_still_ends() {
    for tick in 1..12 {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        world.ask(now_to("n2"));
        world.ticks(tick).await;
        set_status(&world, "volumemoves", "m", &json!({"phase": "Done"}));
        world.ticks(LONG).await;
        world.is_settled(&world.place(), &format!("after {tick}"));
    }
}

/// `kubectl get -o yaml | kubectl apply` in another namespace, and tools for backups, copy a claim with its annotations and the
/// name of its volume.
#[tokio::test(start_paused = true)]
async fn a_copied_claim_has_no_part_in_the_volume() {
    let (mut world, target) = with_standby().await;
    let claims = |world: &World| {
        world.server.with(|k| {
            k.create(key("namespaces", "", "test"), json!({"metadata": {"name": "test"}}));
            let mut copied = k.get("persistentvolumeclaims", "data-db-0").expect("a claim");
            copied["metadata"] = json!({"name": "data-db-0", "namespace": "test", "annotations": copied["metadata"]["annotations"]});
            k.create(key("persistentvolumeclaims", "test", "data-db-0"), copied);
        });
    };
    claims(&world);
    let asked = json!({"metadata": {"name": "m", "namespace": "test"}, "spec": {"claimName": "data-db-0", "when": NOW}});
    world.server.with(|k| k.create(key("volumemoves", "test", "m"), asked));
    world.ticks(30).await;
    world.is_fine("copied");
    let all = world.server.with(|k| k.all("volumereplicas").count());
    assert_eq!(
        (all, world.place(), world.holds(&target).len()),
        (1, "n1".to_owned(), 1),
        "{:?}",
        world.phase()
    );
    let asked = world.server.with(|k| k.objects[&key("volumemoves", "test", "m")].clone());
    let asked: VolumeMove = serde_json::from_value(asked).unwrap();
    let status = asked.status.expect("a status");
    assert_eq!(status.phase, Some(MovePhase::Refused));
    assert!(status.message.contains("bound to another claim"), "{}", status.message);
    world.server.with(|k| k.remove(&key("persistentvolumeclaims", "test", "data-db-0")));
    world.ticks(30).await;
    world.is_fine("the copied one is deleted");
    assert_eq!(world.holds(&target).len(), 1, "{:?}", world.phase());
    claims(&world);
    switch_off(&mut world, "n1");
    end_pod(&world);
    world.ticks(60).await;
    world.runs_on(&target, "promoted");
    let volume = world.server.with(|k| k.get("persistentvolumes", "pvc-1")).expect("a volume");
    assert_eq!(volume["spec"]["claimRef"]["namespace"], NAMESPACE);
}

/// medik8s takes the taint away as soon as Kubernetes has deleted the pods, and the node stays off.
#[tokio::test(start_paused = true)]
async fn a_promotion_goes_on_when_its_taint_is_gone() {
    let (mut world, target) = with_standby().await;
    world.lose("n1");
    world.taint("n1");
    end_pod(&world);
    world.ticks(5).await;
    world.server.with(|k| k.change("nodes", "n1", |node| node["spec"]["taints"] = json!([])));
    world.ticks(60).await;
    world.runs_on(&target, "promoted");
}

/// The pods of a lost node are deleted, and the ones that are created instead are on no node: they need both volumes as well.
#[tokio::test(start_paused = true)]
async fn a_promotion_leaves_no_claim_of_its_pods() {
    let (mut world, target) = with_standby().await;
    world.server.with(|k| {
        let mut claim = k.get("persistentvolumeclaims", "data-db-0").expect("a claim");
        claim["metadata"] = json!({"name": "log", "namespace": NAMESPACE});
        claim["spec"]["volumeName"] = json!("pvc-log");
        k.create(key("persistentvolumeclaims", NAMESPACE, "log"), claim);
        let mut volume = k.get("persistentvolumes", "pvc-1").expect("a volume");
        volume["metadata"] = json!({"name": "pvc-log"});
        volume["spec"]["csi"] = json!({"driver": "other.csi.dev", "volumeHandle": "log"});
        k.create(key("persistentvolumes", "", "pvc-log"), volume);
        let mut waiting = hostloop_fake_kubernetes::control::pod("other-0", "data-db-0", "ReplicaSet");
        let log = json!({"name": "log", "persistentVolumeClaim": {"claimName": "log"}});
        waiting["spec"]["volumes"].as_array_mut().unwrap().push(log);
        k.create(key("pods", NAMESPACE, "other-0"), waiting);
    });
    switch_off(&mut world, "n1");
    end_pod(&world);
    world.ticks(90).await;
    assert_eq!(world.place(), "n1", "{:?}", world.phase());
    assert!(world.phase().unwrap().1.contains("claim log"), "{:?}", world.phase());
    world.server.with(|k| k.remove(&key("pods", NAMESPACE, "other-0")));
    world.ticks(60).await;
    world.runs_on(&target, "promoted");
}

/// A rack is off, and the node of the copy comes back first.
#[tokio::test(start_paused = true)]
async fn a_copy_outlives_the_loss_of_both_nodes() {
    let (mut world, target) = with_standby().await;
    switch_off(&mut world, "n1");
    switch_off(&mut world, &target);
    end_pod(&world);
    world.ticks(400).await;
    world.is_fine("both are off");
    assert_eq!(world.holds(&target).len(), 1, "{:?}", world.phase());
    world.add_node(&target);
    world.ticks(90).await;
    world.runs_on(&target, "promoted");
}

/// An autoscaler takes the node of the copy away.
#[tokio::test(start_paused = true)]
async fn a_copy_whose_node_is_gone_is_made_elsewhere() {
    let (mut world, target) = with_standby().await;
    world.server.with(|k| k.remove(&key("nodes", "", &target)));
    world.nodes.lock().silent.insert(target.clone());
    world.ticks(100).await;
    assert_eq!(world.replica().unwrap().spec.target_node, target, "it may come back");
    world.ticks(400).await;
    world.is_fine("made elsewhere");
    let (other, phase) = (world.replica().unwrap().spec.target_node, world.phase());
    assert!(other != target && phase.as_ref().unwrap().0 == ReplicaPhase::Standby, "{other} {phase:?}");
    assert_eq!(world.left().0, ReplicaPhase::Stranded);
    world.add_node(&target);
    world.ticks(60).await;
    world.is_fine("the first copy is deleted");
    assert_eq!((world.holds(&target), world.holds(&other).len(), world.down), (Vec::new(), 1, 0));
    assert_eq!(world.server.with(|k| k.all("volumereplicas").count()), 1);
}

/// In each phase: the pods of a move that is given up do not wait for the node of its copy.
#[tokio::test(start_paused = true)]
async fn giving_up_does_not_wait_for_the_node_of_the_copy() {
    let mut phases = std::collections::BTreeSet::new();
    for tick in 1..14 {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        world.ask(now_to("n2"));
        world.ticks(tick).await;
        let Some((phase, _)) = world.phase().filter(|(phase, _)| *phase <= ReplicaPhase::LastPass) else {
            continue;
        };
        phases.insert(phase);
        world.nodes.lock().silent.insert("n2".to_owned());
        world.server.with(|k| {
            k.remove(&key("nodes", "", "n2"));
            k.remove(&key("volumemoves", NAMESPACE, "m"));
        });
        world.ticks(30).await;
        let which = format!("{phase:?} after {tick}: {:?}", world.phase());
        world.is_fine(&which);
        assert_eq!((world.place(), world.down), ("n1".to_owned(), 0), "{which}");
        // The claim can move again.
        world.ask(now_to("n3"));
        until_done(&mut world).await;
        assert_eq!((world.place(), world.down), ("n3".to_owned(), 0), "{which}");
    }
    assert!(phases.len() > 2 && phases.contains(&ReplicaPhase::CuttingOver), "{phases:?}");
}

/// After a rollback, or while two releases run. What the later one has written is still there when it runs again.
#[tokio::test(start_paused = true)]
async fn a_phase_of_a_later_release_is_left_alone() {
    for tick in 1..12 {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        world.ask(now_to("n2"));
        world.ticks(tick).await;
        let Some(replica) = world.replica().filter(|replica| replica.status.is_some()) else { continue };
        let name = replica.metadata.name.unwrap();
        let mut status = serde_json::to_value(&replica.status).unwrap();
        let phase = std::mem::replace(&mut status["phase"], json!("Levitating"));
        set_status(&world, "volumereplicas", &name, &status);
        let before = world.server.with(|k| k.get("volumereplicas", &name));
        let calls = world.nodes.lock().calls.len();
        world.ticks(30).await;
        let which = format!("{phase} after {tick}");
        world.is_fine(&which);
        assert_eq!(world.server.with(|k| k.get("volumereplicas", &name)), before, "{which}");
        assert_eq!(world.nodes.lock().calls.len(), calls, "{which}");
        status["phase"] = phase;
        set_status(&world, "volumereplicas", &name, &status);
        until_done(&mut world).await;
        world.is_settled("n2", &which);
    }
}

/// Two releases run side by side during a rollout.
#[tokio::test(start_paused = true)]
async fn fields_of_a_later_release_survive_a_move() {
    let mut world = World::new(false, json!({}));
    world.ticks(2).await;
    world.ask(json!({"when": NOW, "target": {"node": "n2"}, "keepSource": true}));
    let later = json!({"later": [1, {"release": "2"}]});
    world.server.with(|k| k.change("persistentvolumes", "pvc-1", |it| it["spec"]["x"] = later.clone()));
    world.ticks(2).await;
    for (kind, name) in [("volumereplicas", "pvc-1-0"), ("volumemoves", "m")] {
        world.server.with(|k| {
            k.change(kind, name, |object| {
                assert!(object["status"].is_object(), "{object}");
                (object["status"]["x"], object["spec"]["x"]) = (later.clone(), later.clone());
            });
        });
    }
    world.ticks(LONG).await;
    world.is_fine("moved");
    assert_eq!((world.place(), world.left().0), ("n2".to_owned(), ReplicaPhase::Left));
    let of = |kind: &str, name: &str| world.server.with(|k| k.get(kind, name)).expect("an object");
    for (kind, name) in [("volumereplicas", "pvc-1-0"), ("volumemoves", "m"), ("persistentvolumes", "pvc-1")]
    {
        assert_eq!(of(kind, name)["spec"]["x"], later, "{kind}");
    }
    for (kind, name) in [("volumereplicas", "pvc-1-0"), ("volumemoves", "m")] {
        assert_eq!(of(kind, name)["status"]["x"], later, "{kind}");
    }
}

/// An administrator removes the status. No data are lost.
#[tokio::test(start_paused = true)]
async fn a_lost_status_costs_no_data() {
    for tick in 1..14 {
        let mut world = World::new(false, json!({}));
        world.ticks(2).await;
        world.ask(now_to("n2"));
        world.ticks(tick).await;
        let Some(replica) = world.replica() else { continue };
        set_status(&world, "volumereplicas", &replica.metadata.name.unwrap(), &Value::Null);
        world.ticks(LONG).await;
        let which = format!("after {tick}: {:?}", world.phase());
        world.is_fine(&which);
        let newest =
            world.nodes.lock().nodes.values().flat_map(|held| held.values()).map(|held| held.data).max();
        assert_eq!(newest, Some(world.written), "{which}");
    }
}
