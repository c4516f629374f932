//! The calls of the API server that a move makes. Each change names the version of the object that was read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, EvictParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Api, Client, ResourceExt as _};
use serde::{Deserialize as _, Serialize};
use serde_json::{Value, json};

use super::resources::{FINALIZER, VolumeMove, VolumeReplica};

pub type Result<T> = std::result::Result<T, kube::Error>;

/// How the API server treats a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Carries it out.
    Real,
    /// The API server does all its checks, admission included, and changes nothing (dryRun=All).
    Dry,
}

/// PersistentVolumes and claims at the API server.
#[derive(Clone)]
pub struct Objects(Client);

impl Objects {
    pub fn new(client: Client) -> Self {
        Objects(client)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.0.clone())
    }

    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.0.clone(), namespace)
    }

    pub async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>> {
        self.volumes().get_opt(name).await
    }

    pub async fn claim(&self, namespace: &str, name: &str) -> Result<Option<PersistentVolumeClaim>> {
        self.claims(namespace).get_opt(name).await
    }

    /// Changes a PersistentVolume, if it is unchanged since it was read. Returns it as it is then: a policy or a webhook may have changed
    /// it back.
    pub async fn patch_volume(
        &self,
        seen: &PersistentVolume,
        change: Value,
        run: Run,
    ) -> Result<PersistentVolume> {
        let params = PatchParams { dry_run: run == Run::Dry, ..PatchParams::default() };
        let change = Patch::Merge(versioned(change, seen.resource_version()));
        self.volumes().patch(&seen.name_any(), &params, &change).await
    }

    /// Deletes a PersistentVolume, if it is unchanged since it was read. It stays until it has no finalizer.
    pub async fn delete_volume(&self, seen: &PersistentVolume, run: Run) -> Result<()> {
        let same = Preconditions { uid: seen.uid(), resource_version: seen.resource_version() };
        let params = DeleteParams { dry_run: run == Run::Dry, ..DeleteParams::default() }.preconditions(same);
        self.volumes().delete(&seen.name_any(), &params).await?;
        Ok(())
    }

    fn whole_volumes(&self) -> Api<DynamicObject> {
        Api::all_with(self.0.clone(), &ApiResource::erase::<PersistentVolume>(&()))
    }

    /// Returns a PersistentVolume with all its fields, also those that this release does not know.
    pub async fn whole_volume(&self, name: &str) -> Result<Option<Value>> {
        Ok(self.whole_volumes().get_opt(name).await?.map(|volume| json!(volume)))
    }

    /// Creates a PersistentVolume. Returns it as it is then, as [`Self::patch_volume`] does.
    pub async fn create_volume(&self, volume: &Value, run: Run) -> Result<PersistentVolume> {
        let params = PostParams { dry_run: run == Run::Dry, ..PostParams::default() };
        let volume = DynamicObject::deserialize(volume).map_err(kube::Error::SerdeError)?;
        let created = json!(self.whole_volumes().create(&params, &volume).await?);
        serde_json::from_value(created).map_err(kube::Error::SerdeError)
    }

    pub async fn node(&self, name: &str) -> Result<Option<Node>> {
        Api::<Node>::all(self.0.clone()).get_opt(name).await
    }

    pub async fn class(&self, name: &str) -> Result<Option<StorageClass>> {
        Api::<StorageClass>::all(self.0.clone()).get_opt(name).await
    }

    /// Returns the parameters of a VolumeAttributesClass, which Kubernetes 1.34 has made stable; `None` if it does not exist.
    pub async fn attributes(&self, name: &str) -> Result<Option<BTreeMap<String, String>>> {
        for version in ["v1", "v1beta1"] {
            let kind = ApiResource {
                group: "storage.k8s.io".to_owned(),
                version: version.to_owned(),
                api_version: format!("storage.k8s.io/{version}"),
                kind: "VolumeAttributesClass".to_owned(),
                plural: "volumeattributesclasses".to_owned(),
            };
            let class = Api::<DynamicObject>::all_with(self.0.clone(), &kind).get_opt(name).await?;
            if let Some(class) = class {
                let parameters = class.data.get("parameters").cloned().unwrap_or_default();
                return Ok(Some(serde_json::from_value(parameters).unwrap_or_default()));
            }
        }
        Ok(None)
    }

    fn moves(&self, namespace: &str) -> Api<VolumeMove> {
        Api::namespaced(self.0.clone(), namespace)
    }

    fn replicas(&self) -> Api<VolumeReplica> {
        Api::all(self.0.clone())
    }

    pub async fn a_move(&self, namespace: &str, name: &str) -> Result<Option<VolumeMove>> {
        self.moves(namespace).get_opt(name).await
    }

    /// Changes the status of a VolumeMove, if the object is unchanged since it was read.
    pub async fn change_move_status(&self, seen: &VolumeMove, changed: &VolumeMove) -> Result<VolumeMove> {
        let change = Patch::Merge(change_of_status(seen, changed)?);
        let moves = self.moves(&seen.namespace().unwrap_or_default());
        moves.patch_status(&seen.name_any(), &PatchParams::default(), &change).await
    }

    /// Returns a VolumeReplica; `None` if it does not exist.
    pub async fn replica(&self, name: &str) -> Result<Option<VolumeReplica>> {
        self.replicas().get_opt(name).await
    }

    /// Creates a VolumeReplica; `None` if there is one of its name, such as one that an earlier request has created.
    pub async fn create_replica(&self, replica: &VolumeReplica) -> Result<Option<VolumeReplica>> {
        match self.replicas().create(&PostParams::default(), replica).await {
            Ok(created) => Ok(Some(created)),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Changes a VolumeReplica without its status, if it is unchanged since it was read.
    pub async fn change_replica(
        &self,
        seen: &VolumeReplica,
        changed: &VolumeReplica,
    ) -> Result<VolumeReplica> {
        let change = Patch::Merge(change_of(seen, changed)?);
        self.replicas().patch(&seen.name_any(), &PatchParams::default(), &change).await
    }

    /// Changes the status of a VolumeReplica, if the object is unchanged since it was read.
    pub async fn change_status(
        &self,
        seen: &VolumeReplica,
        changed: &VolumeReplica,
    ) -> Result<VolumeReplica> {
        let change = Patch::Merge(change_of_status(seen, changed)?);
        self.replicas().patch_status(&seen.name_any(), &PatchParams::default(), &change).await
    }

    /// Removes a VolumeReplica, if it is unchanged since it was read. Finalizers of others hold it.
    pub async fn remove_replica(&self, seen: &VolumeReplica) -> Result<()> {
        let mut released = seen.clone();
        released.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
        if released.metadata.finalizers == seen.metadata.finalizers {
            return self.delete_replica(seen).await;
        }
        match self.change_replica(seen, &released).await {
            // It was being deleted, and is gone with its last finalizer.
            Ok(released) if released.metadata.deletion_timestamp.is_some() => Ok(()),
            Ok(released) => self.delete_replica(&released).await,
            Err(error) => Err(error),
        }
    }

    async fn delete_replica(&self, seen: &VolumeReplica) -> Result<()> {
        let same = Preconditions { uid: seen.uid(), resource_version: seen.resource_version() };
        let params = DeleteParams::default().preconditions(same);
        self.replicas().delete(&seen.name_any(), &params).await?;
        Ok(())
    }

    /// Asks a pod to leave, if its budget allows that. One that is gone has left.
    pub async fn evict(&self, pod: &Pod, run: Run) -> Result<()> {
        let same = Preconditions { uid: pod.uid(), resource_version: None };
        let delete_options = Some(DeleteParams::default().preconditions(same));
        let post_options = PostParams { dry_run: run == Run::Dry, ..PostParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.0.clone(), &pod.namespace().unwrap_or_default());
        match pods.evict(&pod.name_any(), &EvictParams { delete_options, post_options }).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Changes a claim, if it is unchanged since it was read.
    pub async fn patch_claim(&self, seen: &PersistentVolumeClaim, change: Value) -> Result<()> {
        let change = Patch::Merge(versioned(change, seen.resource_version()));
        let claims = self.claims(&seen.namespace().unwrap_or_default());
        claims.patch(&seen.name_any(), &PatchParams::default(), &change).await?;
        Ok(())
    }
}

/// Returns the change from one object to another one, for the version that was read. What a later release has written into other
/// fields is not in it, and stays.
fn change_of<K: kube::Resource + Serialize>(seen: &K, changed: &K) -> Result<Value> {
    let value = |object: &K| serde_json::to_value(object).map_err(kube::Error::SerdeError);
    let change = difference(&value(seen)?, &value(changed)?);
    Ok(versioned(change, seen.meta().resource_version.clone()))
}

/// The same for the status alone.
fn change_of_status<K: kube::Resource + Serialize>(seen: &K, changed: &K) -> Result<Value> {
    let mut change = change_of(seen, changed)?;
    if let Some(fields) = change.as_object_mut() {
        fields.retain(|field, _| ["status", "metadata"].contains(&field.as_str()));
    }
    Ok(change)
}

/// Returns what makes one value of another one (RFC 7396, JSON merge patch).
fn difference(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else { return after.clone() };
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = after.iter().filter(|(key, value)| before.get(*key) != Some(*value));
    let changed = changed.map(|(key, value)| match before.get(key) {
        Some(before) => (key.clone(), difference(before, value)),
        None => (key.clone(), value.clone()),
    });
    gone.chain(changed).collect()
}

/// Adds the version that a change is for: the API server refuses it with 409 if there is another one.
fn versioned(mut change: Value, version: Option<String>) -> Value {
    let metadata = change.as_object_mut().map(|all| all.entry("metadata").or_insert_with(|| json!({})));
    if let Some(Value::Object(metadata)) = metadata {
        metadata.insert("resourceVersion".to_owned(), json!(version));
    }
    change
}

/// Returns why the API server has not done something, for a status: a text that stays the same as long as the reason does. Errors of
/// webhooks that do not answer have port numbers in them.
pub fn reason(answer: &kube::core::Status) -> String {
    match answer.code {
        400 | 403 | 422 | 429 => answer.message.clone(),
        code => format!("the API server answers with code {code}; the log of the controller has the reason"),
    }
}

/// Returns whether an object was changed or deleted after it was read.
pub fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 || status.code == 404)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// The paths that were asked for, and the parameters of a class that an API server has in this version only.
    async fn attributes_in(version: &str) -> (Vec<String>, Option<BTreeMap<String, String>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (paths, served) = (Arc::clone(&asked), format!("/apis/storage.k8s.io/{version}/"));
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let (code, answer) = match path.starts_with(&served) {
                true => (200, json!({"metadata": {"name": "fast"}, "parameters": {"iops": "9"}})),
                false => {
                    (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}))
                }
            };
            paths.lock().unwrap().push(path);
            let body = Body::from(answer.to_string().into_bytes());
            std::future::ready(Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()))
        });
        let found =
            Objects::new(Client::new(service, "default")).attributes("fast").await.expect("an answer");
        let asked = asked.lock().unwrap().clone();
        (asked, found)
    }

    /// Kubernetes 1.34 has made the kind stable. Before, it is in v1beta1, and may be turned off.
    #[tokio::test]
    async fn attributes_are_found_in_v1_or_v1beta1() {
        let path = |version| format!("/apis/storage.k8s.io/{version}/volumeattributesclasses/fast");
        let found = Some(BTreeMap::from([("iops".to_owned(), "9".to_owned())]));
        assert_eq!(attributes_in("v1").await, (vec![path("v1")], found.clone()));
        assert_eq!(attributes_in("v1beta1").await, (vec![path("v1"), path("v1beta1")], found));
        assert_eq!(attributes_in("v2").await, (vec![path("v1"), path("v1beta1")], None));
    }

    #[test]
    fn a_change_has_only_what_differs() {
        let before =
            json!({"kept": 1, "changed": 1, "gone": {"a": 1}, "inside": {"kept": 1, "gone": 1, "list": [1]}});
        let after = json!({"kept": 1, "changed": 2, "new": {"a": {}}, "inside": {"kept": 1, "list": [1, 2]}});
        let change =
            json!({"changed": 2, "gone": null, "new": {"a": {}}, "inside": {"gone": null, "list": [1, 2]}});
        assert_eq!(difference(&before, &after), change);
        assert_eq!(difference(&after, &after), json!({}));
    }
}
