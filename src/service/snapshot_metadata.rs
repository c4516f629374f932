//! CSI SnapshotMetadata: answers that are streams.

use std::sync::Arc;

use tonic::{Request, Response};

use super::observe::observe;
use super::stream::{Messages, run};
use super::{Reply, caller};
use crate::driver::Driver;
use crate::wire::{csi, decode, encode};

/// Serves CSI SnapshotMetadata.
pub struct SnapshotMetadataService {
    driver: Arc<Driver>,
}

impl SnapshotMetadataService {
    /// The service of this driver.
    pub fn new(driver: Arc<Driver>) -> Self {
        SnapshotMetadataService { driver }
    }
}

#[tonic::async_trait]
impl csi::snapshot_metadata_server::SnapshotMetadata for SnapshotMetadataService {
    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Reply<Messages<csi::GetMetadataAllocatedResponse>> {
        let who = caller(&request);
        let request = decode::get_metadata_allocated(observe(request))?;
        let messages = run(&self.driver, &who, encode::get_metadata_allocated, |driver, emit| {
            driver.get_metadata_allocated(request, emit)
        })?;
        Ok(Response::new(messages))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<csi::GetMetadataDeltaRequest>,
    ) -> Reply<Messages<csi::GetMetadataDeltaResponse>> {
        let who = caller(&request);
        let request = decode::get_metadata_delta(observe(request))?;
        let messages = run(&self.driver, &who, encode::get_metadata_delta, |driver, emit| {
            driver.get_metadata_delta(request, emit)
        })?;
        Ok(Response::new(messages))
    }
}
