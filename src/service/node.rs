//! CSI Node.

use std::sync::Arc;

use tonic::{Request, Response};

use super::observe::observe;
use super::{Reply, run};
use crate::driver::Driver;
use crate::wire::{csi, decode, encode};
use csi::node_service_capability::rpc::Type as Rpc;

#[allow(deprecated, reason = "CSI 1.12 has conditions: docs/decisions/0010")]
pub(super) const RPCS: [Rpc; 7] = [
    Rpc::StageUnstageVolume,
    Rpc::GetVolumeStats,
    Rpc::ExpandVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::VolumeCondition,
    Rpc::GetVolumeHealth,
    Rpc::GetStorageHealth,
];

/// Serves CSI Node.
pub struct NodeService {
    driver: Arc<Driver>,
}

impl NodeService {
    /// The service of this driver.
    pub fn new(driver: Arc<Driver>) -> Self {
        NodeService { driver }
    }
}

#[tonic::async_trait]
impl csi::node_server::Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Reply<csi::NodeStageVolumeResponse> {
        let request = decode::node_stage_volume(observe(request))?;
        run(&self.driver, |driver| driver.node_stage_volume(request)).await?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Reply<csi::NodeUnstageVolumeResponse> {
        let request = decode::node_unstage_volume(observe(request))?;
        run(&self.driver, |driver| driver.node_unstage_volume(request)).await?;
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Reply<csi::NodePublishVolumeResponse> {
        let request = decode::node_publish_volume(observe(request))?;
        run(&self.driver, |driver| driver.node_publish_volume(request)).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Reply<csi::NodeUnpublishVolumeResponse> {
        let request = decode::node_unpublish_volume(observe(request))?;
        run(&self.driver, |driver| driver.node_unpublish_volume(request)).await?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Reply<csi::NodeGetVolumeStatsResponse> {
        let request = decode::node_get_volume_stats(observe(request))?;
        let stats = run(&self.driver, |driver| driver.node_get_volume_stats(request)).await?;
        Ok(Response::new(encode::node_get_volume_stats(&stats)))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Reply<csi::NodeGetVolumeHealthResponse> {
        let request = decode::node_get_volume_health(observe(request))?;
        let health = run(&self.driver, |driver| driver.node_get_volume_health(request)).await?;
        Ok(Response::new(encode::node_get_volume_health(&health)))
    }

    async fn node_get_storage_health(
        &self,
        request: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Reply<csi::NodeGetStorageHealthResponse> {
        decode::node_get_storage_health(observe(request))?;
        let troubles = run(&self.driver, Driver::node_get_storage_health).await?;
        Ok(Response::new(encode::node_get_storage_health(&troubles)))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Reply<csi::NodeExpandVolumeResponse> {
        let request = decode::node_expand_volume(observe(request))?;
        let capacity_bytes = run(&self.driver, |driver| driver.node_expand_volume(request)).await?;
        Ok(Response::new(encode::node_expand_volume(capacity_bytes)))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Reply<csi::NodeGetCapabilitiesResponse> {
        Ok(Response::new(encode::node_capabilities(&RPCS)))
    }

    async fn node_get_info(&self, _: Request<csi::NodeGetInfoRequest>) -> Reply<csi::NodeGetInfoResponse> {
        Ok(Response::new(encode::node_get_info(self.driver.settings())))
    }
}
