//! The line of a call names the objects of Kubernetes that it is for.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use hostloop::telemetry::{LogFormat, LogLevel, Logging, subscriber};
use hostloop::wire::csi;
use serde_json::Value;

use crate::cuts::snapshot_with;
use crate::life::*;
use crate::support::*;

const PREFIX: &str = "csi.storage.k8s.io/";

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// The span of the last line of a method that has ended.
    fn of(&self, method: &str) -> Value {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut spans = lines.filter(|line| line["code"] == "OK").map(|line| line["span"].clone());
        spans.rfind(|span| span["method"] == method).unwrap_or_else(|| panic!("{method}: {text}"))
    }
}

fn named(names: [(&str, &str); 3]) -> std::collections::HashMap<String, String> {
    names.map(|(key, name)| (format!("{PREFIX}{key}"), name.to_owned())).into()
}

/// What the sidecars and kubelet send of the objects that a call is for.
fn life(rig: &Rig) -> String {
    let claim = named([("pvc/namespace", "shop"), ("pvc/name", "db"), ("pv/name", "pvc-1")]);
    let request = csi::CreateVolumeRequest {
        parameters: claim,
        capacity_range: range(5 << 30, 0),
        ..create("pvc-1", fs("ext4"))
    };
    let vol = rig.made(request);
    rig.stage(&vol);
    let pod = [(format!("{PREFIX}pod.namespace"), "shop"), (format!("{PREFIX}pod.name"), "db-0")];
    let mut publish = rig.publish_request(&vol, "pod");
    publish.volume_context.extend(pod.map(|(key, name)| (key, name.to_owned())));
    rig.ok(publish);
    let object = [
        ("volumesnapshot/namespace", "shop"),
        ("volumesnapshot/name", "db-nightly"),
        ("volumesnapshotcontent/name", "snapcontent-1"),
    ];
    let cut = csi::CreateSnapshotRequest { parameters: named(object), ..snapshot_with("s", &vol, &[]) };
    let snapshot_id = rig.ok(cut).snapshot.unwrap().snapshot_id;
    rig.ok(vol.expand_request(6 << 30, 0));
    rig.unpublish(&vol, "pod");
    rig.unstage(&vol);
    rig.ok(csi::DeleteSnapshotRequest { snapshot_id: snapshot_id.clone(), ..Default::default() });
    rig.ok(vol.delete_request());
    snapshot_id
}

#[test]
fn lines_of_calls_name_claims_pods_and_snapshots() {
    let rig = Rig::new();
    let lines = Lines::default();
    let writer = lines.clone();
    let logging = Logging { level: LogLevel::Info, format: LogFormat::Json };
    let listening = tracing::Dispatch::new(subscriber(logging, move || writer.clone()));
    // With one dispatcher only, the first thread that comes to a line of code decides for all whether it is wanted.
    let _second = tracing::Dispatch::new(subscriber(logging, io::sink));
    let snapshot_id = tracing::dispatcher::with_default(&listening, || life(&rig));

    let create = lines.of("Controller/CreateVolume");
    let id = create["volume.id"].as_str().expect("the id of what was made").to_owned();
    assert_eq!(
        (&create["claim"], &create["pv.name"], &create["size"]),
        (&"shop/db".into(), &"pvc-1".into(), &"5 GiB".into())
    );
    assert_eq!(lines.of("Controller/ControllerExpandVolume")["size"], "6 GiB");
    for method in ["Node/NodeStageVolume", "Node/NodePublishVolume", "Controller/DeleteVolume"] {
        let line = lines.of(method);
        assert_eq!(
            (&line["volume.id"], &line["claim"]),
            (&id.clone().into(), &"shop/db".into()),
            "{method}: the record knows the claim"
        );
    }
    let publish = lines.of("Node/NodePublishVolume");
    assert_eq!((&publish["pod.namespace"], &publish["pod.name"]), (&"shop".into(), &"db-0".into()));
    for method in ["Controller/CreateSnapshot", "Controller/DeleteSnapshot"] {
        let line = lines.of(method);
        assert_eq!(line["snapshot.id"], snapshot_id.as_str(), "{method}");
        assert_eq!(line["volumesnapshot"], "shop/db-nightly", "{method}");
        assert_eq!(line["volumesnapshotcontent"], "snapcontent-1", "{method}");
    }
}
