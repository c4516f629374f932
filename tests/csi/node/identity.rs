//! Identity, and the capabilities that are announced.
#![allow(deprecated, reason = "CSI 1.12 has conditions")]

use hostloop::wire::csi;
use hostloop::wire::csi::controller_service_capability as controller;
use hostloop::wire::csi::node_service_capability as node;
use hostloop::wire::csi::plugin_capability as plugin;
use tonic::Code;

use crate::life::*;
use crate::support::*;

fn controller_rpcs(rig: &Rig) -> Vec<controller::rpc::Type> {
    let rpc = |capability: csi::ControllerServiceCapability| match capability.r#type {
        Some(controller::Type::Rpc(rpc)) => rpc.r#type(),
        None => panic!("a capability without a type"),
    };
    rig.ok(csi::ControllerGetCapabilitiesRequest {}).capabilities.into_iter().map(rpc).collect()
}

#[test]
fn the_plugin_says_who_it_is() {
    let rig = Rig::with(&["--driver-name", "my.driver"]);
    let info = rig.ok(csi::GetPluginInfoRequest {});
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("my.driver", env!("CARGO_PKG_VERSION")));
    assert_eq!(rig.ok(csi::ProbeRequest {}).ready, Some(true));
}

#[test]
fn the_plugin_says_what_it_can() {
    for flags in [&[][..], &["--attach"]] {
        let capabilities = rig_capabilities(&Rig::with(flags));
        assert_eq!(
            capabilities,
            [
                service(plugin::service::Type::ControllerService),
                service(plugin::service::Type::VolumeAccessibilityConstraints),
                service(plugin::service::Type::GroupControllerService),
                service(plugin::service::Type::SnapshotMetadataService),
                service(plugin::service::Type::SnapshotAccessibilityConstraints),
                plugin::Type::VolumeExpansion(plugin::VolumeExpansion {
                    r#type: plugin::volume_expansion::Type::Online.into()
                }),
            ],
            "{flags:?}: the same of every instance"
        );
    }
}

fn service(kind: plugin::service::Type) -> plugin::Type {
    plugin::Type::Service(plugin::Service { r#type: kind.into() })
}

fn rig_capabilities(rig: &Rig) -> Vec<plugin::Type> {
    let reply = rig.ok(csi::GetPluginCapabilitiesRequest {});
    reply.capabilities.into_iter().map(|capability| capability.r#type.expect("a type")).collect()
}

#[test]
fn attaching_is_announced_where_it_is_on() {
    use controller::rpc::Type as Rpc;
    let always = [
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
    let attach = [Rpc::PublishUnpublishVolume, Rpc::PublishReadonly, Rpc::ListVolumesPublishedNodes];
    assert_eq!(controller_rpcs(&Rig::new()), always);
    assert_eq!(controller_rpcs(&Rig::with(&["--attach"])), [&always[..], &attach[..]].concat());
}

#[test]
fn the_node_says_what_it_can_and_where_it_is() {
    use node::rpc::Type as Rpc;
    let rig = Rig::new();
    let rpc = |capability: csi::NodeServiceCapability| match capability.r#type {
        Some(node::Type::Rpc(rpc)) => rpc.r#type(),
        None => panic!("a capability without a type"),
    };
    let rpcs: Vec<_> = rig.ok(csi::NodeGetCapabilitiesRequest {}).capabilities.into_iter().map(rpc).collect();
    assert_eq!(
        rpcs,
        [
            Rpc::StageUnstageVolume,
            Rpc::GetVolumeStats,
            Rpc::ExpandVolume,
            Rpc::SingleNodeMultiWriter,
            Rpc::VolumeCondition,
            Rpc::GetVolumeHealth,
            Rpc::GetStorageHealth,
        ]
    );
    for _ in 0..2 {
        let info = rig.ok(csi::NodeGetInfoRequest {});
        assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), (NODE, 0));
        assert_eq!(info.accessible_topology, Some(topology(NODE)));
    }
}

#[test]
fn the_group_controller_says_what_it_can() {
    use csi::group_controller_service_capability as group;
    let reply = Rig::new().ok(csi::GroupControllerGetCapabilitiesRequest {});
    let rpc = |capability: csi::GroupControllerServiceCapability| match capability.r#type {
        Some(group::Type::Rpc(rpc)) => rpc.r#type(),
        None => panic!("a capability without a type"),
    };
    let rpcs: Vec<_> = reply.capabilities.into_iter().map(rpc).collect();
    assert_eq!(rpcs, [group::rpc::Type::CreateDeleteGetVolumeGroupSnapshot]);
}

#[test]
fn missing_fields_come_before_any_lookup() {
    let rig = Rig::new();
    for (field, message) in [
        ("name", rig.fails(Code::InvalidArgument, csi::CreateSnapshotRequest::default())),
        ("snapshot_id", rig.fails(Code::InvalidArgument, csi::DeleteSnapshotRequest::default())),
        ("snapshot_id", rig.fails(Code::InvalidArgument, csi::GetSnapshotRequest::default())),
        ("volume_id", rig.fails(Code::InvalidArgument, csi::ControllerModifyVolumeRequest::default())),
        ("name", rig.fails(Code::InvalidArgument, csi::CreateVolumeGroupSnapshotRequest::default())),
        (
            "group_snapshot_id",
            rig.fails(Code::InvalidArgument, csi::DeleteVolumeGroupSnapshotRequest::default()),
        ),
        (
            "group_snapshot_id",
            rig.fails(Code::InvalidArgument, csi::GetVolumeGroupSnapshotRequest::default()),
        ),
        ("snapshot_id", rig.fails(Code::InvalidArgument, All(csi::GetMetadataAllocatedRequest::default()))),
        ("base_snapshot_id", rig.fails(Code::InvalidArgument, All(csi::GetMetadataDeltaRequest::default()))),
    ] {
        assert!(message.contains(&format!("{field} is missing")), "{message}");
    }
}

#[test]
fn probe_says_when_recovery_is_over() {
    // Server::start waits for it; here it is enough that a start with work to do ends ready.
    let mut rig = Rig::new();
    for n in 0..50 {
        rig.volume(&format!("v{n}"), mount());
    }
    rig.power_cut();
    assert_eq!(rig.ok(csi::ProbeRequest {}).ready, Some(true));
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 50);
}
