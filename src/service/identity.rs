//! CSI Identity.

use std::sync::Arc;

use tonic::{Request, Response};

use super::Reply;
use crate::driver::Driver;
use crate::model::Settings;
use crate::wire::{csi, encode};
use csi::plugin_capability::service::Type as Service;
use csi::plugin_capability::volume_expansion::Type as Expansion;

/// What is served beside Identity, and that volumes and snapshots are bound to their node.
pub(crate) const SERVICES: [Service; 5] = [
    Service::ControllerService,
    Service::VolumeAccessibilityConstraints,
    Service::GroupControllerService,
    Service::SnapshotMetadataService,
    Service::SnapshotAccessibilityConstraints,
];

/// Serves CSI Identity.
pub struct IdentityService {
    driver: Arc<Driver>,
}

impl IdentityService {
    /// The service of this driver.
    pub fn new(driver: Arc<Driver>) -> Self {
        IdentityService { driver }
    }
}

/// The answer of GetPluginInfo.
pub(super) fn plugin_info(settings: &Settings) -> csi::GetPluginInfoResponse {
    csi::GetPluginInfoResponse {
        name: settings.driver_name.clone(),
        vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        manifest: Default::default(),
    }
}

#[tonic::async_trait]
impl csi::identity_server::Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Reply<csi::GetPluginInfoResponse> {
        Ok(Response::new(plugin_info(self.driver.settings())))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Reply<csi::GetPluginCapabilitiesResponse> {
        Ok(Response::new(encode::plugin_capabilities(&SERVICES, Expansion::Online)))
    }

    /// Reads a flag and nothing else: Probe is called every few seconds and must not wait for a slow disk.
    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Reply<csi::ProbeResponse> {
        Ok(Response::new(csi::ProbeResponse { ready: Some(self.driver.is_ready()) }))
    }
}
