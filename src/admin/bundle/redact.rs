//! What may hold a secret is replaced, in objects by the names of fields and in any text by its form.

use serde_json::{Map, Value};

/// Stands in for what may be secret.
const STRIPPED: &str = "***";
/// Parts of the names of fields whose values may be secret, without regard to case.
const SENSITIVE: [&str; 7] =
    ["token", "secret", "password", "passwd", "passphrase", "credential", "authorization"];
/// The ends of such names.
const KEYS: [&str; 2] = ["key", "keys"];
/// Names with such an end that are those of labels, not of secrets.
const LABELS: [&str; 4] = ["key", "keys", "topologykey", "topologykeys"];
/// The ends of names of fields that name an object and hold nothing of it.
const NAMES: [&str; 8] = [
    "name",
    "namespace",
    "ref",
    "refs",
    "secretname",
    "names",
    "tokenrequests",
    "automountserviceaccounttoken",
];
/// The variables of containers that are flags of the driver.
const VARIABLES: [&str; 3] = ["HOSTLOOP_", "CSI_ENDPOINT", "NODE_ID"];
/// How a JSON Web Token begins, such as that of a service account.
const JWT: &str = "eyJ";
/// How text in PEM begins in base64: "-----BEGIN".
const PEM: &str = "LS0tLS1CRUdJTi";
/// The domain of annotations that are kept whole.
const OURS: &str = "hostloop.csi.dev";
/// The shortest text that is taken for a JSON Web Token.
const SHORTEST_JWT: usize = 30;

/// Replaces what may be secret in an object of the API server, and removes what repeats the rest of it.
pub(super) fn object(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                metadata.remove("managedFields");
                if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
                    annotations.iter_mut().for_each(|(name, value)| hide_annotation(name, value));
                }
            }
            hide_variable(fields);
            for (name, value) in fields {
                match is_sensitive(name) && !value.is_null() {
                    true => *value = Value::String(STRIPPED.to_owned()),
                    false => object(value),
                }
            }
        }
        Value::Array(items) => {
            items.iter_mut().for_each(object);
            hide_arguments(items);
        }
        Value::String(words) => *words = text(words),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Hides an annotation that has an object or a list in it: other tools keep whole configurations so.
fn hide_annotation(name: &str, value: &mut Value) {
    let is_json = value.as_str().is_some_and(|text| text.trim_start().starts_with(['{', '[']));
    if is_json && !name.contains(OURS) {
        *value = Value::String(STRIPPED.to_owned());
    }
}

/// Hides the value of a sensitive flag that is an argument of its own.
fn hide_arguments(items: &mut [Value]) {
    let mut follows = false;
    for item in items {
        let Value::String(text) = item else { continue };
        if follows {
            *text = STRIPPED.to_owned();
        }
        follows = !follows && text.starts_with('-') && !text.contains('=') && is_sensitive(text);
    }
}

/// Hides the value of an environment variable of a container, unless it is a flag of the driver.
fn hide_variable(fields: &mut Map<String, Value>) {
    let is_flag = |name: &str| VARIABLES.iter().any(|flag| name.starts_with(flag));
    let is_variable = fields.len() == 2 && fields.get("value").is_some_and(Value::is_string);
    if is_variable && fields.get("name").and_then(Value::as_str).is_some_and(|name| !is_flag(name)) {
        fields.insert("value".to_owned(), Value::String(STRIPPED.to_owned()));
    }
}

fn is_sensitive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let plain: String = name.chars().filter(|letter| !matches!(letter, '-' | '_')).collect();
    let is_key = KEYS.iter().any(|end| plain.ends_with(end)) && !LABELS.contains(&plain.as_str());
    let is_secret = is_key || SENSITIVE.iter().any(|part| plain.contains(part));
    is_secret && !NAMES.iter().any(|end| plain.ends_with(end))
}

/// Replaces what may be secret in lines of text: private keys, tokens, and what is assigned to a sensitive name.
pub(super) fn text(text: &str) -> String {
    let mut lines = Vec::new();
    let mut in_key = false;
    for line in text.split('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            in_key = true;
        }
        let ends = in_key && line.contains("-----END");
        lines.push(if in_key { STRIPPED.to_owned() } else { self::line(line) });
        in_key = in_key && !ends;
    }
    lines.join("\n")
}

/// What the words before say of the next one.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Plain,
    /// A sensitive name in quotes has ended: a colon makes the next word its value.
    Named,
    Hidden,
    /// Hidden up to this quote.
    Quoted(char),
}

fn line(line: &str) -> String {
    let is_end = |letter: char| letter.is_whitespace() || matches!(letter, '"' | '\'' | ',' | ';' | '&');
    let (mut found, mut next) = (String::new(), Next::Plain);
    for word in line.split_inclusive(is_end) {
        let bare = word.trim_end_matches(is_end);
        let end = word.strip_prefix(bare).unwrap_or_default();
        let (shown, then) = self::word(bare, end.chars().next().unwrap_or(' '), next);
        found.push_str(&shown);
        found.push_str(end);
        next = then;
    }
    found
}

/// Returns what is shown of a word that this letter ends, and what it says of the next one.
fn word(bare: &str, end: char, next: Next) -> (String, Next) {
    let (shown, is_quote) = (bare.to_owned(), matches!(end, '"' | '\''));
    let plain = bare.trim_end_matches('\\');
    match next {
        Next::Quoted(quote) => {
            let then = if end == quote { Next::Plain } else { next };
            return (if bare.is_empty() { shown } else { STRIPPED.to_owned() }, then);
        }
        Next::Hidden if plain.is_empty() && is_quote => return (shown, Next::Quoted(end)),
        _ if plain.is_empty() => return (shown, next),
        Next::Named if plain == ":" => {
            return (shown, if is_quote { Next::Quoted(end) } else { Next::Hidden });
        }
        Next::Named if plain.starts_with(':') => return (format!(":{STRIPPED}"), Next::Plain),
        // The value is no word, or names how the one after it is made.
        Next::Hidden if matches!(plain, "{" | "[" | "null" | ":" | "=") => {
            return (shown, if matches!(plain, ":" | "=") { Next::Hidden } else { Next::Plain });
        }
        Next::Hidden if is_scheme(plain) => return (shown, Next::Hidden),
        Next::Hidden => return (STRIPPED.to_owned(), Next::Plain),
        Next::Named | Next::Plain => {}
    }
    if let Some((name, value)) = plain.split_once(['=', ':']).filter(|(name, _)| is_sensitive(name)) {
        let sign = plain.get(name.len()..=name.len()).unwrap_or_default();
        return match value {
            "" if is_quote => (shown, Next::Quoted(end)),
            "" => (shown, Next::Hidden),
            _ => (format!("{name}{sign}{STRIPPED}"), Next::Plain),
        };
    }
    let then = match is_sensitive(plain) {
        _ if plain.eq_ignore_ascii_case("bearer") => Next::Hidden,
        true if is_quote => Next::Named,
        true if plain.starts_with("--") => Next::Hidden,
        _ => Next::Plain,
    };
    (without_secrets(bare), then)
}

fn is_scheme(word: &str) -> bool {
    ["bearer", "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// Returns a word without a token, a key in base64, and the user and the password of an address.
fn without_secrets(word: &str) -> String {
    let (name, value) = word.split_once('=').map_or(("", word), |(name, value)| (name, value));
    if is_jwt(value) {
        let sign = if word.len() > value.len() { "=" } else { "" };
        return format!("{name}{sign}{STRIPPED}");
    }
    if let Some((before, _)) = word.split_once(PEM) {
        return format!("{before}{STRIPPED}");
    }
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match host.rsplit_once('@') {
        Some((user, _)) => {
            format!("{scheme}://{STRIPPED}{}", rest.strip_prefix(user).unwrap_or_default())
        }
        None => word.to_owned(),
    }
}

fn is_jwt(word: &str) -> bool {
    word.len() >= SHORTEST_JWT && word.starts_with(JWT) && word.contains('.')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_of_objects_are_not_in_the_bundle() {
        let mut pod = json!({
            "metadata": {"name": "node", "managedFields": [{"x": 1}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{\"a\": \"hunter2\"}", "kept": "yes",
                    "other.tool/config": " {\"x\": \"hunter2\"}", "hostloop.csi.dev/x": "{\"y\": 1}"}},
            "spec": {"containers": [{"args": ["--password", "hunter2", "--size", "5"], "env": [
                {"name": "HOSTLOOP_POOLS", "value": "fast=/mnt"}, {"name": "PROXY", "value": "http://u:hunter2@p"}]}],
                "volumes": [{"secret": {"secretName": "tls"}}]},
            "parameters": {"csi.storage.k8s.io/node-stage-secret-name": "keys", "apiKey": "hunter2", "accessKey": "hunter2",
                "encryption-key": "hunter2", "sshKeys": "hunter2", "pool": "fast"},
            "terms": [{"key": "zone", "values": ["a"]}],
            "csi": {"nodeStageSecretRef": {"name": "keys", "namespace": "shop"}, "volumeAttributes": {"db-password": "hunter2"}},
        });
        object(&mut pod);
        let text = pod.to_string();
        assert!(!text.contains("hunter2") && !text.contains("managedFields"), "{text}");
        assert_eq!(pod["parameters"]["csi.storage.k8s.io/node-stage-secret-name"], "keys");
        assert_eq!(pod["csi"]["nodeStageSecretRef"]["name"], "keys");
        assert_eq!(
            (&pod["parameters"]["pool"], &pod["metadata"]["annotations"]["kept"]),
            (&json!("fast"), &json!("yes"))
        );
        assert_eq!(pod["spec"]["containers"][0]["env"][0]["value"], "fast=/mnt");
        assert_eq!(pod["spec"]["containers"][0]["args"], json!(["--password", "***", "--size", "5"]));
        assert_eq!(pod["terms"][0]["key"], "zone");
        assert_eq!(pod["metadata"]["annotations"]["hostloop.csi.dev/x"], "{\"y\": 1}");
    }

    #[test]
    fn secrets_of_lines_are_not_in_the_bundle() {
        let token = format!("eyJ{}.x.y", "a".repeat(40));
        let lines = format!(
            "key\n-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----\nplain line\nAuthorization: Bearer hunter2\n\
             a \"{token}\" b\ntoken={token}\npassword=hunter2 size=5"
        );
        let found = text(&lines);
        assert!(!found.contains("hunter2") && !found.contains("eyJ"), "{found}");
        for kept in ["key\n", "plain line", "Authorization: Bearer ***", "a \"***\" b", "size=5"] {
            assert!(found.contains(kept), "{kept}: {found}");
        }
        for (line, shown) in [
            (r#"{"password":"hunter2 two","a":"b"}"#, r#"{"password":"*** ***","a":"b"}"#),
            (r#"x="{\"password\": \"hunter2\"}" y"#, r#"x="{\"password\": \"***"}" y"#),
            ("password: hunter2 size: 5", "password: *** size: 5"),
            ("password:hunter2", "password:***"),
            ("password='hunter2' x", "password='***' x"),
            ("Authorization: Basic aHVudGVyMg== x", "Authorization: Basic *** x"),
            ("to https://admin:hunter2@host/x?y", "to https://***@host/x?y"),
            ("to https://host/a@b", "to https://host/a@b"),
            ("run --password hunter2 --size 5", "run --password *** --size 5"),
            ("ca=LS0tLS1CRUdJTiBQUklWQVRF x", "ca=*** x"),
            ("accessKey=hunter2 key=a", "accessKey=*** key=a"),
            (r#""topologyKeys": ["a"], "myToken": null"#, r#""topologyKeys": ["a"], "myToken": null"#),
        ] {
            assert_eq!(text(line), shown);
        }
        assert_eq!(text("volume.id=vol-1 code=OK\n"), "volume.id=vol-1 code=OK\n");
    }
}
