//! What `hostloop adopt` reads and writes at the API server.

pub(in crate::admin) mod claim;
mod foreign;
mod give_up;
mod make;
pub(in crate::admin) mod others;
pub(in crate::admin) mod record;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde::Deserialize as _;
use serde_json::Value;

use self::foreign::Host;
use super::{Cluster, Failure, Result};
use crate::admin::adopt::Class;
use crate::admin::seen::Name;
use crate::cluster::moves::claims;
use crate::cluster::moves::objects::Objects;

impl Cluster {
    /// Returns the calls that replace a PersistentVolume.
    pub(in crate::admin) fn adoption(&self) -> Objects {
        Objects::new(self.client.clone())
    }

    /// Returns the provisioner of a StorageClass, and what a volume gets of it.
    pub(in crate::admin) async fn class(&self, name: &str) -> Result<Option<(String, Class)>> {
        let found = Api::<StorageClass>::all(self.client.clone()).get_opt(name).await?;
        Ok(found.map(|class| (class.provisioner.clone(), of_class(name, class))))
    }

    /// Returns the name of the Node with this label; the value itself if none has it.
    pub(in crate::admin) async fn node_with(&self, label: &str, value: &str) -> Result<String> {
        let labelled = ListParams::default().labels(&format!("{label}={value}"));
        let nodes = Api::<Node>::all(self.client.clone()).list(&labelled).await?.items;
        let has_it = |node: &&Node| node.labels().get(label).is_some_and(|found| found == value);
        Ok(nodes.iter().find(has_it).map_or_else(|| value.to_owned(), Node::name_any))
    }

    /// Returns the names of the Nodes that have all of these labels.
    pub(in crate::admin) async fn nodes_with(
        &self,
        labels: &BTreeMap<String, String>,
    ) -> Result<Vec<String>> {
        let selector: Vec<String> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
        let labelled = ListParams::default().labels(&selector.join(","));
        let nodes = Api::<Node>::all(self.client.clone()).list(&labelled).await?.items;
        let has_them =
            |node: &&Node| labels.iter().all(|(label, value)| node.labels().get(label) == Some(value));
        Ok(nodes.iter().filter(has_them).map(Node::name_any).collect())
    }

    /// Returns the name of the Node that a PersistentVolume names so.
    ///
    /// # Errors
    /// What to do, as text, if labels do not tell one node from all others.
    async fn node_named(&self, host: Host, volume: &str) -> std::result::Result<String, String> {
        match host {
            Host::Node(node) => Ok(node),
            Host::Hostname(host) => self.node_with(foreign::HOSTNAME, &host).await.map_err(failed),
            Host::Labels(labels) => match self.nodes_with(&labels).await.map_err(failed)?.as_slice() {
                [node] => Ok(node.clone()),
                nodes => Err(format!(
                    "PersistentVolume {volume} names its node by labels that {} nodes have ({}); give one node the labels, or use \
                     --directory and --node",
                    nodes.len(),
                    labels
                        .iter()
                        .map(|(label, value)| format!("{label}={value}"))
                        .collect::<Vec<_>>()
                        .join(", ")
                )),
            },
        }
    }

    /// Makes sure that a claim can be created, or is the one that an earlier command has created.
    ///
    /// # Errors
    /// What to change, as text.
    pub(in crate::admin) async fn expect_free_claim(
        &self,
        name: &Name,
        volume: &str,
    ) -> std::result::Result<(), String> {
        let claims = self.in_namespace::<PersistentVolumeClaim>(Some(&name.namespace));
        let found = claims.get_opt(&name.name).await.map_err(failed)?;
        match found {
            Some(claim)
                if claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) != Some(volume) =>
            {
                Err(format!("claim {name} exists and has another volume; choose another name (--new-claim)"))
            }
            _ => Ok(()),
        }
    }

    /// Makes sure that no PersistentVolume of this name is for another claim.
    ///
    /// # Errors
    /// What to change, as text.
    pub(in crate::admin) async fn expect_free_volume(
        &self,
        name: &Name,
        volume: &str,
    ) -> std::result::Result<(), String> {
        let found =
            Api::<PersistentVolume>::all(self.client.clone()).get_opt(volume).await.map_err(failed)?;
        let Some(found) = found else { return Ok(()) };
        let claim = found.spec.and_then(|spec| spec.claim_ref).unwrap_or_default();
        let (namespace, claim) = (claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default());
        match namespace == name.namespace && claim == name.name {
            true => Ok(()),
            false => Err(format!(
                "PersistentVolume {volume} exists and is for claim {namespace}/{claim}; choose another name (--new-claim)"
            )),
        }
    }

    /// Creates a PersistentVolume and its claim, or finds those of an earlier command.
    ///
    /// # Errors
    /// What to change, as text.
    pub(in crate::admin) async fn create_adopted(
        &self,
        [volume, claim]: &[Value; 2],
        name: &Name,
    ) -> std::result::Result<(), String> {
        let volume = PersistentVolume::deserialize(volume).map_err(|error| error.to_string())?;
        let claim = PersistentVolumeClaim::deserialize(claim).map_err(|error| error.to_string())?;
        let (volumes, params) = (Api::<PersistentVolume>::all(self.client.clone()), PostParams::default());
        match volumes.create(&params, &volume).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let there = volumes.get(&volume.name_any()).await.map_err(failed)?;
                let handle = |volume: &PersistentVolume| {
                    volume
                        .spec
                        .as_ref()
                        .and_then(|spec| spec.csi.as_ref())
                        .map(|csi| csi.volume_handle.clone())
                };
                if handle(&there) != handle(&volume) {
                    return Err(format!(
                        "PersistentVolume {} exists and is another volume",
                        volume.name_any()
                    ));
                }
            }
            created => drop(created.map_err(failed)?),
        }
        let claims = self.in_namespace::<PersistentVolumeClaim>(Some(&name.namespace));
        match claims.create(&params, &claim).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                self.expect_free_claim(name, &volume.name_any()).await
            }
            created => created.map(drop).map_err(failed),
        }
    }
}

fn of_class(name: &str, class: StorageClass) -> Class {
    let parameters = claims::parameters(&class).into_iter().collect();
    let fs_type = class.parameters.iter().flatten().find(|(key, _)| *key == "csi.storage.k8s.io/fstype");
    Class {
        name: name.to_owned(),
        parameters,
        fs_type: fs_type.map(|(_, value)| value.clone()).unwrap_or_default(),
        mount_options: class.mount_options.unwrap_or_default(),
        policy: class.reclaim_policy.unwrap_or_else(|| "Delete".to_owned()),
    }
}

/// Returns a failure of the API server with the page that lists the rights of this command.
pub(in crate::admin) fn failed(error: impl Into<Failure>) -> String {
    match error.into() {
        Failure::Forbidden(why) => format!("{why}; docs/migrate.md lists the rights that this command needs"),
        error => error.to_string(),
    }
}
