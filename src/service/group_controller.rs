//! CSI GroupController.

use std::sync::Arc;

use tonic::{Request, Response};

use super::observe::observe;
use super::{Reply, run, run_in_turn};
use crate::driver::Driver;
use crate::wire::{csi, decode, encode};
use csi::group_controller_service_capability::rpc::Type as Rpc;

/// The RPCs that are announced.
pub(crate) const RPCS: [Rpc; 1] = [Rpc::CreateDeleteGetVolumeGroupSnapshot];

/// Serves CSI GroupController.
pub struct GroupControllerService {
    driver: Arc<Driver>,
}

impl GroupControllerService {
    /// The service of this driver.
    pub fn new(driver: Arc<Driver>) -> Self {
        GroupControllerService { driver }
    }

    fn node_id(&self) -> &str {
        &self.driver.settings().node_id
    }
}

#[tonic::async_trait]
impl csi::group_controller_server::GroupController for GroupControllerService {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<csi::GroupControllerGetCapabilitiesRequest>,
    ) -> Reply<csi::GroupControllerGetCapabilitiesResponse> {
        Ok(Response::new(encode::group_controller_capabilities(&RPCS)))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<csi::CreateVolumeGroupSnapshotRequest>,
    ) -> Reply<csi::CreateVolumeGroupSnapshotResponse> {
        let request = decode::create_volume_group_snapshot(observe(request))?;
        let group = run_in_turn(&self.driver, request, |driver, request| {
            driver.create_volume_group_snapshot(request)
        })
        .await?;
        Ok(Response::new(encode::create_volume_group_snapshot(&group, self.node_id())))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<csi::DeleteVolumeGroupSnapshotRequest>,
    ) -> Reply<csi::DeleteVolumeGroupSnapshotResponse> {
        let request = decode::delete_volume_group_snapshot(observe(request))?;
        run(&self.driver, |driver| driver.delete_volume_group_snapshot(request)).await?;
        Ok(Response::new(csi::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<csi::GetVolumeGroupSnapshotRequest>,
    ) -> Reply<csi::GetVolumeGroupSnapshotResponse> {
        let request = decode::get_volume_group_snapshot(observe(request))?;
        let group = run(&self.driver, |driver| driver.get_volume_group_snapshot(request)).await?;
        Ok(Response::new(encode::get_volume_group_snapshot(&group, self.node_id())))
    }
}
