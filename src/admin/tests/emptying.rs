//! `hostloop evacuate --with-snapshots` against nodes in memory.

use std::collections::HashMap;

use super::*;
use crate::admin::api::inspect::Cut;
use crate::admin::evacuate::snapshots::{Emptying, Nodes, Wanted};
use crate::admin::seen::Name;
use crate::cluster::details::{AskedNode, NodeAnswer};
use crate::cluster::handover::{NotMoved, SnapshotOrder};
use crate::model::details::{KnownNode, NodeDetails, PoolBytes, PoolDetails, SnapshotDetails, VolumeDetails};
use crate::model::{Claim, Handover, Side};

/// Nodes that move snapshots at once, or answer as a test says.
#[derive(Clone, Default)]
struct Movers(Arc<Mutex<Moving>>);

#[derive(Default)]
struct Moving {
    nodes: Vec<AskedNode>,
    /// Answers, the last one first.
    answers: Vec<NotMoved>,
    /// The nodes after the first order.
    after: Option<Vec<AskedNode>>,
    /// The snapshots and the targets of all orders.
    orders: Vec<(String, String)>,
}

impl Nodes for Movers {
    async fn ask_all(&self) -> Result<Vec<AskedNode>, String> {
        Ok(self.0.lock().unwrap().nodes.clone())
    }

    async fn move_snapshot(&self, order: &SnapshotOrder) -> Result<(), NotMoved> {
        let mut moving = self.0.lock().unwrap();
        moving.orders.push((order.id.clone(), order.target_node_id.clone()));
        if let Some(after) = moving.after.take() {
            moving.nodes = after;
        }
        match moving.answers.pop() {
            Some(answer) => Err(answer),
            None => Ok(()),
        }
    }
}

fn node(node_id: &str, room: u64, volumes: &[VolumeDetails], snapshots: &[SnapshotDetails]) -> AskedNode {
    let figures = Some(PoolBytes { room, ..PoolBytes::default() });
    let pool = PoolDetails { name: "default".to_owned(), figures, ..PoolDetails::default() };
    let node = NodeDetails { node_id: node_id.to_owned(), pools: vec![pool], ..NodeDetails::default() };
    let answer = NodeAnswer { node, volumes: volumes.to_vec(), snapshots: snapshots.to_vec() };
    AskedNode { known: KnownNode { node_id: node_id.to_owned(), ..KnownNode::default() }, answer: Ok(answer) }
}

fn volume(id: &str) -> VolumeDetails {
    let claim =
        Claim { namespace: "shop".to_owned(), name: format!("{id}-claim"), persistent_volume: id.to_owned() };
    VolumeDetails {
        id: id.to_owned(),
        kind: "volume".to_owned(),
        claim: Some(claim),
        ..VolumeDetails::default()
    }
}

fn snapshot(id: &str, volume: &str) -> SnapshotDetails {
    SnapshotDetails {
        id: id.to_owned(),
        volume_id: volume.to_owned(),
        pool: "default".to_owned(),
        phase: "ready".to_owned(),
        kind: "snapshot".to_owned(),
        ..SnapshotDetails::default()
    }
}

/// A command to empty node-1.
struct Command {
    movers: Movers,
    to: Option<&'static str>,
    namespace: Option<&'static str>,
    moving: HashMap<Name, String>,
    cordoned: Vec<String>,
    /// The snapshots that a VolumeSnapshotContent names.
    named: Vec<&'static str>,
    style: Style,
}

impl Command {
    fn new(nodes: Vec<AskedNode>, named: &[&'static str]) -> Command {
        let movers = Movers(Arc::new(Mutex::new(Moving { nodes, ..Moving::default() })));
        Command {
            movers,
            to: None,
            namespace: None,
            moving: HashMap::new(),
            cordoned: Vec::new(),
            named: named.to_vec(),
            style: Style::Plain,
        }
    }

    fn answers(self, answers: &[NotMoved]) -> Command {
        self.movers.0.lock().unwrap().answers = answers.iter().rev().cloned().collect();
        self
    }

    fn run(&self) -> (Result<bool, String>, String) {
        let cut = |id: &&str| Cut {
            content: format!("content-{id}"),
            id: (*id).to_owned(),
            snapshot: Name { namespace: "shop".to_owned(), name: format!("of-{id}") },
            ..Cut::default()
        };
        let cuts: Vec<Cut> = self.named.iter().map(cut).collect();
        let out = Printed::default();
        let mut screen = Screen::on(self.style, Box::new(out.clone()), Box::new(Printed::default()));
        let wanted = Wanted {
            node: "node-1",
            to: self.to,
            namespace: self.namespace,
            cuts: &cuts,
            moving: &self.moving,
            cordoned: &self.cordoned,
        };
        let mut emptying = Emptying { nodes: self.movers.clone(), screen: &mut screen };
        (on_a_clock_of_its_own(emptying.run(&wanted)), out.text())
    }

    /// The snapshots that were to move, and where.
    fn orders(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.movers.0.lock().unwrap().orders)
    }
}

fn order(id: &str, to: &str) -> (String, String) {
    (id.to_owned(), to.to_owned())
}

#[test]
fn a_snapshot_goes_to_the_node_of_its_volume() {
    let [gone, there, copied] = ["gone", "there", "copied"].map(|name| snapshot(&format!("s-{name}"), name));
    let cut = SnapshotDetails { kind: "cut".to_owned(), ..snapshot("s-cut", "there") };
    let nodes = vec![
        node("node-1", 9, &[volume("copied")], &[gone, there, copied, cut]),
        node("node-2", 1, &[volume("there")], &[]),
        node("node-3", 5, &[], &[snapshot("s-other", "there")]),
    ];
    let mut command = Command::new(nodes, &["s-gone", "s-there", "s-copied", "s-other"]);
    command
        .moving
        .insert(Name { namespace: "shop".to_owned(), name: "copied-claim".to_owned() }, "node-2".to_owned());
    let (good, out) = command.run();
    assert_eq!(good, Ok(true), "{out}");
    let of_volume = [order("s-copied", "node-2"), order("s-gone", "node-3"), order("s-there", "node-2")];
    assert_eq!(command.orders(), of_volume, "the one without a volume goes to the most room");
    assert!(out.contains("shop/of-s-gone: is on node node-3\n"), "{out}");
    assert!(out.ends_with("3 of 3 snapshots have moved\n"), "{out}");
    command.cordoned = vec!["node-3".to_owned()];
    command.run().0.unwrap();
    assert!(command.orders().contains(&order("s-gone", "node-2")));
    command.to = Some("node-9");
    command.run().0.unwrap();
    assert!(command.orders().contains(&order("s-gone", "node-9")));
    command.namespace = Some("other");
    assert_eq!(command.run().1, "no snapshot is on node node-1\n");
}

#[test]
fn a_snapshot_that_cannot_move_is_listed_with_why() {
    let creating = SnapshotDetails { phase: "creating".to_owned(), ..snapshot("s-creating", "gone") };
    let nodes = vec![
        node(
            "node-1",
            9,
            &[volume("stays")],
            &[creating, snapshot("s-unnamed", "gone"), snapshot("s-stays", "stays")],
        ),
        node("node-2", 1, &[], &[]),
    ];
    let command = Command::new(nodes, &["s-creating", "s-stays"]);
    let (good, out) = command.run();
    assert_eq!((good, command.orders()), (Ok(false), Vec::new()), "{out}");
    for line in [
        "shop/of-s-creating: it is creating",
        "s-unnamed: no VolumeSnapshotContent names it",
        "shop/of-s-stays: its volume shop/stays-claim is on node node-1",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(out.contains("0 of 3 snapshots have moved\nThese stay on node node-1:\n"), "{out}");
}

/// Its members cannot be on two nodes.
#[test]
fn a_group_moves_as_a_whole() {
    let member = |id: &str, volume: &str| SnapshotDetails {
        group_id: Some("grp-1".to_owned()),
        ..snapshot(id, volume)
    };
    let parts = [member("s-b", "two"), member("s-a", "one")];
    let on_one = vec![
        node("node-1", 9, &[], &parts),
        node("node-2", 1, &[volume("one"), volume("two")], &[]),
        node("node-3", 5, &[], &[]),
    ];
    let command = Command::new(on_one, &["s-a", "s-b"]);
    let (good, out) = command.run();
    assert_eq!((good, command.orders()), (Ok(true), vec![order("grp-1", "node-2")]), "{out}");
    assert!(out.starts_with("shop/of-s-a, shop/of-s-b: is on node node-2\n"), "{out}");
    let gone = vec![node("node-1", 9, &[], &parts), node("node-2", 1, &[volume("one")], &[])];
    let command = Command::new(gone, &["s-a", "s-b"]);
    assert_eq!((command.run().0, command.orders()), (Ok(true), vec![order("grp-1", "node-2")]));
    let on_two = vec![
        node("node-1", 9, &[], &parts),
        node("node-2", 1, &[volume("one")], &[]),
        node("node-3", 1, &[volume("two")], &[]),
    ];
    let mut command = Command::new(on_two, &["s-a", "s-b"]);
    let (good, out) = command.run();
    assert_eq!((good, command.orders()), (Ok(false), Vec::new()));
    assert!(out.contains("are on several nodes; name one (--to)"), "{out}");
    command.to = Some("node-3");
    assert_eq!((command.run().0, command.orders()), (Ok(true), vec![order("grp-1", "node-3")]));
    command.named = vec!["s-a"];
    assert_eq!((command.run().0, command.orders()), (Ok(false), Vec::new()), "one is not named");
}

#[test]
fn a_full_node_is_passed_over_for_the_next() {
    let nodes = || {
        vec![
            node("node-1", 9, &[], &[snapshot("s", "gone")]),
            node("node-2", 5, &[], &[]),
            node("node-3", 1, &[], &[]),
        ]
    };
    let full = NotMoved::Full("no room".to_owned());
    let command = Command::new(nodes(), &["s"]).answers(std::slice::from_ref(&full));
    assert_eq!(command.run().0, Ok(true));
    assert_eq!(command.orders(), [order("s", "node-2"), order("s", "node-3")]);
    let command = Command::new(nodes(), &["s"]).answers(&[full.clone(), full]);
    let (good, out) = command.run();
    assert_eq!(good, Ok(false));
    assert!(out.contains("shop/of-s: node node-2: no room; node node-3: no room"), "{out}");
}

#[test]
fn a_long_copy_is_followed_to_its_end() {
    let nodes = vec![node("node-1", 9, &[], &[snapshot("s", "gone")]), node("node-2", 5, &[], &[])];
    let working = |percent: u8| NotMoved::Working(format!("(3 GiB of 8 GiB copied, {percent}%)"));
    let later = NotMoved::Later("no answer".to_owned());
    let answers = [working(3), working(4), later.clone(), working(40)];
    let command = Command::new(nodes.clone(), &["s"]).answers(&answers);
    let (good, out) = command.run();
    assert_eq!(good, Ok(true));
    let lines = "shop/of-s: 3% copied to node node-2\nshop/of-s: 40% copied to node node-2\nshop/of-s: is on node node-2\n";
    assert!(out.starts_with(lines), "{out}");
    let command = Command::new(nodes, &["s"]).answers(&vec![later; 100]);
    let (good, out) = command.run();
    assert_eq!(good, Ok(false), "it does not ask for ever");
    assert!(out.contains("shop/of-s: no answer"), "{out}");
}

#[test]
fn a_move_that_has_begun_goes_on_to_its_node() {
    let handover = |side, node_id: &str| Handover { side, node_id: node_id.to_owned(), number: 1 };
    let begun =
        SnapshotDetails { handover: Some(handover(Side::Offered, "node-3")), ..snapshot("s-begun", "gone") };
    let come =
        SnapshotDetails { handover: Some(handover(Side::Taken, "node-1")), ..snapshot("s-come", "gone") };
    let copy =
        SnapshotDetails { handover: Some(handover(Side::Taken, "node-1")), ..snapshot("s-begun", "gone") };
    let nodes = vec![
        node("node-1", 9, &[], &[begun]),
        node("node-2", 5, &[], &[come]),
        node("node-3", 1, &[], &[copy]),
    ];
    let command = Command::new(nodes, &["s-begun", "s-come"]);
    assert_eq!(command.run().0, Ok(true));
    assert_eq!(command.orders(), [order("s-begun", "node-3"), order("s-come", "node-2")]);
}

#[test]
fn a_node_that_does_not_answer_is_not_empty() {
    let mut nodes = vec![node("node-1", 9, &[], &[]), node("node-2", 5, &[], &[])];
    nodes[0].answer = Err("no answer within 5 s".to_owned());
    let command = Command::new(nodes, &[]);
    assert!(command.run().0.unwrap_err().contains("no answer within 5 s"));
    let command = Command::new(vec![node("node-2", 5, &[], &[])], &[]);
    assert!(command.run().0.unwrap_err().contains("there is no node \"node-1\""));
}

#[test]
fn a_program_reads_what_became_of_snapshots() {
    let nodes = vec![
        node("node-1", 9, &[], &[snapshot("s", "gone"), snapshot("s-unnamed", "gone")]),
        node("node-2", 5, &[], &[]),
    ];
    let command = Command { style: Style::Json, ..Command::new(nodes, &["s"]) };
    let (_, out) = command.run();
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |row: &Value| {
        [&row["id"], &row["targetNode"], &row["outcome"]].map(|value| value.as_str().unwrap_or("").to_owned())
    };
    assert_eq!(
        rows.iter().map(said).collect::<Vec<_>>(),
        [["s-unnamed", "", "Stays"], ["s", "node-2", "Moved"]]
    );
}

/// Without an answer of a controller, the command does not know what is on the node.
#[test]
fn without_controllers_no_snapshot_moves() {
    let world = World::of(1, json!({}));
    with_a_controller(&world, async {
        let (outcome, out, err) = run(&world, "hostloop evacuate node-1 --now --with-snapshots").await;
        assert_eq!(outcome, Outcome::Failed, "{out}");
        assert!(out.contains("1 of 1 volumes have moved"), "{out}");
        assert!(err.contains("no controller of hostloop.csi.dev runs that answers"), "{err}");
    });
}

/// The order has ended a move that was given up: what this node had of the snapshot is deleted, and another node has it.
#[test]
fn a_snapshot_that_another_node_has_does_not_stay() {
    let copy = || {
        vec![
            node("node-1", 9, &[], &[snapshot("s", "gone")]),
            node("node-2", 5, &[], &[]),
            node("node-3", 1, &[], &[]),
        ]
    };
    let refused = NotMoved::Refused("its move was given up".to_owned());
    let run = |after: Vec<AskedNode>| {
        let command = Command::new(copy(), &["s"]).answers(std::slice::from_ref(&refused));
        command.movers.0.lock().unwrap().after = Some(after);
        command.run()
    };
    let of = |parts: [&[SnapshotDetails]; 3]| {
        let [one, two, three] = parts;
        vec![node("node-1", 9, &[], one), node("node-2", 5, &[], two), node("node-3", 1, &[], three)]
    };
    let (there, half) =
        (snapshot("s", "gone"), SnapshotDetails { phase: "creating".to_owned(), ..snapshot("s", "gone") });
    let (good, out) = run(of([&[], &[], std::slice::from_ref(&there)]));
    assert_eq!(good, Ok(true), "{out}");
    assert_eq!(out, "shop/of-s: is on node node-3\n1 of 1 snapshots have moved\n");
    let (good, out) = run(of([&[], &[], &[]]));
    assert_eq!(
        (good, out.as_str()),
        (Ok(true), "shop/of-s: no node has it any longer\n0 of 1 snapshots have moved\n")
    );

    // What is not known stays.
    let mut silent = of([&[], &[], &[]]);
    silent[2].answer = Err("no answer".to_owned());
    let mut silent_source = of([&[], &[], std::slice::from_ref(&there)]);
    silent_source[0].answer = Err("no answer".to_owned());
    let on_its_way = of([&[], &[], std::slice::from_ref(&half)]);
    for after in [silent, silent_source, on_its_way, copy()] {
        let (good, out) = run(after);
        assert_eq!(good, Ok(false), "{out}");
        assert!(out.contains("These stay on node node-1:\n  shop/of-s: its move was given up"), "{out}");
    }
}
