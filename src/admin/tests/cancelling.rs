//! `hostloop move --cancel`.

use super::*;

#[test]
fn a_move_is_given_up_with_its_copy() {
    let world = World::new();
    with_a_controller(&world, async {
        let (_, out, _) = run(&world, "hostloop move data --to any --wait=false").await;
        assert_eq!(world.volumes(), 2, "{out}");
        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.ends_with("default/data: given up, everything is as it was before\n"), "{out}");
        assert_eq!((world.volumes(), world.moves()), (1, Vec::new()));

        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "default/data: given up, no move is under way\n");
    });
}

#[test]
fn a_move_to_a_pool_is_given_up_with_its_copy() {
    let world = World::new();
    with_a_controller(&world, async {
        let (_, out, _) = run(&world, "hostloop move data --pool fast --wait=false").await;
        assert_eq!(world.volumes(), 2, "{out}");
        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.ends_with("default/data: given up, everything is as it was before\n"), "{out}");
        assert_eq!((world.volumes(), world.moves()), (1, Vec::new()));
    });
}

#[test]
fn a_refused_move_is_taken_back() {
    let world = World::new();
    with_a_controller(&world, async {
        run(&world, "hostloop move data --to node-9").await;
        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "default/data: given up, everything is as it was before\n");
        assert_eq!(world.moves(), []);
    });
}

#[test]
fn a_cancelled_move_returns_its_standby_copy() {
    let world = World::of(1, json!({"standby": "1"}));
    with_a_controller(&world, async {
        sleep(Duration::from_secs(30)).await;
        let (outcome, out, _) = run(&world, "hostloop move data --to any --wait=false").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done, "{out}");
        assert!(out.ends_with("default/data: given up, everything is as it was before\n"), "{out}");
        assert_eq!((world.volumes(), world.moves()), (2, Vec::new()), "its copy stays");
    });
}

#[test]
fn the_end_is_not_seen_without_the_right_to() {
    let world = World::new();
    with_a_controller(&world, async {
        run(&world, "hostloop move data --to any --wait=false").await;
        world.refuse(|call| call.contains("/volumereplicas").then_some(403));
        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(out, "default/data: given up, the controller deletes the copy\n");
        sleep(Duration::from_secs(10)).await;
        assert_eq!(world.volumes(), 1);
        world.create_move("data", json!({"claimName": "data"}));
        world
            .server
            .with(|k| k.change("volumemoves", "data", |m| m["status"] = json!({"phase": "CuttingOver"})));
        let (outcome, out, _) = run(&world, "hostloop move data --cancel").await;
        assert_eq!(outcome, Outcome::Done);
        assert!(out.starts_with("default/data: given up, if it was not too late: "), "{out}");
    });
}
