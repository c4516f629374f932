//! `hostloop promote`, and what `hostloop status` says of standby copies.

use super::*;

fn with_standby() -> World {
    World::of(1, json!({"standby": "1", "standbyInterval": "10s"}))
}

/// Changes the VolumeReplica.
fn change(world: &World, change: impl FnOnce(&mut Value)) {
    world.server.with(|k| k.change("volumereplicas", "pvc-0-0", change));
}

#[test]
fn a_promotion_says_what_is_lost_and_wants_a_yes() {
    let world = with_standby();
    with_a_controller(&world, async {
        sleep(Duration::from_secs(30)).await;
        let (outcome, out, _) = run(&world, "hostloop promote data").await;
        assert_eq!(outcome, Outcome::Unconfirmed);
        assert!(out.contains("What was written after that on node node-1 is lost"), "{out}");
        let instead =
            "node node-1 is Ready, so nothing has to be lost: hostloop move data -n default --to node-2";
        assert!(out.contains(instead), "{out}");
        assert!(out.ends_with("If the loss is accepted, give the command --yes.\n"), "{out}");
        world.lose("node-1");
        sleep(Duration::from_secs(10)).await;
        assert_eq!(world.volumes(), 2, "nothing is asked for");

        let (outcome, out, _) = run(&world, "hostloop promote data --yes").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(!out.contains("is Ready"), "{out}");
        assert!(out.ends_with("default/data: done, the claim has the copy on node node-2\n"), "{out}");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(world.nodes_of_pods(), ["node-2"]);
    });
}

#[test]
fn a_claim_without_a_copy_is_not_promoted() {
    let world = World::new();
    without_a_controller(&world, async {
        let (outcome, out, _) = run(&world, "hostloop promote data nothing --yes").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.starts_with("default/data: refused: it has no copy; docs/moving.md says"), "{out}");
        assert!(out.ends_with("default/nothing: there is no claim of this name\n"), "{out}");
    });
}

#[test]
fn a_promotion_ends_if_its_copy_goes() {
    let world = with_standby();
    with_a_controller(&world, async {
        sleep(Duration::from_secs(30)).await;
        let deleted = async {
            sleep(Duration::from_secs(20)).await;
            world.server.with(|k| k.remove(&hostloop_fake_kubernetes::key("volumereplicas", "", "pvc-0-0")));
        };
        // The pod runs, so that the copy waits.
        let ((outcome, out, _), ()) = tokio::join!(run(&world, "hostloop promote data --yes"), deleted);
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.contains("the copy takes the volume's place when pod db-0 has left"), "{out}");
        assert!(out.ends_with("default/data: given up: its VolumeReplica is gone\n"), "{out}");
    });
}

#[test]
fn a_promotion_can_be_taken_back() {
    let world = with_standby();
    with_a_controller(&world, async {
        sleep(Duration::from_secs(30)).await;
        let taken_back = async {
            sleep(Duration::from_secs(20)).await;
            change(&world, |replica| replica["metadata"]["annotations"] = json!({}));
        };
        let ((outcome, out, _), ()) = tokio::join!(run(&world, "hostloop promote data --yes"), taken_back);
        assert_eq!(outcome, Outcome::Failed);
        let end = "default/data: given up: the annotation promote of its VolumeReplica was removed\n";
        assert!(out.ends_with(end), "{out}");
    });
}

#[test]
fn the_status_shows_standby_copies_and_late_ones() {
    let world = with_standby();
    with_a_controller(&world, async {
        sleep(Duration::from_secs(30)).await;
        let (outcome, out, _) = run(&world, "hostloop status").await;
        assert_eq!(outcome, Outcome::Done);
        assert!(out.contains("vreplica/pvc-0") && !out.contains("late"), "{out}");
    });
    without_a_controller(&world, async {
        change(&world, |r| r["status"]["lastPass"]["asked"] = json!("2026-01-02T03:04:05Z"));
        let (_, out, _) = run(&world, "hostloop status -A").await;
        assert!(out.contains("d (late)"), "{out}");
        let (_, out, _) = run(&world, "hostloop status --json").await;
        let row: Value = serde_json::from_str(out.trim()).unwrap();
        assert_eq!(
            (&row["standby"], &row["late"], &row["phase"]),
            (&json!(true), &json!(true), &json!("Standby"))
        );
        assert_eq!(row["lastPass"], "2026-01-02T03:04:05Z");
        world.refuse(|call| call.contains("/storageclasses").then_some(403));
        let (outcome, out, err) = run(&world, "hostloop status").await;
        assert!(out.contains("vreplica/pvc-0") && !out.contains("late") && err.is_empty(), "{out}{err}");
        assert_eq!(outcome, Outcome::Done);
        world.refuse(|call| call.contains("/volumereplicas").then_some(403));
        let (outcome, out, err) = run(&world, "hostloop status").await;
        assert_eq!(outcome, Outcome::Done);
        assert!(out.starts_with("no claim in namespace default moves"), "{out}");
        assert!(err.starts_with("hostloop: standby copies are not shown: "), "{err}");
    });
}
