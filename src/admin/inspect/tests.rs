//! What is printed of what nodes and the API server say.

mod watching;

use std::ffi::OsString;

use super::gather::{Found, Objects};
use super::printed;
use crate::admin::api::inspect::{Cut, Known, User};
use crate::admin::seen::Name;
use crate::cli::{Command, ScopeArgs, parse};
use crate::cluster::details::{AskedNode, NodeAnswer};
use crate::model::details::{
    DetailedTrouble, KnownNode, NodeDetails, OnDisk, PoolBytes, PoolDetails, SnapshotDetails, VolumeDetails,
};
use crate::model::{NodeKey, SnapshotId, Timestamp};

const GIB: u64 = 1 << 30;

fn name(namespace: &str, name: &str) -> Name {
    Name { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn volume(id: &str, disk: u64) -> VolumeDetails {
    VolumeDetails {
        id: id.to_owned(),
        pool: "default".to_owned(),
        backend: "loop".to_owned(),
        phase: "ready".to_owned(),
        kind: "volume".to_owned(),
        size_bytes: 5 * GIB,
        disk: OnDisk { bytes: Some(disk), shared: Some(0), measured: Some(Timestamp::now()) },
        troubles: Some(Vec::new()),
        ..VolumeDetails::default()
    }
}

fn node(node_id: &str, answer: Result<NodeAnswer, String>) -> AskedNode {
    let known = KnownNode { node_id: node_id.to_owned(), address: None, last_answer: Some(Timestamp::now()) };
    AskedNode { known, answer }
}

fn known(id: &str, node: &str, claim: Name) -> Known {
    Known {
        name: format!("pv-{id}"),
        id: id.to_owned(),
        node: Some(node.to_owned()),
        bytes: 5 * GIB,
        claim: Some(claim),
        phase: "Bound".to_owned(),
        age: Some(300),
        class: None,
    }
}

/// What the API server knows of the snapshot of v1.
fn before() -> Cut {
    Cut { content: "c1".to_owned(), id: "s1".to_owned(), snapshot: name("shop", "before"), ..Cut::default() }
}

/// Two volumes with claims and one without on n1, and n2, which does not answer.
fn found() -> Found {
    let figures = PoolBytes {
        measured: Timestamp::now(),
        size: 100 * GIB,
        room: GIB,
        overcommit: 2.0,
        ..Default::default()
    };
    let pool = PoolDetails { name: "default".to_owned(), figures: Some(figures), ..PoolDetails::default() };
    let sick = DetailedTrouble {
        severity: "degraded".to_owned(),
        reason: "PoolReadOnly".to_owned(),
        message: "the disk is read-only".to_owned(),
    };
    let shared = OnDisk { shared: Some(GIB), ..volume("v2", 2 * GIB).disk };
    let answer = NodeAnswer {
        node: NodeDetails {
            node_id: "n1".to_owned(),
            version: "9".to_owned(),
            pools: vec![pool],
            certificate_end: None,
        },
        volumes: vec![
            VolumeDetails { used_bytes: Some(GIB / 2), pods: vec!["uid-1".to_owned()], ..volume("v1", GIB) },
            VolumeDetails { troubles: Some(vec![sick]), disk: shared, ..volume("v2", 2 * GIB) },
            VolumeDetails {
                kind: "copy".to_owned(),
                troubles: None,
                disk: OnDisk::default(),
                ..volume("v3", 0)
            },
        ],
        snapshots: vec![SnapshotDetails {
            id: "s1".to_owned(),
            volume_id: "v1".to_owned(),
            kind: "snapshot".to_owned(),
            phase: "ready".to_owned(),
            pool: "default".to_owned(),
            size_bytes: 5 * GIB,
            ..SnapshotDetails::default()
        }],
    };
    let user = User { name: name("shop", "db-0"), uid: "uid-1".to_owned(), claims: vec!["data".to_owned()] };
    let waits =
        User { name: name("web", "late-0"), uid: "uid-2".to_owned(), claims: vec!["lost".to_owned()] };
    let objects = Objects {
        volumes: Some(vec![
            known("v1", "n1", name("shop", "data")),
            known("v2", "n1", name("shop", "log")),
            known("v8", "n1", name("web", "gone")),
            known("v9", "n2", name("web", "lost")),
        ]),
        pods: Some(vec![user, waits]),
        pods_of: None,
        snapshots: Some(vec![before()]),
    };
    let nodes = vec![node("n1", Ok(answer)), node("n2", Err("it cannot be reached".to_owned()))];
    Found { nodes, objects, ..Found::default() }
}

/// What a command line prints; `namespace` is that of the kubeconfig.
fn print(line: &str, namespace: Option<&str>) -> Result<String, String> {
    match parse(line.split(' ').map(OsString::from)).unwrap().0 {
        Command::Inspect(command) => printed(&command, &found(), namespace),
        other => panic!("{other:?}"),
    }
}

/// The lines, with one space between their words.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn volumes_are_joined_with_claims_and_pods() {
    let text = print("hostloop volumes", Some("shop")).unwrap();
    assert_eq!(
        lines(&text),
        [
            "CLAIM NODE POOL BACKEND SIZE USED DISK SNAPSHOTS PODS HEALTH AGE",
            "data n1 default loop 5 GiB 512 MiB 1 GiB 1 db-0 Healthy 5m",
            "log n1 default loop 5 GiB - 2 GiB (1 GiB shared) 0 - PoolReadOnly 5m",
        ]
    );
}

#[test]
fn age_without_an_object_is_the_nodes() {
    let mut found = found();
    let answer = found.nodes[0].answer.as_mut().unwrap();
    let ago = |seconds| Some(Timestamp::now().before(std::time::Duration::from_secs(seconds)));
    for volume in &mut answer.volumes {
        volume.created = ago(7200);
    }
    let age = |found: &Found, id: &str| {
        let rows = super::volumes::rows(found, &ScopeArgs::default(), None);
        rows.into_iter().find(|row| row.id == id).unwrap().age_seconds
    };
    assert_eq!(age(&found, "v1"), Some(300), "the API server says it");
    assert!(age(&found, "v3").is_some_and(|age| (7200..7260).contains(&age)));
    // On a node there is no API server.
    found.objects = Objects::default();
    assert!(age(&found, "v1").is_some_and(|age| (7200..7260).contains(&age)));
    found.nodes[0].answer.as_mut().unwrap().volumes[0].created = None;
    assert_eq!(age(&found, "v1"), None, "an earlier version made it");
}

#[test]
fn a_lost_volume_is_told_apart_from_an_unknown_one() {
    let text = print("hostloop volumes -A", None).unwrap();
    let lines = lines(&text);
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[3], "web gone n1 - - 5 GiB ? ? ? - Missing 5m");
    assert_eq!(lines[4], "web lost n2 - - 5 GiB ? ? ? late-0 Unknown (node did not answer) 5m");
    assert_eq!(lines[5], "- (copy) n1 default loop 5 GiB ? ? 0 ? ? -");
}

#[test]
fn pods_that_may_not_be_read_are_not_none() {
    let mut found = found();
    found.objects.pods = None;
    let pods = |id: &str| {
        let rows = super::volumes::all_rows(&found);
        rows.into_iter().find(|row| row.id == id).expect("a row").pods
    };
    assert_eq!(pods("v1"), Some(vec!["uid-1".to_owned()]), "its node says so");
    assert_eq!(pods("v2"), Some(Vec::new()), "its node says so");
    assert_eq!((pods("v9"), pods("v3")), (None, None));
}

#[test]
fn pods_of_one_namespace_are_listed_with_n() {
    let pods = |line: &str| match parse(line.split(' ').map(OsString::from)).unwrap().0 {
        Command::Inspect(command) => {
            super::wanted(&command, Some("own")).pods.map(|of| of.map(str::to_owned))
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(pods("hostloop volume data -n shop"), Some(Some("shop".to_owned())));
    assert_eq!(pods("hostloop volume data"), Some(None), "its claim may be elsewhere");
    let mut found = found();
    found.objects.pods_of = Some("shop".to_owned());
    let rows = super::volumes::all_rows(&found);
    let pods = |id: &str| rows.iter().find(|row| row.id == id).expect("a row").pods.clone();
    assert_eq!(pods("v1"), Some(vec!["db-0".to_owned()]));
    assert_eq!(pods("v9"), None, "pods of its namespace were not listed");
}

/// The standby copy on n2 was promoted, and n1 has come back with its old record.
#[test]
fn an_old_record_does_not_hide_a_silent_node() {
    let mut found = found();
    let old = volume("v9", GIB);
    found.nodes[0].answer.as_mut().unwrap().volumes.push(old);
    let rows = super::volumes::all_rows(&found);
    let health: Vec<(Option<&str>, &str)> = rows
        .iter()
        .filter(|row| row.id == "v9")
        .map(|row| (row.node.as_deref(), row.health.as_str()))
        .collect();
    assert_eq!(
        health,
        [
            (Some("n1"), "Unknown (its PersistentVolume names another node)"),
            (Some("n2"), "Unknown (node did not answer)")
        ]
    );
}

#[test]
fn a_failed_look_is_not_an_answer() {
    let mut found = found();
    found.objects.pods = None;
    let of_node = found.nodes[0].answer.as_mut().unwrap();
    of_node.volumes[1].unmeasured = Some("EIO".to_owned());
    of_node.volumes[0].generation = 1;
    let rows = super::volumes::all_rows(&found);
    let row = |id: &str| rows.iter().find(|row| row.id == id).expect("a row");
    assert_eq!(row("v2").pods, None, "nobody has seen that there are none");
    assert_eq!(row("v1").snapshots, None, "those of before the move may be on n2");
}

#[test]
fn a_terminal_gets_no_escape_sequences() {
    assert_eq!(super::harmless("a\u{1b}]52;c;eA==\u{7}\nb\u{9b}2J"), "a ]52;c;eA== \nb 2J");
}

#[test]
fn the_largest_on_disk_comes_first() {
    let order = |line: &str| -> Vec<String> {
        let text = print(line, None).unwrap();
        lines(&text).iter().skip(1).map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect()
    };
    assert_eq!(order("hostloop volumes -A --sort-by disk"), ["log", "data", "gone", "lost", "(copy)"]);
    assert_eq!(order("hostloop volumes -A --sort-by used")[0], "data");
    assert_eq!(order("hostloop volumes -A --sort-by age").last().unwrap(), "(copy)");
    assert_eq!(order("hostloop volumes -A --node n2"), ["lost"]);
}

#[test]
fn programs_get_bytes_and_the_silent_nodes() {
    let text = print("hostloop volumes -A -o json", None).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["items"][0]["claim"], "data");
    assert_eq!(json["items"][0]["diskBytes"], GIB);
    assert_eq!(json["items"][1]["troubles"][0]["message"], "the disk is read-only");
    assert!(json["items"][3]["diskBytes"].is_null());
    assert_eq!(json["unanswered"][0]["node"], "n2");
    let yaml = print("hostloop volumes -A -o yaml", None).unwrap();
    assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(), json);
    let names = print("hostloop volumes -A -o name", None).unwrap();
    assert_eq!(names.lines().next(), Some("persistentvolumeclaim/data"));
    assert_eq!(names.lines().last(), Some("v3"));
}

#[test]
fn one_volume_is_found_by_each_of_its_names() {
    for name in ["data", "pvc/data", "pv-v1", "v1"] {
        let text = print(&format!("hostloop volume {name} -n shop"), Some("shop")).unwrap();
        assert!(text.contains("shop/data") && text.contains("512 MiB (536870912 bytes)"), "{text}");
        assert!(text.contains("before"), "its snapshot: {text}");
    }
    let text = print("hostloop volume log", Some("shop")).unwrap();
    assert!(text.contains("PoolReadOnly (degraded): the disk is read-only"), "{text}");
    let why = print("hostloop volume other", Some("shop")).unwrap_err();
    assert!(why.contains("n2 did not"), "{why}");
}

#[test]
fn snapshots_are_named_by_their_objects() {
    let text = print("hostloop snapshots", Some("shop")).unwrap();
    assert_eq!(lines(&text)[1], "before data n1 default 5 GiB ? ready -");
    assert_eq!(
        print("hostloop snapshots", Some("web")).unwrap(),
        "no snapshot in namespace web on the nodes that answered"
    );
}

#[test]
fn snapshots_of_a_silent_node_have_rows() {
    let mut found = found();
    let made = |node: &str, of: &str| SnapshotId::of_name(&NodeKey::of(node), of).to_string();
    let cut = |id: String, snapshot: &str| Cut {
        content: format!("content-{snapshot}"),
        id,
        snapshot: name("web", snapshot),
        volume: "v9".to_owned(),
        bytes: Some(5 * GIB),
        age: Some(600),
    };
    let taken_along = made("n2", "taken-along");
    found.objects.snapshots.as_mut().unwrap().extend([
        cut(made("n2", "nightly"), "nightly"),
        cut(taken_along.clone(), "taken-along"),
        cut(made("n1", "moved-away"), "moved-away"),
        cut(made("n9", "of-a-node-that-left"), "of-a-node-that-left"),
        cut("foreign".to_owned(), "foreign"),
    ]);
    let elsewhere = SnapshotDetails {
        id: taken_along,
        kind: "snapshot".to_owned(),
        phase: "ready".to_owned(),
        pool: "default".to_owned(),
        ..SnapshotDetails::default()
    };
    found.nodes[0].answer.as_mut().unwrap().snapshots.push(elsewhere);
    let rows = super::snapshots::rows(&found, &ScopeArgs::default(), Some("web"));
    let text = super::cells::snapshots(&rows, false, false);
    assert_eq!(
        lines(&text)[1..],
        [
            "moved-away lost ? - 5 GiB ? Unknown (a node did not answer) 10m",
            "nightly lost n2 - 5 GiB ? Unknown (node did not answer) 10m",
            "of-a-node-that-left lost ? - 5 GiB ? Unknown (a node did not answer) 10m",
            "taken-along - n1 default 0 B ? ready -",
        ]
    );
    let of_pool = ScopeArgs { pool: Some("other".to_owned()), ..ScopeArgs::default() };
    let rows = super::snapshots::rows(&found, &of_pool, Some("web"));
    assert_eq!(rows.len(), 3, "what is in which pool is not known");
    for (node, count) in [("n1", 1), ("n2", 3), ("n3", 0)] {
        let of_node = ScopeArgs { node: Some(node.to_owned()), ..ScopeArgs::default() };
        let rows = super::snapshots::rows(&found, &of_node, Some("web"));
        assert_eq!(rows.len(), count, "{node}");
    }
    for node in &mut found.nodes {
        if node.answer.is_err() {
            node.answer = Ok(NodeAnswer::default());
        }
    }
    let rows = super::snapshots::rows(&found, &ScopeArgs::default(), Some("web"));
    assert_eq!(rows.len(), 1, "each node has answered");
}

#[test]
fn a_node_that_is_down_has_a_line_that_says_so() {
    let text = print("hostloop nodes", None).unwrap();
    let lines = lines(&text);
    assert!(lines[1].starts_with("n1 default 100 GiB 0 B 0 B 1 GiB 0 B 2 3 9 - 0s Ready"), "{text}");
    assert_eq!(lines[2], "n2 ? ? ? ? ? ? ? ? ? ? 0s no answer: it cannot be reached");
    assert_eq!(print("hostloop nodes -o name", None).unwrap(), "node/n1\nnode/n2");
}
