//! The calls of the API server that an exchange makes. Each change names the version of the object that was read.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

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

    /// Changes a PersistentVolume, if it is unchanged since it was read.
    pub async fn patch_volume(&self, seen: &PersistentVolume, change: Value, run: Run) -> Result<()> {
        let params = PatchParams { dry_run: run == Run::Dry, ..PatchParams::default() };
        let change = Patch::Merge(versioned(change, seen.resource_version()));
        self.volumes().patch(&seen.name_any(), &params, &change).await?;
        Ok(())
    }

    /// Deletes a PersistentVolume, if it is unchanged since it was read. It stays until it has no finalizer.
    pub async fn delete_volume(&self, seen: &PersistentVolume, run: Run) -> Result<()> {
        let same = Preconditions { uid: seen.uid(), resource_version: seen.resource_version() };
        let params = DeleteParams { dry_run: run == Run::Dry, ..DeleteParams::default() }.preconditions(same);
        self.volumes().delete(&seen.name_any(), &params).await?;
        Ok(())
    }

    pub async fn create_volume(&self, volume: &PersistentVolume, run: Run) -> Result<()> {
        let params = PostParams { dry_run: run == Run::Dry, ..PostParams::default() };
        self.volumes().create(&params, volume).await?;
        Ok(())
    }

    /// Changes a claim, if it is unchanged since it was read.
    pub async fn patch_claim(&self, seen: &PersistentVolumeClaim, change: Value) -> Result<()> {
        let change = Patch::Merge(versioned(change, seen.resource_version()));
        let claims = self.claims(&seen.namespace().unwrap_or_default());
        claims.patch(&seen.name_any(), &PatchParams::default(), &change).await?;
        Ok(())
    }
}

/// Adds the version that a change is for: the API server refuses it with 409 if there is another one.
fn versioned(mut change: Value, version: Option<String>) -> Value {
    let metadata = change.as_object_mut().map(|all| all.entry("metadata").or_insert_with(|| json!({})));
    if let Some(Value::Object(metadata)) = metadata {
        metadata.insert("resourceVersion".to_owned(), json!(version));
    }
    change
}

/// Returns whether an object was changed or deleted after it was read.
pub fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 || status.code == 404)
}
