use super::super::samples::{block, map, mount};
use super::*;
use crate::model::request::{ListVolumes, MOST_ENTRIES, Source};
use crate::model::{AccessMode, Claim, Settings};

fn create(change: impl FnOnce(&mut csi::CreateVolumeRequest)) -> Result<CreateVolume> {
    let mut request = csi::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![mount("")],
        ..Default::default()
    };
    change(&mut request);
    create_volume(request)
}

fn refused<T: std::fmt::Debug>(result: Result<T>, field: &str) {
    match result {
        Err(Error::Invalid(message)) => assert!(message.contains(field), "{message} does not name {field}"),
        other => panic!("{other:?} is not Invalid ({field})"),
    }
}

#[test]
fn create_volume_takes_every_field() {
    let made = create(|r| {
        r.capacity_range = Some(csi::CapacityRange { required_bytes: 1, limit_bytes: 2 });
        r.parameters = map(&[("pool", "fast")]);
        r.secrets = map(&[("key", "secret")]);
        r.accessibility_requirements = Some(csi::TopologyRequirement {
            requisite: vec![csi::Topology { segments: map(&[(Settings::TOPOLOGY_KEY, "a")]) }],
            preferred: Vec::new(),
        });
    })
    .expect("request");
    assert_eq!((made.name.as_str(), made.size), ("pvc-1", SizeRange { required: 1, limit: 2 }));
    assert_eq!(made.parameters.pool.as_str(), "fast");
    assert_eq!(made.capabilities.len(), 1);
    assert!(made.topology.expect("topology").allows("a"));
}

#[test]
fn create_volume_reads_its_source() {
    let made = create(|r| {
        let volume = csi::volume_content_source::VolumeSource { volume_id: "v".to_owned() };
        r.volume_content_source =
            Some(csi::VolumeContentSource { r#type: Some(csi::volume_content_source::Type::Volume(volume)) });
        r.parameters = map(&[("freeze", "false"), ("freezeTimeout", "2m"), ("discard", "true")]);
        r.mutable_parameters = map(&[("discard", "false")]);
    })
    .expect("request");
    assert_eq!(made.source, Some(Source::Volume("v".to_owned())));
    assert_eq!((made.consistency.freeze, made.consistency.freeze_timeout_ms), (false, 120_000));
    assert!(!made.parameters.discard);
}

#[test]
fn create_volume_keeps_the_names_of_its_claim() {
    let names = [("pvc/namespace", "shop"), ("pvc/name", "db"), ("pv/name", "pvc-1")];
    let claim = |names: &[(&str, &str)]| {
        let key = |name: &str| format!("csi.storage.k8s.io/{name}");
        let parameters = names.iter().map(|(name, value)| (key(name), (*value).to_owned())).collect();
        create(|r| r.parameters = parameters).expect("request").claim
    };
    let expected =
        Claim { namespace: "shop".to_owned(), name: "db".to_owned(), persistent_volume: "pvc-1".to_owned() };
    assert_eq!(claim(&names), Some(expected));
    assert_eq!(claim(&names[..2]), None, "not all of them");
    let with = |name: &str| claim(&[names[0], names[1], ("pv/name", name)]).is_some();
    assert!(!with("") && !with(&"x".repeat(254)), "what is no name is no reason to refuse a volume");
    assert!(with(&"x".repeat(253)));
}

#[test]
fn create_volume_leaves_multi_node_modes_open() {
    let made = create(|r| {
        let mode = csi::volume_capability::access_mode::Mode::MultiNodeMultiWriter.into();
        r.volume_capabilities[0].access_mode = Some(csi::volume_capability::AccessMode { mode });
    });
    assert_eq!(made.expect("request").capabilities[0].mode, AccessMode::MultiNodeMultiWriter);
}

#[test]
fn create_volume_refuses_wrong_fields() {
    let source = csi::VolumeContentSource::default();
    let large = "x".repeat(4096);
    refused(create(|r| r.name.clear()), "name");
    refused(create(|r| r.name = "x".repeat(129)), "name");
    refused(create(|r| r.name.push('\x07')), "name");
    refused(create(|r| r.volume_capabilities.clear()), "volume_capabilities");
    refused(create(|r| r.volume_capabilities.push(block())), "block and mount");
    refused(create(|r| r.parameters = map(&[("kind", "fast")])), "kind");
    refused(create(|r| r.parameters = map(&[("mkfsOptions", &"x".repeat(5000))])), "parameters");
    refused(create(|r| r.secrets = map(&[("a b", "x")])), "secrets");
    refused(create(|r| r.volume_content_source = Some(source)), "volume_content_source");
    refused(create(|r| r.mutable_parameters = map(&[("a", "b")])), "mutable parameter \"a\" is not known");
    refused(create(|r| r.mutable_parameters = map(&[("pool", "b")])), "\"pool\" cannot change");
    refused(create(|r| r.mutable_parameters = map(&[("discard", &large)])), "mutable_parameters");
    refused(
        create(|r| r.accessibility_requirements = Some(Default::default())),
        "accessibility_requirements",
    );
    let range = csi::CapacityRange { required_bytes: -1, limit_bytes: 0 };
    refused(create(|r| r.capacity_range = Some(range)), "required_bytes");
    for entry in [("backend", "directory"), ("mkfsOptions", "-q"), ("sharedOnNode", "true")] {
        let ask = |r: &mut csi::CreateVolumeRequest| {
            r.volume_capabilities = vec![block()];
            r.parameters = map(&[entry]);
        };
        refused(create(ask), entry.0);
    }
}

#[test]
fn ids_are_required() {
    refused(fields::volume_of(String::new(), &map(&[])), "volume_id");
    refused(fields::volume_id(String::new()), "volume_id");
    refused(controller_unpublish_volume(Default::default()), "volume_id");
    refused(fields::volume_of("fake".to_owned(), &map(&[("!", "x")])), "secrets");
    assert_eq!(fields::volume_of("fake".to_owned(), &map(&[])).expect("id"), "fake");
}

#[test]
fn publishing_needs_its_fields() {
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: "v".to_owned(),
        node_id: "n".to_owned(),
        volume_capability: Some(mount("")),
        readonly: true,
        volume_context: map(&[("backend", "loop"), ("storage.kubernetes.io/csiProvisionerIdentity", "x")]),
        ..Default::default()
    };
    let publish = controller_publish_volume(request.clone()).expect("request");
    assert!(publish.read_only && publish.context.len() == 1);
    let without = |change: fn(&mut csi::ControllerPublishVolumeRequest)| {
        let mut request = request.clone();
        change(&mut request);
        controller_publish_volume(request)
    };
    refused(without(|r| r.volume_id.clear()), "volume_id");
    refused(without(|r| r.node_id.clear()), "node_id");
    refused(without(|r| r.node_id = "n".repeat(257)), "node_id");
    refused(without(|r| r.volume_capability = None), "volume_capability");
    refused(without(|r| r.volume_context = map(&[("k", &"v".repeat(4096))])), "volume_context");
    let unpublish = |node_id: &str| {
        let (volume_id, node_id) = ("v".to_owned(), node_id.to_owned());
        controller_unpublish_volume(csi::ControllerUnpublishVolumeRequest {
            volume_id,
            node_id,
            secrets: map(&[]),
        })
    };
    assert_eq!(unpublish("").expect("request").node_id, None);
    assert_eq!(unpublish("n").expect("request").node_id.as_deref(), Some("n"));
}

#[test]
fn validation_answers_rather_than_refuses() {
    let ask = |change: fn(&mut csi::ValidateVolumeCapabilitiesRequest)| {
        let mut request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: "v".to_owned(),
            volume_capabilities: vec![mount("ext4"), mount("zfs")],
            ..Default::default()
        };
        change(&mut request);
        validate_volume_capabilities(request)
    };
    let plain = ask(|_| {}).expect("request");
    assert!(plain.capabilities[0].is_ok() && plain.capabilities[1].is_err() && plain.parameters.is_none());
    let parameters = |change| ask(change).expect("request").parameters.expect("parameters");
    assert!(parameters(|r| r.parameters = map(&[("pool", "fast")])).is_ok());
    assert!(parameters(|r| r.parameters = map(&[("kind", "fast")])).is_err());
    assert!(parameters(|r| r.mutable_parameters = map(&[("a", "b")])).is_err());
    let both = parameters(|r| {
        r.parameters = map(&[("pool", "fast"), ("discard", "true")]);
        r.mutable_parameters = map(&[("discard", "false")]);
    })
    .expect("typed");
    assert_eq!((both.pool.as_str(), both.discard), ("fast", false));
    assert!(!parameters(|r| r.mutable_parameters = map(&[("directIO", "false")])).expect("typed").direct_io);
    let sidecars = ask(|r| r.mutable_parameters = map(&[("csi.storage.k8s.io/x", "y")]));
    assert!(sidecars.expect("request").parameters.is_none());
    let block_directory = ask(|r| {
        r.volume_capabilities = vec![block()];
        r.parameters = map(&[("backend", "directory")]);
    });
    assert!(block_directory.expect("request").capabilities[0].is_err());
    refused(ask(|r| r.volume_id.clear()), "volume_id");
    refused(ask(|r| r.volume_capabilities.clear()), "volume_capabilities");
    refused(ask(|r| r.volume_capabilities[1].access_mode = None), "volume_capabilities[1].access_mode");
    refused(ask(|r| r.volume_capabilities[1].access_type = None), "access_type");
}

#[test]
fn listing_volumes_reads_its_fields() {
    let list = |max_entries, token: &str| fields::page(max_entries, token.to_owned());
    assert_eq!(
        list(0, "").expect("request"),
        ListVolumes { max_entries: MOST_ENTRIES, starting_token: None }
    );
    let page = list(5, "not-a-token").expect("request");
    assert_eq!((page.max_entries, page.starting_token.as_deref()), (5, Some("not-a-token")));
    assert_eq!(list(i32::MAX, "").expect("request").max_entries, MOST_ENTRIES);
    refused(list(-1, ""), "max_entries");
    refused(list(0, &"t".repeat(129)), "starting_token");
}

#[test]
fn capacity_takes_a_raw_storage_class() {
    let request = csi::GetCapacityRequest {
        volume_capabilities: vec![block(), mount("")],
        parameters: map(&[("csi.storage.k8s.io/fstype", "zfs"), ("backend", "directory")]),
        accessible_topology: Some(csi::Topology { segments: map(&[("zone", "z")]) }),
    };
    let capacity = get_capacity(request).expect("request");
    assert!(capacity.capabilities.iter().all(Result::is_err));
    assert!(!capacity.topology.expect("topology").allows("z"));
    assert!(get_capacity(Default::default()).expect("request").parameters.direct_io);
    let unknown = csi::GetCapacityRequest { parameters: map(&[("kind", "fast")]), ..Default::default() };
    refused(get_capacity(unknown), "kind");
}

#[test]
fn expanding_needs_its_fields() {
    let expand = |volume_id: &str, range: Option<(i64, i64)>, capability| {
        controller_expand_volume(csi::ControllerExpandVolumeRequest {
            volume_id: volume_id.to_owned(),
            capacity_range: range
                .map(|(required_bytes, limit_bytes)| csi::CapacityRange { required_bytes, limit_bytes }),
            secrets: map(&[]),
            volume_capability: capability,
        })
    };
    assert!(expand("v", Some((1, 0)), None).expect("request").capability.is_none());
    assert!(expand("v", Some((0, 1)), Some(block())).expect("request").capability.is_some());
    refused(expand("", Some((1, 0)), None), "volume_id");
    refused(expand("v", None, None), "capacity_range");
    refused(expand("v", Some((0, 0)), None), "capacity_range");
    refused(expand("v", Some((0, -5)), None), "limit_bytes");
    refused(expand("v", Some((1, 0)), Some(Default::default())), "access_mode");
}

#[test]
fn modifying_needs_its_fields() {
    let modify = |volume_id: &str, entries: &[(&str, &str)], secrets| {
        controller_modify_volume(csi::ControllerModifyVolumeRequest {
            volume_id: volume_id.to_owned(),
            secrets,
            mutable_parameters: map(entries),
        })
    };
    let request = modify("v", &[("discard", "false")], map(&[("key", "x")])).expect("request");
    let want = Modification { discard: Some(false), ..Default::default() };
    assert_eq!((request.volume_id.as_str(), request.modification), ("v", Ok(want)));
    // Of a volume that is not there the answer is NOT_FOUND, so these are the driver's to report.
    for (entries, part) in [
        (&[][..], "mutable_parameters is missing"),
        (&[("a", "b")], "not known"),
        (&[("backend", "directory")], "cannot change"),
        (&[("discard", "maybe")], "write true or false"),
    ] {
        let reason = modify("v", entries, map(&[])).expect("request").modification.expect_err("refused");
        assert!(reason.contains(part), "{reason}");
    }
    refused(modify("", &[("discard", "false")], map(&[])), "volume_id");
    refused(modify("v", &[("discard", &"x".repeat(4096))], map(&[])), "mutable_parameters has");
    refused(modify("v", &[("discard", "false")], map(&[("a b", "x")])), "secrets");
}
