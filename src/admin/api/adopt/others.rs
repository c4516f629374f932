//! Who else has the data of a source: other PersistentVolumes of its path, and pods that mount the path themselves.

use std::path::Path;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::{Api, ResourceExt as _};

use super::failed;
use super::foreign::{self, Host, plain};
use crate::admin::api::Cluster;
use crate::admin::api::doctor::whole;

/// What is to be adopted.
#[derive(Debug, Clone, Copy)]
pub(in crate::admin) struct Sought<'a> {
    /// The name of its own PersistentVolume; empty for none.
    pub(in crate::admin) volume: &'a str,
    pub(in crate::admin) node: &'a str,
    pub(in crate::admin) path: &'a str,
    /// Where a CSI driver keeps its volumes, if that is not where its manifests say.
    pub(in crate::admin) root: Option<&'a Path>,
    /// The driver that adopts. What it has is in its pools, of which the node adopts nothing.
    pub(in crate::admin) driver: &'a str,
}

impl Cluster {
    /// Makes sure that no other PersistentVolume has the path or a part of it on the node, and that no pod that has not ended mounts it as
    /// a `hostPath`. What has a directory around it is not meant: such are the pods of drivers.
    ///
    /// # Errors
    /// Who has it, and what to do, as text.
    pub(in crate::admin) async fn expect_sole(&self, sought: Sought<'_>) -> Result<(), String> {
        let volumes = whole(&Api::<PersistentVolume>::all(self.client.clone())).await.map_err(failed)?;
        for volume in volumes.iter().filter(|volume| volume.name_any() != sought.volume) {
            let has_it = foreign::places(volume, sought.root)
                .is_ok_and(|(paths, _)| paths.iter().any(|path| sought.has(path)));
            let is_named = sought.is_named_by(volume);
            if (has_it || is_named) && self.may_be_of(foreign::node(volume), sought.node).await? {
                if !has_it {
                    return Err(sought.is_anothers(volume));
                }
                return Err(format!(
                    "PersistentVolume {} has {} of node {}, too; what has two owners is not adopted: delete that \
                     PersistentVolume if it is not needed",
                    volume.name_any(),
                    sought.path,
                    sought.node
                ));
            }
        }
        let pods = whole(&self.in_namespace::<Pod>(None)).await.map_err(failed)?;
        match pods.iter().find(|pod| sought.is_mounted_by(pod)) {
            None => Ok(()),
            Some(pod) => Err(format!(
                "pod {}/{} mounts {} of node {} as a hostPath; end it first",
                pod.namespace().unwrap_or_default(),
                pod.name_any(),
                sought.path,
                sought.node
            )),
        }
    }

    /// Whether what names its node so may be on this one.
    async fn may_be_of(&self, host: Option<Host>, node: &str) -> Result<bool, String> {
        match host {
            // It is on the node of each pod that uses it.
            None => Ok(true),
            Some(Host::Node(name)) => Ok(name == node),
            Some(Host::Hostname(host)) => {
                Ok(self.node_with(foreign::HOSTNAME, &host).await.map_err(failed)? == node)
            }
            // A node without the labels may have had them.
            Some(Host::Labels(labels)) => {
                let nodes = self.nodes_with(&labels).await.map_err(failed)?;
                Ok(nodes.is_empty() || nodes.iter().any(|name| name == node))
            }
        }
    }
}

impl Sought<'_> {
    fn has(&self, path: &str) -> bool {
        Path::new(&plain(path)).starts_with(self.path)
    }

    /// Reports whether the path has the id of the volume as a name. Drivers name the directories and files of their volumes so, and
    /// nothing tells where a driver has them.
    fn is_named_by(&self, volume: &PersistentVolume) -> bool {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.is_some_and(|csi| {
            csi.driver != self.driver
                && Path::new(self.path).iter().any(|name| name.to_str() == Some(csi.volume_handle.as_str()))
        })
    }

    fn is_anothers(&self, volume: &PersistentVolume) -> String {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        format!(
            "PersistentVolume {} of driver {} may have {} of node {}, which has its volumeHandle as a name; what has two owners is not \
             adopted: delete that PersistentVolume if it is not needed, or rename the directory or file if it is not that of the volume",
            volume.name_any(),
            csi.map_or("", |csi| csi.driver.as_str()),
            self.path,
            self.node
        )
    }

    fn is_mounted_by(&self, pod: &Pod) -> bool {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let Some(spec) = &pod.spec else { return false };
        // A pod without a node may still come to this one.
        let is_here = spec.node_name.as_deref().is_none_or(|node| node == self.node);
        let mut paths = spec.volumes.iter().flatten().filter_map(|volume| volume.host_path.as_ref());
        is_here && !matches!(phase, Some("Succeeded" | "Failed")) && paths.any(|found| self.has(&found.path))
    }
}
