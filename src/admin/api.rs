//! The calls of the API server that the commands make, each with the right that it needs (docs/moving.md).

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Mutex;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Value, json};

use super::seen::{Claim, Leader, Machine, Name, Record, Seen, Volume, told};
use crate::cli::ClusterArgs;
use crate::cluster::mover::status::{FINALIZER, MOVE_RECORD, MOVE_STATUS, MOVING, seconds_since};
use crate::cluster::mover::{lease_name, node_of};

/// A Lease that was not renewed for so long has no holder any more, in seconds. Clocks of machines differ.
const FORSAKEN: i64 = 120;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// The user lacks a right, or is not known.
    #[error("{0}; docs/moving.md lists the rights that this command needs")]
    Forbidden(String),
    /// The object was changed by somebody else, or is gone.
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

/// An error with what caused it, each said once.
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
pub(super) struct Cluster {
    client: Client,
    /// The namespace where none is given.
    pub(super) namespace: String,
    /// The nodes of PersistentVolumes that were looked at: they never change.
    nodes: Mutex<HashMap<String, Option<String>>>,
}

impl Cluster {
    pub(super) fn new(client: Client) -> Self {
        let namespace = client.default_namespace().to_owned();
        Cluster { client, namespace, nodes: Mutex::default() }
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
        Client::try_from(config).map(Cluster::new).map_err(|error| chain(&error))
    }

    fn claims_in(&self, namespace: Option<&str>) -> Api<PersistentVolumeClaim> {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn volumes_api(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    pub(super) async fn claim(&self, name: &Name) -> Result<Option<Claim>> {
        let found = self.claims_in(Some(&name.namespace)).get_opt(&name.name).await?;
        Ok(found.as_ref().map(claim))
    }

    /// The claims of a namespace, or all.
    pub(super) async fn claims(&self, namespace: Option<&str>) -> Result<Vec<(Name, Claim)>> {
        let all = self.claims_in(namespace).list(&ListParams::default()).await?.items;
        Ok(all.iter().map(|found| (name_of(found), claim(found))).collect())
    }

    pub(super) async fn volumes(&self) -> Result<Vec<Volume>> {
        Ok(self.volumes_api().list(&ListParams::default()).await?.items.iter().map(volume).collect())
    }

    /// The PersistentVolumes for which claims are being made again. Nobody knows of them without the right to list them.
    pub(super) async fn records(&self) -> Result<Vec<Record>> {
        let moving = ListParams::default().labels(&format!("{MOVING}=true"));
        let found = self.volumes_api().list(&moving).await?.items;
        Ok(found.iter().filter_map(|found| volume(found).record).collect())
    }

    /// The node of a PersistentVolume; `None` also without the right to read it.
    async fn node_of(&self, name: &str) -> Result<Option<String>> {
        let known = self.nodes.lock().ok().and_then(|nodes| nodes.get(name).cloned());
        if let Some(node) = known {
            return Ok(node);
        }
        let node = match self.volumes_api().get_opt(name).await.map_err(Failure::from) {
            Ok(Some(volume)) => node_of(&volume),
            Ok(None) => return Ok(None),
            Err(Failure::Forbidden(_)) => None,
            Err(error) => return Err(error),
        };
        if let Ok(mut nodes) = self.nodes.lock() {
            nodes.insert(name.to_owned(), node.clone());
        }
        Ok(node)
    }

    /// All that tells of the move of a claim.
    pub(super) async fn look(&self, name: &Name) -> Result<Seen> {
        let claim = self.claim(name).await?;
        let silent = claim.as_ref().is_none_or(|claim| claim.told.is_none());
        let record = match silent {
            true => match self.records().await {
                Ok(all) => all.into_iter().find(|r| r.namespace == name.namespace && r.name == name.name),
                Err(Failure::Forbidden(_)) => None,
                Err(error) => return Err(error),
            },
            false => None,
        };
        let node = match claim.as_ref().and_then(|claim| claim.volume.as_deref()) {
            Some(volume) => self.node_of(volume).await?,
            None => None,
        };
        Ok(Seen { claim, record, node })
    }

    /// Changes annotations of a claim that is as it was looked at; `None` removes one.
    pub(super) async fn annotate(
        &self,
        name: &Name,
        seen: &Claim,
        changes: &[(&str, Option<&str>)],
    ) -> Result<()> {
        let annotations: serde_json::Map<String, Value> =
            changes.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let change = json!({"metadata": {"annotations": annotations, "resourceVersion": seen.version}});
        let claims = self.claims_in(Some(&name.namespace));
        claims.patch(&name.name, &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
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

    /// Which controller moves the volumes of the driver. Its Lease may be in any namespace.
    pub(super) async fn leader(&self, driver: &str) -> Result<Leader> {
        let name = lease_name(driver);
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let leases = match Api::<Lease>::all(self.client.clone()).list(&named).await.map_err(Failure::from) {
            Ok(leases) => leases.items,
            Err(Failure::Forbidden(_)) => return Ok(Leader::Unknown),
            Err(error) => return Err(error),
        };
        let holder = |lease: &Lease| {
            let spec = lease.spec.as_ref()?;
            let renewed = spec.renew_time.as_ref().and_then(|time| seconds_since(&time.0.to_string()));
            let fresh = renewed.is_some_and(|age| age < FORSAKEN);
            spec.holder_identity.clone().filter(|holder| fresh && !holder.is_empty())
        };
        let held = leases.iter().filter(|lease| lease.name_any() == name).find_map(holder);
        Ok(held.map_or(Leader::Nobody, Leader::Leads))
    }

    /// The claims that change, of one namespace or of all. It tells nothing without the right to watch them.
    pub(super) fn changes(&self, namespace: Option<&str>, name: Option<&str>) -> BoxStream<'static, Name> {
        let mut config = watcher::Config::default();
        if let Some(name) = name {
            config = config.fields(&format!("metadata.name={name}"));
        }
        let claims: Api<PartialObjectMeta<PersistentVolumeClaim>> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let events = watcher(claims, config).default_backoff();
        let changed = |event: watcher::Result<Event<PartialObjectMeta<PersistentVolumeClaim>>>| {
            stream::iter(match event {
                Ok(Event::Apply(claim) | Event::InitApply(claim) | Event::Delete(claim)) => {
                    Some(name_of(&claim))
                }
                Ok(Event::Init | Event::InitDone) | Err(_) => None,
            })
        };
        events.flat_map(changed).boxed()
    }
}

fn name_of(object: &impl kube::Resource) -> Name {
    let metadata = object.meta();
    Name {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

fn claim(claim: &PersistentVolumeClaim) -> Claim {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    Claim {
        version: claim.resource_version().unwrap_or_default(),
        annotations: claim.annotations().clone(),
        volume: volume.filter(|name| !name.is_empty()),
        held: claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
        being_deleted: claim.metadata.deletion_timestamp.is_some(),
        told: claim.annotations().get(MOVE_STATUS).and_then(|text| told(text)),
    }
}

fn volume(volume: &PersistentVolume) -> Volume {
    let spec = volume.spec.as_ref();
    let of = spec.and_then(|spec| spec.claim_ref.as_ref());
    Volume {
        name: volume.name_any(),
        driver: spec.and_then(|spec| spec.csi.as_ref()).map(|csi| csi.driver.clone()).unwrap_or_default(),
        node: node_of(volume),
        claim: of.map(|claim| Name {
            namespace: claim.namespace.clone().unwrap_or_default(),
            name: claim.name.clone().unwrap_or_default(),
        }),
        record: volume.annotations().get(MOVE_RECORD).and_then(|text| serde_json::from_str(text).ok()),
    }
}
