//! A move to another pool of the node that has the volume, and to the parameters of another StorageClass.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::act::{Moves, Result};
use super::begin::{Request, handle};
use super::claims::{CLASS, class_of, node_of};
use super::objects::Run;
use super::resources::{Purpose, VolumeReplica};
use crate::model::BackendKind;

impl Request<'_> {
    /// Returns why a volume that stays on its node is not moved: no pool is named.
    pub(super) fn lacks_pool(&self, stays: bool) -> Option<String> {
        let node = self.target.node.as_ref().filter(|_| stays && self.target.pool.is_none())?;
        Some(format!("the volume is on node {node} already; name the pool to move it within the node"))
    }

    /// Reports whether the volume is to stay on the node that its PersistentVolume names, in another pool.
    pub(super) fn stays_on_node(&self, volume: Option<&PersistentVolume>) -> bool {
        let node = volume.and_then(node_of);
        self.purpose == Purpose::Move && node.is_some() && node == self.target.node
    }
}

impl Moves {
    /// Returns a text for people if the volume is in the pool of its node that is asked for.
    pub(super) async fn is_in_pool(&self, request: &Request<'_>) -> Result<Option<String>> {
        let volume = self.volume_of_claim(request.claim).await?;
        let (Some(volume), Some(node), Some(pool)) = (volume, &request.target.node, &request.target.pool)
        else {
            return Ok(None);
        };
        // With another class, the volume would not get its parameters.
        let has_class = |class: &String| class_of(&volume) == *class;
        let is_there = request.target.storage_class.as_ref().is_none_or(has_class)
            && request.stays_on_node(Some(&volume))
            && self.nodes.pool(node, &handle(&volume)).await.is_ok_and(|there| there.as_ref() == Some(pool));
        Ok(is_there.then(|| format!("the volume is in pool {pool} of node {node}")))
    }

    /// Returns the pool that has a volume which moves to another pool of its node, or why it does not; `None` for a move to another node.
    pub(super) async fn source_pool(
        &self,
        request: &Request<'_>,
        node: &str,
        volume_id: &str,
        stays: bool,
    ) -> std::result::Result<Option<String>, String> {
        if !stays {
            return Ok(None);
        }
        match self.nodes.pool(node, volume_id).await {
            // Since the question before. With another class it gets another backend or filesystem there.
            Ok(Some(pool))
                if request.target.pool.as_ref() == Some(&pool) && request.target.storage_class.is_none() =>
            {
                Err(format!("the volume is in pool {pool} of node {node} already"))
            }
            Ok(Some(pool)) => Ok(Some(pool)),
            Ok(None) => Err(format!(
                "node {node} does not say which pool has the volume: it runs an earlier version, which moves no volume between its pools"
            )),
            Err(error) => Err(format!("node {node}: {error}")),
        }
    }

    /// Returns why the volume cannot get the parameters of the StorageClass that is asked for.
    pub(super) async fn unfit_class(
        &self,
        request: &Request<'_>,
        volume: Option<&PersistentVolume>,
    ) -> Result<Option<String>> {
        let Some(name) = &request.target.storage_class else { return Ok(None) };
        let Some(class) = self.class(name).await? else {
            return Ok(Some(format!("there is no StorageClass {name}")));
        };
        if class.provisioner != self.driver {
            return Ok(Some(format!(
                "StorageClass {name} is of provisioner {}, and not of {}",
                class.provisioner, self.driver
            )));
        }
        Ok(volume.and_then(|volume| no_kind(volume, name, &class)))
    }

    /// Writes on the PersistentVolume which StorageClass its volume has the parameters of, so that the next move keeps them.
    pub(super) async fn record_class(
        &self,
        replica: &VolumeReplica,
        volume: &PersistentVolume,
    ) -> Result<()> {
        let Some(class) = replica.spec.target_class.as_ref().filter(|class| class_of(volume) != **class)
        else {
            return Ok(());
        };
        let change = json!({"metadata": {"annotations": {CLASS: class}}});
        self.objects.patch_volume(volume, change, Run::Real).await?;
        Ok(())
    }
}

/// Returns why a volume cannot become one of a StorageClass.
fn no_kind(volume: &PersistentVolume, name: &str, class: &StorageClass) -> Option<String> {
    let is_block = volume.spec.as_ref().is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block"));
    let backend = class.parameters.as_ref().and_then(|all| all.get("backend"));
    let is_directory = backend.is_some_and(|backend| backend == BackendKind::Directory.as_str());
    (is_block && is_directory).then(|| {
        format!("the volume is a raw block device, and StorageClass {name} asks for a directory, which has no blocks")
    })
}
