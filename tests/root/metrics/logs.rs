//! What is in the log, and what is not.

use std::collections::HashMap;

use hostloop::wire::csi;
use serde_json::Value;
use tonic::Code;

use crate::client;
use crate::directories::quotas::{place, plain_disk};
use crate::harness::volume::create_request;
use crate::harness::{Kind, MIB, Vol, World, eventually, text};

/// The lines of the log as JSON.
fn lines(world: &mut World) -> Vec<Value> {
    let log = world.driver().log_text();
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// A value of a line: at its top, or on its span.
fn field<'a>(line: &'a Value, name: &str) -> &'a Value {
    let of_span = &line["span"][name];
    if of_span.is_null() { &line[name] } else { of_span }
}

fn ended<'a>(lines: &'a [Value], method: &str) -> Vec<&'a Value> {
    let is_end = |line: &&Value| field(line, "method") == method && !field(line, "code").is_null();
    lines.iter().filter(is_end).collect()
}

/// CSI has no field for why there is no room for a class, nor for what a node's pools can limit.
#[test]
fn a_pool_that_cannot_limit_is_logged_with_a_remedy() {
    let disk = plain_disk("btrfs");
    let pool = format!("plain={},reserve=0", text(&place(&disk, "pool")));
    let mut world = World::new(&["--log-format", "json", "--log-level", "info", "--pool", &pool]);
    world.csi.call(csi::NodeGetInfoRequest {}).expect("NodeGetInfo");
    let parameters = [("backend", "directory"), ("enforcement", "required"), ("pool", "plain")];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let request = csi::GetCapacityRequest { parameters, ..Default::default() };
    let answer = world.csi.call(request).expect("GetCapacity");
    assert_eq!(answer.available_capacity, 0);
    eventually("each pool is told of", || {
        let told =
            |line: &Value| field(line, "pool") == "plain" && line["message"] == "what the pool can limit";
        lines(&mut world).iter().any(told)
    });
    let lines = lines(&mut world);
    let said = |message: &str, name: &str| {
        let of_pool = |line: &&Value| line["message"] == message && field(line, "pool") == "plain";
        let line = lines.iter().find(of_pool).unwrap_or_else(|| panic!("no line {message:?}: {lines:?}"));
        field(line, name).as_str().expect("text").to_owned()
    };
    let limits = said("what the pool can limit", "limits");
    let why = said("no capacity for volumes of this class", "why");
    assert!(limits.starts_with("nothing: ") && limits == said("pool", "limits"), "{limits}");
    assert!(
        why.contains("cannot enforce the size of a directory") && why.contains("Or use backend=loop"),
        "{why}"
    );
    world.finish();
}

#[test]
fn each_call_is_one_line_of_json() {
    let mut world = World::new(&["--log-format", "json", "--log-level", "info"]);
    let vol = Vol::create(&world, Kind::Ext4, "a name\n{\"forged\": 1}", 16 * MIB, &[]);
    vol.up();
    vol.down();
    let id = vol.id().to_owned();
    vol.delete().expect("DeleteVolume");
    assert_eq!(vol.stage().expect_err("it is gone").code(), Code::NotFound);
    let lines = lines(&mut world);
    for method in [
        "Node/NodePublishVolume",
        "Node/NodeUnpublishVolume",
        "Node/NodeUnstageVolume",
        "Controller/DeleteVolume",
    ] {
        let [line] = ended(&lines, method)[..] else { panic!("{method}: {lines:?}") };
        assert_eq!(field(line, "volume.id"), id.as_str(), "{line}");
        assert_eq!(field(line, "code"), "OK");
        assert!(field(line, "ms").as_f64().is_some_and(|ms| ms > 0.0), "{line}");
        assert!(line["timestamp"].is_string() && line["level"] == "INFO", "{line}");
    }
    let created = ended(&lines, "Controller/CreateVolume")[0];
    assert_eq!(field(created, "volume.name"), "a name\n{\"forged\": 1}");
    assert_eq!(field(created, "volume.id"), id.as_str(), "{created}");
    let staged = ended(&lines, "Node/NodeStageVolume");
    assert_eq!(staged.len(), 2);
    assert_eq!(
        (field(staged[1], "code"), &staged[1]["level"]),
        (&Value::from("NOT_FOUND"), &Value::from("WARN"))
    );
    assert!(field(staged[1], "error").as_str().is_some_and(|error| error.contains(&id)), "{}", staged[1]);
    assert!(lines.iter().all(|line| line.get("forged").is_none()));
    assert!(ended(&lines, "Identity/Probe").is_empty(), "what only asks is not logged at info");
    world.finish();
}

#[test]
fn a_call_is_logged_with_what_it_makes_and_its_pod() {
    const UID: &str = "0f5ba2ba-8a5a-4a54-a0b1-5d6b9d4b3a4e";
    for format in ["json", "text"] {
        let mut world = World::new(&["--log-format", format, "--log-level", "info"]);
        let vol = Vol::create(&world, Kind::Ext4, "v", 16 * MIB, &[]);
        vol.stage().expect("NodeStageVolume");
        let target = world.directory("pods").join(UID).join("volumes/kubernetes.io~csi/v/mount");
        std::fs::create_dir_all(target.parent().expect("a parent")).expect("mkdir");
        let publish = |context: &[(&str, &str)]| csi::NodePublishVolumeRequest {
            volume_context: client::parameters(context),
            ..client::publish(vol.id(), vol.staging(), &target, vol.capability.clone())
        };
        let pod = [("csi.storage.k8s.io/pod.name", "db-0"), ("csi.storage.k8s.io/pod.namespace", "shop")];
        world.csi.publish(publish(&pod)).expect("NodePublishVolume");
        world.csi.unpublish(vol.id(), &target).expect("NodeUnpublishVolume");
        vol.unstage().expect("NodeUnstageVolume");
        let snapshot = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot").snapshot_id;
        let group = world.csi.group("g", &[vol.id()]).expect("CreateVolumeGroupSnapshot").group_snapshot_id;
        let too_large = create_request(Kind::Ext4, "v", 32 * MIB, &[]);
        assert_eq!(world.csi.create(too_large).expect_err("it has another size").code(), Code::AlreadyExists);
        world.csi.delete_snapshot(&snapshot).expect("DeleteSnapshot");
        world.csi.delete_group(&group).expect("DeleteVolumeGroupSnapshot");
        vol.delete().expect("DeleteVolume");
        let id = vol.id().to_owned();
        let log = world.driver().log_text();
        let wanted = [
            ("CreateVolume", "OK", vec![("volume.id", id.as_str())]),
            ("CreateVolume", "ALREADY_EXISTS", vec![("volume.id", id.as_str())]),
            ("CreateSnapshot", "OK", vec![("snapshot.id", snapshot.as_str())]),
            ("CreateVolumeGroupSnapshot", "OK", vec![("group.id", group.as_str())]),
            (
                "NodePublishVolume",
                "OK",
                vec![("pod.namespace", "shop"), ("pod.name", "db-0"), ("pod.uid", UID), ("volume.id", &id)],
            ),
            ("NodeUnpublishVolume", "OK", vec![("pod.uid", UID), ("volume.id", &id)]),
        ];
        for (method, code, fields) in wanted {
            let is_it = |line: &&str| {
                line.contains(&format!("/{method}\""))
                    && line.contains(&format!("\"{code}\""))
                    && line.contains("ms")
            };
            let line = log.lines().find(is_it).unwrap_or_else(|| panic!("{method} {code}: {log}"));
            for (name, value) in fields {
                let text = format!("{name}=\"{value}\"");
                let once = line.matches(&text).count() == 1 && line.matches(&format!("{name}=")).count() == 1;
                let parsed = || serde_json::from_str::<Value>(line).expect("JSON");
                assert!(
                    if format == "text" { once } else { field(&parsed(), name) == value },
                    "{text}: {line}"
                );
            }
        }
        assert!(log.contains("exists with 16 MiB"), "{log}");
        world.finish();
    }
}

/// Secrets, and mount flags, which may hold some.
#[test]
fn no_secret_is_logged_at_any_level() {
    const CANARY: &str = "CaNaRy-7f3a";
    for format in ["text", "json"] {
        let mut world = World::new(&["--log-level", "trace", "--log-format", format]);
        let secrets = || HashMap::from([("key".to_owned(), CANARY.to_owned())]);
        let volume = world
            .csi
            .create(csi::CreateVolumeRequest {
                secrets: secrets(),
                ..create_request(Kind::Ext4, "v", 16 * MIB, &[])
            })
            .expect("CreateVolume");
        let vol = Vol::of(&world, Kind::Ext4, volume);
        let option = format!("password={CANARY}");
        let stage = |flags: &[&str]| csi::NodeStageVolumeRequest {
            secrets: secrets(),
            ..client::stage(vol.id(), vol.staging(), client::with_options(vol.capability.clone(), flags))
        };
        world.csi.call(stage(&[&option])).expect_err("an unknown option");
        world.csi.call(stage(&["bind", &option])).expect_err("a flag that is refused");
        world.csi.call(stage(&[])).expect("NodeStageVolume");
        let expand =
            csi::ControllerExpandVolumeRequest { secrets: secrets(), ..client::expand("unknown", MIB) };
        world.csi.call(expand).expect_err("an unknown volume");
        vol.unstage().expect("NodeUnstageVolume");
        vol.delete().expect("DeleteVolume");
        let log = world.driver().log_text();
        assert!(log.contains("stripped") && log.contains("ControllerExpandVolume"), "{log}");
        assert!(!log.contains(CANARY), "{log}");
        let state = std::fs::read_to_string(world.data.join("state.jsonl")).expect("the state file");
        assert!(!state.contains(CANARY), "{state}");
        world.finish();
    }
}
