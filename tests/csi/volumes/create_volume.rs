//! CreateVolume: names, sizes, what a repeated call may differ in, topology.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use nix::errno::Errno;
use tonic::Code;

use crate::harness::machine;
use crate::life::*;
use crate::support::*;

#[test]
fn a_volume_has_exactly_the_size_that_is_reported() {
    let rig = Rig::new();
    for (name, capability) in [("fs", mount()), ("block", block())] {
        let request = csi::CreateVolumeRequest {
            capacity_range: range(10 * GIB, 10 * GIB),
            ..create(name, capability)
        };
        let vol = rig.made(request);
        assert_eq!(vol.info.capacity_bytes, 10 * GIB);
        assert_eq!(rig.image(&vol).size, 10 * GIB as u64, "{name}");
        assert_eq!(rig.image(&vol).allocated, 0, "thin: {name}");
        rig.stage(&vol);
        let device = rig.kernel.loops().pop().expect("a device");
        assert_eq!(rig.kernel.os().loops.size(&device).expect("size"), 10 * GIB as u64, "{name}");
        rig.unstage(&vol);
    }
}

#[test]
fn a_size_is_rounded_up_to_blocks_within_the_limit() {
    let rig = Rig::with(&["--max-volume-size", "1Ti"]);
    let made = std::cell::Cell::new(0);
    let sizes = |required, limit, capability| {
        made.set(made.get() + 1);
        let name = format!("v-{}", made.get());
        let request =
            csi::CreateVolumeRequest { capacity_range: range(required, limit), ..create(&name, capability) };
        rig.call(request).map(|reply| reply.volume.expect("a volume").capacity_bytes).map_err(|e| e.code())
    };
    let (out, invalid) = (Err(Code::OutOfRange), Err(Code::InvalidArgument));
    for (required, limit, want) in [
        (0, 0, Ok(GIB)),
        (0, 8 * MIB, Ok(8 * MIB)),
        (0, 2 * GIB, Ok(GIB)),
        (1_572_865, 0, Ok(1_576_960)),
        (1_572_864, 1_572_864, Ok(1_572_864)),
        (4097, 8191, out),
        (1, 1, out),
        (1, 4096, Ok(4096)),
        (2 * MIB, MIB, out),
        (0, 4095, out),
        (2048 * GIB, 0, out),
        (i64::MAX, 0, out),
        (-1, 0, invalid),
        (0, -1, invalid),
        (i64::MIN, i64::MIN, invalid),
    ] {
        assert_eq!(sizes(required, limit, block()), want, "{required} to {limit}");
    }
    for (fs_type, minimum) in [("ext4", 4 * MIB), ("xfs", 300 * MIB), ("btrfs", 256 * MIB)] {
        assert_eq!(sizes(1, 0, fs(fs_type)), Ok(minimum), "{fs_type} is made as small as it can be");
        assert_eq!(sizes(1, minimum - 1, fs(fs_type)), out, "{fs_type} cannot be smaller");
        assert_eq!(sizes(0, minimum, fs(fs_type)), Ok(minimum), "{fs_type}");
    }
}

#[test]
fn no_capacity_range_gives_the_default_size() {
    let rig = Rig::new();
    let request = csi::CreateVolumeRequest { capacity_range: None, ..create("v", mount()) };
    assert_eq!(rig.made(request).info.capacity_bytes, GIB);
}

#[test]
fn any_name_is_taken_and_none_becomes_a_path() {
    let rig = Rig::new();
    let long = "n".repeat(128);
    let names = [
        "a/b",
        "../../../etc/passwd",
        "..",
        ".",
        "/",
        "\t",
        "a\nb",
        "\r",
        "😀",
        "é",
        " ",
        "%00",
        "\u{A0}",
        "-rf",
        "$(id)",
        &long,
    ];
    for name in names {
        rig.volume(name, mount());
    }
    let listed = rig.ok(csi::ListVolumesRequest::default());
    assert_eq!(listed.entries.len(), names.len(), "every name is a volume of its own");
    for path in rig.kernel.tree("/var/lib") {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-._".contains(c);
        assert!(path.chars().all(plain) && !path.contains(".."), "{path}");
    }
    for name in names {
        rig.volume(name, mount());
    }
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), names.len());
}

#[test]
fn control_characters_and_long_names_are_refused() {
    let rig = Rig::new();
    let banned =
        ('\0'..='\u{8}').chain(['\u{B}', '\u{C}']).chain('\u{E}'..='\u{1F}').chain('\u{7F}'..='\u{9F}');
    for c in banned {
        let message = rig.fails(Code::InvalidArgument, create(&format!("a{c}b"), mount()));
        assert!(message.contains("name"), "{message}");
    }
    for name in ["n".repeat(129), "é".repeat(65), String::new()] {
        rig.fails(Code::InvalidArgument, create(&name, mount()));
    }
    rig.assert_clean();
}

#[test]
fn missing_or_unsupported_fields_are_invalid() {
    let rig = Rig::new();
    let base = || create("v", mount());
    let snapshot = csi::volume_content_source::SnapshotSource::default();
    let unnamed =
        csi::VolumeContentSource { r#type: Some(csi::volume_content_source::Type::Snapshot(snapshot)) };
    let from = |source| csi::CreateVolumeRequest { volume_content_source: Some(source), ..base() };
    let mutable =
        |key, value| csi::CreateVolumeRequest { mutable_parameters: map(&[(key, value)]), ..base() };
    let without_mode = csi::VolumeCapability { access_mode: None, ..mount() };
    let without_type = csi::VolumeCapability { access_type: None, ..mount() };
    let group = {
        let mut capability = mount();
        if let Some(csi::volume_capability::AccessType::Mount(mount)) = &mut capability.access_type {
            mount.volume_mount_group = "1000".to_owned();
        }
        capability
    };
    let with = |capabilities| csi::CreateVolumeRequest { volume_capabilities: capabilities, ..base() };
    for (what, request) in [
        ("no capabilities", with(Vec::new())),
        ("no access mode", with(vec![without_mode])),
        ("no access type", with(vec![without_type])),
        ("unknown mode", with(vec![mode(Mode::Unknown)])),
        ("block and mount", with(vec![mount(), block()])),
        ("two filesystems", with(vec![fs("ext4"), fs("xfs")])),
        ("no such filesystem", with(vec![fs("ext3")])),
        ("volume_mount_group", with(vec![group])),
        ("a mode that no capability has", with(vec![mount(), mode(Mode::MultiNodeMultiWriter)])),
        ("a source that is none", from(csi::VolumeContentSource::default())),
        ("a source without an id", from(unnamed)),
        ("unknown mutable parameter", mutable("k", "v")),
        ("a parameter that cannot change", mutable("pool", "default")),
        ("bad mutable value", mutable("discard", "maybe")),
        ("thick that discards", create_with("v", &[("provisioning", "thick"), ("discard", "true")])),
        ("endless freeze", create_with("v", &[("freezeTimeout", "1h")])),
        ("unknown parameter", create_with("v", &[("kind", "fast")])),
        ("unknown pool", create_with("v", &[("pool", "fast")])),
        ("a pool that is a path", create_with("v", &[("pool", "../x")])),
        ("bad value", create_with("v", &[("backend", "zfs")])),
        ("mkfs on a file", create_with("v", &[("mkfsOptions", "-d /etc")])),
        (
            "block directory",
            csi::CreateVolumeRequest {
                parameters: map(&[("backend", "directory"), ("pool", "directories")]),
                ..create("v", block())
            },
        ),
    ] {
        let message = rig.fails(Code::InvalidArgument, request);
        assert!(!message.is_empty(), "{what}");
    }
    rig.assert_clean();
}

#[test]
fn modes_of_several_nodes_need_shared_on_node() {
    let rig = Rig::new();
    let shared = [("sharedOnNode", "true")];
    for wanted in ALL_MODES {
        let several = wanted.as_str_name().starts_with("MULTI_NODE");
        let name = wanted.as_str_name();
        let request = create(name, mode(wanted));
        let code = rig.call(request).err().map(|status| status.code());
        assert_eq!(code, several.then_some(Code::InvalidArgument), "{name}");
        rig.ok(csi::CreateVolumeRequest {
            parameters: map(&shared),
            ..create(&format!("s{name}"), mode(wanted))
        });
        let code =
            rig.call(create(&format!("b{name}"), block_mode(wanted))).err().map(|status| status.code());
        assert_eq!(code, several.then_some(Code::InvalidArgument), "block {name}");
    }
}

#[test]
fn the_same_call_again_gives_the_same_volume() {
    let rig = Rig::new();
    for request in [
        create("fs", fs("xfs")),
        create("block", block()),
        create_with("dir", &[("backend", "directory"), ("pool", "directories")]),
    ] {
        let request = csi::CreateVolumeRequest { capacity_range: range(300 * MIB, 0), ..request };
        let first = rig.ok(request.clone()).volume;
        rig.kernel.clear_steps();
        assert_eq!(rig.ok(request).volume, first);
        assert_eq!(rig.kernel.steps(), [], "nothing is written");
    }
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 3);
}

#[test]
fn a_repeated_call_must_ask_for_what_is_there() {
    let rig = Rig::new();
    let base =
        || csi::CreateVolumeRequest { capacity_range: range(SIZE, 2 * SIZE), ..create("v", fs("ext4")) };
    let first = rig.ok(base()).volume.expect("a volume");
    let sized =
        |required, limit| csi::CreateVolumeRequest { capacity_range: range(required, limit), ..base() };
    let used = |capabilities| csi::CreateVolumeRequest { volume_capabilities: capabilities, ..base() };
    let parameters =
        |entries: &[(&str, &str)]| csi::CreateVolumeRequest { parameters: map(entries), ..base() };
    let placed = |node| csi::CreateVolumeRequest {
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![topology(node)],
            ..Default::default()
        }),
        ..base()
    };
    for (what, request) in [
        ("less is enough", sized(1, 0)),
        ("not a size", csi::CreateVolumeRequest { capacity_range: None, ..base() }),
        ("a limit that it keeps", sized(0, SIZE)),
        ("no filesystem named", used(vec![mount()])),
        ("another mode that it has", used(vec![mode(Mode::SingleNodeReaderOnly)])),
        ("mount flags", used(vec![mount_with("ext4", &["noatime"], Mode::SingleNodeWriter)])),
        (
            "the default written out",
            parameters(&[("backend", "loop"), ("provisioning", "thin"), ("pool", "default")]),
        ),
        ("keys of Kubernetes", parameters(&[("csi.storage.k8s.io/pvc/name", "claim")])),
        ("this node", placed(NODE)),
    ] {
        let again = rig.ok(request).volume.expect("a volume");
        assert_eq!(again, first, "{what}");
    }
    for (what, request) in [
        ("more", sized(SIZE + 1, 0)),
        ("a lower limit", sized(1, SIZE - 1)),
        ("block", used(vec![block()])),
        ("another filesystem", used(vec![fs("xfs")])),
        ("thick", parameters(&[("provisioning", "thick")])),
        ("directory", parameters(&[("backend", "directory"), ("pool", "directories")])),
        ("mkfs options", parameters(&[("mkfsOptions", "-q")])),
        ("direct I/O", parameters(&[("directIO", "false")])),
        ("shared", parameters(&[("sharedOnNode", "true")])),
        ("another node", placed("node-2")),
    ] {
        match rig.call(request) {
            Ok(_) => panic!("{what}: OK"),
            Err(status) => assert_eq!(status.code(), Code::AlreadyExists, "{what}: {}", status.message()),
        }
    }
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 1);
}

#[test]
fn the_topology_must_allow_this_node() {
    let rig = Rig::new();
    let nodes = |nodes: &[&str]| nodes.iter().map(|node| topology(node)).collect::<Vec<_>>();
    let zone = csi::Topology { segments: map(&[("topology.kubernetes.io/zone", "z")]) };
    let request = |name: &str, requisite, preferred| csi::CreateVolumeRequest {
        accessibility_requirements: Some(csi::TopologyRequirement { requisite, preferred }),
        ..create(name, mount())
    };
    for (at, (requisite, preferred)) in [
        (nodes(&[NODE]), nodes(&[NODE])),
        (nodes(&["node-2", NODE]), nodes(&["node-2"])),
        (nodes(&[NODE]), Vec::new()),
        (Vec::new(), nodes(&["node-2", NODE])),
    ]
    .into_iter()
    .enumerate()
    {
        let volume = rig.ok(request(&format!("ok-{at}"), requisite, preferred)).volume.expect("a volume");
        assert_eq!(volume.accessible_topology, [topology(NODE)]);
    }
    for (requisite, preferred) in [
        (nodes(&["node-2"]), nodes(&[NODE])),
        (nodes(&["node-2"]), Vec::new()),
        (Vec::new(), nodes(&["node-2"])),
        (vec![zone], Vec::new()),
    ] {
        rig.fails(Code::ResourceExhausted, request("no", requisite, preferred));
    }
    rig.fails(Code::InvalidArgument, request("no", Vec::new(), Vec::new()));
    rig.fails(Code::InvalidArgument, request("no", vec![csi::Topology::default()], Vec::new()));
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 4);
}

#[test]
fn every_answer_describes_the_volume_alike() {
    let rig = Rig::with(&["--attach"]);
    let vol = rig.made(create_with("v", &[("provisioning", "thick")]));
    let got = rig.ok(csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() });
    let listed = rig.ok(csi::ListVolumesRequest::default());
    assert_eq!(got.volume.as_ref(), Some(&vol.info));
    assert_eq!(listed.entries[0].volume.as_ref(), Some(&vol.info));
    assert_eq!(vol.info.accessible_topology, [topology(NODE)]);
    assert!(!vol.info.volume_context.is_empty() && vol.id.len() <= 128);
    rig.fails(Code::NotFound, csi::ControllerGetVolumeRequest { volume_id: "x".to_owned() });
    rig.fails(Code::InvalidArgument, csi::ControllerGetVolumeRequest::default());
}

#[test]
fn a_creation_that_fails_leaves_nothing() {
    for step in 1..20 {
        let rig = Rig::new();
        rig.kernel.fail_at(step, nix::errno::Errno::ENOSPC);
        let Err(status) = rig.call(create_with("v", &[("provisioning", "thick")])) else {
            assert!(step > 5, "a volume takes some steps");
            return;
        };
        assert_eq!(status.code(), Code::ResourceExhausted, "step {step}: {}", status.message());
        rig.assert_clean();
        let vol = rig.made(create_with("v", &[("provisioning", "thick")]));
        assert_eq!(rig.image(&vol).allocated, SIZE as u64, "step {step}");
    }
    panic!("no step was the last");
}

/// The disk fails until the driver has given up undoing it.
#[test]
fn a_creation_that_was_not_undone_is_made_anew() {
    let rig = Rig::new();
    rig.kernel.fail_every("set_size", Errno::EIO);
    rig.kernel.fail_every("remove_file", Errno::EIO);
    rig.fails(Code::Internal, create("v", block()));
    rig.fails(Code::Internal, create("v", block()));
    assert!(rig.ok(csi::ListVolumesRequest::default()).entries.is_empty());
    rig.kernel.heal();
    let vol = rig.volume("v", block());
    rig.stage(&vol);
    assert_eq!(rig.image(&vol).size, SIZE as u64);
}

#[test]
fn a_pool_without_directories_names_its_flag() {
    let kernel = machine();
    kernel.create_directories("/pools/fast");
    let rig = Rig::on(kernel, &["--pool", "fast=/pools/fast"]);
    for (pool, flag) in [("default", "(--directories,"), ("fast", "(directories=true in --pool fast,")] {
        let directory = [("backend", "directory"), ("pool", pool), ("enforcement", "none")];
        let message = rig.fails(Code::InvalidArgument, create_with("v", &directory));
        assert!(message.contains(flag), "{message}");
    }
    rig.assert_clean();
}

#[test]
fn files_without_a_record_are_not_touched() {
    for parameters in [&[][..], &[("backend", "directory"), ("pool", "directories")]] {
        let rig = Rig::new();
        let vol = rig.made(create_with("v", parameters));
        rig.ok(vol.delete_request());
        // As if a state file had been restored that is older than the volume.
        let image = format!("{}/disk.img", vol.directory());
        rig.kernel.create_directories(vol.directory());
        rig.kernel.write_file(&image, b"somebody's data").expect("write");
        let message = rig.fails(Code::FailedPrecondition, create_with("v", parameters));
        assert!(message.contains(&vol.directory()), "{message}");
        assert_eq!(rig.kernel.read_file(&image).expect("read"), b"somebody's data");
        let rig = rig.restart_with(&[]);
        assert_eq!(rig.kernel.read_file(&image).expect("read"), b"somebody's data");
    }
}
