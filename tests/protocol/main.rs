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

mod compare;
mod descriptor;
mod facts;
mod mutations;
mod peers;

use std::collections::{BTreeMap, BTreeSet};

use hostloop::wire::csi;
use prost_reflect::Value;

use compare::check;
use descriptor::pool;
use facts::{entries, list, parse, protocol_of_facts, text};

const CSI_1_13: &str = include_str!("csi-1.13.0.json");
const CSI_1_12: &str = include_str!("csi-1.12.0.json");

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

// The words that both sides use.

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
