//! Holds the compiled protocol against the facts of the CSI releases it is to
//! serve: CSI 1.13, and CSI 1.12 for what 1.13 removed.
//!
//! Both sides, descriptor and facts, are brought into one form: a map from the
//! name of an element to what the protocol says of it. Comparing the releases
//! is then comparing maps, in both directions.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail by panicking, like tests"
)]

use std::collections::{BTreeMap, BTreeSet};

use hostloop::wire::csi;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ServiceDescriptor, Value,
};
use serde_json::Value as Json;

const CSI_1_13: &str = include_str!("protocol/csi-1.13.0.json");
const CSI_1_12: &str = include_str!("protocol/csi-1.12.0.json");

/// What the protocol says of one element (service, RPC, message, field, ...).
#[derive(Clone, Debug, Default, PartialEq)]
struct Element {
    /// Numbers and types, in words: everything that decides about the wire.
    shape: String,
    /// Names of the options that are switched on, without `deprecated`.
    options: BTreeSet<String>,
    deprecated: bool,
    /// For a field: name of the message and number of the field.
    field: Option<(String, u64)>,
}

/// A release, or the compiled protocol.
#[derive(Clone, Debug, Default)]
struct Protocol {
    elements: BTreeMap<String, Element>,
    /// Reserved field numbers by message, as far as they are stated.
    reserved: BTreeMap<String, BTreeSet<u64>>,
}

impl Protocol {
    fn add(&mut self, key: String, element: Element) {
        let before = self.elements.insert(key.clone(), element);
        assert!(before.is_none(), "{key} is there twice");
    }
}

// ---------------------------------------------------------------------------
// Facts
// ---------------------------------------------------------------------------

fn parse(facts: &str) -> Json {
    serde_json::from_str(facts).expect("the facts are JSON")
}

fn text<'a>(json: &'a Json, key: &str) -> &'a str {
    json[key].as_str().unwrap_or_else(|| panic!("no text {key} in {json}"))
}

fn number(json: &Json) -> u64 {
    json["number"].as_u64().unwrap_or_else(|| panic!("no number in {json}"))
}

/// Entries of a list; none if the list is not there at all.
fn list(json: &Json) -> impl Iterator<Item = &Json> {
    json.as_array().into_iter().flatten()
}

fn entries<'a>(json: &'a Json, key: &str) -> impl Iterator<Item = (&'a String, &'a Json)> {
    json[key].as_object().unwrap_or_else(|| panic!("no object {key} in the facts")).iter()
}

/// An element as the facts give it. Fails on a key that is not understood, so
/// that no fact is passed over in silence.
fn fact(json: &Json, shape: String, known: &[&str]) -> Element {
    for key in json.as_object().expect("facts are objects").keys() {
        let understood = key == "options" || known.contains(&key.as_str());
        assert!(understood, "facts have an unknown key {key}: {json}");
    }
    Element {
        shape,
        options: list(&json["options"]).map(|o| o.as_str().expect("options are names").to_owned()).collect(),
        ..Element::default()
    }
}

fn protocol_of_facts(facts: &Json) -> Protocol {
    let mut protocol = Protocol::default();
    for (name, methods) in entries(facts, "services") {
        protocol.add(format!("service {name}"), Element::default());
        for method in list(methods) {
            let known = ["name", "request", "response", "server_streaming"];
            let stream = method["server_streaming"].as_bool().unwrap_or(false);
            let shape = method_shape(text(method, "request"), text(method, "response"), false, stream);
            let key = format!("rpc {name}.{}", text(method, "name"));
            protocol.add(key, fact(method, shape, &known));
        }
    }
    for (name, message) in entries(facts, "messages") {
        message_facts(&mut protocol, name, message);
    }
    for (name, values) in entries(facts, "enums") {
        protocol.add(format!("enum {name}"), Element::default());
        for value in list(values) {
            let shape = format!("= {}", number(value));
            let key = format!("value {name}.{}", text(value, "name"));
            protocol.add(key, fact(value, shape, &["name", "number"]));
        }
    }
    for extension in list(&facts["extensions"]) {
        let extends = text(extension, "extends").trim_start_matches('.');
        let shape = extension_shape(number(extension), text(extension, "type"), extends);
        let known = ["name", "number", "type", "extends"];
        let key = format!("extension {}", text(extension, "name"));
        protocol.add(key, fact(extension, shape, &known));
    }
    protocol
}

fn message_facts(protocol: &mut Protocol, name: &str, message: &Json) {
    let known = ["fields", "reserved"];
    protocol.add(format!("message {name}"), fact(message, String::new(), &known));
    let reserved: BTreeSet<u64> =
        list(&message["reserved"]).map(|n| n.as_u64().expect("reserved numbers are numbers")).collect();
    if !reserved.is_empty() {
        protocol.reserved.insert(name.to_owned(), reserved);
    }
    for field in list(&message["fields"]) {
        let shape = field_shape(number(field), text(field, "type"), field["oneof"].as_str());
        let known = ["name", "number", "type", "oneof"];
        let mut element = fact(field, shape, &known);
        element.field = Some((name.to_owned(), number(field)));
        protocol.add(format!("field {name}.{}", text(field, "name")), element);
    }
}

// ---------------------------------------------------------------------------
// Descriptor
// ---------------------------------------------------------------------------

fn pool() -> DescriptorPool {
    DescriptorPool::decode(csi::DESCRIPTOR).expect("the built descriptor can be read")
}

/// `csi.v1.Volume` to `Volume`; names of other packages stay as they are.
fn local(full_name: &str) -> &str {
    full_name.strip_prefix("csi.v1.").unwrap_or(full_name)
}

/// An element as the descriptor gives it, with the options that are set. An
/// option with a value other than `true` shows up with its value.
fn described(shape: String, set: &DynamicMessage) -> Element {
    let mut element = Element { shape, ..Element::default() };
    let standard = set.fields().map(|(f, v)| (f.name().to_owned(), v));
    let custom = set.extensions().map(|(e, v)| (local(e.full_name()).to_owned(), v));
    for (name, value) in standard.chain(custom) {
        match value {
            Value::Bool(true) if name == "deprecated" => element.deprecated = true,
            Value::Bool(true) => drop(element.options.insert(name)),
            other => drop(element.options.insert(format!("{name} = {other}"))),
        }
    }
    element
}

fn protocol_of_pool(pool: &DescriptorPool) -> Protocol {
    let mut protocol = Protocol::default();
    let ours = |package: &str| package == "csi.v1";
    for service in pool.services().filter(|s| ours(s.package_name())) {
        described_service(&mut protocol, &service);
    }
    for message in pool.all_messages().filter(|m| ours(m.package_name())) {
        if !message.is_map_entry() {
            described_message(&mut protocol, &message);
        }
    }
    for enumeration in pool.all_enums().filter(|e| ours(e.package_name())) {
        described_enum(&mut protocol, &enumeration);
    }
    for extension in pool.all_extensions().filter(|e| ours(e.package_name())) {
        let kind = kind_name(&extension.kind());
        let extends = extension.containing_message().full_name().to_owned();
        let shape = extension_shape(extension.number().into(), &kind, &extends);
        protocol.add(
            format!("extension {}", local(extension.full_name())),
            Element { shape, ..Element::default() },
        );
    }
    protocol
}

fn described_service(protocol: &mut Protocol, service: &ServiceDescriptor) {
    let name = local(service.full_name());
    let element = described(String::new(), &service.options());
    protocol.add(format!("service {name}"), element);
    for method in service.methods() {
        let shape = method_shape(
            local(method.input().full_name()),
            local(method.output().full_name()),
            method.is_client_streaming(),
            method.is_server_streaming(),
        );
        let element = described(shape, &method.options());
        protocol.add(format!("rpc {name}.{}", method.name()), element);
    }
}

fn described_message(protocol: &mut Protocol, message: &MessageDescriptor) {
    let name = local(message.full_name());
    let element = described(String::new(), &message.options());
    protocol.add(format!("message {name}"), element);
    let reserved: BTreeSet<u64> = message.reserved_ranges().flat_map(|range| range.map(u64::from)).collect();
    if !reserved.is_empty() {
        protocol.reserved.insert(name.to_owned(), reserved);
    }
    for field in message.fields() {
        let oneof = field.containing_oneof();
        let oneof = oneof.as_ref().map(|o| o.name());
        let number = field.number().into();
        let shape = field_shape(number, &field_type(&field), oneof);
        let mut element = described(shape, &field.options());
        element.field = Some((name.to_owned(), number));
        protocol.add(format!("field {name}.{}", field.name()), element);
    }
}

fn described_enum(protocol: &mut Protocol, enumeration: &EnumDescriptor) {
    let name = local(enumeration.full_name());
    let element = described(String::new(), &enumeration.options());
    protocol.add(format!("enum {name}"), element);
    for value in enumeration.values() {
        let shape = format!("= {}", value.number());
        let element = described(shape, &value.options());
        protocol.add(format!("value {name}.{}", value.name()), element);
    }
}

/// Type of a field in the words of the facts.
fn field_type(field: &FieldDescriptor) -> String {
    let kind = field.kind();
    if field.is_map() {
        let entry = kind.as_message().expect("maps are made of messages");
        let key = kind_name(&entry.map_entry_key_field().kind());
        let value = kind_name(&entry.map_entry_value_field().kind());
        return format!("map<{key}, {value}>");
    }
    let name = kind_name(&kind);
    match field.cardinality() {
        Cardinality::Repeated => format!("repeated {name}"),
        Cardinality::Required => format!("required {name}"),
        Cardinality::Optional => name,
    }
}

/// Name of a scalar, message or enum type in the words of the facts.
fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => local(message.full_name()).to_owned(),
        Kind::Enum(enumeration) => local(enumeration.full_name()).to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}

// ---------------------------------------------------------------------------
// The words both sides use
// ---------------------------------------------------------------------------

fn method_shape(request: &str, response: &str, client: bool, server: bool) -> String {
    let stream = |on: bool| if on { "stream " } else { "" };
    format!("({}{request}) returns ({}{response})", stream(client), stream(server))
}

fn field_shape(number: u64, kind: &str, oneof: Option<&str>) -> String {
    match oneof {
        Some(oneof) => format!("{kind} = {number} in oneof {oneof}"),
        None => format!("{kind} = {number}"),
    }
}

fn extension_shape(number: u64, kind: &str, extends: &str) -> String {
    format!("{kind} = {number} of {extends}")
}

// ---------------------------------------------------------------------------
// Comparison
// ---------------------------------------------------------------------------

/// Every way in which `ours` is not `new` plus what only `old` has.
fn differences(ours: &Protocol, new: &Protocol, old: &Protocol) -> Vec<String> {
    let mut found = Vec::new();
    for (key, wanted) in &new.elements {
        match ours.elements.get(key) {
            None => found.push(format!("{key}: in 1.13, missing here")),
            Some(here) => {
                compare(&mut found, key, here, wanted, "1.13");
                if here.deprecated {
                    found.push(format!("{key}: in 1.13, but deprecated here"));
                }
            }
        }
    }
    for (key, wanted) in &old.elements {
        match (ours.elements.get(key), new.elements.get(key)) {
            (None, None) => found.push(format!("{key}: in 1.12, missing here")),
            (Some(here), None) => compare(&mut found, key, here, wanted, "1.12"),
            // What both releases have must mean the same in both. Options may
            // differ: elements leave alpha.
            (_, Some(newer)) if newer.shape != wanted.shape => {
                found.push(format!("{key}: `{}` in 1.12, `{}` in 1.13", wanted.shape, newer.shape))
            }
            (_, Some(_)) => {}
        }
    }
    for (key, here) in &ours.elements {
        if !new.elements.contains_key(key) {
            kept_from_old(&mut found, key, here, ours, new, old);
        }
    }
    for (message, numbers) in &new.reserved {
        for number in numbers {
            if !holds(ours, message, *number) {
                found.push(format!("message {message}: {number} is left unprotected"));
            }
        }
    }
    found
}

fn compare(found: &mut Vec<String>, key: &str, here: &Element, wanted: &Element, release: &str) {
    if here.shape != wanted.shape {
        found.push(format!("{key}: `{}` in {release}, `{}` here", wanted.shape, here.shape));
    }
    for option in wanted.options.difference(&here.options) {
        found.push(format!("{key}: option {option} of {release} missing here"));
    }
    for option in here.options.difference(&wanted.options) {
        found.push(format!("{key}: option {option} here, not in {release}"));
    }
}

/// Checks an element 1.13 does not have: it must come from 1.12, be deprecated
/// (itself or the message around it), and not stand on a number that 1.13 may
/// give away.
fn kept_from_old(
    found: &mut Vec<String>,
    key: &str,
    here: &Element,
    ours: &Protocol,
    new: &Protocol,
    old: &Protocol,
) {
    if !old.elements.contains_key(key) {
        found.push(format!("{key}: here, in neither release"));
        return;
    }
    let around =
        here.field.as_ref().and_then(|(message, _)| ours.elements.get(&format!("message {message}")));
    if !here.deprecated && !around.is_some_and(|message| message.deprecated) {
        found.push(format!("{key}: only in 1.12, but not deprecated here"));
    }
    let Some((message, number)) = &here.field else {
        return;
    };
    let still_there = new.elements.contains_key(&format!("message {message}"));
    let reserved = new.reserved.get(message);
    if still_there && !reserved.is_some_and(|numbers| numbers.contains(number)) {
        found.push(format!("{key}: only in 1.12, 1.13 does not reserve it"));
    }
}

/// Whether nothing new can be put on field `number` of `message`.
fn holds(protocol: &Protocol, message: &str, number: u64) -> bool {
    let reserved = protocol.reserved.get(message);
    let taken = (message.to_owned(), number);
    reserved.is_some_and(|numbers| numbers.contains(&number))
        || protocol.elements.values().any(|element| element.field.as_ref() == Some(&taken))
}

/// Differences between the built descriptor and these facts.
fn check(new: &Json, old: &Json) -> Vec<String> {
    differences(&protocol_of_pool(&pool()), &protocol_of_facts(new), &protocol_of_facts(old))
}

// ---------------------------------------------------------------------------
// Tests
// ---------------------------------------------------------------------------

#[test]
fn protocol_is_csi_1_13_and_what_1_12_had() {
    let found = check(&parse(CSI_1_13), &parse(CSI_1_12));
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

/// Guards the test above against comparing nothing with nothing.
#[test]
fn facts_are_complete() {
    let protocol = protocol_of_facts(&parse(CSI_1_13));
    let count = |kind: &str| {
        let prefix = format!("{kind} ");
        let keys = protocol.elements.keys();
        keys.filter(|key| key.starts_with(&prefix)).count()
    };
    assert_eq!(count("service"), 5);
    assert_eq!(count("rpc"), 36);
    assert_eq!(count("extension"), 7);
    assert_eq!(protocol.reserved.len(), 3);
    assert_eq!(text(&parse(CSI_1_13), "csi_version"), "1.13.0");
    assert_eq!(text(&parse(CSI_1_12), "csi_version"), "1.12.0");
}

/// Counts in the raw JSON, so that it does not rest on the code above.
#[test]
fn secret_fields_are_marked() {
    let facts = parse(CSI_1_13);
    let wanted: BTreeSet<String> = entries(&facts, "messages")
        .flat_map(|(name, message)| list(&message["fields"]).map(move |field| (name, field)))
        .filter(|(_, field)| list(&field["options"]).any(|option| option == "csi_secret"))
        .map(|(name, field)| format!("csi.v1.{name}.{}", text(field, "name")))
        .collect();
    assert_eq!(wanted.len(), CSI_1_13.matches("\"csi_secret\"").count() - 1);

    let pool = pool();
    let option = pool.get_extension_by_name("csi.v1.csi_secret").expect("csi_secret is defined");
    let marked: BTreeSet<String> = pool
        .all_messages()
        .flat_map(|message| message.fields().collect::<Vec<_>>())
        .filter(|field| *field.options().get_extension(&option) == Value::Bool(true))
        .map(|field| field.full_name().to_owned())
        .collect();
    assert!(!marked.is_empty());
    assert_eq!(marked, wanted);
}

#[test]
fn secrets_and_mount_flags_are_not_printed() {
    let request = csi::CreateVolumeRequest {
        name: "hunter2".to_owned(),
        secrets: [("hunter2".to_owned(), "hunter2".to_owned())].into(),
        ..Default::default()
    };
    assert_eq!(format!("{request:?}"), "CreateVolumeRequest { .. }");
    assert_eq!(format!("{request:#?}"), "CreateVolumeRequest { .. }");

    let mount = csi::volume_capability::MountVolume {
        mount_flags: vec!["password=hunter2".to_owned()],
        ..Default::default()
    };
    let capability = csi::VolumeCapability {
        access_type: Some(csi::volume_capability::AccessType::Mount(mount)),
        ..Default::default()
    };
    let printed = format!("{capability:?}");
    assert!(printed.contains("Mount(MountVolume { .. })"), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");
}

// The comparison itself: each wrong fact must be found, and named.

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
