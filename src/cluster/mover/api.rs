//! The calls of the API server that a move makes. Whatever changes an object says which version of it was looked at.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams,
    Preconditions,
};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::status::{MOVE_RECORD, MOVING, Record};

pub(super) type Result<T> = std::result::Result<T, kube::Error>;

/// The longest note of an Event in bytes (events.k8s.io/v1, Event).
const LONGEST: usize = 1024;
/// The shortest time between two writes of one Event: the mover retries every two seconds.
const REPEAT: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct Cluster {
    client: Client,
    recorder: Recorder,
    /// When each Event was written last, by claim, reason and message.
    said: Arc<Mutex<HashMap<String, Instant>>>,
}

/// Whether an object has changed since it was looked at, or is not there any more.
pub(super) fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 || status.code == 404)
}

/// Whether the namespace of what was to be made is being deleted (the cause that the admission of namespaces gives) or is gone.
fn has_no_namespace(status: &kube::core::Status) -> bool {
    let Some(details) = &status.details else { return false };
    let terminating = details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating");
    status.code == 403 && terminating || status.code == 404 && details.kind == "namespaces"
}

/// Both changes.
pub(super) fn and(mut change: Value, more: Value) -> Value {
    let (Some(fields), Value::Object(more)) = (change.as_object_mut(), more.clone()) else { return more };
    for (key, value) in more {
        let both = fields.remove(&key).map_or_else(|| value.clone(), |there| and(there, value.clone()));
        fields.insert(key, both);
    }
    change
}

/// What was asked for; `None` where it is not there.
fn there<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

impl Cluster {
    pub(super) fn new(client: Client, component: &str) -> Self {
        let recorder = Recorder::new(client.clone(), component.into());
        Cluster { client, recorder, said: Arc::default() }
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client(), namespace)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client())
    }

    pub(super) async fn claim(&self, namespace: &str, name: &str) -> Result<Option<PersistentVolumeClaim>> {
        self.claims(namespace).get_opt(name).await
    }

    pub(super) async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>> {
        self.volumes().get_opt(name).await
    }

    /// Whether the record of a PersistentVolume names this one as the old one.
    pub(super) async fn is_recorded(&self, old: &str) -> Result<bool> {
        let changed = ListParams::default().labels(&format!("{MOVING}=true"));
        let volumes = self.volumes().list(&changed).await?.items;
        let record = |volume: &PersistentVolume| {
            serde_json::from_str::<Record>(volume.annotations().get(MOVE_RECORD)?).ok()
        };
        Ok(volumes.iter().filter_map(record).any(|record| record.old_volume == old))
    }

    pub(super) async fn nodes(&self) -> Result<Vec<Node>> {
        Ok(Api::<Node>::all(self.client()).list(&ListParams::default()).await?.items)
    }

    pub(super) async fn node(&self, name: &str) -> Result<Option<Node>> {
        Api::<Node>::all(self.client()).get_opt(name).await
    }

    /// The pods of the namespace on this node; with an empty name, those on none.
    pub(super) async fn pods(&self, namespace: &str, node: &str) -> Result<Vec<Pod>> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(Api::<Pod>::namespaced(self.client(), namespace).list(&on_node).await?.items)
    }

    pub(super) async fn class(&self, name: &str) -> Result<Option<StorageClass>> {
        Api::<StorageClass>::all(self.client()).get_opt(name).await
    }

    /// The parameters of a VolumeAttributesClass, which Kubernetes 1.34 has made stable.
    pub(super) async fn attributes(&self, name: &str) -> Result<BTreeMap<String, String>> {
        let kind = ApiResource {
            group: "storage.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "storage.k8s.io/v1".to_owned(),
            kind: "VolumeAttributesClass".to_owned(),
            plural: "volumeattributesclasses".to_owned(),
        };
        let class = Api::<DynamicObject>::all_with(self.client(), &kind).get_opt(name).await?;
        let parameters = class.map(|class| class.data.get("parameters").cloned().unwrap_or_default());
        Ok(parameters.and_then(|all| serde_json::from_value(all).ok()).unwrap_or_default())
    }

    /// Changes a claim that is as it was looked at.
    pub(super) async fn patch_claim(&self, seen: &PersistentVolumeClaim, change: Value) -> Result<()> {
        let change = and(change, json!({"metadata": {"resourceVersion": seen.resource_version()}}));
        let claims = self.claims(&seen.namespace().unwrap_or_default());
        claims.patch(&seen.name_any(), &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    /// Changes a PersistentVolume that is as it was looked at.
    pub(super) async fn patch_volume(&self, seen: &PersistentVolume, change: Value) -> Result<()> {
        let change = and(change, json!({"metadata": {"resourceVersion": seen.resource_version()}}));
        self.volumes().patch(&seen.name_any(), &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    /// Makes a claim. Somebody else may have been quicker. Tells whether there is a namespace to make it in: one that is being
    /// deleted never takes anything again.
    pub(super) async fn create_claim(&self, claim: &PersistentVolumeClaim) -> Result<bool> {
        let claims = self.claims(&claim.namespace().unwrap_or_default());
        match claims.create(&PostParams::default(), claim).await {
            Err(kube::Error::Api(status)) if has_no_namespace(&status) => Ok(false),
            answer => made(answer).map(|()| true),
        }
    }

    /// Makes a PersistentVolume. An earlier try may have made it.
    pub(super) async fn create_volume(&self, volume: &PersistentVolume) -> Result<()> {
        made(self.volumes().create(&PostParams::default(), volume).await)
    }

    /// Deletes a claim that is as it was looked at.
    pub(super) async fn delete_claim(&self, seen: &PersistentVolumeClaim) -> Result<()> {
        let same = Preconditions { uid: seen.uid(), resource_version: seen.resource_version() };
        let claims = self.claims(&seen.namespace().unwrap_or_default());
        there(claims.delete(&seen.name_any(), &DeleteParams::default().preconditions(same)).await)?;
        Ok(())
    }

    /// Asks a pod to leave, if its budget allows that. One that is gone has left.
    pub(super) async fn evict(&self, pod: &Pod) -> Result<()> {
        let same = Preconditions { uid: pod.uid(), resource_version: None };
        let delete_options = Some(DeleteParams::default().preconditions(same));
        let asked = EvictParams { delete_options, ..EvictParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.client(), &pod.namespace().unwrap_or_default());
        there(pods.evict(&pod.name_any(), &asked).await)?;
        Ok(())
    }

    /// Has the controller of StatefulSets look at the set that the claim belongs to. It does not watch claims: after errors about
    /// a claim that is being deleted, it waits up to a quarter of an hour before it tries again. Whatever changes the set wakes it,
    /// and a condition of its status means nothing to anybody else. Nothing waits for it.
    pub(super) async fn nudge(&self, namespace: &str, claim: &str) {
        let sets: Api<StatefulSet> = Api::namespaced(self.client(), namespace);
        let nudged = async {
            for set in sets.list(&ListParams::default()).await?.items.iter().filter(|set| owns(set, claim)) {
                let condition = json!({"type": "hostloop.csi.dev/ClaimMoved", "status": "True", "reason": "ClaimMadeAgain",
                    "message": format!("claim {claim} was made again"), "lastTransitionTime": super::status::now()});
                let change = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
                sets.patch_status(&set.name_any(), &PatchParams::default(), &change).await?;
            }
            Ok::<(), kube::Error>(())
        };
        if let Err(error) = nudged.await {
            tracing::warn!(namespace, claim, %error, "the StatefulSet of the claim was not told; its pod may come later");
        }
    }

    /// Writes an Event of a claim. A repeated Event has its count raised, at most once in [`REPEAT`].
    pub(super) async fn say(
        &self,
        claim: &PersistentVolumeClaim,
        reason: &str,
        warning: bool,
        message: &str,
    ) {
        let end =
            message.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= LONGEST).last();
        let message = message.get(..end.unwrap_or(0)).unwrap_or_default();
        // The recorder ignores the note when it compares events, and keeps the first one. It does compare the action.
        let action = format!("{reason}.{:08x}", crc32fast::hash(message.as_bytes()));
        if !self.is_due(format!("{:?}{action}", claim.uid())) {
            return;
        }
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(message.to_owned()),
            action,
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &claim.object_ref(&())).await {
            let (namespace, claim) = (claim.namespace(), claim.name_any());
            tracing::warn!(namespace, claim, reason, %error, "the Event was not written");
        }
    }

    /// Reports whether this Event was not written within [`REPEAT`], and remembers it.
    fn is_due(&self, what: String) -> bool {
        // Nothing that runs under the mutex can panic half-way, so a poisoned one is as good as any.
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| at.elapsed() < REPEAT);
        let is_due = !said.contains_key(&what);
        said.entry(what).or_insert_with(Instant::now);
        is_due
    }
}

/// Whether the claim is one of a StatefulSet: `TEMPLATE-SET-ORDINAL`.
fn owns(set: &StatefulSet, claim: &str) -> bool {
    let templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten());
    let mut prefixes = templates.map(|template| format!("{}-{}-", template.name_any(), set.name_any()));
    prefixes.any(|prefix| claim.strip_prefix(&prefix).is_some_and(|ordinal| ordinal.parse::<u32>().is_ok()))
}

fn made<T>(answer: Result<T>) -> Result<()> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_belongs_to_the_set_whose_template_it_is_of() {
        let set: StatefulSet = serde_json::from_value(json!({"metadata": {"name": "db"}, "spec": {
            "selector": {}, "serviceName": "db", "template": {},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}}, {"metadata": {"name": "log"}}]}}))
        .unwrap();
        for (claim, its) in [
            ("data-db-0", true),
            ("log-db-12", true),
            ("data-db-x", false),
            ("data-other-0", false),
            ("data", false),
        ] {
            assert_eq!(owns(&set, claim), its, "{claim}");
        }
    }
}
