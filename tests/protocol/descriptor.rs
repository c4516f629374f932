//! The compiled descriptor, brought into the common form.

use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ServiceDescriptor, Value,
};

use super::*;

pub fn pool() -> DescriptorPool {
    DescriptorPool::decode(csi::DESCRIPTOR).expect("the built descriptor can be read")
}

/// `csi.v1.Volume` to `Volume`; names of other packages stay as they are.
pub fn local(full_name: &str) -> &str {
    full_name.strip_prefix("csi.v1.").unwrap_or(full_name)
}

/// An element as the descriptor gives it, with the options that are set. An
/// option with a value other than `true` shows up with its value.
pub fn described(shape: String, set: &DynamicMessage) -> Element {
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

pub fn protocol_of_pool(pool: &DescriptorPool) -> Protocol {
    protocol_of_package(pool, "csi.v1")
}

pub fn protocol_of_package(pool: &DescriptorPool, wanted: &str) -> Protocol {
    let mut protocol = Protocol::default();
    let ours = |package: &str| package == wanted;
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

pub fn described_service(protocol: &mut Protocol, service: &ServiceDescriptor) {
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

pub fn described_message(protocol: &mut Protocol, message: &MessageDescriptor) {
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

pub fn described_enum(protocol: &mut Protocol, enumeration: &EnumDescriptor) {
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
pub fn field_type(field: &FieldDescriptor) -> String {
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
pub fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => local(message.full_name()).to_owned(),
        Kind::Enum(enumeration) => local(enumeration.full_name()).to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}
