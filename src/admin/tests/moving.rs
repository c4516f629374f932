//! `hostloop move`.

use super::*;

#[test]
fn a_move_is_followed_to_its_end() {
    let world = World::new().slowly(10);
    with_a_controller(&world, async {
        let (outcome, out, err) = run(&world, "hostloop move data --to node-2 --now").await;
        assert_eq!((outcome, err.as_str()), (Outcome::Done, ""), "{out}");
        assert!(out.starts_with("default/data: Copying (node-1 to node-2)\n"), "{out}");
        assert!(out.contains("default/data: CuttingOver (node-1 to node-2): "), "{out}");
        assert!(out.ends_with("default/data: done, the volume is on node node-2\n"), "{out}");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(world.nodes_of_pods(), ["node-2"]);
        let asked = json!({"claimName": "data", "target": {"node": "node-2"}, "when": "Now"});
        assert_eq!(world.moves(), [("data".to_owned(), asked)]);

        let (outcome, out, _) = run(&world, "hostloop move data --to node-2 --now").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "default/data: done, the volume is on node node-2 already\n");

        let (outcome, out, _) = run(&world, "hostloop move data --to node-3 --now").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        let [(name, spec)] = &world.moves()[..] else { panic!("{:?}", world.moves()) };
        assert_eq!((name.as_str(), &spec["target"]["node"]), ("data", &json!("node-3")), "it is replaced");
    });
}

#[test]
fn a_move_has_what_its_flags_say() {
    let world = World::new();
    with_a_controller(&world, async {
        let line = "hostloop move data --to any --pool fast --keep-source --evict-bare-pods --wait=false";
        let (outcome, out, _) = run(&world, line).await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.contains("\ndefault/data: ready: "), "{out}");
        assert_eq!((world.volumes(), world.nodes_of_pods()), (2, vec!["node-1".to_owned()]));
        let spec = json!({"claimName": "data", "target": {"pool": "fast"}, "when": "PodsLeave", "keepSource": true,
            "evictBarePods": true});
        assert_eq!(world.moves(), [("data".to_owned(), spec)]);

        let (outcome, again, _) = run(&world, line).await;
        assert_eq!(outcome, Outcome::Done, "the same move is followed: {again}");
        let (outcome, out, _) = run(&world, "hostloop move data --to node-2").await;
        assert_eq!(outcome, Outcome::Failed, "{out}");
        assert_eq!(
            out,
            "default/data: refused: VolumeMove data asks for another move already (to any node, pool fast, when its pods \
             leave, keeping the source, evicting bare pods), and cannot change: wait for its end, or give it up with --cancel \
             and run the command again\n"
        );
    });
}

#[test]
fn a_move_to_a_pool_stays_on_its_node() {
    let world = World::new().slowly(10);
    with_a_controller(&world, async {
        let (outcome, out, err) = run(&world, "hostloop move data --pool fast --now").await;
        assert_eq!((outcome, err.as_str()), (Outcome::Done, ""), "{out}");
        assert!(out.starts_with("default/data: Copying (node-1/default to node-1/fast)\n"), "{out}");
        assert!(out.ends_with("default/data: done, the volume is in pool fast of node node-1\n"), "{out}");
        let asked = json!({"claimName": "data", "target": {"node": "node-1", "pool": "fast"}, "when": "Now"});
        assert_eq!(world.moves(), [("data".to_owned(), asked)]);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(world.nodes_of_pods(), ["node-1"]);

        let (outcome, out, _) = run(&world, "hostloop move data --pool fast --now").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(
            out.lines().last(),
            Some("default/data: done, the volume is in pool fast of node node-1"),
            "{out}"
        );
    });
}

#[test]
fn a_refused_move_is_replaced_by_another_one() {
    let world = World::new();
    with_a_controller(&world, async {
        let (outcome, out, _) = run(&world, "hostloop move data --to node-9").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.ends_with("default/data: refused: there is no node node-9\n"), "{out}");
        assert_eq!(world.moves().len(), 1, "the controller looks again");

        let (outcome, out, _) = run(&world, "hostloop move data --to node-2 --now").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(!out.contains("node-9"), "an old answer is none: {out}");
        assert_eq!(world.moves().len(), 1);
    });
}

#[test]
fn a_taken_name_gets_a_number() {
    let world = World::of(2, json!({}));
    world.create_move("data", json!({"claimName": "data-1", "target": {"node": "node-3"}}));
    with_a_controller(&world, async {
        let (outcome, out, _) = run(&world, "hostloop move data --to node-2 --now").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        let names: Vec<String> = world.moves().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["data", "data-2"]);
    });
}

#[test]
fn an_interrupted_command_leaves_the_move_going() {
    let world = World::new();
    with_a_controller(&world, async {
        let ctrl_c = sleep(Duration::from_secs(30));
        let (outcome, out, _) = until(&world, "hostloop move -n default data --to node-2", ctrl_c).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.contains("What was asked for goes on in the cluster.\n"), "{out}");
        assert!(out.contains("  to look at it:    hostloop status -n default\n"), "{out}");
        assert!(out.ends_with("  to give it up:    hostloop move data --cancel -n default\n"), "{out}");
        let drain = async {
            sleep(Duration::from_secs(20)).await;
            world.cordon("node-1");
            world.delete_pod("db-0");
        };
        let again = run(&world, "hostloop move -n default data --to node-2");
        let ((outcome, out, _), ()) = tokio::join!(again, drain);
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.starts_with("default/data: Ready (node-1 to node-2): "), "{out}");
    });
}

#[test]
fn each_line_of_json_is_an_object() {
    let world = World::new().slowly(10);
    with_a_controller(&world, async {
        let (outcome, out, err) = run(&world, "hostloop move data --to node-2 --now --json").await;
        assert_eq!((outcome, err.as_str()), (Outcome::Done, ""));
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = lines.last().unwrap();
        assert_eq!((&last["claim"], &last["outcome"]), (&json!("data"), &json!("done")), "{out}");
        assert_eq!((&last["targetNode"], &last["standby"]), (&json!("node-2"), &json!(false)));
        assert!(last["unavailableMilliseconds"].is_number() && last["phase"] == "Done", "{last}");
        assert_eq!(lines[0]["phase"], "Copying");
        assert!(lines[0].get("outcome").is_none(), "{out}");

        let (_, out, _) = run(&world, "hostloop status --json").await;
        let shown: Value = serde_json::from_str(out.trim()).unwrap();
        assert_eq!((&shown["phase"], &shown["object"]), (&json!("Done"), &json!("vmove/data")));
        let (_, out, _) = run(&world, "hostloop status").await;
        assert!(out.starts_with("NAMESPACE") && out.contains("data") && out.contains("node-2"), "{out}");
    });
}

#[test]
fn a_move_that_another_client_deletes_is_given_up() {
    let world = World::new();
    with_a_controller(&world, async {
        let other = async {
            sleep(Duration::from_secs(20)).await;
            let asked = hostloop_fake_kubernetes::key("volumemoves", "default", "data");
            world.server.with(|k| k.mark_deleted(&asked));
        };
        let ((outcome, out, _), ()) = tokio::join!(run(&world, "hostloop move data --to node-2"), other);
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.ends_with("default/data: given up: its VolumeMove was deleted\n"), "{out}");
    });
}
