//! A move to the node that has adopted the volume (`hostloop state adopt-node`): nothing is copied.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;

use super::act::{Moves, Result};
use super::begin::{Request, handle};
use super::claims::node_of;
use super::resources::{ClaimId, ObjectId, Purpose, VolumeReplicaSpec};
use crate::model::{NodeKey, VolumeId};

impl Moves {
    /// Returns the VolumeReplica of a volume that the node which is asked for has adopted from the node of the PersistentVolume. Nothing is
    /// copied, so that no limit and no class stands against it.
    pub(super) async fn adoption(
        &self,
        request: &Request<'_>,
        volume: Option<&PersistentVolume>,
    ) -> Result<Option<VolumeReplicaSpec>> {
        let claim = request.claim;
        let (Some(volume), Some(target), Purpose::Move) = (volume, &request.target.node, request.purpose)
        else {
            return Ok(None);
        };
        let bound_to = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let is_ours = csi.is_some_and(|csi| csi.driver == self.driver) && bound_to == claim.uid();
        let Some(source) = node_of(volume).filter(|_| is_ours) else { return Ok(None) };
        let volume_id = handle(volume);
        let generation = match self.nodes.adopted(target, &volume_id).await {
            Ok(Some((generation, from))) if from.contains(&source) => generation,
            Ok(_) | Err(_) => return Ok(None),
        };
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let copy_name = format!("{}-{}", volume.name_any(), uuid::Uuid::new_v4().simple());
        Ok(Some(VolumeReplicaSpec {
            driver: self.driver.clone(),
            volume_id,
            generation: generation.saturating_sub(1),
            persistent_volume: ObjectId { name: volume.name_any(), uid: volume.uid().unwrap_or_default() },
            claim: ClaimId { namespace, name, uid: claim.uid().unwrap_or_default() },
            source_node: source,
            target_node: target.clone(),
            source_pool: None,
            target_pool: None,
            target_class: None,
            copy_id: VolumeId::of_name(&NodeKey::of(target), &copy_name).to_string(),
            copy_name,
            purpose: Purpose::Adoption,
            keep_source: true,
            requested_by: request.requested_by.clone(),
        }))
    }
}
