//! PersistentVolumes of other drivers: where their data are. No I/O.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PersistentVolume};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::admin::adopt::objects;
use crate::model::Adoption;

/// The directory in which the hostpath driver of Kubernetes keeps its volumes on the node, by its manifests.
const HOSTPATH_ROOT: &str = "/var/lib/csi-hostpath-data";
/// As above, of OpenEBS rawfile: of its releases before 0.15, and of its default storage pool since. Nothing in a
/// PersistentVolume says which.
const RAWFILE_ROOTS: [&str; 2] = ["/var/csi/rawfile", "/var/local/openebs/rawfile/default-pool"];
/// The label of a Node with its host name.
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";

/// Where the data of a volume are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Foreign {
    /// On its node.
    pub(super) path: String,
    pub(super) is_directory: bool,
    pub(super) block: bool,
    pub(super) node: Host,
}

/// How a PersistentVolume names its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// By its host name, which is not always the name of the Node.
    Hostname(String),
    Node(String),
    /// By other labels: the `NodeAffinityLabels` of OpenEBS, for example.
    Labels(BTreeMap<String, String>),
}

/// Reads a PersistentVolume of a driver that is known here. `root` is where a CSI driver keeps its volumes, if that is not where its
/// manifests say.
///
/// # Errors
/// What is not known, or is missing.
pub(super) fn read(volume: &PersistentVolume, root: Option<&Path>) -> Result<Foreign, String> {
    let (path, is_directory) = place(volume, root)?;
    let name = volume.name_any();
    let block = is_block(volume);
    if volume.spec.as_ref().is_some_and(|spec| spec.local.is_some()) && block {
        return Err(format!("PersistentVolume {name} is a block device, which cannot be adopted"));
    }
    let node = node(volume).ok_or_else(|| {
        format!("PersistentVolume {name} does not say on which one node its data are (nodeAffinity)")
    })?;
    Ok(Foreign { path, is_directory, block, node })
}

/// Returns where the data of a PersistentVolume are on its node, and whether they are in a directory.
///
/// # Errors
/// What is not known.
fn place(volume: &PersistentVolume, root: Option<&Path>) -> Result<(String, bool), String> {
    let (paths, is_directory) = places(volume, root)?;
    match <[String; 1]>::try_from(paths) {
        Ok([path]) => Ok((path, is_directory)),
        Err(paths) => Err(format!(
            "PersistentVolume {} does not say in which directory its driver keeps it; name that directory with --source-root: by the \
             driver's defaults the volume is {}",
            volume.name_any(),
            paths.join(" or ")
        )),
    }
}

/// Returns where the data of a PersistentVolume may be on its node, and whether they are in a directory.
///
/// # Errors
/// What is not known.
pub(super) fn places(volume: &PersistentVolume, root: Option<&Path>) -> Result<(Vec<String>, bool), String> {
    let name = volume.name_any();
    let spec = volume.spec.as_ref().ok_or_else(|| format!("PersistentVolume {name} is empty"))?;
    let below = |usual: &[&str], handle: &str| -> Result<Vec<String>, String> {
        // A part of a path, which a person or another driver has written.
        if handle.is_empty() || handle.contains('/') || handle.starts_with('.') {
            return Err(format!(
                "the volumeHandle {handle:?} of PersistentVolume {name} is no name of a file"
            ));
        }
        let in_root = |root: &Path| root.join(handle).display().to_string();
        Ok(root.map_or_else(
            || usual.iter().map(|usual| in_root(Path::new(usual))).collect(),
            |root| vec![in_root(root)],
        ))
    };
    let (paths, is_directory) = match (&spec.local, &spec.host_path, &spec.csi) {
        (Some(local), ..) => (vec![local.path.clone()], true),
        (None, Some(host_path), _) => (vec![host_path.path.clone()], true),
        (None, None, Some(csi)) if csi.driver == "hostpath.csi.k8s.io" => {
            (below(&[HOSTPATH_ROOT], &csi.volume_handle)?, !is_block(volume))
        }
        (None, None, Some(csi)) if csi.driver == "rawfile.csi.openebs.io" => {
            let directories = below(&RAWFILE_ROOTS, &csi.volume_handle)?;
            (directories.into_iter().map(|directory| format!("{directory}/disk.img")).collect(), false)
        }
        (None, None, Some(csi)) => {
            return Err(format!(
                "PersistentVolume {name} is one of driver {}, whose volumes cannot be adopted by their claim; use --image or \
                 --directory",
                csi.driver
            ));
        }
        _ => {
            return Err(format!(
                "PersistentVolume {name} is neither a directory of a node nor one of a CSI driver"
            ));
        }
    };
    Ok((paths.iter().map(|path| plain(path)).collect(), is_directory))
}

fn is_block(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

/// A path without what does not matter in it, such as a slash at its end.
pub(super) fn plain(path: &str) -> String {
    Path::new(path).components().collect::<std::path::PathBuf>().display().to_string()
}

/// The one node of a PersistentVolume.
pub(super) fn node(volume: &PersistentVolume) -> Option<Host> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let [term] = required.node_selector_terms.as_slice() else { return None };
    let named = |requirement: &NodeSelectorRequirement| {
        let [value] = requirement.values.as_deref()? else { return None };
        match requirement.key.as_str() {
            _ if requirement.operator != "In" => None,
            HOSTNAME => Some(Host::Hostname(value.clone())),
            "topology.hostpath.csi/node" | "hostname" | "openebs.io/nodename" => {
                Some(Host::Node(value.clone()))
            }
            _ => None,
        }
    };
    let by_name = |field: &NodeSelectorRequirement| match field.values.as_deref() {
        Some([value]) if field.key == "metadata.name" && field.operator == "In" => {
            Some(Host::Node(value.clone()))
        }
        _ => None,
    };
    let by_field = term.match_fields.iter().flatten().find_map(by_name);
    by_field
        .or_else(|| term.match_expressions.iter().flatten().find_map(named))
        .or_else(|| labels(term.match_expressions.as_deref()?))
}

/// Returns the labels of the node, if nothing else is asked for than labels with one value each.
fn labels(expressions: &[NodeSelectorRequirement]) -> Option<Host> {
    let label = |requirement: &NodeSelectorRequirement| match requirement.values.as_deref() {
        Some([value]) if requirement.operator == "In" => Some((requirement.key.clone(), value.clone())),
        _ => None,
    };
    let labels: Option<BTreeMap<_, _>> = expressions.iter().map(label).collect();
    labels.filter(|labels| !labels.is_empty()).map(Host::Labels)
}

/// Finalizers of provisioners, which wait until the data are deleted.
pub(super) fn is_of_provisioner(finalizer: &str) -> bool {
    ["external-provisioner.volume.kubernetes.io/", "openebs.io/", "local.openebs.io/", "rancher.io/"]
        .iter()
        .any(|prefix| finalizer.starts_with(prefix))
}

/// Makes a PersistentVolume of another driver one of hostloop.
pub(super) fn become_ours(volume: &mut Value, adoption: &Adoption) {
    if let Some(spec) = volume.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.retain(|field, _| !["local", "hostPath", "csi"].contains(&field.as_str()));
        spec.insert("csi".to_owned(), objects::csi(adoption));
        spec.insert("capacity".to_owned(), json!({"storage": adoption.capacity_bytes.to_string()}));
    }
    if let Some(metadata) = volume.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.remove("finalizers");
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.retain(|key, _| !key.starts_with("volume.kubernetes.io/provisioner-deletion-secret"));
            annotations.insert("pv.kubernetes.io/provisioned-by".to_owned(), json!(adoption.driver_name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(source: &Value, key: &str) -> PersistentVolume {
        let mut spec = json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": ["node-1"]}]}]}}});
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
    }

    #[test]
    fn the_places_of_other_drivers_are_known() {
        let csi = |driver: &str| json!({"csi": {"driver": driver, "volumeHandle": "pvc-1"}});
        let host = Host::Hostname("node-1".to_owned());
        let node = Host::Node("node-1".to_owned());
        for (source, key, path, is_directory, at) in [
            (json!({"local": {"path": "/opt/lp/pvc-1/"}}), HOSTNAME, "/opt/lp/pvc-1", true, &host),
            (json!({"hostPath": {"path": "/opt/lp/pvc-1"}}), HOSTNAME, "/opt/lp/pvc-1", true, &host),
            (
                csi("hostpath.csi.k8s.io"),
                "topology.hostpath.csi/node",
                "/var/lib/csi-hostpath-data/pvc-1",
                true,
                &node,
            ),
        ] {
            let found = read(&volume(&source, key), None).unwrap();
            assert_eq!(
                (found.path.as_str(), found.is_directory, &found.node),
                (path, is_directory, at),
                "{source}"
            );
        }
        let found =
            read(&volume(&csi("rawfile.csi.openebs.io"), "hostname"), Some(Path::new("/data"))).unwrap();
        assert_eq!((found.path.as_str(), found.is_directory), ("/data/pvc-1/disk.img", false));
        assert_eq!(found.node, node);
    }

    #[test]
    fn a_place_that_depends_on_a_release_is_not_guessed() {
        let source = json!({"csi": {"driver": "rawfile.csi.openebs.io", "volumeHandle": "pvc-1"}});
        let why = read(&volume(&source, "hostname"), None).unwrap_err();
        assert!(why.contains("--source-root") && why.contains("/var/csi/rawfile/pvc-1/disk.img or"), "{why}");
        let (paths, _) = places(&volume(&source, "hostname"), None).unwrap();
        assert!(
            paths.contains(&"/var/local/openebs/rawfile/default-pool/pvc-1/disk.img".to_owned()),
            "{paths:?}"
        );
    }

    #[test]
    fn a_node_is_known_by_labels_with_one_value() {
        let local = json!({"local": {"path": "/x"}});
        let labels = BTreeMap::from([("openebs.io/rack".to_owned(), "node-1".to_owned())]);
        assert_eq!(read(&volume(&local, "openebs.io/rack"), None).unwrap().node, Host::Labels(labels));
        for (operator, values) in
            [("In", json!(["a", "b"])), ("NotIn", json!(["a"])), ("Exists", json!(null))]
        {
            let mut several = serde_json::to_value(volume(&local, "openebs.io/rack")).unwrap();
            several["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0] =
                json!({"key": "openebs.io/rack", "operator": operator, "values": values});
            let several: PersistentVolume = serde_json::from_value(several).unwrap();
            assert_eq!(node(&several), None, "{operator}");
        }
    }

    #[test]
    fn a_volume_without_a_known_place_is_refused() {
        let wrong = |source: &Value, key: &str| read(&volume(source, key), None).unwrap_err();
        assert!(
            wrong(&json!({"csi": {"driver": "ebs", "volumeHandle": "x"}}), HOSTNAME).contains("driver ebs")
        );
        assert!(wrong(&json!({"nfs": {"server": "s", "path": "/"}}), HOSTNAME).contains("neither"));
        let anywhere = json!({"metadata": {"name": "pv"}, "spec": {"local": {"path": "/x"}}});
        let anywhere: PersistentVolume = serde_json::from_value(anywhere).unwrap();
        assert!(read(&anywhere, None).unwrap_err().contains("nodeAffinity"));
        assert!(
            wrong(&json!({"local": {"path": "/x"}, "volumeMode": "Block"}), HOSTNAME)
                .contains("block device")
        );
        for handle in ["../x", "a/b", ""] {
            let source = json!({"csi": {"driver": "hostpath.csi.k8s.io", "volumeHandle": handle}});
            assert!(wrong(&source, "topology.hostpath.csi/node").contains("no name of a file"), "{handle}");
        }
    }
}
