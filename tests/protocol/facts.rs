//! The facts of a release, as JSON, brought into the common form.

use serde_json::Value as Json;

use super::*;

pub fn parse(facts: &str) -> Json {
    serde_json::from_str(facts).expect("the facts are JSON")
}

pub fn text<'a>(json: &'a Json, key: &str) -> &'a str {
    json[key].as_str().unwrap_or_else(|| panic!("no text {key} in {json}"))
}

pub fn number(json: &Json) -> u64 {
    json["number"].as_u64().unwrap_or_else(|| panic!("no number in {json}"))
}

/// Entries of a list; none if the list is not there at all.
pub fn list(json: &Json) -> impl Iterator<Item = &Json> {
    json.as_array().into_iter().flatten()
}

pub fn entries<'a>(json: &'a Json, key: &str) -> impl Iterator<Item = (&'a String, &'a Json)> {
    json[key].as_object().unwrap_or_else(|| panic!("no object {key} in the facts")).iter()
}

/// An element as the facts give it. Fails on a key that is not understood, so
/// that no fact is passed over in silence.
pub fn fact(json: &Json, shape: String, known: &[&str]) -> Element {
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

pub fn protocol_of_facts(facts: &Json) -> Protocol {
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

pub fn message_facts(protocol: &mut Protocol, name: &str, message: &Json) {
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
