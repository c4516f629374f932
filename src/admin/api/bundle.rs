//! What `hostloop support-bundle` reads of the API server. It never asks for a Secret.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, LogParams};
use kube::{Api, ResourceExt as _};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Cluster, Failure};

/// The label of the controllers' pods, with the name of the driver.
const CONTROLLER: &str = "hostloop.csi.dev/controller";
/// The name of the driver's container in its pods.
const CONTAINER: &str = "hostloop";
/// The most lines of a log.
const LINES: i64 = 10_000;
/// The most bytes of a log.
const BYTES: i64 = 8 << 20;

/// A kind of objects.
#[derive(Debug)]
pub(in crate::admin) struct Kind {
    group: &'static str,
    version: &'static str,
    pub(in crate::admin) kind: &'static str,
    pub(in crate::admin) plural: &'static str,
    /// Where an object has the name of its driver; empty for all objects of the kind.
    driver: &'static str,
    /// Those in the namespace of the driver.
    pub(in crate::admin) of_driver: bool,
}

const fn kind(
    (group, version): (&'static str, &'static str),
    kind: &'static str,
    plural: &'static str,
    driver: &'static str,
) -> Kind {
    Kind { group, version, kind, plural, driver, of_driver: false }
}

const fn own(
    (group, version): (&'static str, &'static str),
    kind: &'static str,
    plural: &'static str,
) -> Kind {
    Kind { group, version, kind, plural, driver: "", of_driver: true }
}

const STORAGE: (&str, &str) = ("storage.k8s.io", "v1");
const SNAPSHOT: (&str, &str) = ("snapshot.storage.k8s.io", "v1");
const HOSTLOOP: (&str, &str) = ("hostloop.csi.dev", "v1alpha1");
const APPS: (&str, &str) = ("apps", "v1");
const CORE: (&str, &str) = ("", "v1");

/// The kinds that are read.
pub(in crate::admin) static KINDS: [Kind; 14] = [
    kind(STORAGE, "CSIDriver", "csidrivers", "/metadata/name"),
    kind(STORAGE, "CSINode", "csinodes", ""),
    kind(STORAGE, "StorageClass", "storageclasses", "/provisioner"),
    kind(STORAGE, "VolumeAttachment", "volumeattachments", "/spec/attacher"),
    kind(CORE, "PersistentVolume", "persistentvolumes", "/spec/csi/driver"),
    kind(
        CORE,
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        "/metadata/annotations/volume.kubernetes.io~1storage-provisioner",
    ),
    kind(SNAPSHOT, "VolumeSnapshotClass", "volumesnapshotclasses", "/driver"),
    kind(SNAPSHOT, "VolumeSnapshotContent", "volumesnapshotcontents", "/spec/driver"),
    kind(HOSTLOOP, "VolumeMove", "volumemoves", ""),
    kind(HOSTLOOP, "VolumeReplica", "volumereplicas", "/spec/driver"),
    own(APPS, "DaemonSet", "daemonsets"),
    own(APPS, "Deployment", "deployments"),
    own(CORE, "Pod", "pods"),
    own(CORE, "Event", "events"),
];

impl Kind {
    /// Returns the objects in the namespace of the driver that are its own: pods and workloads with its container, and events about these and
    /// their owners, whose names are collected. Others may share the namespace.
    pub(in crate::admin) fn of_the_driver(
        &self,
        objects: Vec<Value>,
        names: &mut BTreeSet<String>,
    ) -> Vec<Value> {
        let is_event = self.plural == "events";
        let mut ours = objects;
        ours.retain(|object| match is_event {
            true => ["/involvedObject/name", "/regarding/name"]
                .iter()
                .any(|path| text(object, path).is_some_and(|name| names.contains(name))),
            false => has_container(object),
        });
        if !is_event {
            for object in &ours {
                let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
                let owners = owners.into_iter().flatten().filter_map(|owner| text(owner, "/name"));
                names.extend(owners.chain(text(object, "/metadata/name")).map(str::to_owned));
            }
        }
        ours
    }
}

fn text<'a>(value: &'a Value, path: &str) -> Option<&'a str> {
    value.pointer(path).and_then(Value::as_str)
}

/// Reports whether a pod, or the template of a workload, has the container of the driver.
fn has_container(object: &Value) -> bool {
    let lists = ["/spec/containers", "/spec/template/spec/containers"];
    let mut containers = lists.iter().filter_map(|path| object.pointer(path)?.as_array()).flatten();
    containers.any(|container| text(container, "/name") == Some(CONTAINER))
}

/// A pod of the driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct DriverPod {
    pub(in crate::admin) name: String,
    pub(in crate::admin) containers: Vec<String>,
    /// The port of its metrics.
    pub(in crate::admin) metrics: Option<u16>,
}

impl Cluster {
    /// Returns the namespace of the controllers of a driver.
    ///
    /// # Errors
    /// If there are none, or in several namespaces.
    pub(in crate::admin) async fn namespace_of(&self, driver: &str) -> Result<String, String> {
        let labelled = ListParams::default().labels(&format!("{CONTROLLER}={driver}"));
        let pods = self.in_namespace::<Pod>(None).list(&labelled).await.map_err(why)?;
        let mut namespaces: Vec<String> = pods.iter().filter_map(Pod::namespace).collect();
        namespaces.sort();
        namespaces.dedup();
        match namespaces.as_slice() {
            [namespace] => Ok(namespace.clone()),
            _ => Err("the namespace of the driver is not known; use --driver-namespace".to_owned()),
        }
    }

    /// Returns the objects of a kind that are the driver's.
    ///
    /// # Errors
    /// Why they could not be read.
    pub(in crate::admin) async fn objects(
        &self,
        kind: &Kind,
        driver: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<Value>, String> {
        let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let found = api.list(&ListParams::default()).await.map_err(why)?;
        let values = found.items.into_iter().filter_map(|object| serde_json::to_value(object).ok());
        let is_ours = |value: &Value| {
            kind.driver.is_empty() || value.pointer(kind.driver).and_then(Value::as_str) == Some(driver)
        };
        Ok(values.filter(is_ours).collect())
    }

    /// Returns the pods of the driver.
    ///
    /// # Errors
    /// Why they could not be read.
    pub(in crate::admin) async fn driver_pods(&self, namespace: &str) -> Result<Vec<DriverPod>, String> {
        let pods =
            self.in_namespace::<Pod>(Some(namespace)).list(&ListParams::default()).await.map_err(why)?;
        Ok(pods.iter().filter_map(driver_pod).collect())
    }

    /// Returns the end of the log of a container.
    ///
    /// # Errors
    /// Why it could not be read.
    pub(in crate::admin) async fn log(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        previous: bool,
    ) -> Result<String, String> {
        let params = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(LINES),
            limit_bytes: Some(BYTES),
            timestamps: true,
            previous,
            ..LogParams::default()
        };
        self.in_namespace::<Pod>(Some(namespace)).logs(pod, &params).await.map_err(why)
    }

    /// Connects to a port of a pod, through the API server.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(in crate::admin) async fn port(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + use<>, String> {
        let pods = self.in_namespace::<Pod>(Some(namespace));
        let mut forwarded = pods.portforward(pod, &[port]).await.map_err(why)?;
        forwarded.take_stream(port).ok_or_else(|| "the API server forwards no port".to_owned())
    }
}

fn why(error: kube::Error) -> String {
    match Failure::from(error) {
        Failure::Forbidden(message) => message,
        Failure::Outdated => "the cluster has no such objects".to_owned(),
        error => error.to_string(),
    }
}

fn driver_pod(pod: &Pod) -> Option<DriverPod> {
    let spec = pod.spec.as_ref()?;
    let ours = spec.containers.iter().find(|container| container.name == CONTAINER)?;
    let mut ports = ours.ports.iter().flatten();
    let metrics = ports.find(|port| port.name.as_deref() == Some("metrics"));
    Some(DriverPod {
        name: pod.name_any(),
        containers: spec.containers.iter().map(|container| container.name.clone()).collect(),
        metrics: metrics.and_then(|port| u16::try_from(port.container_port).ok()),
    })
}
