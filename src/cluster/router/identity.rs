//! CSI Identity of a controller.

use tonic::{Request, Response};

use super::{Reply, Router};
use crate::service::SERVICES;
use crate::wire::{csi, encode};
use csi::plugin_capability::volume_expansion::Type as Expansion;

#[tonic::async_trait]
impl csi::identity_server::Identity for Router {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Reply<csi::GetPluginInfoResponse> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: self.settings.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Reply<csi::GetPluginCapabilitiesResponse> {
        Ok(Response::new(encode::plugin_capabilities(&SERVICES, Expansion::Online)))
    }

    /// Ready once the nodes are known, whether they can be reached or not: no node is asked.
    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Reply<csi::ProbeResponse> {
        Ok(Response::new(csi::ProbeResponse { ready: Some(self.members().is_ok()) }))
    }
}
