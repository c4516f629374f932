//! Which objects keep what alive.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::admin::api::doctor::{Content, Known, KnownClaim, Pv};
use crate::admin::doctor::join::{Look, findings};
use crate::admin::doctor::row::Row;
use crate::admin::seen::Name;
use crate::cluster::findings::{ExaminedNode, NodeFindings};
use crate::model::details::KnownNode;
use crate::model::findings::{Finding, Fix, HeldMount, HeldRecord, LeftBy, ORPHAN_IMAGE};
use crate::model::{Claim, NodeKey, SnapshotId, Timestamp, VolumeId};

use super::world::DRIVER;

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> Timestamp {
    Timestamp::from_nanos(10_000_000_000_000)
}

fn id(node: &str, name: &str) -> String {
    VolumeId::of_name(&NodeKey::of(node), name).to_string()
}

fn snapshot_id(node: &str) -> String {
    SnapshotId::of_name(&NodeKey::of(node), "s").to_string()
}

fn record(id: String, kind: &str) -> HeldRecord {
    HeldRecord {
        id,
        kind: kind.to_owned(),
        name: "pvc-uid-1".to_owned(),
        pool: "default".to_owned(),
        phase: "ready".to_owned(),
        since: Some(Timestamp::from_nanos(1)),
        claim: Some(Claim {
            namespace: "shop".to_owned(),
            name: "data".to_owned(),
            persistent_volume: "pvc-uid-1".to_owned(),
        }),
        seen: "seen".to_owned(),
        ..HeldRecord::default()
    }
}

fn node(name: &str, records: Vec<HeldRecord>) -> ExaminedNode {
    let known = KnownNode { node_id: name.to_owned(), address: None, last_answer: None };
    let answer = NodeFindings { driver_name: DRIVER.to_owned(), now: now(), records, ..Default::default() };
    ExaminedNode { known, answer: Ok(answer) }
}

/// A cluster of which all is known, and in which nothing is.
fn nothing() -> Known {
    Known {
        volumes: Some(Vec::new()),
        contents: Some(Vec::new()),
        pods: Some(BTreeSet::new()),
        claims: Some(Vec::new()),
        attached: Some(BTreeSet::new()),
        replicas: Some(BTreeSet::new()),
    }
}

fn look(nodes: Vec<ExaminedNode>, known: Known) -> Look {
    Look { nodes, known, driver: Some(DRIVER.to_owned()) }
}

fn pv(handle: &str, node: &str) -> Pv {
    Pv {
        name: "pv".to_owned(),
        driver: DRIVER.to_owned(),
        handle: handle.to_owned(),
        node: Some(node.to_owned()),
        age: Some(9000),
        ..Pv::default()
    }
}

fn claim(name: &str, volume: &str) -> KnownClaim {
    let name = Name { namespace: "shop".to_owned(), name: name.to_owned() };
    KnownClaim { uid: "uid-7".to_owned(), name, volume: volume.to_owned() }
}

/// The only row.
#[track_caller]
fn only(look: &Look) -> Row {
    let rows = findings(look, HOUR);
    let [row] = &rows[..] else { panic!("one row: {rows:?}") };
    row.clone()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn an_orphan_is_what_nothing_wants() {
    let held = || vec![node("a", vec![record(id("a", "v"), "volume")])];
    let row = only(&look(held(), nothing()));
    assert_eq!((row.class.as_str(), row.claim.as_deref()), ("orphan-record", Some("shop/data")));
    assert!(row.deletes_data && row.request.as_ref().is_some_and(|request| request.unnamed), "{row:?}");
    let claimed = |claim: KnownClaim| Known { claims: Some(vec![claim]), ..nothing() };
    let kept: [(Known, &str); 9] = [
        (Known { claims: None, ..nothing() }, "which claims"),
        (Known { attached: None, ..nothing() }, "which VolumeAttachments"),
        (Known { replicas: None, ..nothing() }, "which VolumeReplicas"),
        (Known { replicas: Some(set(&[&id("a", "v")])), ..nothing() }, "a VolumeReplica"),
        (Known { attached: Some(set(&["pvc-uid-1"])), ..nothing() }, "a VolumeAttachment"),
        (claimed(KnownClaim { uid: "uid-1".to_owned(), ..KnownClaim::default() }), "it was made for claim"),
        // A claim that was restored from a backup has another uid.
        (claimed(claim("other", "pvc-uid-1")), "it was made for claim shop/other"),
        (claimed(claim("data", "")), "it was made for claim shop/data"),
        (
            Known {
                volumes: Some(vec![Pv { name: "pvc-uid-1".to_owned(), ..pv("other", "z") }]),
                ..nothing()
            },
            "with the volume handle",
        ),
    ];
    for (known, why) in kept {
        let rows = findings(&look(held(), known), HOUR);
        let row = rows.iter().find(|row| row.class == "orphan-record").expect(why);
        assert!(row.request.is_none() && row.kept.as_ref().is_some_and(|it| it.contains(why)), "{row:?}");
    }
    assert_eq!(findings(&look(held(), Known { volumes: None, ..nothing() }), HOUR), []);
    let named = Known { volumes: Some(vec![pv(&id("a", "v"), "a")]), ..nothing() };
    assert_eq!(findings(&look(held(), named), HOUR), []);
}

#[test]
fn an_orphan_image_is_what_nothing_wants() {
    let image = |id: String| Finding {
        class: ORPHAN_IMAGE.to_owned(),
        id,
        name: "pvc-uid-1".to_owned(),
        claim: record(String::new(), "volume").claim,
        content: Some("c".to_owned()),
        since: Some(Timestamp::from_nanos(1)),
        fix: Fix::Does("deletes it".to_owned()),
        needs_unnamed: true,
        loses_data: true,
        ..Finding::default()
    };
    let row = |id: String, known: Known| {
        let mut held = node("a", Vec::new());
        held.answer.as_mut().unwrap().findings.push(image(id));
        only(&look(vec![held], known))
    };
    let (volume, snapshot) = (id("a", "v"), snapshot_id("a"));
    assert!(row(volume.clone(), nothing()).request.is_some());
    assert!(row(snapshot.clone(), nothing()).request.is_some());
    let claims = Known { claims: Some(vec![claim("other", "pvc-uid-1")]), ..nothing() };
    let kept = row(volume.clone(), claims).kept.expect("it is wanted");
    assert!(kept.contains("shop/other") && kept.contains("hostloop state rebuild"), "{kept}");
    let kept = row(volume, Known { claims: None, ..nothing() }).kept;
    assert!(kept.is_some_and(|why| why.contains("which claims exist is not known")));
    for content in [
        Content { name: "c".to_owned(), ..Content::default() },
        Content { name: "other".to_owned(), snapshot_uid: "uid-1".to_owned(), ..Content::default() },
    ] {
        let kept = row(snapshot.clone(), Known { contents: Some(vec![content]), ..nothing() }).kept;
        assert!(kept.is_some_and(|why| why.contains("wants it") && why.contains("state rebuild")));
    }
}

#[test]
fn an_orphan_in_use_or_young_is_left_alone() {
    let used = HeldRecord { uses: Some("mounted at /x".to_owned()), ..record(id("a", "v"), "volume") };
    let row = only(&look(vec![node("a", vec![used])], nothing()));
    assert_eq!((row.request, row.kept.as_deref()), (None, Some("in use: mounted at /x")));
    let since = Some(now().before(HOUR - Duration::from_secs(1)));
    let young = HeldRecord { since, ..record(id("a", "v"), "volume") };
    assert_eq!(findings(&look(vec![node("a", vec![young.clone()])], nothing()), HOUR), []);
    let unknown = HeldRecord { since: None, ..young };
    assert_eq!(only(&look(vec![node("a", vec![unknown])], nothing())).request, None);
    let others = ["copy", "inline", "cut", "member"].map(|kind| record(id("a", kind), kind));
    assert_eq!(findings(&look(vec![node("a", others.to_vec())], nothing()), HOUR), []);
}

#[test]
fn a_snapshot_is_an_orphan_without_its_content() {
    let held = || vec![node("a", vec![HeldRecord { claim: None, ..record(snapshot_id("a"), "snapshot") }])];
    assert!(only(&look(held(), nothing())).request.is_some());
    let content = Content { name: "c".to_owned(), driver: DRIVER.to_owned(), ..Content::default() };
    let with = |content: Content| look(held(), Known { contents: Some(vec![content]), ..nothing() });
    let named = Content { handle: Some(snapshot_id("a")), ..content.clone() };
    assert_eq!(findings(&with(named), HOUR), []);
    let made = Content { snapshot_uid: "uid-1".to_owned(), ..content };
    assert!(only(&with(made)).kept.is_some_and(|why| why.contains("wants it")));
    // A cluster without the kind says nothing about it.
    assert_eq!(findings(&look(held(), Known { contents: None, ..nothing() }), HOUR), []);
}

#[test]
fn objects_without_data_are_told_by_whole_answers() {
    let (handle, snapshot) = (id("a", "v"), snapshot_id("a"));
    let content = Content {
        name: "c".to_owned(),
        driver: DRIVER.to_owned(),
        handle: Some(snapshot),
        age: Some(9000),
        ..Content::default()
    };
    let known = Known { volumes: Some(vec![pv(&handle, "a")]), contents: Some(vec![content]), ..nothing() };
    let classes = |nodes| -> Vec<String> {
        let rows = findings(&look(nodes, known.clone()), HOUR);
        assert!(rows.iter().all(|row| row.request.is_none() && row.kept.is_some()), "{rows:?}");
        rows.into_iter().map(|row| row.class).collect()
    };
    assert_eq!(classes(vec![node("a", Vec::new())]), ["content-without-snapshot", "pv-without-volume"]);
    let mut silent = node("a", Vec::new());
    silent.answer = Err("it is down".to_owned());
    assert_eq!(classes(vec![silent]), Vec::<String>::new());
    let mut partly = node("a", Vec::new());
    partly.answer.as_mut().unwrap().unknown.push("pool fast is away".to_owned());
    assert_eq!(classes(vec![partly]), Vec::<String>::new());
    let deleted = Known {
        volumes: Some(vec![Pv { being_deleted: true, ..pv(&handle, "a") }]),
        contents: Some(Vec::new()),
        ..nothing()
    };
    assert_eq!(findings(&look(vec![node("a", Vec::new())], deleted), HOUR), []);
    // It is on another node than the one that the PersistentVolume names.
    let rows = findings(
        &look(
            vec![node("a", Vec::new()), node("b", vec![record(handle.clone(), "volume")])],
            Known { contents: Some(Vec::new()), ..known.clone() },
        ),
        HOUR,
    );
    assert!(rows.len() == 1 && rows[0].found.contains("is on node b"), "{rows:?}");
    let advice = rows[0].kept.as_deref().unwrap();
    assert!(advice.contains("hostloop evacuate a --to b --now") && !advice.contains("delete"), "{advice}");
    let rows = findings(&look(vec![node("b", Vec::new())], Known { contents: None, ..known }), HOUR);
    assert!(rows.len() == 1 && rows[0].found.contains("not part of the cluster"), "{rows:?}");
}

#[test]
fn a_volume_that_moves_is_not_lost() {
    let handle = id("a", "v");
    let lost = |replicas| {
        let known = Known { volumes: Some(vec![pv(&handle, "a")]), replicas, ..nothing() };
        findings(&look(vec![node("a", Vec::new())], known), HOUR)
    };
    assert_eq!(lost(Some(set(&[]))).len(), 1);
    assert_eq!(lost(Some(set(&[&handle]))), []);
    assert_eq!(lost(None), []);
}

#[test]
fn a_snapshot_that_was_adopted_is_not_lost() {
    let snapshot = snapshot_id("a");
    let content = Content {
        name: "c".to_owned(),
        driver: DRIVER.to_owned(),
        handle: Some(snapshot.clone()),
        age: Some(9000),
        ..Content::default()
    };
    let lost =
        |nodes| findings(&look(nodes, Known { contents: Some(vec![content.clone()]), ..nothing() }), HOUR);
    assert_eq!(lost(vec![node("a", Vec::new()), node("b", Vec::new())]).len(), 1);
    let held = record(snapshot.clone(), "snapshot");
    assert_eq!(lost(vec![node("a", Vec::new()), node("b", vec![held])]), []);
    let mut silent = node("b", Vec::new());
    silent.answer = Err("it is down".to_owned());
    assert_eq!(lost(vec![node("a", Vec::new()), silent]), []);
    let mut partly = node("b", Vec::new());
    partly.answer.as_mut().unwrap().unknown.push("pool fast is away".to_owned());
    assert_eq!(lost(vec![node("a", Vec::new()), partly]), []);
}

#[test]
fn a_staged_volume_that_is_wanted_stays_mounted() {
    let staged = HeldMount {
        path: "/var/lib/kubelet/plugins/kubernetes.io/csi/d/h/globalmount".to_owned(),
        pod_uid: None,
        since: Some(Timestamp::from_nanos(1)),
        seen: "m".to_owned(),
    };
    let held = HeldRecord { mounts: vec![staged], ..record(id("a", "v"), "volume") };
    let row = |known| {
        let rows = findings(&look(vec![node("a", vec![held.clone()])], known), HOUR);
        rows.into_iter().find(|row| row.class == "stale-mount").expect("a row")
    };
    let request = row(nothing()).request.expect("a fix");
    assert!(request.unnamed && !request.pod_gone);
    for known in [
        Known { claims: None, ..nothing() },
        Known { attached: None, ..nothing() },
        Known { replicas: None, ..nothing() },
        Known { claims: Some(vec![claim("data", "")]), ..nothing() },
        Known { attached: Some(set(&["pvc-uid-1"])), ..nothing() },
        Known { replicas: Some(set(&[&id("a", "v")])), ..nothing() },
    ] {
        let row = row(known);
        assert!(row.request.is_none() && row.kept.is_some(), "{row:?}");
    }
}

#[test]
fn a_mount_is_stale_if_its_pod_is_gone() {
    let mount = |seen: &str| HeldMount {
        path: "/var/lib/kubelet/pods/uid-9/volumes/kubernetes.io~csi/pv/mount".to_owned(),
        pod_uid: Some("uid-9".to_owned()),
        since: Some(Timestamp::from_nanos(1)),
        seen: seen.to_owned(),
    };
    let handle = id("a", "v");
    let held =
        |mount| vec![node("a", vec![HeldRecord { mounts: vec![mount], ..record(handle.clone(), "volume") }])];
    let named = |pods| Known { pods, volumes: Some(vec![pv(&handle, "a")]), ..nothing() };
    let row = only(&look(held(mount("m")), named(Some(set(&["uid-8"])))));
    assert_eq!((row.class.as_str(), row.deletes_data), ("stale-mount", false));
    let request = row.request.expect("a fix");
    assert_eq!(
        (request.seen.as_str(), request.path, request.unnamed, request.pod_gone),
        ("m", mount("m").path, false, true)
    );
    assert_eq!(findings(&look(held(mount("m")), named(Some(set(&["uid-9"])))), HOUR), []);
    assert_eq!(findings(&look(held(mount("m")), named(None)), HOUR), []);
    // A container may have a directory that this node cannot see.
    assert!(only(&look(held(mount("")), named(Some(set(&[]))))).kept.is_some());
}

#[test]
fn data_left_by_a_move_stay_until_it_has_arrived() {
    let (volume, left) = (id("a", "v"), id("a", "left"));
    let by = LeftBy { id: volume.clone(), generation: 2, node_id: "b".to_owned() };
    let on_a = || node("a", vec![HeldRecord { left_by: Some(by.clone()), ..record(left.clone(), "left") }]);
    let on_b = |generation| node("b", vec![HeldRecord { generation, ..record(volume.clone(), "volume") }]);
    let known = || Known { volumes: Some(vec![pv(&volume, "b")]), ..nothing() };
    let row = only(&look(vec![on_a(), on_b(2)], known()));
    assert_eq!((row.class.as_str(), row.node.as_str(), row.deletes_data), ("moved-left", "a", true));
    assert!(row.request.is_some());
    let kept = |look: &Look| {
        let rows = findings(look, HOUR);
        let row = rows.into_iter().find(|row| row.class == "moved-left").expect("a row");
        assert_eq!(row.request, None);
        row.kept.expect("a reason")
    };
    assert!(kept(&look(vec![on_a(), on_b(1)], known())).contains("has not said"));
    let mut silent = on_b(2);
    silent.answer = Err("it is down".to_owned());
    assert!(kept(&look(vec![on_a(), silent], known())).contains("has not said"));
    let elsewhere = Known { volumes: Some(vec![pv(&volume, "a")]), ..nothing() };
    assert!(kept(&look(vec![on_a(), on_b(2)], elsewhere)).contains("no PersistentVolume"));
    let named = Known { volumes: Some(vec![pv(&volume, "b"), pv(&left, "a")]), ..nothing() };
    assert!(kept(&look(vec![on_a(), on_b(2)], named)).contains("a PersistentVolume names it"));
    let moving = Known { replicas: Some(set(&[&volume])), ..known() };
    assert!(kept(&look(vec![on_a(), on_b(2)], moving)).contains("VolumeReplica"));
}
