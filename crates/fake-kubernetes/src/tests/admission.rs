//! Requests that a webhook or a quota refuses.

use std::sync::Arc;

use super::*;
use crate::Operation;

#[test]
fn a_refused_creation_has_the_message() {
    let mut kubernetes = bound();
    kubernetes.admission = Some(Arc::new(|operation, key, _| {
        let is_refused = operation == Operation::Create && key.0 == "persistentvolumes";
        is_refused.then(|| "exceeded quota".to_owned())
    }));
    let (code, answer) = call(&mut kubernetes, &Method::POST, VOLUMES, &volume("pvc-2", "n1", None));
    assert_eq!(
        (code, &answer["reason"], &answer["message"]),
        (403, &json!("Forbidden"), &json!("exceeded quota"))
    );
    assert_eq!(kubernetes.all("persistentvolumes").count(), 1);
    let other = json!({"metadata": {"name": "other"}, "spec": {}});
    done(&mut kubernetes, &Method::POST, CLAIMS, &other);
}

#[test]
fn a_refused_update_changes_nothing() {
    let mut kubernetes = bound();
    kubernetes.admission = Some(Arc::new(|operation, _, object| {
        let is_refused = operation == Operation::Update && object["metadata"]["labels"]["a"] == "b";
        is_refused.then(|| "no".to_owned())
    }));
    let before = kubernetes.get("persistentvolumes", "pvc-1");
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(code(&mut kubernetes, &Method::PATCH, &format!("{VOLUMES}/pvc-1"), &change), 403);
    assert_eq!(kubernetes.get("persistentvolumes", "pvc-1"), before);
    let change = json!({"metadata": {"labels": {"a": "c"}}});
    done(&mut kubernetes, &Method::PATCH, &format!("{VOLUMES}/pvc-1"), &change);
}
