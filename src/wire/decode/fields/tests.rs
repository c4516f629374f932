use super::*;

fn map(entries: &[(&str, &str)]) -> HashMap<String, String> {
    entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::Invalid(message)) => message,
        other => panic!("{other:?} is not Invalid"),
    }
}

#[test]
fn strings_are_present_and_short() {
    assert!(message(volume_id(String::new())).contains("volume_id is missing"));
    assert!(volume_id("x".repeat(128)).is_ok());
    assert!(message(volume_id("x".repeat(129))).contains("129 bytes; at most 128"));
    // Bytes count, not characters.
    assert!(name("é".repeat(64)).is_ok() && name("é".repeat(65)).is_err());
    assert!(
        node_id("n".repeat(256)).is_ok()
            && node_id("n".repeat(257)).is_err()
            && node_id(String::new()).is_err()
    );
    assert!(optional_node_id("n".repeat(257)).is_err());
    assert_eq!(optional_node_id(String::new()).expect("none"), None);
    assert!(optional("starting_token", "x".repeat(129)).is_err());
}

#[test]
fn ids_of_any_syntax_pass() {
    for id in ["reallyfakevolumeid", "../../etc", "a/b", "\u{0}", "😀"] {
        assert_eq!(volume_id(id.to_owned()).expect("id"), id);
    }
}

#[test]
fn names_are_any_text_but_control_characters() {
    for good in ["a/b", "..", "tab\there", "line\nfeed", "carriage\rreturn", "😀", " ", "\u{A0}", "~"] {
        assert!(name(good.to_owned()).is_ok(), "{good:?}");
    }
    for bad in ['\0', '\x01', '\x08', '\x0B', '\x0C', '\x0E', '\x1F', '\x7F', '\u{80}', '\u{9F}'] {
        assert!(message(name(format!("a{bad}b"))).contains("U+00"), "{bad:?}");
    }
}

#[test]
fn paths_to_mount_on_are_plain() {
    for (text, want) in [("/a/b", "/a/b"), ("//a///b/", "/a/b"), ("/a/..b/.c", "/a/..b/.c"), ("/é\n", "/é\n")]
    {
        assert_eq!(path("target_path", text).expect("path").to_str(), Some(want));
    }
    let long = format!("/{}", "x".repeat(4096));
    for bad in ["", "a/b", "./a", "/a/../b", "/..", "/a/.", "/", "///", "/a\0b", &long] {
        assert!(message(path("target_path", bad)).contains("target_path"), "{bad:?}");
    }
    assert_eq!(optional_path("staging_target_path", "").expect("none"), None);
    assert!(optional_path("staging_target_path", "a").is_err());
}

#[test]
fn paths_to_look_at_are_any_text() {
    for text in ["some/path", "/a/../b", "/"] {
        assert!(volume_path(text).is_ok(), "{text}");
    }
    assert!(
        volume_path("").is_err() && volume_path("a\0").is_err() && volume_path(&"x".repeat(4097)).is_err()
    );
}

#[test]
fn maps_have_a_limit() {
    assert!(check_map("parameters", &map(&[("k", &"v".repeat(4095))])).is_ok());
    assert!(check_map("parameters", &map(&[("k", &"v".repeat(4096))])).is_err());
}

#[test]
fn secrets_are_checked_but_never_repeated() {
    assert!(check_secrets(&map(&[("a-Z_0.9", "any\0thing")])).is_ok());
    for key in ["", "CANARY/key", "CANARY key", "CANARYé"] {
        assert!(!message(check_secrets(&map(&[(key, "CANARY")]))).contains("CANARY"));
    }
    assert!(!message(check_secrets(&map(&[("CANARY", &"CANARY".repeat(1000))]))).contains("CANARY"));
}

#[test]
fn the_context_loses_what_kubernetes_added() {
    let sent = map(&[
        ("backend", "loop"),
        ("example.org/k8s.io", "stays"),
        ("notk8s.io/x", "stays"),
        ("storage.kubernetes.io/csiProvisionerIdentity", "1"),
        ("csi.storage.k8s.io/serviceAccount.tokens", "token"),
        ("kubernetes.io/x", "1"),
    ]);
    let keys: Vec<String> = context(sent).expect("context").into_keys().collect();
    assert_eq!(keys, ["backend", "example.org/k8s.io", "notk8s.io/x"]);
}

#[test]
fn sizes_are_not_negative() {
    let range = |required_bytes, limit_bytes| size(Some(csi::CapacityRange { required_bytes, limit_bytes }));
    assert_eq!(size(None).expect("size"), SizeRange::default());
    assert_eq!(range(0, 0).expect("size"), SizeRange::default());
    assert_eq!(range(5, 3).expect("size"), SizeRange { required: 5, limit: 3 });
    assert!(message(range(-1, 0)).contains("required_bytes is -1"));
    assert!(message(range(0, i64::MIN)).contains("limit_bytes"));
}
