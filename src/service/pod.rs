//! The pod that a call of kubelet is for: for the log, and for nothing else.

use std::borrow::Cow;
use std::collections::HashMap;

use super::declare::Field;
use crate::model::pod_uid_in;

/// Keys of the volume context that kubelet adds (podInfoOnMount of CSIDriver), and the fields of the span.
const KEYS: [(&str, &str); 3] = [
    ("csi.storage.k8s.io/pod.namespace", "pod.namespace"),
    ("csi.storage.k8s.io/pod.name", "pod.name"),
    ("csi.storage.k8s.io/pod.uid", "pod.uid"),
];

/// Returns what NodePublishVolume says of its pod; the UID is in the path as well.
pub(super) fn of_publish<'a>(context: &'a HashMap<String, String>, path: &'a str) -> Vec<Field<'a>> {
    let known = KEYS.iter().filter_map(|(key, field)| Some((*field, Cow::from(context.get(*key)?.as_str()))));
    let mut fields: Vec<Field<'a>> = known.filter(|(_, value)| !value.is_empty()).collect();
    if !fields.iter().any(|(field, _)| *field == "pod.uid") {
        fields.extend(of_path(path));
    }
    fields
}

/// Returns the UID of the pod in a path as kubelet makes it.
pub(super) fn of_path(path: &str) -> Option<Field<'_>> {
    pod_uid_in(path).map(|uid| ("pod.uid", uid.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f5ba2ba-8a5a-4a54-a0b1-5d6b9d4b3a4e";

    #[test]
    fn a_path_of_kubelet_has_the_uid_of_its_pod() {
        for path in [
            format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount"),
            format!("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/{UID}"),
            format!("/data/pods/x/pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount"),
        ] {
            assert_eq!(of_path(&path), Some(("pod.uid", UID.into())), "{path}");
        }
        for path in [
            String::new(),
            "/".to_owned(),
            format!("/var/lib/kubelet/pods/{UID}/volumes/other/pvc-1/mount"),
            "/k/pods//volumes/kubernetes.io~csi/pvc-1/mount".to_owned(),
            "/k/pods/a\nb/volumes/kubernetes.io~csi/pvc-1/mount".to_owned(),
            format!("/k/pods/{}/volumes/kubernetes.io~csi/pvc-1/mount", "a".repeat(65)),
            "/k/plugins/kubernetes.io/csi/hostloop/abc/globalmount".to_owned(),
        ] {
            assert_eq!(of_path(&path), None, "{path}");
        }
    }

    #[test]
    fn a_publish_names_its_pod() {
        let path = format!("/k/pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount");
        let context = |keys: &[(&str, &str)]| -> HashMap<String, String> {
            keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let none = context(&[("csi.storage.k8s.io/serviceAccount.name", "default"), ("other", "x")]);
        assert_eq!(of_publish(&none, &path), [("pod.uid", UID.into())]);
        let all = context(&[
            ("csi.storage.k8s.io/pod.name", "db-0"),
            ("csi.storage.k8s.io/pod.namespace", "shop"),
            ("csi.storage.k8s.io/pod.uid", "other"),
        ]);
        let named =
            [("pod.namespace", "shop".into()), ("pod.name", "db-0".into()), ("pod.uid", "other".into())];
        assert_eq!(of_publish(&all, &path), named, "the context has it");
        assert_eq!(of_publish(&context(&[]), "/elsewhere"), []);
    }
}
