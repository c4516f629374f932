//! The calls of the API server that the commands make, each with the right that it needs (docs/moving.md).

pub(super) mod adopt;
pub(super) mod bundle;
pub(super) mod doctor;
pub(super) mod inspect;
pub(super) mod watched;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Value, json};

use super::seen::{Claim, Leader, Machine, Move, Name, Replica, Told, Volume, read};
use crate::cli::ClusterArgs;
use crate::cluster::moves::claims::node_of;
use crate::cluster::moves::lease::lease_name;
use crate::cluster::moves::look::standby_of;
use crate::cluster::moves::pods::PROMOTE;
use crate::cluster::moves::resources::{VolumeMove, VolumeMoveSpec, VolumeReplica};
use crate::cluster::moves::view::Wanted;
use crate::cluster::peers::api_client_of;

/// A Lease that was not renewed for so long has no holder any more, in seconds. Clocks of machines differ.
const FORSAKEN: i64 = 120;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// The user lacks a right, or is not known.
    #[error("{0}; docs/moving.md lists the rights that this command needs")]
    Forbidden(String),
    /// The API server does not know the kinds of objects that a move needs.
    #[error(
        "the cluster has no VolumeMoves: their CustomResourceDefinitions are not installed; set move.enabled in the chart, or \
         use the component move of kustomize"
    )]
    NotInstalled,
    /// Another client has changed or deleted the object.
    #[error("the object was changed meanwhile; run the command again")]
    Outdated,
    /// It may work later.
    #[error("the API server: {0}")]
    Later(String),
}

type Result<T> = std::result::Result<T, Failure>;

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if [401, 403].contains(&status.code) => {
                Failure::Forbidden(status.message.clone())
            }
            kube::Error::Api(status) if [404, 409].contains(&status.code) => Failure::Outdated,
            kube::Error::Api(status) => Failure::Later(status.message.clone()),
            error => Failure::Later(chain(&error)),
        }
    }
}

/// Returns why a list of VolumeMoves or VolumeReplicas failed.
fn of_list(error: kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 404 => Failure::NotInstalled,
        error => error.into(),
    }
}

/// Returns `None` for what the user may not read.
pub(super) fn permitted<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Failure::Forbidden(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns an error with what caused it, each part once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Returns what to do if there is no kubeconfig, or none that names a cluster; `None` for another error.
fn missing(error: &KubeconfigError) -> Option<String> {
    let problem = match error {
        KubeconfigError::ReadConfig(cause, path) if cause.kind() == ErrorKind::NotFound => {
            format!("there is no kubeconfig at {}", path.display())
        }
        KubeconfigError::FindPath => "there is no kubeconfig".to_owned(),
        KubeconfigError::CurrentContextNotSet => {
            return Some("the kubeconfig has no current context; choose one with --context".to_owned());
        }
        _ => return None,
    };
    Some(format!("{problem}; set KUBECONFIG or use --kubeconfig"))
}

/// The API server, as a user of it.
#[derive(Clone)]
pub(super) struct Cluster {
    client: Client,
    /// The namespace if a command names none.
    pub(super) namespace: String,
}

impl Cluster {
    pub(super) fn new(client: Client) -> Self {
        let namespace = client.default_namespace().to_owned();
        Cluster { client, namespace }
    }

    /// Reads the kubeconfig.
    ///
    /// # Errors
    /// What to change, as text.
    pub(super) async fn connect(args: &ClusterArgs) -> std::result::Result<Self, String> {
        let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
        let advice = |error: &KubeconfigError| match missing(error) {
            Some(problem) => problem,
            None => format!("{}; correct it, or use --kubeconfig and --context", chain(error)),
        };
        let config = match &args.kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path);
                let read = read.map_err(|error| format!("--kubeconfig: {}", chain(&error)))?;
                Config::from_custom_kubeconfig(read, &options).await
            }
            None => match Config::from_kubeconfig(&options).await {
                // A pod has no kubeconfig.
                Err(error) if args.context.is_none() => Config::incluster().map_err(|_| error),
                read => read,
            },
        };
        let config = config.map_err(|error| advice(&error))?;
        api_client_of(config).map(Cluster::new).map_err(|error| chain(&error))
    }

    fn in_namespace<K>(&self, namespace: Option<&str>) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Returns the VolumeMoves of a namespace, or all.
    pub(super) async fn moves(&self, namespace: Option<&str>) -> Result<Vec<Move>> {
        let kind = ApiResource::erase::<VolumeMove>(&());
        let moves: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        };
        Ok(moves.list(&ListParams::default()).await.map_err(of_list)?.items.iter().map(a_move).collect())
    }

    /// Returns the VolumeReplicas of a driver.
    pub(super) async fn replicas(&self, driver: &str) -> Result<Vec<Replica>> {
        let kind = ApiResource::erase::<VolumeReplica>(&());
        let replicas: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let all = replicas.list(&ListParams::default()).await.map_err(of_list)?.items;
        Ok(all.iter().map(replica).filter(|replica| replica.spec.driver == driver).collect())
    }

    /// Creates a VolumeMove; `None` if there is one of its name.
    pub(super) async fn create_move(
        &self,
        namespace: &str,
        name: &str,
        spec: &VolumeMoveSpec,
    ) -> Result<Option<Move>> {
        let moves = self.in_namespace::<VolumeMove>(Some(namespace));
        match moves.create(&PostParams::default(), &VolumeMove::new(name, spec.clone())).await {
            Ok(created) => Ok(Some(Move {
                name: name.to_owned(),
                uid: created.uid().unwrap_or_default(),
                claim: Name { namespace: namespace.to_owned(), name: spec.claim_name.clone() },
                spec: Some(created.spec),
                ..Move::default()
            })),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a VolumeMove; with `unchanged`, only the version that was read. Returns whether it is gone, or is being deleted.
    pub(super) async fn delete_move(&self, seen: &Move, unchanged: bool) -> Result<bool> {
        let moves = self.in_namespace::<VolumeMove>(Some(&seen.claim.namespace));
        let resource_version = unchanged.then(|| seen.version.clone());
        let same = Preconditions { uid: Some(seen.uid.clone()), resource_version };
        match moves.delete(&seen.name, &DeleteParams::default().preconditions(same)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(!unchanged),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes that a copy is to take the place of its volume.
    pub(super) async fn promote(&self, seen: &Replica) -> Result<()> {
        let replicas: Api<VolumeReplica> = Api::all(self.client.clone());
        let change = json!({"metadata": {"uid": seen.uid, "annotations": {PROMOTE: "true"}}});
        replicas.patch(&seen.name, &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    /// Returns a claim; `None` if there is none.
    pub(super) async fn claim(&self, name: &Name) -> Result<Option<Claim>> {
        let claims = self.in_namespace::<PersistentVolumeClaim>(Some(&name.namespace));
        let Some(claim) = claims.get_opt(&name.name).await? else { return Ok(None) };
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let node = match volume {
            None | Some("") => None,
            Some(volume) => self.node_of(volume).await?,
        };
        Ok(Some(Claim { uid: claim.uid().unwrap_or_default(), node }))
    }

    /// Returns the node of a PersistentVolume; `None` also if the user may not read it.
    pub(super) async fn node_of(&self, volume: &str) -> Result<Option<String>> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = permitted(volumes.get_opt(volume).await.map_err(Failure::from))?.flatten();
        // One that is being deleted comes again, with another node.
        let found = found.filter(|volume| volume.metadata.deletion_timestamp.is_none());
        Ok(found.as_ref().and_then(node_of))
    }

    /// Returns the PersistentVolumes that are bound to claims.
    pub(super) async fn volumes(&self) -> Result<Vec<Volume>> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        Ok(volumes.list(&ListParams::default()).await?.items.iter().filter_map(volume).collect())
    }

    /// Returns how old the standby copy of each claim may become, by the uid of the claim.
    pub(super) async fn intervals(&self, namespace: Option<&str>) -> Result<HashMap<String, Duration>> {
        let all = ListParams::default();
        let classes = Api::<StorageClass>::all(self.client.clone()).list(&all).await?.items;
        let claims = self.in_namespace::<PersistentVolumeClaim>(namespace).list(&all).await?.items;
        let interval = |claim: &PersistentVolumeClaim| {
            let name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone())?;
            match standby_of(claim, classes.iter().find(|class| class.name_any() == name)?) {
                Wanted::Standby { interval } => Some((claim.uid()?, interval)),
                Wanted::Move { .. } | Wanted::Nothing(_) | Wanted::Unknown(_) => None,
            }
        };
        Ok(claims.iter().filter_map(interval).collect())
    }

    pub(super) async fn machine(&self, name: &str) -> Result<Option<Machine>> {
        let node = Api::<Node>::all(self.client.clone()).get_opt(name).await?;
        Ok(node.map(|node| Machine {
            cordoned: node.spec.is_some_and(|spec| spec.unschedulable == Some(true)),
            ready: node.status.is_some_and(|status| {
                let mut conditions = status.conditions.iter().flatten();
                conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
            }),
        }))
    }

    /// Returns the nodes on which no new pods start.
    pub(super) async fn cordoned(&self) -> Result<Vec<String>> {
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?.items;
        let is_cordoned =
            |node: &&Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        Ok(nodes.iter().filter(is_cordoned).map(Node::name_any).collect())
    }

    /// Returns which controller moves the volumes of the driver. Its Lease may be in any namespace.
    pub(super) async fn leader(&self, driver: &str) -> Result<Leader> {
        let name = lease_name(driver);
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let leases = Api::<Lease>::all(self.client.clone()).list(&named).await.map_err(Failure::from);
        let Some(leases) = permitted(leases)? else { return Ok(Leader::Unknown) };
        let holder = |lease: &Lease| {
            let spec = lease.spec.as_ref()?;
            let renewed = spec.renew_time.as_ref().map(|time| seconds_since(time.0));
            let fresh = renewed.is_some_and(|age| age < FORSAKEN);
            spec.holder_identity.clone().filter(|holder| fresh && !holder.is_empty())
        };
        let held = leases.items.iter().filter(|lease| lease.name_any() == name).find_map(holder);
        Ok(held.map_or(Leader::Nobody, Leader::Leads))
    }
}

fn seconds_since(moment: Timestamp) -> i64 {
    Timestamp::now().as_second().saturating_sub(moment.as_second())
}

fn a_move(object: &DynamicObject) -> Move {
    let part = |name| object.data.get(name).unwrap_or(&Value::Null);
    let spec: Option<VolumeMoveSpec> = read(part("spec"));
    let claim = part("spec").get("claimName").and_then(Value::as_str).unwrap_or_default();
    Move {
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        version: object.resource_version().unwrap_or_default(),
        claim: Name { namespace: object.namespace().unwrap_or_default(), name: claim.to_owned() },
        spec,
        told: read::<Told>(part("status")),
        being_deleted: object.metadata.deletion_timestamp.is_some(),
    }
}

fn replica(object: &DynamicObject) -> Replica {
    let part = |name| object.data.get(name).unwrap_or(&Value::Null);
    let read = Replica::read(part("spec"), part("status"));
    let asked = read.last_pass.as_deref().and_then(|moment| moment.parse().ok());
    Replica {
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        promoted: object.annotations().get(PROMOTE).is_some_and(|value| value == "true"),
        age: asked.map(seconds_since),
        ..read
    }
}

fn volume(volume: &PersistentVolume) -> Option<Volume> {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let spec = volume.spec.as_ref().filter(|_| phase == Some("Bound"))?;
    let claim = spec.claim_ref.as_ref()?;
    Some(Volume {
        driver: spec.csi.as_ref().map(|csi| csi.driver.clone()).unwrap_or_default(),
        node: node_of(volume),
        claim: Name {
            namespace: claim.namespace.clone().unwrap_or_default(),
            name: claim.name.clone().unwrap_or_default(),
        },
    })
}
