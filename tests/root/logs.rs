//! What is in the log, and what is not.

use std::collections::HashMap;

use hostloop::wire::csi;
use serde_json::Value;
use tonic::Code;

use crate::client;
use crate::harness::volume::create_request;
use crate::harness::{Kind, MIB, Vol, World, eventually, text};
use crate::quotas::{place, plain_disk};

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
fn what_a_pool_cannot_limit_is_said_with_what_to_do() {
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
    assert_eq!(field(ended(&lines, "Controller/CreateVolume")[0], "volume.name"), "a name\n{\"forged\": 1}");
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
