//! CSI GroupController: a group is cut at one point in time, which only one node can do.

use tonic::{Request, Response};

use super::forward::Envelope;
use super::owner::Named;
use super::{Reply, Router};
use crate::service::{GROUP_RPCS, observe};
use crate::wire::{csi, decode, encode};

#[tonic::async_trait]
impl csi::group_controller_server::GroupController for Router {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<csi::GroupControllerGetCapabilitiesRequest>,
    ) -> Reply<csi::GroupControllerGetCapabilitiesResponse> {
        Ok(Response::new(encode::group_controller_capabilities(&GROUP_RPCS)))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<csi::CreateVolumeGroupSnapshotRequest>,
    ) -> Reply<csi::CreateVolumeGroupSnapshotResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let ids = decode::create_volume_group_snapshot(request.clone())?.source_volume_ids;
        let member = self.common_owner(ids.iter().map(|id| Named::volume(id)))?;
        self.call(&member, &envelope, request).await.map(Response::new)
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<csi::DeleteVolumeGroupSnapshotRequest>,
    ) -> Reply<csi::DeleteVolumeGroupSnapshotResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::delete_volume_group_snapshot(request.clone())?.group_snapshot_id;
        self.to_last_owner(Named::group(&id), &envelope, request).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<csi::GetVolumeGroupSnapshotRequest>,
    ) -> Reply<csi::GetVolumeGroupSnapshotResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::get_volume_group_snapshot(request.clone())?.group_snapshot_id;
        self.to_owner(Named::group(&id), &envelope, request).await
    }
}
