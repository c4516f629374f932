//! The join of what nodes say with what the API server knows, and the whole command.

mod joining;
pub(in crate::admin) mod world;

use std::time::Duration;

use serde_json::{Value, json};

use self::world::{DRIVER, World, finding, volume_object};
use super::Visit;
use crate::admin::Outcome;
use crate::admin::screen::{Screen, Style};
use crate::admin::tests::Printed;
use crate::cli::{Command, DoctorArgs, parse};
use crate::model::findings::{Fix, ORPHAN_IMAGE, SIZE_NOT_ENFORCED};

fn args(flags: &str) -> DoctorArgs {
    let line = format!("hostloop doctor {flags}");
    match parse(line.split_whitespace().map(Into::into)).unwrap().0 {
        Command::Doctor(args) => args,
        other => panic!("{other:?}"),
    }
}

/// Runs the command, and returns its outcome, its output and its errors.
async fn doctor(world: &World, flags: &str) -> (Outcome, String, String) {
    let (args, out, err) = (args(flags), Printed::default(), Printed::default());
    let style = if args.json { Style::Json } else { Style::Plain };
    let mut screen = Screen::on(style, Box::new(out.clone()), Box::new(err.clone()));
    let cluster = args.source.endpoint.is_none().then(|| world.cluster());
    let pause = Duration::ZERO;
    let visit = Visit { args: &args, cluster, source: world.source().await, pause };
    let outcome = visit.run(&mut screen).await;
    (outcome, out.text(), err.text())
}

#[tokio::test]
async fn a_healthy_cluster_ends_with_success() {
    let world = World::new();
    world.holds("node-1", "v1", "pvc-1");
    world.add(volume_object("pv-1", DRIVER, &world.id("node-1", "v1"), "node-1"));
    let (outcome, out, err) = doctor(&world, "--fix --delete-data").await;
    assert_eq!((outcome, out.as_str(), err.as_str()), (Outcome::Done, "nothing is amiss\n", ""));
    assert_eq!(world.fixes(), []);
}

#[tokio::test]
async fn an_orphan_goes_only_if_data_may_go() {
    let world = World::new();
    world.holds("node-1", "v1", "pvc-1");
    let id = world.id("node-1", "v1");
    let (outcome, out, _) = doctor(&world, "").await;
    assert_eq!(outcome, Outcome::Failed);
    assert!(
        out.contains("orphan-record") && out.contains("deletes the volume (with --delete-data)"),
        "{out}"
    );
    let (outcome, ..) = doctor(&world, "--fix").await;
    assert_eq!((outcome, world.fixes()), (Outcome::Failed, vec![]));
    let (outcome, out, _) = doctor(&world, "--fix --delete-data").await;
    assert!(outcome == Outcome::Done && out.contains("done: put right"), "{out}");
    let [fix] = &world.fixes()[..] else { panic!("one fix") };
    assert_eq!((fix.id.as_str(), fix.class.as_str(), fix.unnamed), (id.as_str(), "orphan-record", true));
    assert_eq!((fix.node_id.as_str(), fix.seen.as_str()), ("node-1", "seen-v1"));
}

#[tokio::test]
async fn a_volume_of_any_driver_name_is_no_orphan() {
    let world = World::new();
    world.holds("node-1", "v1", "pvc-1");
    world.add(volume_object("pv-1", "other.csi.dev", &world.id("node-1", "v1"), "node-1"));
    let (outcome, ..) = doctor(&world, "--fix --delete-data --grace 0s").await;
    assert_eq!((outcome, world.fixes()), (Outcome::Done, vec![]));
}

#[tokio::test]
async fn all_pages_of_a_list_are_read() {
    let world = World::new();
    for name in ["v1", "v2", "v3"] {
        world.holds("node-1", name, name);
        world.add(volume_object(&format!("pv-{name}"), DRIVER, &world.id("node-1", name), "node-1"));
    }
    world.in_pages_of(1);
    let (outcome, ..) = doctor(&world, "--fix --delete-data").await;
    assert_eq!((outcome, world.fixes()), (Outcome::Done, vec![]));
    // The last page does not come: nothing is known, and nothing is an orphan.
    world.remove("persistentvolumes", "pv-v1");
    world.fail_page(1);
    let (outcome, out, err) = doctor(&world, "--fix --delete-data").await;
    assert_eq!((outcome, world.fixes()), (Outcome::Failed, vec![]));
    assert!(out.contains("not everything was looked at"), "{out}");
    assert!(err.contains("list PersistentVolumes"), "{err}");
}

#[tokio::test]
async fn an_object_between_two_looks_is_seen() {
    let world = World::new();
    world.holds("node-1", "v1", "pvc-1");
    let id = world.id("node-1", "v1");
    world.add_after_looks(1, volume_object("pv-1", DRIVER, &id, "node-1"));
    let (outcome, out, _) = doctor(&world, "--fix --delete-data --grace 0s").await;
    assert_eq!((outcome, world.fixes()), (Outcome::Done, vec![]), "{out}");
}

#[tokio::test]
async fn an_object_made_between_two_fixes_is_seen() {
    let world = World::new();
    let names = ["v1", "v2", "v3"];
    names.iter().for_each(|name| world.holds("node-1", name, name));
    let mut ids = names.map(|name| world.id("node-1", name));
    ids.sort();
    world.add_after_fixes(1, volume_object("pv-1", DRIVER, &ids[1], "node-1"));
    let (outcome, out, _) = doctor(&world, "--fix --delete-data").await;
    let fixed: Vec<String> = world.fixes().into_iter().map(|fix| fix.id).collect();
    assert_eq!((outcome, fixed), (Outcome::Failed, vec![ids[0].clone(), ids[2].clone()]));
    assert!(out.contains("not done: the objects of the API server have changed meanwhile"), "{out}");
}

#[tokio::test]
async fn lists_that_cease_between_two_fixes_end_it() {
    let world = World::new();
    ["v1", "v2"].iter().for_each(|name| world.holds("node-1", name, name));
    world.in_pages_of(1);
    world.fail_page_after_fixes(1);
    let (outcome, out, _) = doctor(&world, "--fix --delete-data").await;
    assert_eq!((outcome, world.fixes().len()), (Outcome::Failed, 1), "{out}");
}

#[tokio::test]
async fn data_left_by_a_move_go_if_one_node_is_meant() {
    let world = World::new();
    world.holds("node-2", "v1", "pvc-1");
    let (volume, left) = (world.id("node-2", "v1"), world.id("node-1", "left"));
    world.add(volume_object("pv-1", DRIVER, &volume, "node-2"));
    world.has_left("node-1", &left, &volume, "node-2");
    let (outcome, out, _) = doctor(&world, "node-1 --fix --delete-data").await;
    assert_eq!(outcome, Outcome::Done, "{out}");
    let fixes: Vec<(String, String)> = world.fixes().into_iter().map(|it| (it.class, it.id)).collect();
    assert_eq!(fixes, [("moved-left".to_owned(), left)]);
}

#[tokio::test]
async fn a_fix_that_a_node_refuses_is_told() {
    let world = World::new();
    world.holds("node-1", "v1", "pvc-1");
    world.refuse("volume v1 is in use: mounted at /x");
    let (outcome, out, _) = doctor(&world, "--fix --delete-data").await;
    assert_eq!(outcome, Outcome::Failed);
    assert!(out.contains("not done: ") && out.contains("mounted at /x"), "{out}");
}

#[tokio::test]
async fn on_a_node_only_what_needs_no_objects_is_fixed() {
    let world = World::new();
    world.holds("node-1", "v1", "pvc-1");
    let limit = finding(SIZE_NOT_ENFORCED, "v2", Fix::Does("sets its limit again".to_owned()));
    world.says("node-1", limit);
    let mut image = finding(ORPHAN_IMAGE, "v3", Fix::Does("deletes it".to_owned()));
    (image.needs_unnamed, image.loses_data) = (true, true);
    world.says("node-1", image);
    let (outcome, out, _) = doctor(&world, "--fix --endpoint /run/x.sock").await;
    assert_eq!(outcome, Outcome::Failed);
    assert!(out.contains("which PersistentVolumes exist is not known"), "{out}");
    assert!(!out.contains("orphan-record"), "{out}");
    let fixes: Vec<String> = world.fixes().into_iter().map(|fix| fix.class).collect();
    assert_eq!(fixes, [SIZE_NOT_ENFORCED]);
}

#[tokio::test]
async fn a_silent_node_is_no_success() {
    let world = World::new();
    world.holds("node-1", "v1", "pvc-1");
    world.add(volume_object("pv-1", DRIVER, &world.id("node-1", "v1"), "node-1"));
    world.add(volume_object("pv-2", DRIVER, &world.id("node-2", "v2"), "node-2"));
    world.silence("node-2");
    let (outcome, out, err) = doctor(&world, "").await;
    assert_eq!(outcome, Outcome::Failed);
    assert!(!out.contains("pv-without-volume") && err.contains("node node-2 did not answer"), "{out} {err}");
    let (outcome, ..) = doctor(&world, "node-1").await;
    assert_eq!(outcome, Outcome::Done, "another node was not asked for");
    let (outcome, _, err) = doctor(&world, "node-9").await;
    assert!(outcome == Outcome::Failed && err.contains("there is no node \"node-9\""), "{err}");
}

#[tokio::test]
async fn programs_get_all_of_a_finding() {
    let world = World::new();
    world.add(volume_object("pv-1", DRIVER, &world.id("node-1", "v1"), "node-1"));
    let (outcome, out, _) = doctor(&world, "--json --grace 0s").await;
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(outcome, Outcome::Failed);
    let found = &json["findings"][0];
    assert_eq!((&found["class"], &found["node"]), (&json!("pv-without-volume"), &json!("node-1")));
    assert_eq!((&found["persistentVolume"], &found["fix"]), (&json!("pv-1"), &Value::Null));
    assert_eq!((&json["unknown"], &found["deletesData"]), (&json!([]), &json!(false)));
    let (outcome, out, _) = doctor(&world, "--json --class frozen --grace 0s").await;
    assert_eq!(
        (outcome, serde_json::from_str::<Value>(&out).unwrap()["findings"].clone()),
        (Outcome::Done, json!([]))
    );
}
