use std::collections::HashMap;

use prost::Message;
use prost_reflect::{Kind, MessageDescriptor};

use super::*;

const CANARY: &str = "CANARY-hunter2";

/// A message with every field set, nested ones as well; secrets to the canary.
fn filled(redactor: &Redactor, descriptor: &MessageDescriptor) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let text = if redactor.secret.contains(field.full_name()) { CANARY } else { "shown" };
        let value = scalar(redactor, &field.kind(), text);
        let value = if field.is_map() {
            Value::Map(HashMap::from([(MapKey::String(text.to_owned()), Value::String(text.to_owned()))]))
        } else if field.is_list() {
            Value::List(vec![value])
        } else {
            value
        };
        message.set_field(&field, value);
    }
    message
}

fn scalar(redactor: &Redactor, kind: &Kind, text: &str) -> Value {
    match kind {
        Kind::Message(message) if message.is_map_entry() => Value::Bool(false),
        Kind::Message(message) => Value::Message(filled(redactor, message)),
        Kind::String => Value::String(text.to_owned()),
        Kind::Enum(_) => Value::EnumNumber(1),
        other => Value::default_value(other),
    }
}

#[test]
fn no_secret_of_any_message_is_shown() {
    let redactor = redactor().expect("descriptor");
    let mut with_secrets = 0;
    for descriptor in
        redactor.pool.all_messages().filter(|m| m.package_name() == "csi.v1" && !m.is_map_entry())
    {
        let message = filled(redactor, &descriptor);
        let encoded = message.encode_to_vec();
        let has_canary = encoded.windows(CANARY.len()).any(|bytes| bytes == CANARY.as_bytes());
        let text = describe(descriptor.full_name(), &encoded);
        assert!(text.starts_with('{') && !text.contains("CANARY"), "{}: {text}", descriptor.full_name());
        assert_eq!(text.contains(STRIPPED), has_canary, "{}: {text}", descriptor.full_name());
        with_secrets += usize::from(has_canary);
    }
    // 22 fields are marked, in as many requests; mount flags reach more messages than those.
    assert!(with_secrets >= 22, "{with_secrets}");
}

#[test]
fn every_marked_field_is_known() {
    let redactor = redactor().expect("descriptor");
    for request in
        ["CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeExpandVolume", "DeleteSnapshot"]
    {
        assert!(redactor.secret.contains(&format!("csi.v1.{request}Request.secrets")), "{request}");
    }
    for field in ALSO_SECRET {
        let (message, name) = field.rsplit_once('.').expect("field");
        let message = redactor.pool.get_message_by_name(message).expect("message");
        assert!(message.get_field_by_name(name).is_some(), "{field}");
    }
}

#[test]
fn the_rest_is_shown() {
    let request = csi::NodePublishVolumeRequest {
        volume_id: "vol\n1".to_owned(),
        readonly: true,
        secrets: HashMap::from([(CANARY.to_owned(), CANARY.to_owned())]),
        volume_context: HashMap::from([
            ("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), CANARY.to_owned()),
            ("backend".to_owned(), "loop".to_owned()),
        ]),
        volume_capability: Some(csi::VolumeCapability {
            access_mode: Some(csi::volume_capability::AccessMode { mode: 1 }),
            access_type: Some(csi::volume_capability::AccessType::Mount(
                csi::volume_capability::MountVolume {
                    fs_type: "ext4".to_owned(),
                    mount_flags: vec![CANARY.to_owned()],
                    ..Default::default()
                },
            )),
        }),
        ..Default::default()
    };
    let text = describe("csi.v1.NodePublishVolumeRequest", &request.encode_to_vec());
    assert!(!text.contains("CANARY"), "{text}");
    for shown in ["\"vol\\n1\"", "\"readonly\":true", "\"backend\":\"loop\"", "SINGLE_NODE_WRITER", "ext4"] {
        assert!(text.contains(shown), "{shown} is not in {text}");
    }
    assert_eq!(text.matches(STRIPPED).count(), 3, "{text}");
}

#[test]
fn absent_fields_are_not_shown() {
    let request = csi::DeleteVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
    assert_eq!(describe("csi.v1.DeleteVolumeRequest", &request.encode_to_vec()), r#"{"volume_id":"v"}"#);
}

#[test]
fn unreadable_bytes_are_not_shown() {
    for (name, bytes) in [("csi.v1.DeleteVolumeRequest", &b"\xffCANARY"[..]), ("csi.v1.Nonesuch", b"CANARY")]
    {
        let text = describe(name, bytes);
        assert!(text.contains("bytes that are no") && !text.contains("CANARY"), "{text}");
    }
}
