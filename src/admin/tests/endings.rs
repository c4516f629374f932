//! Clusters that do not move volumes, and what users may not do.

use super::*;

#[test]
fn a_cluster_without_the_kinds_says_what_to_do() {
    let world = World::new();
    world.refuse(|call| call.contains("/apis/hostloop.csi.dev/").then_some(404));
    without_a_controller(&world, async {
        for line in
            ["move data --to node-2", "move data --cancel", "evacuate node-1", "status", "promote data"]
        {
            let (outcome, out, err) = run(&world, &format!("hostloop {line}")).await;
            assert_eq!((outcome, out.as_str()), (Outcome::Failed, ""), "{line}");
            assert!(
                err.contains("CustomResourceDefinitions are not installed; set move.enabled"),
                "{line}: {err}"
            );
        }
    });
}

#[test]
fn a_move_without_a_controller_says_what_to_do() {
    let world = World::new();
    without_a_controller(&world, async {
        let (outcome, out, err) = run(&world, "hostloop move data --to node-2").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("set move.enabled in the chart"), "{err}");
        assert!(out.contains("hostloop move data --cancel"), "{out}");
        let (_, out, _) = run(&world, "hostloop status -A").await;
        assert!(out.contains("Asked") && out.contains("no controller has looked at it yet"), "{out}");
        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!((outcome, world.moves()), (Outcome::Done, Vec::new()), "{out}");
    });
}

#[test]
fn forgetting_without_rights_to_leases_takes_a_minute() {
    let world = World::new();
    world.refuse(|call| call.contains("/leases").then_some(403));
    without_a_controller(&world, async {
        let began = tokio::time::Instant::now();
        let (outcome, out, err) = run(&world, "hostloop move data --to node-2").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(out.contains("nothing has happened yet; does a controller run with --move?"), "{out}");
        assert!(err.contains("no controller of this driver moves volumes"), "{err}");
        assert!(began.elapsed() >= Duration::from_secs(60));
    });
}

#[test]
fn a_busy_controller_is_waited_for() {
    let world = World::new();
    with_a_controller(&world, async {
        let claimed = async {
            sleep(Duration::from_secs(15)).await;
            world.refuse(|_| None);
        };
        // The user sees nothing of what the controller writes.
        world.refuse(|call| call.contains("/persistentvolumeclaims").then_some(403));
        let moved = run(&world, "hostloop move data --to node-2 --now");
        let ((outcome, out, _), ()) = tokio::join!(moved, claimed);
        assert_eq!(outcome, Outcome::Done, "the right to read claims is not needed: {out}");
    });
}

#[test]
fn a_claim_that_does_not_exist_is_said_at_once() {
    let world = World::new();
    without_a_controller(&world, async {
        let (outcome, out, _) = run(&world, "hostloop move nothing --to node-2").await;
        assert_eq!(outcome, Outcome::Failed);
        assert_eq!(out, "default/nothing: there is no claim of this name\n");
        assert_eq!(world.moves(), []);
        let (outcome, out, _) = run(&world, "hostloop status").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "no claim in namespace default moves, has moved or has a standby copy\n");
    });
}

#[test]
fn a_user_who_may_not_is_told_of_the_rights() {
    let world = World::new();
    world.refuse(|call| call.starts_with("POST").then_some(403));
    without_a_controller(&world, async {
        let (outcome, _, err) = run(&world, "hostloop move data --to node-2").await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("docs/moving.md lists the rights that this command needs"), "{err}");
    });
}

#[test]
fn an_api_server_away_for_a_while_ends_nothing() {
    let world = World::new();
    with_a_controller(&world, async {
        let away = async {
            sleep(Duration::from_secs(12)).await;
            world.refuse(|_| Some(500));
            sleep(Duration::from_secs(40)).await;
            world.refuse(|_| None);
            world.cordon("node-1");
            world.delete_pod("db-0");
        };
        let ((outcome, out, _), ()) = tokio::join!(run(&world, "hostloop move data --to node-2"), away);
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert_eq!(out.matches("the API server does not answer; trying again").count(), 1, "{out}");
    });
}
