//! Exchanges of a PersistentVolume, ended at every request, with both kinds of API servers.

use std::sync::Arc;
use std::time::Duration;

use hostloop_fake_kubernetes::{Kubernetes, key};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::api::{Fault, Server};
use crate::cluster::moves::exchange::{Exchange, Progress, Refused};
use crate::cluster::moves::objects::Objects;
use crate::cluster::moves::resources::{ClaimId, ObjectId, Purpose, VolumeReplicaSpec};

/// Ticks that an exchange may take: below the resync, so that none waits for that.
const TICKS: usize = 20;

/// A claim that is bound to a volume on node n1. The controller looks at all claims after `resync` ticks only.
fn cluster(mutable: bool) -> Server {
    let mut kubernetes = Kubernetes::default();
    (kubernetes.resync, kubernetes.mutable_node_affinity) = (0, mutable);
    let claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "local", "volumeName": "pvc-1", "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = kubernetes.create(key("persistentvolumeclaims", "default", "data"), claim);
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": ["n1"]}]}]}});
    let volume = json!({"metadata": {"name": "pvc-1", "labels": {"team": "db"},
            "annotations": {"pv.kubernetes.io/provisioned-by": "hostloop.csi.dev"},
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem", "nodeAffinity": affinity,
            "csi": {"driver": "hostloop.csi.dev", "volumeHandle": "vol-1"},
            "claimRef": {"namespace": "default", "name": "data", "uid": claim["metadata"]["uid"]}}});
    kubernetes.create(key("persistentvolumes", "", "pvc-1"), volume);
    let server = Server::new(kubernetes);
    (0..3).for_each(|_| tick(&server));
    assert_eq!(phases(&server), ("Bound".to_owned(), "Bound".to_owned()));
    server.with(|kubernetes| kubernetes.resync = 1000);
    server
}

fn tick(server: &Server) {
    server.with(|kubernetes| {
        kubernetes.offer();
        kubernetes.bind("data");
        kubernetes.protect_volumes();
        // csi-provisioner would delete the volume of this one.
        assert_eq!(kubernetes.reclaimable(), Vec::<Value>::new());
    });
}

fn volume(server: &Server) -> Value {
    server.with(|kubernetes| kubernetes.get("persistentvolumes", "pvc-1")).unwrap_or_default()
}

fn claim(server: &Server) -> Value {
    server.with(|kubernetes| kubernetes.get("persistentvolumeclaims", "data")).unwrap_or_default()
}

fn phases(server: &Server) -> (String, String) {
    let phase = |object: Value| object["status"]["phase"].as_str().unwrap_or_default().to_owned();
    (phase(claim(server)), phase(volume(server)))
}

fn node(server: &Server) -> Value {
    let terms = &volume(server)["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    terms[0]["matchExpressions"][0]["values"][0].clone()
}

fn spec(server: &Server) -> VolumeReplicaSpec {
    let uid = |object: Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    VolumeReplicaSpec {
        driver: "hostloop.csi.dev".to_owned(),
        volume_id: "vol-1".to_owned(),
        generation: 0,
        persistent_volume: ObjectId { name: "pvc-1".to_owned(), uid: uid(volume(server)) },
        claim: ClaimId { namespace: "default".to_owned(), name: "data".to_owned(), uid: uid(claim(server)) },
        source_node: "n1".to_owned(),
        target_node: "n2".to_owned(),
        source_pool: None,
        target_pool: None,
        target_class: None,
        copy_name: "pvc-1-a".to_owned(),
        copy_id: "vol-a".to_owned(),
        purpose: Purpose::Move,
        keep_source: false,
        requested_by: None,
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// One step of a controller that has just started.
fn step(
    server: &Server,
    spec: &VolumeReplicaSpec,
    recorded: Option<&Value>,
) -> Result<Progress, kube::Error> {
    run(async { Exchange::new(&Objects::new(server.client()), spec).step(recorded).await })
}

/// A controller that ends at any error, and another one that goes on from what is recorded.
fn exchange(server: &Server, spec: &VolumeReplicaSpec, recorded: &mut Option<Value>) -> Progress {
    for _ in 0..TICKS {
        match step(server, spec, recorded.as_ref()) {
            Ok(Progress::Record(volume)) => *recorded = Some(volume),
            Ok(end @ (Progress::Done | Progress::Blocked(_))) => return end,
            Ok(Progress::Next | Progress::Touched | Progress::Unbound(_)) | Err(_) => {}
        }
        tick(server);
    }
    panic!("no end: {:#?}\n{:#?}", server.calls(), volume(server));
}

/// An API server that fails refuses nothing: the next try may be answered.
#[test]
fn an_error_of_the_api_server_is_no_refusal() {
    let server = cluster(true);
    let spec = spec(&server);
    let before = server.calls().len();
    assert_eq!(check(&server, &spec), Ok(()));
    for number in 0..server.calls().len() - before {
        server.fail(server.calls().len() + number, Fault::Lost);
        let checked = run(async { Exchange::new(&Objects::new(server.client()), &spec).check().await });
        assert!(checked.is_err(), "request {number}: {checked:?}");
    }
}

fn check(server: &Server, spec: &VolumeReplicaSpec) -> Result<(), Refused> {
    run(async { Exchange::new(&Objects::new(server.client()), spec).check().await }).expect("it answers")
}

#[track_caller]
fn expect_moved(server: &Server, before: &(Value, Value), which: &str) {
    (0..3).for_each(|_| tick(server));
    let (volume, claim) = (volume(server), claim(server));
    assert_eq!(node(server), "n2", "{which}");
    assert_eq!(phases(server), ("Bound".to_owned(), "Bound".to_owned()), "{which}");
    let (old, old_claim) = before;
    assert_eq!(claim["metadata"]["uid"], old_claim["metadata"]["uid"], "{which}");
    assert_eq!(claim["spec"], old_claim["spec"], "{which}");
    for same in ["csi", "capacity", "persistentVolumeReclaimPolicy", "storageClassName"] {
        assert_eq!(volume["spec"][same], old["spec"][same], "{which}: {same}");
    }
    for same in ["labels", "annotations"] {
        assert_eq!(volume["metadata"][same], old["metadata"][same], "{which}: {same}");
    }
    let held = volume["metadata"]["finalizers"].to_string();
    assert!(held.contains("external-provisioner") && held.contains("pv-protection"), "{which}: {held}");
    assert_eq!(volume["metadata"]["deletionTimestamp"], Value::Null, "{which}");
}

#[test]
fn an_exchange_keeps_the_name_the_claim_and_the_id() {
    for mutable in [false, true] {
        let server = cluster(mutable);
        let (before, spec) = ((volume(&server), claim(&server)), spec(&server));
        assert_eq!(check(&server, &spec), Ok(()), "mutable: {mutable}");
        assert_eq!((volume(&server), claim(&server)), before, "a check changes nothing");
        let mut recorded = None;
        assert_eq!(exchange(&server, &spec, &mut recorded), Progress::Done);
        expect_moved(&server, &before, &format!("mutable: {mutable}"));
        let same = volume(&server)["metadata"]["uid"] == before.0["metadata"]["uid"];
        assert_eq!((same, recorded.is_some()), (mutable, !mutable));
    }
}

#[test]
fn an_exchange_that_fails_anywhere_goes_on() {
    for mutable in [false, true] {
        let calls = {
            let server = cluster(mutable);
            exchange(&server, &spec(&server), &mut None);
            server.calls().len()
        };
        for (number, fault) in (0..calls).flat_map(|n| [(n, Fault::Lost), (n, Fault::AnswerLost)]) {
            let server = cluster(mutable);
            let (before, spec) = ((volume(&server), claim(&server)), spec(&server));
            server.fail(number, fault);
            assert_eq!(exchange(&server, &spec, &mut None), Progress::Done);
            expect_moved(&server, &before, &format!("mutable: {mutable}, request {number}, {fault:?}"));
        }
    }
}

/// The controller of PersistentVolumes may look at the claim late, and then find no volume.
#[test]
fn a_claim_that_is_still_bound_is_changed_once() {
    let server = cluster(false);
    let (spec, mut recorded, mut ends) = (spec(&server), None, Vec::new());
    while ends.last() != Some(&Progress::Done) {
        match step(&server, &spec, recorded.as_ref()).expect("a step") {
            Progress::Record(there) => recorded = Some(there),
            Progress::Next => {}
            end => ends.push(end),
        }
        assert_eq!(claim(&server)["status"]["phase"], "Bound", "it is not looked at");
    }
    assert_eq!(ends, [Progress::Touched, Progress::Done]);
}

/// kube-controller-manager may be down for long.
#[test]
fn a_claim_that_stays_lost_is_changed_ever_less_often() {
    let server = cluster(false);
    let (spec, mut recorded) = (spec(&server), None);
    loop {
        match step(&server, &spec, recorded.as_ref()).expect("a step") {
            Progress::Record(there) => recorded = Some(there),
            Progress::Touched => break,
            Progress::Next => {}
            other => panic!("{other:?}"),
        }
    }
    server.with(|k| {
        k.change("persistentvolumeclaims", "data", |claim| claim["status"]["phase"] = json!("Lost"))
    });
    assert_eq!(step(&server, &spec, recorded.as_ref()).expect("a step"), Progress::Touched);
    let changes = |server: &Server| server.calls().iter().filter(|call| call.starts_with("PATCH")).count();
    let before = changes(&server);
    for wait in [250, 500, 1000, 2000, 4000, 8000, 15_000, 15_000] {
        let wait = Duration::from_millis(wait);
        let Ok(Progress::Unbound(left)) = step(&server, &spec, recorded.as_ref()) else { panic!("{wait:?}") };
        assert!(left <= wait && left > wait / 2, "{left:?} of {wait:?}");
        server.with(|k| {
            k.change("persistentvolumeclaims", "data", |claim| {
                let touched = &mut claim["metadata"]["annotations"]["hostloop.csi.dev/touched"];
                let text = touched.as_str().expect("text").to_owned();
                let (before, at) = text.rsplit_once(' ').expect("a time");
                let at = at.parse::<Timestamp>().expect("a time") - wait;
                *touched = json!(format!("{before} {at}"));
            });
        });
        assert_eq!(step(&server, &spec, recorded.as_ref()).expect("a step"), Progress::Touched);
    }
    assert_eq!(changes(&server) - before, 8);
}

#[test]
fn a_claim_deleted_meanwhile_takes_its_volume_along() {
    let server = cluster(false);
    let (spec, mut recorded) = (spec(&server), None);
    while !volume(&server).is_null() {
        if let Progress::Record(there) = step(&server, &spec, recorded.as_ref()).expect("a step") {
            recorded = Some(there);
        }
    }
    server.with(|kubernetes| kubernetes.remove(&key("persistentvolumeclaims", "default", "data")));
    let mut steps = 0;
    while step(&server, &spec, recorded.as_ref()).expect("a step") != Progress::Done {
        steps += 1;
        assert!(steps < TICKS);
    }
    server.with(|kubernetes| {
        kubernetes.offer();
        assert_eq!(kubernetes.reclaimable().len(), 1, "its policy is Delete");
    });
}

#[test]
fn an_object_deleted_by_somebody_else_is_made_again() {
    let server = cluster(false);
    let (before, spec) = ((volume(&server), claim(&server)), spec(&server));
    server.with(|kubernetes| kubernetes.mark_deleted(&key("persistentvolumes", "", "pvc-1")));
    assert!(check(&server, &spec).is_err_and(|why| why.0.contains("is being deleted")));
    assert_eq!(exchange(&server, &spec, &mut None), Progress::Done);
    expect_moved(&server, &before, "deleted by somebody else");
}

#[test]
fn a_foreign_finalizer_is_refused_by_its_name() {
    let server = cluster(false);
    let spec = spec(&server);
    let hold = |server: &Server| {
        server.with(|kubernetes| {
            kubernetes.change("persistentvolumes", "pvc-1", |volume| {
                volume["metadata"]["finalizers"].as_array_mut().unwrap().push(json!("backup.example/hold"));
            });
        });
    };
    hold(&server);
    assert!(check(&server, &spec).is_err_and(|why| why.0.contains("backup.example/hold")));
    // One that comes after the check is nobody's to remove either.
    let Progress::Blocked(why) = exchange(&server, &spec, &mut None) else { panic!("it is held") };
    assert!(why.contains("backup.example/hold"), "{why}");
    let finalizers = volume(&server)["metadata"]["finalizers"].clone();
    assert_eq!(finalizers, json!(["backup.example/hold"]));
}

#[test]
fn a_policy_that_refuses_is_told_beforehand() {
    for mutable in [false, true] {
        let server = cluster(mutable);
        let (before, spec) = (volume(&server), spec(&server));
        server.with(|kubernetes| {
            kubernetes.admission = Some(Arc::new(|_, key, object| {
                let moved = object.to_string().contains("\"n2\"");
                (key.0 == "persistentvolumes" && moved).then(|| "volumes stay where they are".to_owned())
            }));
        });
        let refused = check(&server, &spec).expect_err("it is refused");
        assert!(refused.0.contains("volumes stay where they are"), "{refused}");
        assert_eq!(volume(&server), before);
    }
}

/// One that comes after the check. Otherwise the change would be asked for again and again.
#[test]
fn a_change_that_a_webhook_takes_back_is_told() {
    let server = cluster(true);
    let (spec, before) = (spec(&server), volume(&server));
    let affinity = before["spec"]["nodeAffinity"].clone();
    server.with(|kubernetes| {
        kubernetes.mutation = Some(Arc::new(move |_, key, object| {
            if key.0 == "persistentvolumes" {
                object["spec"]["nodeAffinity"] = affinity.clone();
            }
        }));
    });
    let Progress::Blocked(why) = exchange(&server, &spec, &mut None) else { panic!("it has not moved") };
    assert!(why.contains("takes back each change of PersistentVolume pvc-1"), "{why}");
    assert_eq!(volume(&server)["spec"], before["spec"]);
}

#[test]
fn a_volume_of_another_claim_or_id_is_left_alone() {
    for (field, value) in [("/spec/claimRef/uid", "another"), ("/spec/csi/volumeHandle", "vol-2")] {
        let server = cluster(false);
        let spec = spec(&server);
        server.with(|kubernetes| {
            kubernetes.change("persistentvolumes", "pvc-1", |volume| {
                *volume.pointer_mut(field).unwrap() = json!(value)
            });
        });
        let before = volume(&server);
        assert!(
            check(&server, &spec).is_err_and(|why| why.0.contains("is not that of volume vol-1")),
            "{field}"
        );
        for recorded in [None, Some(json!(PersistentVolume::default()))] {
            let step = step(&server, &spec, recorded.as_ref()).expect("a step");
            assert!(matches!(step, Progress::Blocked(_)), "{field}: {step:?}");
        }
        assert_eq!(volume(&server), before, "{field}");
    }
}

#[test]
fn an_object_that_nobody_recorded_is_described() {
    let server = cluster(false);
    let spec = spec(&server);
    server.with(|kubernetes| kubernetes.remove(&key("persistentvolumes", "", "pvc-1")));
    let Progress::Blocked(why) = exchange(&server, &spec, &mut None) else { panic!("it is gone") };
    assert!(why.contains("volumeHandle vol-1") && why.contains("node n2"), "{why}");
}

/// csi-resizer writes the new size, and somebody labels the object, while the exchange is under way.
#[test]
fn a_change_meanwhile_is_recorded_again() {
    let server = cluster(false);
    let (spec, mut recorded) = (spec(&server), None);
    let mut records = 0;
    for number in 0.. {
        match step(&server, &spec, recorded.as_ref()).expect("a step") {
            Progress::Record(volume) => (recorded, records) = (Some(volume), records + 1),
            Progress::Done => break,
            _ => {}
        }
        let before = volume(&server);
        let is_retained = before["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
            && before["metadata"]["deletionTimestamp"].is_null();
        let change = |volume: &mut Value| match is_retained {
            false => volume["spec"]["capacity"]["storage"] = json!("2Gi"),
            true => volume["metadata"]["labels"]["team"] = json!("web"),
        };
        if number == 0 || is_retained {
            server.with(|kubernetes| kubernetes.change("persistentvolumes", "pvc-1", change));
        }
        tick(&server);
        assert!(number < TICKS);
    }
    let volume = volume(&server);
    assert_eq!((records, node(&server)), (3, json!("n2")));
    assert_eq!(volume["spec"]["capacity"]["storage"], "2Gi");
    assert_eq!(volume["metadata"]["labels"]["team"], "web");
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
}

/// An administrator keeps the data, as soon as the object was created again.
#[test]
fn a_policy_of_an_administrator_stays() {
    let server = cluster(false);
    let (spec, mut recorded) = (spec(&server), None);
    let uid = volume(&server)["metadata"]["uid"].clone();
    for _ in 0..TICKS {
        match step(&server, &spec, recorded.as_ref()).expect("a step") {
            Progress::Record(volume) => recorded = Some(volume),
            Progress::Done => break,
            _ => {}
        }
        if ![&Value::Null, &uid].contains(&&volume(&server)["metadata"]["uid"]) {
            server.with(|kubernetes| {
                kubernetes.change("persistentvolumes", "pvc-1", |volume| {
                    volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
                });
            });
        }
        tick(&server);
    }
    assert_eq!((node(&server), phases(&server).0), (json!("n2"), "Bound".to_owned()));
    assert_eq!(volume(&server)["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}
