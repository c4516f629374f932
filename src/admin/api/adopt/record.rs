//! What an adoption of a claim has begun with, in the namespace of the driver. A user who may write a claim decides nothing there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::failed;
use crate::admin::adopt::{Nodes, Session};
use crate::admin::api::Cluster;
use crate::admin::seen::Name;

/// The entry of a record with the earlier PersistentVolume.
pub(in crate::admin) const VOLUME: &str = "persistentVolume";
/// The entry with the directory in which its driver keeps its volumes (`--source-root`); empty if that is not named.
const SOURCE_ROOT: &str = "sourceRoot";

/// On a record: the adoption is being given up, and commands have stopped asking the node for the volume. On a PersistentVolume: it was changed after
/// that, so that a command which has read it before changes and deletes nothing.
pub(in crate::admin) const GIVING_UP: &str = "hostloop.csi.dev/adoption-given-up";

/// What an adoption has begun with.
pub(super) struct Record {
    /// The PersistentVolume that the claim had.
    pub(super) volume: Value,
    /// `--source-root`. `None` if the record is of an earlier release, which did not write it.
    pub(super) root: Option<PathBuf>,
    /// The uid of the record itself: a later adoption of the claim has another one.
    pub(super) uid: String,
    /// The adoption is being given up.
    pub(super) is_given_up: bool,
}

/// Why a command does not go on with an adoption.
pub(super) const IS_GIVEN_UP: &str = "another command gives the adoption up; to end that if it was interrupted, run this command with --give-up";

/// The records of adoptions that have begun.
#[derive(Clone)]
pub(in crate::admin) struct Records {
    maps: Api<ConfigMap>,
    namespace: String,
}

impl Records {
    pub(super) fn of(cluster: &Cluster, namespace: String) -> Self {
        Records { maps: Api::namespaced(cluster.client.clone(), &namespace), namespace }
    }

    /// Returns what the adoption of the claim with this uid has begun with; `None` if none has begun.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn read(&self, uid: &str) -> Result<Option<Record>, String> {
        let name = name(uid);
        let Some(map) = self.maps.get_opt(&name).await.map_err(failed)? else { return Ok(None) };
        let (uid, is_given_up) = (map.uid().unwrap_or_default(), map.annotations().contains_key(GIVING_UP));
        let mut data = map.data.unwrap_or_default();
        let (text, root) = (data.remove(VOLUME).unwrap_or_default(), data.remove(SOURCE_ROOT));
        match serde_json::from_str(&text) {
            Ok(volume) => Ok(Some(Record { volume, root: root.map(PathBuf::from), uid, is_given_up })),
            Err(error) => Err(format!("ConfigMap {}/{name} cannot be read: {error}", self.namespace)),
        }
    }

    /// Records whether the adoption is being given up. Succeeds if the record is gone.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn give_up(&self, uid: &str, is_given_up: bool) -> Result<(), String> {
        let value = is_given_up.then_some("true");
        let change = Patch::Merge(json!({"metadata": {"annotations": {GIVING_UP: value}}}));
        match self.maps.patch(&name(uid), &PatchParams::default(), &change).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            written => written.map(drop).map_err(failed),
        }
    }

    /// Makes sure that the adoption goes on, right before the node is asked for the volume.
    ///
    /// # Errors
    /// If it is given up, or has ended, as text.
    pub(in crate::admin) async fn expect_under_way(&self, uid: &str) -> Result<(), String> {
        match self.read(uid).await? {
            Some(Record { is_given_up: false, .. }) => Ok(()),
            Some(_) => Err(IS_GIVEN_UP.to_owned()),
            None => Err("another command has ended the adoption meanwhile".to_owned()),
        }
    }

    /// Writes it down, unless there is a record already.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn write(&self, uid: &str, volume: &Value, root: Option<&Path>) -> Result<(), String> {
        let root = root.map(|root| root.display().to_string()).unwrap_or_default();
        let map = ConfigMap {
            metadata: ObjectMeta { name: Some(name(uid)), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([
                (VOLUME.to_owned(), volume.to_string()),
                (SOURCE_ROOT.to_owned(), root),
            ])),
            immutable: Some(true),
            ..ConfigMap::default()
        };
        match self.maps.create(&PostParams::default(), &map).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => created.map(drop).map_err(failed),
        }
    }

    /// Makes sure that other commands have not asked the node again, right before the claim gets back what it had.
    ///
    /// # Errors
    /// If one may have, as text.
    pub(super) async fn expect_given_up(&self, uid: &str) -> Result<(), String> {
        match self.read(uid).await? {
            Some(Record { is_given_up: true, .. }) => Ok(()),
            _ => Err("another command goes on with the adoption, or has ended it; run this command again"
                .to_owned()),
        }
    }

    /// Removes the record with this uid of its own. That of a later adoption of the claim stays.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn remove(&self, uid: &str, own: &str) -> Result<(), String> {
        let same = Preconditions { uid: Some(own.to_owned()), resource_version: None };
        match self.maps.delete(&name(uid), &DeleteParams::default().preconditions(same)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 409 => Ok(()),
            removed => removed.map(drop).map_err(failed),
        }
    }
}

impl<N: Nodes> Session<N> {
    /// Makes sure that an adoption goes on with the source that it has begun with: elsewhere, a node would find that no volume was made.
    ///
    /// # Errors
    /// The flag that it has begun with.
    pub(super) fn go_on_with(&mut self, claim: &Name, begun: Record) -> Result<Value, String> {
        let Some(root) = begun.root else { return Ok(begun.volume) };
        let root = Some(root).filter(|root| !root.as_os_str().is_empty());
        if self.args.source_root.is_some() && self.args.source_root != root {
            let with = root.map_or_else(
                || "without --source-root".to_owned(),
                |root| format!("with --source-root {}", root.display()),
            );
            return Err(format!("the adoption of claim {claim} has begun {with}; repeat the command so"));
        }
        self.args.source_root = root;
        Ok(begun.volume)
    }

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
