//! What the commands that show volumes read of the API server, and their way to a controller.

use std::collections::BTreeSet;

use futures_util::future::select_ok;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tokio::time::timeout;

use super::{Cluster, Failure, Result, seconds_since};
use crate::admin::seen::Name;
use crate::cluster::details::{PATIENCE, Source};
use crate::cluster::moves::claims::{bytes_of, node_of};
use crate::model::Timestamp;

/// The label of the controllers' pods, with the name of the driver.
const CONTROLLER: &str = "hostloop.csi.dev/controller";
/// The name of the port of a controller that answers (`--inspect-listen`).
const PORT: &str = "inspect";

/// A PersistentVolume of the driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct Known {
    pub(in crate::admin) name: String,
    /// The CSI id of its volume.
    pub(in crate::admin) id: String,
    pub(in crate::admin) node: Option<String>,
    pub(in crate::admin) bytes: u64,
    pub(in crate::admin) claim: Option<Name>,
    /// Its class, for those who look at one volume.
    pub(in crate::admin) class: Option<String>,
    /// Such as Bound and Released.
    pub(in crate::admin) phase: String,
    /// Seconds since it was made.
    pub(in crate::admin) age: Option<i64>,
}

/// A pod that has not ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct User {
    pub(in crate::admin) name: Name,
    pub(in crate::admin) uid: String,
    /// The names of its claims.
    pub(in crate::admin) claims: Vec<String>,
}

/// A VolumeSnapshotContent of the driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct Cut {
    pub(in crate::admin) content: String,
    /// The CSI id of its snapshot.
    pub(in crate::admin) id: String,
    pub(in crate::admin) snapshot: Name,
    /// The CSI id of its volume, if the snapshot was made for this object.
    pub(in crate::admin) volume: String,
    pub(in crate::admin) bytes: Option<u64>,
    /// Seconds since the snapshot was made.
    pub(in crate::admin) age: Option<i64>,
}

impl Cluster {
    /// Returns the PersistentVolumes of a driver.
    pub(in crate::admin) async fn known_volumes(&self, driver: &str) -> Result<Vec<Known>> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let all = volumes.list(&ListParams::default()).await?.items;
        Ok(all.iter().filter_map(|volume| known(volume, driver)).collect())
    }

    /// Returns the pods of a namespace, or of all, that have not ended.
    pub(in crate::admin) async fn users(&self, namespace: Option<&str>) -> Result<Vec<User>> {
        let pods = self.in_namespace::<Pod>(namespace).list(&ListParams::default()).await?.items;
        Ok(pods.iter().filter_map(user).collect())
    }

    /// Returns the VolumeSnapshotContents of a driver; none if the cluster has no such kind.
    pub(in crate::admin) async fn cuts(&self, driver: &str) -> Result<Vec<Cut>> {
        match contents(self.client.clone()).list(&ListParams::default()).await {
            Ok(list) => Ok(list.items.iter().filter_map(|content| cut(content, driver)).collect()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to the controller of a driver that answers first, through the API server. Another one may be on a node that is down.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(in crate::admin) async fn controller(
        &self,
        driver: &str,
        namespace: Option<&str>,
    ) -> std::result::Result<Source, String> {
        let pods = self.controllers(driver, namespace).await?;
        let ways = pods.iter().filter_map(|pod| Some((pod, port_of(pod)?)));
        let ways: Vec<_> = ways.map(|(pod, port)| Box::pin(self.through(pod, port))).collect();
        if ways.is_empty() {
            return Err(format!(
                "no controller of {driver} runs that answers; it needs inspect.enabled in the chart (--inspect-listen of the \
                 controllers). On a node, use --endpoint"
            ));
        }
        select_ok(ways).await.map(|(source, _)| source)
    }

    /// Returns the running controllers of a driver, which are in one namespace.
    async fn controllers(
        &self,
        driver: &str,
        namespace: Option<&str>,
    ) -> std::result::Result<Vec<Pod>, String> {
        let labelled = ListParams::default().labels(&format!("{CONTROLLER}={driver}"));
        let pods = self.in_namespace::<Pod>(namespace);
        let found = timeout(PATIENCE, pods.list(&labelled)).await;
        let late = |_| format!("the API server: no answer within {} s", PATIENCE.as_secs());
        let found = found.map_err(late)?.map_err(Failure::from);
        let right = "list pods (--driver-namespace names the namespace of the controllers)";
        let mut pods = found.map_err(|error| untold(&error, right))?.items;
        pods.retain(|pod| is_running(pod) && pod.labels().get(CONTROLLER).is_some_and(|of| of == driver));
        // A user who may create pods can give one this label, and its answers would be taken for those of a controller.
        let namespaces: BTreeSet<String> = pods.iter().filter_map(Pod::namespace).collect();
        if namespaces.len() > 1 {
            let namespaces: Vec<String> = namespaces.into_iter().collect();
            return Err(format!(
                "pods of several namespaces say that they are controllers of {driver}: {}; name the right one with --driver-namespace",
                namespaces.join(", ")
            ));
        }
        Ok(pods)
    }

    /// Returns the namespace of the controllers of a driver.
    ///
    /// # Errors
    /// Why it is not known.
    pub(in crate::admin) async fn controller_namespace(
        &self,
        driver: &str,
    ) -> std::result::Result<String, String> {
        let pods = self.controllers(driver, None).await?;
        let namespace = pods.first().and_then(Pod::namespace);
        namespace.ok_or_else(|| {
            format!("no controller of {driver} runs; name its namespace with --driver-namespace")
        })
    }

    async fn through(&self, pod: &Pod, port: u16) -> std::result::Result<Source, String> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let connect = async {
            let forwarded = pods.portforward(&name, &[port]).await.map_err(Failure::from);
            let right = "forward ports to the controllers (pods/portforward)";
            let mut forwarded = forwarded.map_err(|error| untold(&error, right))?;
            let stream = forwarded.take_stream(port).ok_or("the API server forwards no port")?;
            let source = Source::over(stream).await?;
            source.answers().await.map(|()| source)
        };
        let late = || Err(format!("no answer within {} s", PATIENCE.as_secs()));
        let source = timeout(PATIENCE, connect).await.unwrap_or_else(|_| late());
        source.map_err(|why| format!("pod {namespace}/{name}: {why}"))
    }
}

/// Returns what to say of a call that failed, with the right that it needs.
pub(in crate::admin) fn untold(error: &Failure, right: &str) -> String {
    match error {
        Failure::Forbidden(why) => format!("{why}; you need the right to {right}: docs/inspecting.md"),
        error => error.to_string(),
    }
}

/// Returns the VolumeSnapshotContents.
pub(super) fn contents(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
    Api::all_with(client, &ApiResource::from_gvk(&kind))
}

pub(super) fn known(volume: &PersistentVolume, driver: &str) -> Option<Known> {
    let spec = volume.spec.as_ref()?;
    let csi = spec.csi.as_ref().filter(|csi| csi.driver == driver)?;
    let claim = spec.claim_ref.as_ref().map(|claim| Name {
        namespace: claim.namespace.clone().unwrap_or_default(),
        name: claim.name.clone().unwrap_or_default(),
    });
    Some(Known {
        name: volume.name_any(),
        id: csi.volume_handle.clone(),
        node: node_of(volume),
        bytes: bytes_of(volume),
        claim,
        class: spec.storage_class_name.clone().filter(|class| !class.is_empty()),
        phase: volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
        age: volume.creation_timestamp().map(|time| seconds_since(time.0)),
    })
}

pub(super) fn user(pod: &Pod) -> Option<User> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let name = pod.name_any();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let claim = |volume: &k8s_openapi::api::core::v1::Volume| match &volume.persistent_volume_claim {
        Some(claim) => Some(claim.claim_name.clone()),
        None => volume.ephemeral.as_ref().map(|_| format!("{name}-{}", volume.name)),
    };
    Some(User {
        claims: volumes.into_iter().flatten().filter_map(claim).collect(),
        uid: pod.uid().unwrap_or_default(),
        name: Name { namespace: pod.namespace().unwrap_or_default(), name },
    })
}

pub(super) fn cut(content: &DynamicObject, driver: &str) -> Option<Cut> {
    let text = |path: &str| content.data.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let id = match text("/status/snapshotHandle") {
        id if id.is_empty() => text("/spec/source/snapshotHandle"),
        id => id,
    };
    let snapshot = Name {
        namespace: text("/spec/volumeSnapshotRef/namespace"),
        name: text("/spec/volumeSnapshotRef/name"),
    };
    let number = |path: &str| content.data.pointer(path).and_then(Value::as_i64);
    let created = number("/status/creationTime").map(|nanoseconds| nanoseconds / 1_000_000_000);
    (text("/spec/driver") == driver).then(|| Cut {
        content: content.name_any(),
        id,
        snapshot,
        volume: text("/spec/source/volumeHandle"),
        bytes: number("/status/restoreSize").and_then(|bytes| u64::try_from(bytes).ok()),
        age: created.map(|created| Timestamp::now().seconds().saturating_sub(created)),
    })
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

fn port_of(pod: &Pod) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(PORT))?;
    u16::try_from(port.container_port).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_uses_its_claims_until_it_ends() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"namespace": "shop", "name": "db-0", "uid": "u"},
                "spec": {"containers": [], "volumes": [
                    {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "scratch", "ephemeral": {}}, {"name": "c", "emptyDir": {}}]},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let found = user(&pod("Pending")).unwrap();
        assert_eq!(
            (found.claims, found.uid.as_str()),
            (vec!["data".to_owned(), "db-0-scratch".to_owned()], "u")
        );
        assert_eq!([user(&pod("Succeeded")), user(&pod("Failed"))], [None, None]);
    }

    #[test]
    fn only_volumes_of_the_driver_are_known() {
        let volume = |driver: &str| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": {"name": "pv"},
                "spec": {"csi": {"driver": driver, "volumeHandle": "vol-1"}, "capacity": {"storage": "1Gi"},
                    "claimRef": {"namespace": "shop", "name": "data"}},
                "status": {"phase": "Bound"},
            }))
            .unwrap()
        };
        let found = known(&volume("hostloop.csi.dev"), "hostloop.csi.dev").unwrap();
        assert_eq!((found.id.as_str(), found.bytes, found.phase.as_str()), ("vol-1", 1 << 30, "Bound"));
        assert_eq!(found.claim.unwrap().to_string(), "shop/data");
        assert_eq!(known(&volume("ebs.csi.aws.com"), "hostloop.csi.dev"), None);
    }
    #[test]
    fn a_content_says_of_what_and_when_it_is() {
        let created = (Timestamp::now().seconds() - 600) * 1_000_000_000;
        let content = |driver: &str| -> DynamicObject {
            serde_json::from_value(json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": "content-1"},
                "spec": {"driver": driver, "source": {"volumeHandle": "vol-1"},
                    "volumeSnapshotRef": {"namespace": "shop", "name": "before"}},
                "status": {"snapshotHandle": "snap-1", "restoreSize": 1 << 30, "creationTime": created},
            }))
            .unwrap()
        };
        let found = cut(&content("hostloop.csi.dev"), "hostloop.csi.dev").unwrap();
        assert_eq!(
            (found.id.as_str(), found.volume.as_str(), found.bytes),
            ("snap-1", "vol-1", Some(1 << 30))
        );
        assert!(found.age.is_some_and(|age| (600..700).contains(&age)), "{found:?}");
        assert_eq!(cut(&content("ebs.csi.aws.com"), "hostloop.csi.dev"), None);
    }
}
