use super::super::samples::map;
use super::*;
use crate::model::Settings;
use crate::model::request::{MOST_ENTRIES, MOST_MEMBERS};

fn refused<T: std::fmt::Debug>(result: Result<T>, field: &str) {
    match result {
        Err(Error::Invalid(message)) => assert!(message.contains(field), "{message} does not name {field}"),
        other => panic!("{other:?} is not Invalid ({field})"),
    }
}

fn long() -> String {
    "x".repeat(129)
}

#[test]
fn a_source_is_a_snapshot_or_a_volume() {
    let of = |r#type| source(Some(csi::VolumeContentSource { r#type }));
    let snapshot = |id: &str| {
        let snapshot_id = id.to_owned();
        of(Some(CsiSource::Snapshot(csi::volume_content_source::SnapshotSource { snapshot_id })))
    };
    let volume = |id: &str| {
        let volume_id = id.to_owned();
        of(Some(CsiSource::Volume(csi::volume_content_source::VolumeSource { volume_id })))
    };
    assert_eq!(source(None).expect("none"), None);
    assert_eq!(snapshot("../x").expect("source"), Some(Source::Snapshot("../x".to_owned())));
    assert_eq!(volume("😀").expect("source"), Some(Source::Volume("😀".to_owned())));
    refused(of(None), "volume_content_source is empty");
    refused(snapshot(""), "volume_content_source.snapshot.snapshot_id is missing");
    refused(volume(""), "volume_content_source.volume.volume_id is missing");
    refused(snapshot(&long()), "snapshot_id has 129 bytes");
    refused(volume(&long()), "volume_id has 129 bytes");
}

#[test]
fn creating_a_snapshot_needs_its_fields() {
    let create = |change: fn(&mut csi::CreateSnapshotRequest)| {
        let mut request = csi::CreateSnapshotRequest {
            name: "snapshot/1".to_owned(),
            source_volume_id: "any text".to_owned(),
            secrets: map(&[("key", "CANARY")]),
            parameters: map(&[("freezeTimeout", "500ms"), ("csi.storage.k8s.io/volumesnapshot/name", "x")]),
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![csi::Topology { segments: map(&[(Settings::TOPOLOGY_KEY, "a")]) }],
                preferred: Vec::new(),
            }),
        };
        change(&mut request);
        create_snapshot(request)
    };
    let made = create(|_| {}).expect("request");
    assert_eq!((made.name.as_str(), made.source_volume_id.as_str()), ("snapshot/1", "any text"));
    assert_eq!(made.consistency, Consistency { freeze: true, freeze_timeout_ms: 500 });
    assert!(made.topology.expect("topology").allows("a"));
    assert_eq!(made.object, None, "not all of its names");
    let named = create(|r| {
        let key = |name: &str| format!("csi.storage.k8s.io/{name}");
        let names = ["volumesnapshot/namespace", "volumesnapshot/name", "volumesnapshotcontent/name"];
        r.parameters = names.iter().map(|name| (key(name), (*name).to_owned())).collect();
    });
    let object = named.expect("request").object.expect("names");
    assert_eq!(
        [object.namespace, object.name, object.content],
        ["volumesnapshot/namespace", "volumesnapshot/name", "volumesnapshotcontent/name"]
    );
    let plain = create(|r| r.parameters.clear()).expect("request");
    assert_eq!(plain.consistency, Consistency::default());
    refused(create(|r| r.name.clear()), "name is missing");
    refused(create(|r| r.name = long()), "name");
    refused(create(|r| r.name.push('\x07')), "U+0007");
    refused(create(|r| r.source_volume_id.clear()), "source_volume_id is missing");
    refused(create(|r| r.source_volume_id = long()), "source_volume_id");
    refused(create(|r| r.secrets = map(&[("a b", "x")])), "secrets");
    refused(create(|r| r.parameters = map(&[("pool", "x")])), "there are freeze, freezeTimeout");
    refused(create(|r| r.parameters = map(&[("freezeTimeout", "1h")])), "freezeTimeout");
    refused(create(|r| r.parameters = map(&[("freeze", &"x".repeat(4096))])), "parameters has");
    refused(
        create(|r| r.accessibility_requirements = Some(Default::default())),
        "accessibility_requirements",
    );
    // What is missing is said before what is wrong elsewhere.
    let both = |r: &mut csi::CreateSnapshotRequest| {
        r.source_volume_id.clear();
        r.parameters = map(&[("pool", "x")]);
    };
    refused(create(both), "source_volume_id is missing");
}

#[test]
fn ids_are_required_and_of_any_syntax() {
    let secrets = || map(&[("key", "x")]);
    let snapshot_of = |id: &str, secrets| fields::snapshot_of(id.to_owned(), &secrets);
    assert_eq!(snapshot_of("../x", secrets()).expect("id"), "../x");
    refused(snapshot_of("", secrets()), "snapshot_id is missing");
    refused(snapshot_of(&long(), secrets()), "snapshot_id");
    refused(snapshot_of("x", map(&[("!", "CANARY")])), "secrets");
}

#[test]
fn listing_snapshots_reads_its_fields() {
    let all = list_snapshots(Default::default()).expect("request");
    assert_eq!(all.max_entries, MOST_ENTRIES);
    assert_eq!((all.starting_token, all.source_volume_id, all.snapshot_id), (None, None, None));
    let request = csi::ListSnapshotsRequest {
        max_entries: 5,
        starting_token: "t".to_owned(),
        source_volume_id: "v".to_owned(),
        snapshot_id: "s".to_owned(),
        secrets: map(&[("key", "x")]),
    };
    let page = list_snapshots(request.clone()).expect("request");
    let want = ListSnapshots {
        max_entries: 5,
        starting_token: Some("t".to_owned()),
        source_volume_id: Some("v".to_owned()),
        snapshot_id: Some("s".to_owned()),
    };
    assert_eq!(page, want);
    let with = |change: fn(&mut csi::ListSnapshotsRequest)| {
        let mut request = request.clone();
        change(&mut request);
        list_snapshots(request)
    };
    refused(with(|r| r.max_entries = -1), "max_entries is -1");
    refused(with(|r| r.starting_token = long()), "starting_token");
    refused(with(|r| r.source_volume_id = long()), "source_volume_id");
    refused(with(|r| r.snapshot_id = long()), "snapshot_id");
    refused(with(|r| r.secrets = map(&[("", "x")])), "secrets");
}

#[test]
fn groups_have_each_volume_once() {
    let create = |change: fn(&mut csi::CreateVolumeGroupSnapshotRequest)| {
        let mut request = csi::CreateVolumeGroupSnapshotRequest {
            name: "group".to_owned(),
            source_volume_ids: vec!["b".to_owned(), "a".to_owned(), "b".to_owned()],
            secrets: map(&[("key", "x")]),
            parameters: map(&[("freeze", "false")]),
        };
        change(&mut request);
        create_volume_group_snapshot(request)
    };
    let made = create(|_| {}).expect("request");
    assert_eq!((made.name.as_str(), made.consistency.freeze), ("group", false));
    assert_eq!(made.source_volume_ids, ["b", "a", "b"]);
    refused(create(|r| r.name.clear()), "name is missing");
    refused(create(|r| r.source_volume_ids.clear()), "source_volume_ids is missing");
    refused(create(|r| r.source_volume_ids[1].clear()), "source_volume_ids[1] is missing");
    let many = |r: &mut csi::CreateVolumeGroupSnapshotRequest, count| {
        r.source_volume_ids = (0..count).map(|n| format!("v{n}")).collect();
    };
    let made = create_volume_group_snapshot({
        let mut request =
            csi::CreateVolumeGroupSnapshotRequest { name: "g".to_owned(), ..Default::default() };
        many(&mut request, MOST_MEMBERS);
        request
    });
    assert_eq!(made.map(|made| made.source_volume_ids.len()).ok(), Some(MOST_MEMBERS));
    let mut request = csi::CreateVolumeGroupSnapshotRequest { name: "g".to_owned(), ..Default::default() };
    many(&mut request, MOST_MEMBERS + 1);
    refused(create_volume_group_snapshot(request), "make several");
    refused(create(|r| r.source_volume_ids[2] = long()), "source_volume_ids[2] has 129");
    refused(create(|r| r.secrets = map(&[("/", "x")])), "secrets");
    refused(create(|r| r.parameters = map(&[("mode", "x")])), "there are freeze, freezeTimeout");

    let delete = |id: &str, ids: &[&str], secrets| {
        let (group_snapshot_id, snapshot_ids) =
            (id.to_owned(), ids.iter().map(|id| (*id).to_owned()).collect());
        delete_volume_group_snapshot(csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id,
            snapshot_ids,
            secrets,
        })
    };
    let get = |id: &str, ids: &[&str], secrets| {
        let (group_snapshot_id, snapshot_ids) =
            (id.to_owned(), ids.iter().map(|id| (*id).to_owned()).collect());
        get_volume_group_snapshot(csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id,
            snapshot_ids,
            secrets,
        })
    };
    for call in [delete as fn(&str, &[&str], _) -> _, get] {
        let group = call("../g", &["s"], map(&[])).expect("request");
        assert_eq!((group.group_snapshot_id.as_str(), group.snapshot_ids.len()), ("../g", 1));
        assert!(call("g", &[], map(&[])).expect("request").snapshot_ids.is_empty());
        refused(call("", &[], map(&[])), "group_snapshot_id is missing");
        refused(call(&long(), &[], map(&[])), "group_snapshot_id");
        refused(call("g", &["s", ""], map(&[])), "snapshot_ids[1]");
        refused(call("g", &[], map(&[("é", "x")])), "secrets");
    }
}

#[test]
fn metadata_requests_need_their_fields() {
    let allocated = |change: fn(&mut csi::GetMetadataAllocatedRequest)| {
        let mut request =
            csi::GetMetadataAllocatedRequest { snapshot_id: "s".to_owned(), ..Default::default() };
        change(&mut request);
        get_metadata_allocated(request)
    };
    let plain = allocated(|_| {}).expect("request");
    assert_eq!((plain.starting_offset, plain.max_results), (0, None));
    let negative =
        allocated(|r| (r.starting_offset, r.max_results) = (-5, 7)).expect("the driver's question");
    assert_eq!((negative.starting_offset, negative.max_results), (-5, Some(7)));
    refused(allocated(|r| r.snapshot_id.clear()), "snapshot_id is missing");
    refused(allocated(|r| r.max_results = -1), "max_results is -1");
    refused(allocated(|r| r.secrets = map(&[("a b", "x")])), "secrets");

    let delta = |change: fn(&mut csi::GetMetadataDeltaRequest)| {
        let mut request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: "a".to_owned(),
            target_snapshot_id: "b".to_owned(),
            starting_offset: i64::MIN,
            max_results: 1,
            ..Default::default()
        };
        change(&mut request);
        get_metadata_delta(request)
    };
    let full = delta(|_| {}).expect("request");
    assert_eq!((full.base_snapshot_id.as_str(), full.target_snapshot_id.as_str()), ("a", "b"));
    assert_eq!((full.starting_offset, full.max_results), (i64::MIN, Some(1)));
    refused(delta(|r| r.base_snapshot_id.clear()), "base_snapshot_id is missing");
    refused(delta(|r| r.target_snapshot_id.clear()), "target_snapshot_id is missing");
    refused(delta(|r| r.target_snapshot_id = long()), "target_snapshot_id");
    refused(delta(|r| r.max_results = i32::MIN), "max_results");
    refused(delta(|r| r.secrets = map(&[("a b", "x")])), "secrets");
}
