//! Requests of any content: decoding never panics, never repeats a secret, and lets no odd path through.

use std::collections::HashMap;
use std::path::Component;

use proptest::collection::{hash_map, vec};
use proptest::prelude::*;

use super::*;
use crate::wire::csi;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[-/.a-z0-9 ,=\"]{0,200}",
        Just("/".to_owned()),
        Just("csi.storage.k8s.io/ephemeral".to_owned()),
        Just("true".to_owned()),
        Just("mkfsOptions".to_owned()),
        Just("freezeTimeout".to_owned()),
        "[0-9]{0,21}(ms|s|m|h)?",
        Just("discard".to_owned()),
        Just("size".to_owned()),
    ]
}

fn map() -> impl Strategy<Value = HashMap<String, String>> {
    hash_map(text(), text(), 0..4)
}

fn secrets() -> impl Strategy<Value = HashMap<String, String>> {
    hash_map("[a-z/ ]{0,3}SECRETKEY", Just("SECRETVALUE".to_owned()), 0..300)
}

fn capability() -> impl Strategy<Value = csi::VolumeCapability> {
    let mount = (text(), vec(text(), 0..4), text()).prop_map(|(fs_type, mount_flags, volume_mount_group)| {
        AccessType::Mount(MountVolume { fs_type, mount_flags, volume_mount_group })
    });
    let plain = Just(AccessType::Mount(MountVolume::default()));
    let access = proptest::option::of(prop_oneof![mount, plain, Just(AccessType::Block(BlockVolume {}))]);
    let mode = prop_oneof![-1..9, any::<i32>()];
    (access, proptest::option::of(mode.prop_map(|mode| AccessMode { mode })))
        .prop_map(|(access_type, access_mode)| csi::VolumeCapability { access_mode, access_type })
}

fn range() -> impl Strategy<Value = Option<csi::CapacityRange>> {
    proptest::option::of(any::<(i64, i64)>()).prop_map(|r| {
        r.map(|(required_bytes, limit_bytes)| csi::CapacityRange { required_bytes, limit_bytes })
    })
}

fn source() -> impl Strategy<Value = Option<csi::VolumeContentSource>> {
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let kind = prop_oneof![
        text().prop_map(|snapshot_id| Type::Snapshot(SnapshotSource { snapshot_id })),
        text().prop_map(|volume_id| Type::Volume(VolumeSource { volume_id })),
    ];
    let kind = proptest::option::of(kind);
    proptest::option::of(kind.prop_map(|r#type| csi::VolumeContentSource { r#type }))
}

fn terms() -> impl Strategy<Value = Vec<csi::Topology>> {
    vec(map().prop_map(|segments| csi::Topology { segments }), 0..3)
}

proptest! {
    #[test]
    fn create_volume_survives(
        name in text(), capacity_range in range(), volume_capabilities in vec(capability(), 0..3),
        parameters in map(), mutable_parameters in map(), secrets in secrets(), requisite in terms(),
        preferred in terms(), volume_content_source in source(),
    ) {
        let accessibility_requirements = Some(csi::TopologyRequirement { requisite, preferred });
        let result = create_volume(csi::CreateVolumeRequest {
            name, capacity_range, volume_capabilities, parameters, secrets, volume_content_source,
            accessibility_requirements, mutable_parameters,
        });
        let shown = format!("{result:?}");
        prop_assert!(!shown.contains("SECRET"), "{}", shown);
    }

    #[test]
    fn node_publish_volume_survives(
        volume_id in text(), target_path in text(), staging_target_path in text(),
        volume_capability in proptest::option::of(capability()), secrets in secrets(), mut volume_context in map(),
        inline in any::<bool>(),
    ) {
        if inline {
            volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
        }
        let result = node_publish_volume(csi::NodePublishVolumeRequest {
            volume_id, target_path, staging_target_path, volume_capability, secrets, volume_context,
            ..Default::default()
        });
        let shown = format!("{result:?}");
        prop_assert!(!shown.contains("SECRET"), "{}", shown);
    }

    #[test]
    fn requests_for_snapshots_survive_any_input(
        name in text(), id in text(), ids in vec(text(), 0..4), parameters in map(), secrets in secrets(),
        requisite in terms(), count in any::<i32>(), starting_offset in any::<i64>(),
    ) {
        let accessibility_requirements = Some(csi::TopologyRequirement { requisite, preferred: Vec::new() });
        let snapshot = create_snapshot(csi::CreateSnapshotRequest {
            source_volume_id: id.clone(), name: name.clone(), secrets: secrets.clone(),
            parameters: parameters.clone(), accessibility_requirements,
        });
        let list = list_snapshots(csi::ListSnapshotsRequest {
            max_entries: count, starting_token: name.clone(), source_volume_id: id.clone(),
            snapshot_id: id.clone(), secrets: secrets.clone(),
        });
        let group = create_volume_group_snapshot(csi::CreateVolumeGroupSnapshotRequest {
            name: name.clone(), source_volume_ids: ids.clone(), secrets: secrets.clone(),
            parameters: parameters.clone(),
        });
        let delete = delete_volume_group_snapshot(csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: id.clone(), snapshot_ids: ids, secrets: secrets.clone(),
        });
        let allocated = get_metadata_allocated(csi::GetMetadataAllocatedRequest {
            snapshot_id: id.clone(), starting_offset, max_results: count, secrets: secrets.clone(),
        });
        let delta = get_metadata_delta(csi::GetMetadataDeltaRequest {
            base_snapshot_id: id.clone(), target_snapshot_id: name, starting_offset, max_results: count,
            secrets: secrets.clone(),
        });
        let modify = controller_modify_volume(csi::ControllerModifyVolumeRequest {
            volume_id: id, secrets, mutable_parameters: parameters,
        });
        let shown = format!("{snapshot:?}{list:?}{group:?}{delete:?}{allocated:?}{delta:?}{modify:?}");
        prop_assert!(!shown.contains("SECRET"), "{}", shown);
    }

    #[test]
    fn requests_for_health_survive_any_input(
        volume_id in text(), publish in text(), staging in text(), secrets in secrets(), max_entries in any::<i32>(),
    ) {
        let get = volume_of(volume_id.clone(), &secrets);
        let snapshot = snapshot_of(volume_id.clone(), &secrets);
        let list = page(max_entries, publish.clone());
        let node = node_get_volume_health(csi::NodeGetVolumeHealthRequest {
            volume_id, volume_publish_path: publish, staging_target_path: staging,
        });
        let storage = check_secrets(&secrets);
        let shown = format!("{get:?}{snapshot:?}{list:?}{node:?}{storage:?}");
        prop_assert!(!shown.contains("SECRET"), "{}", shown);
    }

    #[test]
    fn paths_are_plain(target_path in "/?(\\.{0,3}[a/\0]{0,2}){0,6}") {
        let volume_id = "v".to_owned();
        if let Ok(request) = node_unpublish_volume(csi::NodeUnpublishVolumeRequest { volume_id, target_path }) {
            let mut components = request.target_path.components();
            prop_assert_eq!(components.next(), Some(Component::RootDir));
            let names: Vec<_> = components.collect();
            prop_assert!(!names.is_empty() && names.iter().all(|c| matches!(c, Component::Normal(_))));
        }
    }

    #[test]
    fn the_rest_survives(
        volume_id in text(), path in text(), capability in proptest::option::of(capability()),
        capacity_range in range(), map in map(), max_entries in any::<i32>(), topology in terms(),
    ) {
        let volume_capabilities: Vec<_> = capability.clone().into_iter().collect();
        let _ = validate_volume_capabilities(csi::ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.clone(), volume_capabilities: volume_capabilities.clone(),
            parameters: map.clone(), volume_context: map.clone(), ..Default::default()
        });
        let _ = get_capacity(csi::GetCapacityRequest {
            volume_capabilities, parameters: map, accessible_topology: topology.into_iter().next(),
        });
        let _ = page(max_entries, volume_id.clone());
        let _ = node_expand_volume(csi::NodeExpandVolumeRequest {
            volume_id, volume_path: path, capacity_range, volume_capability: capability, ..Default::default()
        });
    }
}
