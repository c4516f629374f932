//! The driver that is measured: who it is, and which calls it has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use tonic::transport::Endpoint;

use super::figures::Measured;
use crate::bench::life::{Caller, Order};
use crate::config::{BenchDriver, RpcConfig};
use crate::kernel::Files;
use crate::selftest::client::Client;
use crate::selftest::requests;
use crate::wire::csi;
use csi::controller_service_capability::rpc::Type as Capability;
use csi::volume_capability::access_mode::Mode;
use csi::{controller_service_capability, node_service_capability};

/// No call takes so long, unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// A driver with a caller for it.
#[derive(Debug)]
pub(super) struct Driver {
    /// Its name and version.
    pub(super) name: String,
    pub(super) uri: String,
    pub(super) caller: Caller,
}

impl Driver {
    /// Connects, and asks what the driver has.
    ///
    /// # Errors
    /// A line that says why it cannot be measured.
    pub(super) async fn find(
        config: &RpcConfig,
        driver: &BenchDriver,
        files: Arc<dyn Files>,
    ) -> Result<Self, String> {
        let uri = &driver.uri;
        let failed = |what: &str, why: &dyn std::fmt::Display| format!("{uri}: {what}: {why}");
        let endpoint = Endpoint::from_shared(uri.clone()).map_err(|e| failed("is not an address", &e))?;
        let channel = endpoint.timeout(DEADLINE).connect().await;
        let client = Client::on(channel.map_err(|error| {
            let cause =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            failed("nobody answers; start the driver or correct the flag", &cause)
        })?);
        let info = client.call(csi::GetPluginInfoRequest {}).await;
        let info = info.map_err(|status| failed("GetPluginInfo", &status.message()))?;
        let (controller, stages) = capabilities(&client).await.map_err(|why| format!("{uri}: {why}"))?;
        let node = client.call(csi::NodeGetInfoRequest {}).await;
        let node = node.map_err(|status| {
            failed("has no Node service on this socket, which is needed: NodeGetInfo", &status.message())
        })?;
        let order = Order {
            bytes: config.bytes,
            capability: requests::capability(config.fs_type.as_deref(), Mode::SingleNodeWriter),
            parameters: driver.parameters.clone(),
            topology: node.accessible_topology,
        };
        let node = controller.contains(&Capability::PublishUnpublishVolume).then_some(node.node_id);
        let caller = Caller { client, files, order, stages, node };
        let name = format!("{} {}", info.name, info.vendor_version);
        Ok(Driver { name, uri: uri.clone(), caller })
    }

    /// What is said of it, without figures.
    pub(super) fn measured(&self) -> Measured {
        let (name, uri) = (self.name.clone(), self.uri.clone());
        Measured { name, uri, parameters: shown(&self.caller.order.parameters), rows: Vec::new() }
    }
}

fn shown(parameters: &HashMap<String, String>) -> String {
    let mut pairs: Vec<String> = parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort_unstable();
    pairs.join(",")
}

/// What the Controller can do, and whether the Node has NodeStageVolume.
async fn capabilities(client: &Client) -> Result<(Vec<Capability>, bool), String> {
    let controller = client.call(csi::ControllerGetCapabilitiesRequest {}).await;
    let controller = controller.map_err(|status| match status.code() {
        Code::Unimplemented => "has no Controller service on this socket, which is needed".to_owned(),
        _ => format!("ControllerGetCapabilities: {}", status.message()),
    })?;
    let controller: Vec<Capability> = controller
        .capabilities
        .into_iter()
        .filter_map(|capability| capability.r#type)
        .map(|controller_service_capability::Type::Rpc(rpc)| rpc.r#type())
        .collect();
    if !controller.contains(&Capability::CreateDeleteVolume) {
        return Err("cannot create volumes (CREATE_DELETE_VOLUME), so there is nothing to measure".to_owned());
    }
    let node = client.call(csi::NodeGetCapabilitiesRequest {}).await;
    let node = node.map_err(|status| match status.code() {
        Code::Unimplemented => "has no Node service on this socket, which is needed".to_owned(),
        _ => format!("NodeGetCapabilities: {}", status.message()),
    })?;
    let stages = node.capabilities.iter().any(|capability| match &capability.r#type {
        Some(node_service_capability::Type::Rpc(rpc)) => {
            rpc.r#type() == node_service_capability::rpc::Type::StageUnstageVolume
        }
        None => false,
    });
    Ok((controller, stages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_in_order() {
        let pairs = requests::parameters(&[("pool", "a"), ("backend", "loop")]);
        assert_eq!((shown(&pairs).as_str(), shown(&HashMap::new()).as_str()), ("backend=loop,pool=a", ""));
    }
}
