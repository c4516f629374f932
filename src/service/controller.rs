//! CSI Controller.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::observe::observe;
use super::{Reply, run, run_in_turn};
use crate::driver::{Driver, token};
use crate::error::Error;
use crate::model::Permit;
use crate::model::pull::Way;
use crate::model::request::CreateVolume;
use crate::wire::encode::Listed;
use crate::wire::{csi, decode, encode};
use csi::controller_service_capability::rpc::Type as Rpc;

/// Announced always.
#[allow(deprecated, reason = "CSI 1.12 has conditions: docs/decisions/0010")]
const RPCS: [Rpc; 14] = [
    Rpc::CreateDeleteVolume,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::CloneVolume,
    Rpc::ExpandVolume,
    Rpc::GetVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::ModifyVolume,
    Rpc::GetSnapshot,
    Rpc::VolumeCondition,
    Rpc::GetVolumeHealth,
    Rpc::ListVolumeHealth,
];
/// Announced where attaching is switched on.
const ATTACH_RPCS: [Rpc; 3] =
    [Rpc::PublishUnpublishVolume, Rpc::PublishReadonly, Rpc::ListVolumesPublishedNodes];

/// Serves CSI Controller.
pub struct ControllerService {
    driver: Arc<Driver>,
}

impl ControllerService {
    /// The service of this driver.
    pub fn new(driver: Arc<Driver>) -> Self {
        ControllerService { driver }
    }

    fn node_id(&self) -> &str {
        &self.driver.settings().node_id
    }

    /// An RPC that is switched off is UNIMPLEMENTED whatever the request (spec.md, Error Scheme).
    fn require_attach(&self) -> Result<(), Status> {
        match self.driver.settings().attach {
            true => Ok(()),
            false => Err(Error::Unsupported("attaching is switched off (--attach)".to_owned()).into()),
        }
    }
}

/// Metadata of a CreateVolume that a controller forwards: where the node listens that has the source.
pub const SOURCE_ADDRESS: &str = "hostloop-source-address";

/// Metadata of a CreateVolume that a controller forwards, binary: what lets its node read the source there, a
/// `SignedPermit` (`proto/hostloop/v1/peer.proto`).
pub const PERMIT: &str = "hostloop-permit-bin";

/// Metadata of a CreateVolume that a controller forwards: the token of the reservation with which it has looked
/// whether another node has the volume.
pub const RESERVATION: &str = "hostloop-reservation";

fn header<T>(request: &Request<T>, name: &str) -> Option<String> {
    let value = request.metadata().get(name)?.to_str().ok()?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// The way to the source of a volume, if a controller tells it.
fn way<T>(request: &Request<T>) -> Option<Way> {
    let address = header(request, SOURCE_ADDRESS)?;
    let bytes = request.metadata().get_bin(PERMIT).and_then(|value| value.to_bytes().ok());
    let permit = bytes.and_then(|bytes| Permit::new(bytes.to_vec()));
    Some(Way { address, permit })
}

/// The RPCs that are announced.
pub(crate) fn capabilities(attach: bool) -> Vec<Rpc> {
    let attach_rpcs: &[Rpc] = if attach { &ATTACH_RPCS } else { &[] };
    [&RPCS, attach_rpcs].concat()
}

/// Leaves to the next page what is too large for this one.
fn limit<E: Listed>(entries: &mut Vec<E>, next_token: &mut String) {
    let count = encode::fitting(entries);
    if count < entries.len() {
        entries.truncate(count);
        *next_token = entries.last().map(|entry| token::make(entry.id())).unwrap_or_default();
    }
}

#[tonic::async_trait]
impl csi::controller_server::Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Reply<csi::CreateVolumeResponse> {
        let (way, reservation) = (way(&request), header(&request, RESERVATION));
        let request = decode::create_volume(observe(request))?;
        let request = CreateVolume { way, reservation, ..request };
        let volume =
            run_in_turn(&self.driver, request, |driver, request| driver.create_volume(request)).await?;
        Ok(Response::new(encode::create_volume(&volume, self.node_id())))
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Reply<csi::DeleteVolumeResponse> {
        let volume_id = decode::delete_volume(observe(request))?;
        run(&self.driver, move |driver| driver.delete_volume(&volume_id)).await?;
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Reply<csi::ControllerPublishVolumeResponse> {
        self.require_attach()?;
        let request = decode::controller_publish_volume(observe(request))?;
        run(&self.driver, |driver| driver.controller_publish_volume(request)).await?;
        Ok(Response::new(csi::ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Reply<csi::ControllerUnpublishVolumeResponse> {
        self.require_attach()?;
        let request = decode::controller_unpublish_volume(observe(request))?;
        run(&self.driver, |driver| driver.controller_unpublish_volume(request)).await?;
        Ok(Response::new(csi::ControllerUnpublishVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Reply<csi::ValidateVolumeCapabilitiesResponse> {
        let request = observe(request);
        let asked = encode::asked(&request);
        let request = decode::validate_volume_capabilities(request)?;
        let validation = run(&self.driver, |driver| driver.validate_volume_capabilities(request)).await?;
        Ok(Response::new(encode::validate_volume_capabilities(validation, asked)))
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Reply<csi::ListVolumesResponse> {
        let request = decode::list_volumes(observe(request))?;
        let page = run(&self.driver, |driver| driver.list_volumes(request)).await?;
        let mut answer = encode::list_volumes(&page, self.node_id());
        limit(&mut answer.entries, &mut answer.next_token);
        Ok(Response::new(answer))
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Reply<csi::ControllerGetVolumeResponse> {
        let volume_id = decode::controller_get_volume(observe(request))?;
        let volume = run(&self.driver, move |driver| driver.controller_get_volume(&volume_id)).await?;
        Ok(Response::new(encode::controller_get_volume(&volume, self.node_id())))
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Reply<csi::ControllerGetVolumeHealthResponse> {
        let volume_id = decode::controller_get_volume_health(observe(request))?;
        let health = run(&self.driver, move |driver| driver.controller_get_volume_health(&volume_id)).await?;
        Ok(Response::new(encode::controller_get_volume_health(&health)))
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Reply<csi::ControllerListVolumeHealthResponse> {
        let request = decode::controller_list_volume_health(observe(request))?;
        let page = run(&self.driver, |driver| driver.controller_list_volume_health(request)).await?;
        let mut answer = encode::controller_list_volume_health(&page);
        limit(&mut answer.entries, &mut answer.next_token);
        Ok(Response::new(answer))
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Reply<csi::GetCapacityResponse> {
        let request = decode::get_capacity(observe(request))?;
        let capacity = run(&self.driver, |driver| driver.get_capacity(request)).await?;
        Ok(Response::new(encode::get_capacity(&capacity)))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Reply<csi::ControllerExpandVolumeResponse> {
        let request = decode::controller_expand_volume(observe(request))?;
        let expanded = run(&self.driver, |driver| driver.controller_expand_volume(request)).await?;
        Ok(Response::new(encode::controller_expand_volume(expanded)))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Reply<csi::ControllerModifyVolumeResponse> {
        let request = decode::controller_modify_volume(observe(request))?;
        run(&self.driver, |driver| driver.controller_modify_volume(request)).await?;
        Ok(Response::new(csi::ControllerModifyVolumeResponse {}))
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Reply<csi::CreateSnapshotResponse> {
        let request = decode::create_snapshot(observe(request))?;
        let snapshot =
            run_in_turn(&self.driver, request, |driver, request| driver.create_snapshot(request)).await?;
        Ok(Response::new(encode::create_snapshot(&snapshot, self.node_id())))
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Reply<csi::DeleteSnapshotResponse> {
        let snapshot_id = decode::delete_snapshot(observe(request))?;
        run(&self.driver, move |driver| driver.delete_snapshot(&snapshot_id)).await?;
        Ok(Response::new(csi::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Reply<csi::ListSnapshotsResponse> {
        let request = decode::list_snapshots(observe(request))?;
        let page = run(&self.driver, |driver| driver.list_snapshots(request)).await?;
        let mut answer = encode::list_snapshots(&page, self.node_id());
        limit(&mut answer.entries, &mut answer.next_token);
        Ok(Response::new(answer))
    }

    async fn get_snapshot(
        &self,
        request: Request<csi::GetSnapshotRequest>,
    ) -> Reply<csi::GetSnapshotResponse> {
        let snapshot_id = decode::get_snapshot(observe(request))?;
        let snapshot = run(&self.driver, move |driver| driver.get_snapshot(&snapshot_id)).await?;
        Ok(Response::new(encode::get_snapshot(&snapshot, self.node_id())))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Reply<csi::ControllerGetCapabilitiesResponse> {
        Ok(Response::new(encode::controller_capabilities(&capabilities(self.driver.settings().attach))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attaching_is_announced_only_where_it_is_served() {
        let numbers = |attach| -> Vec<i32> {
            let answer = encode::controller_capabilities(&capabilities(attach));
            let rpc = |capability: &csi::ControllerServiceCapability| match capability.r#type {
                Some(csi::controller_service_capability::Type::Rpc(rpc)) => rpc.r#type,
                None => 0,
            };
            answer.capabilities.iter().map(rpc).collect()
        };
        assert_eq!(numbers(false), [1, 3, 4, 5, 6, 7, 9, 12, 13, 14, 15, 11, 16, 17]);
        assert_eq!(numbers(true), [1, 3, 4, 5, 6, 7, 9, 12, 13, 14, 15, 11, 16, 17, 2, 8, 10]);
    }
}
