//! What an adoption of a claim has begun with, in the namespace of the driver. A user who may write a claim decides nothing there.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use serde_json::Value;

use super::failed;
use crate::admin::adopt::{Nodes, Session};
use crate::admin::api::Cluster;

/// The one entry of a record: the earlier PersistentVolume.
pub(in crate::admin) const VOLUME: &str = "persistentVolume";

/// The records of adoptions that have begun.
#[derive(Clone)]
pub(super) struct Records {
    maps: Api<ConfigMap>,
    namespace: String,
}

impl Records {
    pub(super) fn of(cluster: &Cluster, namespace: String) -> Self {
        Records { maps: Api::namespaced(cluster.client.clone(), &namespace), namespace }
    }

    /// Returns the PersistentVolume that the claim with this uid had; `None` if no adoption of it has begun.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn read(&self, uid: &str) -> Result<Option<Value>, String> {
        let name = name(uid);
        let Some(map) = self.maps.get_opt(&name).await.map_err(failed)? else { return Ok(None) };
        let text = map.data.unwrap_or_default().remove(VOLUME).unwrap_or_default();
        let read = serde_json::from_str(&text).map(Some);
        read.map_err(|error| format!("ConfigMap {}/{name} cannot be read: {error}", self.namespace))
    }

    /// Writes it down, unless there is a record already.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn write(&self, uid: &str, volume: &Value) -> Result<(), String> {
        let map = ConfigMap {
            metadata: ObjectMeta { name: Some(name(uid)), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([(VOLUME.to_owned(), volume.to_string())])),
            immutable: Some(true),
            ..ConfigMap::default()
        };
        match self.maps.create(&PostParams::default(), &map).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => created.map(drop).map_err(failed),
        }
    }

    /// Removes it.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn remove(&self, uid: &str) -> Result<(), String> {
        match self.maps.delete(&name(uid), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            removed => removed.map(drop).map_err(failed),
        }
    }
}

impl<N: Nodes> Session<N> {
    /// Finds the namespace of the driver.
    pub(super) async fn records(&mut self) -> Result<Records, String> {
        let cluster = self.cluster.as_ref().ok_or("--claim needs a kubeconfig")?;
        let source = &self.args.source;
        let namespace = match &source.driver_namespace {
            Some(namespace) => namespace.clone(),
            None => cluster.controller_namespace(&source.driver_name).await?,
        };
        Ok(Records::of(cluster, namespace))
    }
}

/// Returns the name of the ConfigMap for the claim with this uid.
pub(in crate::admin) fn name(uid: &str) -> String {
    format!("hostloop-adopt-{uid}")
}
