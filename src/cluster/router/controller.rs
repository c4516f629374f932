//! CSI Controller: one volume's or snapshot's calls go to its node; what needs more is in files of its own.

use tonic::{Request, Response, Status};

use super::forward::{Envelope, Forward};
use super::owner::{Last, Named};
use super::{Reply, Router};
use crate::error::Error;
use crate::service::{controller_capabilities, observe};
use crate::wire::{csi, decode, encode};

impl Router {
    /// An RPC that is switched off is UNIMPLEMENTED whatever the request (spec.md, Error Scheme).
    fn require_attach(&self) -> Result<(), Status> {
        match self.settings.attach {
            true => Ok(()),
            false => Err(Error::Unsupported("attaching is switched off (--attach)".to_owned()).into()),
        }
    }

    /// Sends a message to the node that owns what it is about.
    pub(super) async fn to_owner<Q: Forward>(
        &self,
        named: Named<'_>,
        envelope: &Envelope,
        message: Q,
    ) -> Reply<Q::Reply> {
        let member = self.owner(named)?;
        self.call(&member, envelope, message).await.map(Response::new)
    }

    /// The same for a message that ends something: where there is nothing to end, that is an end as well.
    pub(super) async fn to_last_owner<Q: Forward>(
        &self,
        named: Named<'_>,
        envelope: &Envelope,
        message: Q,
    ) -> Reply<Q::Reply>
    where
        Q::Reply: Default,
    {
        match self.last_owner(named)? {
            Last::Member(member) => self.call(&member, envelope, message).await.map(Response::new),
            Last::Nobody => Ok(Response::new(Q::Reply::default())),
        }
    }
}

#[tonic::async_trait]
impl csi::controller_server::Controller for Router {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Reply<csi::CreateVolumeResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let wanted = decode::create_volume(request.clone())?;
        self.place(&envelope, &wanted, request).await.map(Response::new)
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Reply<csi::DeleteVolumeResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::delete_volume(request.clone())?;
        self.to_last_owner(Named::volume(&id), &envelope, request).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Reply<csi::ControllerPublishVolumeResponse> {
        self.require_attach()?;
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::controller_publish_volume(request.clone())?.volume_id;
        self.to_owner(Named::volume(&id), &envelope, request).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Reply<csi::ControllerUnpublishVolumeResponse> {
        self.require_attach()?;
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::controller_unpublish_volume(request.clone())?.volume_id;
        self.to_last_owner(Named::volume(&id), &envelope, request).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Reply<csi::ValidateVolumeCapabilitiesResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::validate_volume_capabilities(request.clone())?.volume_id;
        self.to_owner(Named::volume(&id), &envelope, request).await
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Reply<csi::ListVolumesResponse> {
        let envelope = Envelope::of(&request);
        let wanted = decode::list_volumes(observe(request))?;
        self.volumes(&envelope, wanted).await.map(Response::new)
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Reply<csi::ControllerGetVolumeResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::controller_get_volume(request.clone())?;
        self.to_owner(Named::volume(&id), &envelope, request).await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Reply<csi::ControllerGetVolumeHealthResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::controller_get_volume_health(request.clone())?;
        self.to_owner(Named::volume(&id), &envelope, request).await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Reply<csi::ControllerListVolumeHealthResponse> {
        let envelope = Envelope::of(&request);
        let wanted = decode::controller_list_volume_health(observe(request))?;
        self.health(&envelope, wanted).await.map(Response::new)
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Reply<csi::GetCapacityResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let place = decode::get_capacity(request.clone())?.topology;
        self.capacity(&envelope, place, request).await.map(Response::new)
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Reply<csi::ControllerExpandVolumeResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::controller_expand_volume(request.clone())?.volume_id;
        self.to_owner(Named::volume(&id), &envelope, request).await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Reply<csi::ControllerModifyVolumeResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::controller_modify_volume(request.clone())?.volume_id;
        self.to_owner(Named::volume(&id), &envelope, request).await
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Reply<csi::CreateSnapshotResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::create_snapshot(request.clone())?.source_volume_id;
        self.to_owner(Named::volume(&id), &envelope, request).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Reply<csi::DeleteSnapshotResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::delete_snapshot(request.clone())?;
        self.to_last_owner(Named::snapshot(&id), &envelope, request).await
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Reply<csi::ListSnapshotsResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let wanted = decode::list_snapshots(request.clone())?;
        self.snapshots(&envelope, wanted, request).await.map(Response::new)
    }

    async fn get_snapshot(
        &self,
        request: Request<csi::GetSnapshotRequest>,
    ) -> Reply<csi::GetSnapshotResponse> {
        let envelope = Envelope::of(&request);
        let request = observe(request);
        let id = decode::get_snapshot(request.clone())?;
        self.to_owner(Named::snapshot(&id), &envelope, request).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Reply<csi::ControllerGetCapabilitiesResponse> {
        let capabilities = controller_capabilities(self.settings.attach);
        Ok(Response::new(encode::controller_capabilities(&capabilities)))
    }
}
