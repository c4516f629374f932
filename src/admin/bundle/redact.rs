//! What may hold a secret is replaced, in objects by the names of fields and in any text by its form.

use serde_json::{Map, Value};

/// Stands in for what may be secret.
const STRIPPED: &str = "***";
/// Parts of the names of fields whose values may be secret, without regard to case.
const SENSITIVE: [&str; 9] =
    ["token", "secret", "password", "passwd", "passphrase", "credential", "privatekey", "apikey", "tls.key"];
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
        Value::Array(items) => items.iter_mut().for_each(object),
        Value::String(words) => *words = text(words),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
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
    SENSITIVE.iter().any(|part| plain.contains(part)) && !NAMES.iter().any(|end| plain.ends_with(end))
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

fn line(line: &str) -> String {
    let is_end = |letter: char| letter.is_whitespace() || matches!(letter, '"' | '\'' | ',' | ';' | '&');
    let mut after_bearer = false;
    let words = line.split_inclusive(is_end).map(|word| {
        let bare = word.trim_end_matches(is_end);
        let end = word.strip_prefix(bare).unwrap_or_default();
        let hidden = after_bearer && !bare.is_empty();
        after_bearer = bare.eq_ignore_ascii_case("bearer") || (after_bearer && bare.is_empty());
        match bare.split_once('=') {
            _ if hidden || is_jwt(bare) => format!("{STRIPPED}{end}"),
            Some((name, value)) if !value.is_empty() && is_sensitive(name) => {
                format!("{name}={STRIPPED}{end}")
            }
            Some((name, value)) if is_jwt(value) => format!("{name}={STRIPPED}{end}"),
            _ => word.to_owned(),
        }
    });
    words.collect()
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
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{\"a\": \"hunter2\"}", "kept": "yes"}},
            "spec": {"containers": [{"env": [
                {"name": "HOSTLOOP_POOLS", "value": "fast=/mnt"}, {"name": "PROXY", "value": "http://u:hunter2@p"}]}],
                "volumes": [{"secret": {"secretName": "tls"}}]},
            "parameters": {"csi.storage.k8s.io/node-stage-secret-name": "keys", "apiKey": "hunter2", "pool": "fast"},
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
        assert_eq!(text("volume.id=vol-1 code=OK\n"), "volume.id=vol-1 code=OK\n");
    }
}
