//! `hostloop evacuate`: a node with twenty claims.

use hostloop_fake_kubernetes::key;

use super::*;
use crate::model::{NodeKey, SnapshotId};

#[test]
fn a_node_gets_its_copies_and_is_drained_then() {
    let world = World::of(20, json!({}));
    with_a_controller(&world, async {
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.starts_with("node node-1 is not cordoned"), "{out}");
        assert!(out.contains("\n20 of 20 volumes have a copy that is nearly up to date"), "{out}");
        assert!(out.contains("kubectl drain node-1 --ignore-daemonsets"), "{out}");
        assert_eq!((world.volumes(), world.nodes_of_pods()), (40, vec!["node-1".to_owned(); 20]));

        world.cordon("node-1");
        for number in 0..20 {
            world.delete_pod(&format!("db-{number}"));
            sleep(Duration::from_millis(700)).await;
        }
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        sleep(Duration::from_secs(30)).await;
        assert!(world.nodes_of_pods().iter().all(|node| node != "node-1"), "{:?}", world.nodes_of_pods());
        assert_eq!((world.volumes(), world.nodes_of_pods().len()), (20, 20));
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "no claim has a volume of hostloop.csi.dev on node node-1\n");
    });
}

#[test]
fn an_interrupted_evacuation_goes_on_with_the_next() {
    let world = World::of(20, json!({})).slowly(60);
    world.cordon("node-1");
    with_a_controller(&world, async {
        for seconds in 1..=3 {
            let ctrl_c = sleep(Duration::from_secs(seconds));
            let (outcome, out, _) = until(&world, "hostloop evacuate node-1 --to node-2 --now", ctrl_c).await;
            assert_eq!(outcome, Outcome::Failed);
            assert!(out.contains("hostloop status -A\n"), "{out}");
            assert!(out.ends_with("hostloop evacuate node-1 --cancel\n"), "{out}");
        }
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1 --to node-2 --now").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(!out.contains("cordoned"), "{out}");
        sleep(Duration::from_secs(30)).await;
        assert_eq!(world.nodes_of_pods(), vec!["node-2"; 20]);
    });
}

#[test]
fn refused_claims_are_listed_and_others_go() {
    let world = World::of(5, json!({}));
    world.server.with(|k| {
        k.change("pods", "db-3", |pod| {
            pod["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
        });
    });
    with_a_controller(&world, async {
        world.cordon("node-1");
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1 --now").await;
        assert_eq!(outcome, Outcome::Failed, "{out}");
        assert!(out.contains("4 of 5 volumes have moved\n"), "{out}");
        assert!(
            out.contains("\n  default/data-3: pod db-3 belongs to one node, and cannot leave it"),
            "{out}"
        );
        assert_eq!(out.matches("\n  default/").count(), 1, "{out}");
    });
}

#[test]
fn an_evacuation_is_given_up() {
    let world = World::of(5, json!({}));
    with_a_controller(&world, async {
        run(&world, "hostloop evacuate node-1").await;
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1 --cancel").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.ends_with("5 of 5 moves are given up\n"), "{out}");
        assert_eq!(world.volumes(), 5);
    });
}

#[test]
fn a_node_that_does_not_exist_has_no_volumes() {
    let world = World::new();
    without_a_controller(&world, async {
        let (outcome, out, _) = run(&world, "hostloop evacuate node-9").await;
        assert_eq!(outcome, Outcome::Done);
        assert!(out.starts_with("there is no node node-9 in this cluster\n"), "{out}");
        let (outcome, _, err) = run(&world, "hostloop evacuate node-1 --to node-1").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("node-1 is the node that is to be emptied"), "{err}");
    });
}

/// They stay there, and go with its disk.
#[test]
fn snapshots_that_stay_on_the_node_are_named() {
    let world = World::of(2, json!({}));
    let content = |name: &str, node: &str| {
        let id = SnapshotId::of_name(&NodeKey::of(node), name);
        let named = json!({"namespace": "default", "name": name});
        json!({"metadata": {"name": format!("content-{name}")}, "spec": {"driver": "hostloop.csi.dev", "volumeSnapshotRef": named},
            "status": {"snapshotHandle": id.as_str()}})
    };
    world.server.with(|k| {
        for (name, node) in [("before", "node-1"), ("elsewhere", "node-2")] {
            k.create(key("volumesnapshotcontents", "", &format!("content-{name}")), content(name, node));
        }
    });
    with_a_controller(&world, async {
        world.cordon("node-1");
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1 --now").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(
            out.starts_with("1 VolumeSnapshot stays on node node-1: default/before. To move them too, add --with-snapshots"),
            "{out}"
        );
        let (_, out, _) = run(&world, "hostloop evacuate node-1 --now -n shop").await;
        assert!(!out.contains("VolumeSnapshot"), "{out}");
    });
}
