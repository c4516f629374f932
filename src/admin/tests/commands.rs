//! One claim.

use serde_json::json;

use super::*;

/// A first copy that takes a few looks.
fn slow() -> World {
    let mut world = World::new(json!({}));
    world.slow = 2;
    world
}

#[test]
fn a_move_is_followed_to_its_end() {
    let world = slow().shared();
    with_a_mover(&world, async {
        let (outcome, out, err) = run(&world, "hostloop move data --to node-2 --now").await;
        assert_eq!((outcome, err.as_str()), (Outcome::Done, ""), "{out}");
        assert!(
            out.starts_with("default/data: Copying (node-1 to node-2): the first copy is being made"),
            "{out}"
        );
        assert!(out.ends_with("default/data: done, the volume is on node node-2\n"), "{out}");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(world.lock().unwrap().running().as_deref(), Some("node-2"));

        let (outcome, out, _) = run(&world, "hostloop move data --to node-2 --now").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "default/data: done, the volume is on node node-2 already\n");
        assert_eq!(of_moves(&world), ["hostloop.csi.dev/move-status"], "nothing is asked for");
    });
}

#[test]
fn a_move_without_waiting_can_be_given_up() {
    let world = World::new(json!({})).shared();
    with_a_mover(&world, async {
        let (outcome, out, _) = run(&world, "hostloop move data --to any --wait=false").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.contains("default/data: ready: "), "{out}");
        assert_eq!(world.lock().unwrap().volumes.len(), 2);

        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.ends_with("default/data: given up, everything is as it was before\n"), "{out}");
        assert_eq!(world.lock().unwrap().volumes.len(), 1);
        assert_eq!(of_moves(&world), Vec::<String>::new());

        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "default/data: given up, no move was asked for\n");
    });
}

#[test]
fn a_refusal_is_told_and_another_wish_is_another_try() {
    let world = World::new(json!({})).shared();
    with_a_mover(&world, async {
        let (outcome, out, _) = run(&world, "hostloop move data --to node-9").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(
            out.ends_with(
                "default/data: refused: there is no node node-9; correct hostloop.csi.dev/move-to\n"
            ),
            "{out}"
        );

        let (outcome, out, _) = run(&world, "hostloop move data --to node-2 --now").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(!out.contains("node-9"), "an old answer is none: {out}");
    });
}

#[test]
fn a_copy_that_fails_is_no_success() {
    let mut world = World::new(json!({}));
    world.full = true;
    let world = world.shared();
    with_a_mover(&world, async {
        let (outcome, out, _) = run(&world, "hostloop move data --to node-2").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.ends_with("default/data: refused: the pool is full\n"), "{out}");
    });
}

#[test]
fn a_claim_that_goes_elsewhere_is_turned_round() {
    let world = World::new(json!({})).shared();
    with_a_mover(&world, async {
        run(&world, "hostloop move data --to node-3 --wait=false").await;
        let (outcome, out, _) = run(&world, "hostloop move data --to node-2 --now").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.ends_with("default/data: done, the volume is on node node-2\n"), "{out}");
    });
}

#[test]
fn an_interrupted_command_leaves_the_move_going() {
    let world = World::new(json!({})).shared();
    with_a_mover(&world, async {
        let ctrl_c = sleep(Duration::from_secs(30));
        let (outcome, out, _) = until(&world, "hostloop move -n default data --to node-2", ctrl_c).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.contains("What was asked for goes on in the cluster.\n"), "{out}");
        assert!(out.contains("  to look at it:    hostloop status -n default\n"), "{out}");
        assert!(out.ends_with("  to give it up:    hostloop move data --cancel -n default\n"), "{out}");
        let drain = async {
            sleep(Duration::from_secs(20)).await;
            let mut world = world.lock().unwrap();
            world.change("nodes", "node-1", |node| node["spec"]["unschedulable"] = json!(true));
            world.delete_pod();
        };
        let again = run(&world, "hostloop move -n default data --to node-2");
        let ((outcome, out, _), ()) = tokio::join!(again, drain);
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.starts_with("default/data: Ready (node-1 to node-2): "), "{out}");
    });
}

#[test]
fn each_line_of_json_is_an_object() {
    let world = slow().shared();
    with_a_mover(&world, async {
        let (outcome, out, err) = run(&world, "hostloop move data --to node-2 --now --json").await;
        assert_eq!((outcome, err.as_str()), (Outcome::Done, ""));
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = lines.last().unwrap();
        assert_eq!((&last["claim"], &last["outcome"]), (&json!("data"), &json!("done")), "{out}");
        assert_eq!((&last["target"], &last["standby"]), (&json!("node-2"), &json!(false)));
        assert!(last["rounds"].as_u64() >= Some(2) && last["bytes"] == 1 << 30, "{last}");
        assert_eq!(lines[0]["phase"], "Copying");
        assert!(lines[0].get("outcome").is_none(), "{out}");

        let (_, out, _) = run(&world, "hostloop status --json").await;
        let shown: Value = serde_json::from_str(out.trim()).unwrap();
        assert_eq!((&shown["phase"], &shown["claim"]), (&json!("Done"), &json!("data")));
        let (_, out, _) = run(&world, "hostloop status").await;
        assert!(out.starts_with("NAMESPACE") && out.contains("data") && out.contains("node-2"), "{out}");
    });
}

#[test]
fn a_move_without_a_mover_says_what_to_turn_on() {
    let world = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let (outcome, out, err) = run(&world, "hostloop move data --to node-2").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("set move.enabled in the chart"), "{err}");
        assert!(out.contains("hostloop move data --cancel"), "{out}");
        let (_, out, _) = run(&world, "hostloop status -A").await;
        assert!(out.contains("no controller has looked at it yet"), "{out}");
    });
}

#[test]
fn a_claim_that_is_not_there_is_said_at_once() {
    let world = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let (outcome, out, _) = run(&world, "hostloop move nothing --to node-2").await;
        assert_eq!(outcome, Outcome::Failed);
        assert_eq!(out, "default/nothing: there is no claim of this name any more\n");
        let (outcome, out, _) = run(&world, "hostloop status").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "no claim in namespace default moves, has moved or has a copy standing by\n");
    });
}

#[test]
fn an_api_server_away_for_a_while_ends_nothing() {
    let world = World::new(json!({})).shared();
    with_a_mover(&world, async {
        let away = async {
            sleep(Duration::from_secs(12)).await;
            world.lock().unwrap().dead = true;
            sleep(Duration::from_secs(40)).await;
            let mut world = world.lock().unwrap();
            world.dead = false;
            world.change("persistentvolumeclaims", "data", |claim| {
                claim["metadata"]["annotations"]["hostloop.csi.dev/move-now"] = json!("true");
            });
        };
        let ((outcome, out, _), ()) = tokio::join!(run(&world, "hostloop move data --to node-2"), away);
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert_eq!(out.matches("the API server does not answer; trying again").count(), 1, "{out}");
    });
}

#[test]
fn a_promotion_says_what_is_lost_and_wants_a_yes() {
    let standby = r#"{"phase":"Standby","standby":true,"source":"node-1","target":"node-2","lastCut":"2026-01-02T03:04:05Z"}"#;
    let world = World::new(json!({"hostloop.csi.dev/move-status": standby})).shared();
    on_a_clock_of_its_own(async {
        let (outcome, out, _) = run(&world, "hostloop promote data").await;
        assert_eq!(outcome, Outcome::Unconfirmed);
        assert!(out.contains("What was written after that on node node-1 is lost"), "{out}");
        assert!(out.contains("2026-01-02T03:04:05Z") && out.contains("--yes"), "{out}");
        assert_eq!(of_moves(&world), ["hostloop.csi.dev/move-status"], "nothing is asked for");

        let promoted = async {
            loop {
                sleep(Duration::from_secs(3)).await;
                let mut world = world.lock().unwrap();
                if claim(&world)["metadata"]["annotations"]["hostloop.csi.dev/promote"] == "true" {
                    world.change("persistentvolumeclaims", "data", |claim| {
                        claim["metadata"]["annotations"] = json!({"hostloop.csi.dev/move-status":
                            json!({"phase": "Done", "target": "node-2"}).to_string()});
                    });
                    return;
                }
            }
        };
        let ((outcome, out, _), ()) = tokio::join!(run(&world, "hostloop promote data --yes"), promoted);
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.ends_with("default/data: done, the claim has the copy on node node-2\n"), "{out}");
    });
}

#[test]
fn a_claim_without_a_copy_is_not_promoted() {
    let world = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let (outcome, out, _) = run(&world, "hostloop promote data --yes").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.starts_with("default/data: refused: no copy of it stands by"), "{out}");
    });
}
