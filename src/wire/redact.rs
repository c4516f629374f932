//! Messages as text for the log, without secrets. The descriptor says what is secret (`csi_secret`), not a list kept by
//! hand. Mount flags are not marked there, but may be sensitive all the same (csi.proto, MountVolume).

use std::collections::HashSet;
use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, MapKey, Value};
use serde_json::Value as Json;

use super::csi;

/// Stands in for a secret that is there.
const STRIPPED: &str = "***stripped***";
/// Option of fields that must never be logged.
const SECRET_OPTION: &str = "csi.v1.csi_secret";
/// Fields that may hold secrets without being marked.
const ALSO_SECRET: [&str; 1] = ["csi.v1.VolumeCapability.MountVolume.mount_flags"];
/// Map keys whose values may be secrets: kubelet puts tokens of the pod's service account into
/// `volume_context` where a CSIDriver object asks for them.
const SECRET_KEY_PREFIX: &str = "csi.storage.k8s.io/serviceAccount";

/// A message as JSON with its secrets replaced. `name` is its full name, such as `csi.v1.CreateVolumeRequest`.
/// What cannot be read is not shown at all.
pub fn describe(name: &str, encoded: &[u8]) -> String {
    let text = || {
        let redactor = redactor()?;
        let message = redactor.pool.get_message_by_name(name)?;
        let message = DynamicMessage::decode(message, encoded).ok()?;
        Some(redactor.message(&message).to_string())
    };
    text().unwrap_or_else(|| format!("({} bytes that are no {name})", encoded.len()))
}

struct Redactor {
    pool: DescriptorPool,
    /// Full names of the fields to hide.
    secret: HashSet<String>,
}

/// `None` if the descriptor is not what it must be; then nothing is shown of any message.
fn redactor() -> Option<&'static Redactor> {
    static REDACTOR: OnceLock<Option<Redactor>> = OnceLock::new();
    REDACTOR.get_or_init(Redactor::new).as_ref()
}

impl Redactor {
    fn new() -> Option<Self> {
        let pool = DescriptorPool::decode(csi::DESCRIPTOR).ok()?;
        let option = pool.get_extension_by_name(SECRET_OPTION)?;
        let marked = |field: &FieldDescriptor| *field.options().get_extension(&option) == Value::Bool(true);
        let secret = pool
            .all_messages()
            .flat_map(|message| message.fields().collect::<Vec<_>>())
            .filter(|field| marked(field) || ALSO_SECRET.contains(&field.full_name()))
            .map(|field| field.full_name().to_owned())
            .collect();
        Some(Redactor { pool, secret })
    }

    fn message(&self, message: &DynamicMessage) -> Json {
        let field = |(field, value): (FieldDescriptor, &Value)| {
            let hidden = self.secret.contains(field.full_name());
            let json = if hidden { STRIPPED.into() } else { self.value(&field, value) };
            (field.name().to_owned(), json)
        };
        Json::Object(message.fields().map(field).collect())
    }

    fn value(&self, field: &FieldDescriptor, value: &Value) -> Json {
        match value {
            Value::Bool(value) => Json::from(*value),
            Value::I32(value) => Json::from(*value),
            Value::I64(value) => Json::from(*value),
            Value::U32(value) => Json::from(*value),
            Value::U64(value) => Json::from(*value),
            Value::F32(value) => Json::from(*value),
            Value::F64(value) => Json::from(*value),
            Value::String(value) => Json::from(value.as_str()),
            Value::Bytes(value) => Json::from(format!("{} bytes", value.len())),
            Value::EnumNumber(number) => enum_name(field, *number),
            Value::Message(message) => self.message(message),
            Value::List(values) => values.iter().map(|value| self.value(field, value)).collect(),
            Value::Map(entries) => {
                let entry = |(key, value): (&MapKey, &Value)| {
                    let key = key_text(key);
                    let hidden = key.starts_with(SECRET_KEY_PREFIX);
                    let json = if hidden { STRIPPED.into() } else { self.map_value(field, value) };
                    (key, json)
                };
                Json::Object(entries.iter().map(entry).collect())
            }
        }
    }

    /// A map's values have the type of its entry's second field.
    fn map_value(&self, map: &FieldDescriptor, value: &Value) -> Json {
        match map.kind().as_message().map(|entry| entry.map_entry_value_field()) {
            Some(field) => self.value(&field, value),
            None => STRIPPED.into(),
        }
    }
}

fn enum_name(field: &FieldDescriptor, number: i32) -> Json {
    let kind = field.kind();
    let value = kind.as_enum().and_then(|kind| kind.get_value(number));
    value.map_or(Json::from(number), |value| Json::from(value.name()))
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

#[cfg(test)]
mod tests;
