//! The comparison itself: each wrong fact must be found, and named.

use serde_json::Value as Json;

use super::compare::differences;
use super::descriptor::protocol_of_pool;
use super::*;

/// Applies `change` to a copy of the 1.13 facts and returns what is found.
fn found_in_new(change: impl FnOnce(&mut Json)) -> Vec<String> {
    let mut facts = parse(CSI_1_13);
    change(&mut facts);
    check(&facts, &parse(CSI_1_12))
}

/// Applies `change` to a copy of the 1.12 facts and returns what is found.
fn found_in_old(change: impl FnOnce(&mut Json)) -> Vec<String> {
    let mut facts = parse(CSI_1_12);
    change(&mut facts);
    check(&parse(CSI_1_13), &facts)
}

/// The entry of `list` that is called `name`.
fn named<'a>(list: &'a mut Json, name: &str) -> &'a mut Json {
    list.as_array_mut()
        .and_then(|entries| entries.iter_mut().find(|entry| entry["name"] == name))
        .unwrap_or_else(|| panic!("no {name}"))
}

fn message_field<'a>(facts: &'a mut Json, message: &str, field: &str) -> &'a mut Json {
    named(&mut facts["messages"][message]["fields"], field)
}

fn remove(object: &mut Json, key: &str) {
    let removed = object.as_object_mut().and_then(|map| map.remove(key));
    assert!(removed.is_some(), "no {key} to remove");
}

/// Fails unless exactly one difference was found and is about `key`.
#[track_caller]
fn assert_only(found: &[String], key: &str) {
    let [only] = found else {
        panic!("wanted one difference, about {key}, found {found:#?}");
    };
    assert!(only.starts_with(&format!("{key}:")), "{only}");
}

/// Fails unless something was found about each of `keys`.
#[track_caller]
fn assert_named(found: &[String], keys: &[&str]) {
    for key in keys {
        let prefix = format!("{key}:");
        let named = found.iter().any(|f| f.starts_with(&prefix));
        assert!(named, "nothing about {key} in {found:#?}");
    }
}

#[test]
fn wrong_fields_are_found() {
    let number = found_in_new(|f| message_field(f, "Volume", "volume_id")["number"] = 9.into());
    assert_named(&number, &["field Volume.volume_id"]);
    let kind = found_in_new(|f| message_field(f, "VolumeUsage", "used")["type"] = "int32".into());
    assert_named(&kind, &["field VolumeUsage.used"]);
    let list = found_in_new(|f| {
        message_field(f, "VolumeGroupSnapshot", "snapshots")["type"] = "Snapshot".into();
    });
    assert_named(&list, &["field VolumeGroupSnapshot.snapshots"]);
    let map = found_in_new(|f| {
        message_field(f, "Topology", "segments")["type"] = "map<string, bytes>".into();
    });
    assert_named(&map, &["field Topology.segments"]);
    let oneof = found_in_new(|f| remove(message_field(f, "VolumeCapability", "mount"), "oneof"));
    assert_named(&oneof, &["field VolumeCapability.mount"]);
    let renamed = found_in_new(|f| message_field(f, "VolumeHealth", "volume_id")["name"] = "x".into());
    assert_named(&renamed, &["field VolumeHealth.x", "field VolumeHealth.volume_id"]);
}

#[test]
fn wrong_options_are_found() {
    let field = found_in_new(|f| remove(message_field(f, "NodeStageVolumeRequest", "secrets"), "options"));
    assert_only(&field, "field NodeStageVolumeRequest.secrets");
    let more = found_in_new(|f| {
        message_field(f, "Volume", "volume_id")["options"] = vec!["csi_secret"].into();
    });
    assert_only(&more, "field Volume.volume_id");
    let message = found_in_new(|f| remove(&mut f["messages"]["VolumeHealth"], "options"));
    assert_only(&message, "message VolumeHealth");
    let method = found_in_new(|f| remove(named(&mut f["services"]["Controller"], "GetSnapshot"), "options"));
    assert_only(&method, "rpc Controller.GetSnapshot");
    let value = found_in_new(|f| {
        let values = &mut f["enums"]["NodeServiceCapability.RPC.Type"];
        remove(named(values, "GET_STORAGE_HEALTH"), "options");
    });
    let key = "value NodeServiceCapability.RPC.Type.GET_STORAGE_HEALTH";
    assert_only(&value, key);
}

#[test]
fn wrong_methods_values_and_extensions_are_found() {
    let stream = found_in_new(|f| {
        let methods = &mut f["services"]["SnapshotMetadata"];
        remove(named(methods, "GetMetadataDelta"), "server_streaming");
    });
    assert_named(&stream, &["rpc SnapshotMetadata.GetMetadataDelta"]);
    let request = found_in_new(|f| {
        named(&mut f["services"]["Identity"], "Probe")["request"] = "ProbeResponse".into();
    });
    assert_named(&request, &["rpc Identity.Probe"]);
    let value = found_in_new(|f| {
        named(&mut f["enums"]["VolumeHealthErrorType"], "DATA_LOSS")["number"] = 7.into();
    });
    assert_only(&value, "value VolumeHealthErrorType.DATA_LOSS");
    let extension = found_in_new(|f| named(&mut f["extensions"], "csi_secret")["number"] = 1060.into());
    assert_named(&extension, &["extension csi_secret"]);
}

#[test]
fn missing_and_surplus_elements_are_found() {
    let surplus = found_in_new(|f| remove(&mut f["messages"], "VolumeHealth"));
    assert_named(&surplus, &["message VolumeHealth", "field VolumeHealth.volume_id"]);
    let missing = found_in_new(|f| {
        f["messages"]["Novelty"] = serde_json::json!({"fields": []});
        f["enums"]["Kind"] = serde_json::json!([{"name": "NONE", "number": 0}]);
        f["services"]["Extra"] = serde_json::json!([]);
    });
    let keys = ["message Novelty", "enum Kind", "value Kind.NONE", "service Extra"];
    assert_named(&missing, &keys);
    assert_eq!(missing.len(), keys.len(), "{missing:#?}");
}

#[test]
fn wrong_leftovers_of_1_12_are_found() {
    let usage = "field NodeGetVolumeStatsResponse.volume_condition";
    let free = found_in_new(|f| remove(&mut f["messages"]["NodeGetVolumeStatsResponse"], "reserved"));
    assert_only(&free, usage);
    let open = found_in_new(|f| f["messages"]["Volume"]["reserved"] = vec![77].into());
    assert_only(&open, "message Volume");
    let unknown = found_in_old(|f| remove(&mut f["messages"], "VolumeCondition"));
    assert_named(&unknown, &["message VolumeCondition", "field VolumeCondition.abnormal"]);
    let moved = found_in_old(|f| {
        message_field(f, "NodeGetVolumeStatsResponse", "volume_condition")["number"] = 3.into();
    });
    assert_only(&moved, usage);
    let plain = found_in_old(|f| remove(&mut f["messages"]["VolumeCondition"], "options"));
    assert_only(&plain, "message VolumeCondition");
    let changed = found_in_old(|f| message_field(f, "Volume", "volume_id")["number"] = 9.into());
    assert_only(&changed, "field Volume.volume_id");
}

/// A leftover that is not deprecated, or an element of 1.13 that is.
#[test]
fn wrong_deprecations_are_found() {
    let new = protocol_of_facts(&parse(CSI_1_13));
    let old = protocol_of_facts(&parse(CSI_1_12));
    let flipped = |key: &str| {
        let mut ours = protocol_of_pool(&pool());
        let element = ours.elements.get_mut(key).expect("the element is there");
        element.deprecated = !element.deprecated;
        differences(&ours, &new, &old)
    };
    for key in [
        "value NodeServiceCapability.RPC.Type.VOLUME_CONDITION",
        "field ListVolumesResponse.VolumeStatus.volume_condition",
        "field Volume.volume_id",
    ] {
        assert_only(&flipped(key), key);
    }
    let message = flipped("message VolumeCondition");
    let abnormal = "field VolumeCondition.abnormal";
    assert_named(&message, &["message VolumeCondition", abnormal]);
}
