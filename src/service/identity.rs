//! CSI Identity.

use super::declare::{Declarations, Facts, Question, declare};
use crate::wire::{csi, encode};
use csi::plugin_capability::service::Type as Service;
use csi::plugin_capability::volume_expansion::Type as Expansion;

/// What is served beside Identity, and that volumes and snapshots are bound to their node.
const SERVICES: [Service; 5] = [
    Service::ControllerService,
    Service::VolumeAccessibilityConstraints,
    Service::GroupControllerService,
    Service::SnapshotMetadataService,
    Service::SnapshotAccessibilityConstraints,
];

declare! { each of csi;
    question GetPluginInfoRequest = |facts| csi::GetPluginInfoResponse {
        name: facts.driver_name.to_owned(),
        vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        manifest: Default::default(),
    };
    question GetPluginCapabilitiesRequest = |_| encode::plugin_capabilities(&SERVICES, Expansion::Online);
    // Reads a flag and nothing else: Probe is called every few seconds and must not wait for a slow disk.
    question ProbeRequest = |facts| csi::ProbeResponse { ready: Some(facts.ready) };
}
