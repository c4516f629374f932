//! A node with twenty claims.

use serde_json::json;

use super::*;

/// The nodes of the pods that run.
fn nodes_of_pods(world: &Shared) -> Vec<String> {
    let world = world.lock().unwrap();
    let running = world.all("pods").filter(|pod| pod["status"]["phase"] == "Running");
    running.map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned()).collect()
}

fn cordon(world: &Shared) {
    world.lock().unwrap().change("nodes", "node-1", |node| node["spec"]["unschedulable"] = json!(true));
}

#[test]
fn a_node_gets_its_copies_and_is_drained_then() {
    let world = World::of_many(20).shared();
    with_a_mover(&world, async {
        sleep(Duration::from_secs(2)).await;
        assert_eq!(nodes_of_pods(&world), vec!["node-1"; 20]);
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.starts_with("node node-1 is not cordoned"), "{out}");
        assert!(out.contains("\n20 of 20 volumes have a copy that is nearly up to date"), "{out}");
        assert!(out.contains("kubectl drain node-1 --ignore-daemonsets"), "{out}");
        assert_eq!(world.lock().unwrap().volumes.len(), 40);

        cordon(&world);
        let pods: Vec<String> = {
            let world = world.lock().unwrap();
            world.all("pods").map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
        };
        for pod in pods {
            let key = ("pods".to_owned(), "default".to_owned(), pod);
            world.lock().unwrap().mark_deleted(&key);
            sleep(Duration::from_millis(700)).await;
        }
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        sleep(Duration::from_secs(30)).await;
        assert_eq!(nodes_of_pods(&world), vec!["node-3"; 20]);
        assert_eq!(world.lock().unwrap().volumes.len(), 20);
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "no claim has a volume of hostloop.csi.dev on node node-1\n");
    });
}

#[test]
fn an_interrupted_evacuation_goes_on_with_the_next() {
    let mut world = World::of_many(20);
    world.slow = 60;
    let world = world.shared();
    cordon(&world);
    with_a_mover(&world, async {
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
        assert_eq!(nodes_of_pods(&world), vec!["node-2"; 20]);
    });
}

#[test]
fn refused_claims_are_listed_and_others_go() {
    let mut world = World::of_many(5);
    world.change("pods", "db-3", |pod| {
        pod["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
    });
    let world = world.shared();
    with_a_mover(&world, async {
        sleep(Duration::from_secs(2)).await;
        cordon(&world);
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
    let world = World::of_many(5).shared();
    with_a_mover(&world, async {
        run(&world, "hostloop evacuate node-1").await;
        let (outcome, out, _) = run(&world, "hostloop evacuate node-1 --cancel").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.ends_with("5 of 5 moves are given up\n"), "{out}");
        assert_eq!(world.lock().unwrap().volumes.len(), 5);
    });
}
