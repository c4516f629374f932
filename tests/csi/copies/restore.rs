//! CreateVolume from a snapshot or a volume: what both have in common.

use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

/// A source of either kind of the same volume, and what it is called.
fn sources(rig: &Rig, vol: &Vol) -> [(&'static str, csi::VolumeContentSource); 2] {
    let cut = rig.cut(&format!("snapshot of {}", vol.id), vol);
    [("restored", from_snapshot(&cut.snapshot_id)), ("cloned", from_volume(&vol.id))]
}

fn sized(request: csi::CreateVolumeRequest, required: i64, limit: i64) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest { capacity_range: range(required, limit), ..request }
}

/// The parameters of a request as a list.
fn parameters(request: &csi::CreateVolumeRequest) -> Vec<(String, String)> {
    request.parameters.clone().into_iter().collect()
}

fn borrowed(parameters: &[(String, String)]) -> Vec<(&str, &str)> {
    parameters.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

#[test]
fn a_copy_has_the_size_and_data_of_its_source() {
    let rig = both_pools();
    for request in kinds() {
        let parameters = parameters(&request);
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        rig.rest(&vol);
        for (name, source) in sources(&rig, &vol) {
            let name = format!("{name} {}", vol.id);
            let request = copy(&name, source.clone(), vol.capability.clone(), &borrowed(&parameters));
            let made = rig.made(request.clone());
            assert_eq!(made.info.capacity_bytes, vol.info.capacity_bytes);
            assert_eq!(made.info.content_source.as_ref(), Some(&source));
            assert_eq!(made.info.accessible_topology, vec![topology(NODE)]);
            let listed = rig.ok(csi::ListVolumesRequest::default()).entries;
            assert!(listed.iter().any(|entry| entry.volume.as_ref() == Some(&made.info)));
            let get = csi::ControllerGetVolumeRequest { volume_id: made.id.clone() };
            assert_eq!(rig.ok(get).volume.as_ref(), Some(&made.info));
            assert_eq!(rig.ok(request).volume.as_ref(), Some(&made.info), "a repeat");
            assert_eq!(rig.content(&made, 4), "text", "{name}");
        }
    }
}

#[test]
fn a_copy_in_use_beside_its_source_has_its_own_data() {
    let rig = both_pools();
    for request in kinds() {
        let parameters = parameters(&request);
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        rig.rest(&vol);
        let copies = sources(&rig, &vol).map(|(name, source)| {
            let name = format!("{name} {}", vol.id);
            let (made, _) = rig.in_use(copy(&name, source, vol.capability.clone(), &borrowed(&parameters)));
            made
        });
        rig.stage(&vol);
        rig.publish(&vol, "pod");
        rig.write(&vol, "mine");
        rig.write(&copies[0], "a res");
        assert_eq!(rig.read(&vol, 4), "mine");
        assert_eq!(rig.read(&copies[0], 5), "a res");
        assert_eq!(rig.read(&copies[1], 4), "text");
        assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
    }
}

#[test]
fn a_larger_one_grows_before_it_is_used() {
    let rig = both_pools();
    for request in kinds() {
        let parameters = parameters(&request);
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        rig.rest(&vol);
        let bytes = vol.info.capacity_bytes + GIB;
        for (name, source) in sources(&rig, &vol) {
            let name = format!("{name} {}", vol.id);
            let request = copy(&name, source, vol.capability.clone(), &borrowed(&parameters));
            let (made, target) = rig.in_use(sized(request, bytes, bytes));
            assert_eq!(made.info.capacity_bytes, bytes);
            assert_eq!(rig.read(&made, 4), "text", "{name}");
            if !parameters.iter().any(|(key, _)| key == "backend") {
                let usage = rig.ok(made.stats_request(&target)).usage;
                let total = usage.iter().find(|row| row.unit == 1).expect("bytes").total;
                assert!(total > bytes * 9 / 10 && total <= bytes, "{name}: {total} of {bytes}");
            }
            rig.rest(&made);
            rig.ok(made.delete_request());
        }
    }
}

#[test]
fn a_smaller_one_is_out_of_range() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    for (name, source) in sources(&rig, &vol) {
        let request = || copy(name, source.clone(), mount(), &[]);
        for (required, limit) in [(SIZE - 4096, 0), (1, SIZE - 1), (0, SIZE - 1), (1, 0), (SIZE - 4096, SIZE)]
        {
            let message = rig.fails(Code::OutOfRange, sized(request(), required, limit));
            assert!(message.contains("is less than the 64 MiB of "), "{message}");
        }
        for (required, limit) in
            [(0, 0), (0, SIZE), (SIZE, SIZE), (0, 2 * SIZE), (SIZE - 1, 0), (SIZE - 4095, SIZE)]
        {
            let made = rig.made(sized(request(), required, limit));
            assert_eq!(made.info.capacity_bytes, SIZE, "{required} to {limit}");
            rig.ok(made.delete_request());
        }
        rig.fails(Code::OutOfRange, sized(request(), 3 * SIZE, 2 * SIZE));
    }
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 1);
}

#[test]
fn a_copy_cannot_change_the_kind_of_its_source() {
    let rig = Rig::new();
    let plain = |name, capability| rig.made(sized(create(name, capability), GIB, 0));
    let directory = rig.made(create_with("directory", &[("backend", "directory"), ("pool", "directories")]));
    let all = [
        (
            plain("ext4", mount()),
            vec![block(), fs("xfs"), fs("btrfs")],
            vec![("backend", "directory"), ("pool", "directories")],
        ),
        (
            plain("xfs", fs("xfs")),
            vec![block(), fs("ext4")],
            vec![("backend", "directory"), ("pool", "directories")],
        ),
        (plain("block", block()), vec![mount(), fs("ext4")], vec![]),
        (directory, vec![block(), mount(), fs("ext4")], vec![]),
    ];
    for (vol, capabilities, classes) in all {
        for (name, source) in sources(&rig, &vol) {
            for capability in capabilities.clone() {
                let message = rig.fails(Code::InvalidArgument, copy(name, source.clone(), capability, &[]));
                assert!(message.contains("cannot become"), "{message}");
            }
            for class in &classes {
                rig.fails(Code::InvalidArgument, copy(name, source.clone(), mount(), &[*class]));
            }
        }
    }
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 4);
}

#[test]
fn a_copy_without_fs_type_has_that_of_its_source() {
    let rig = Rig::new();
    for fs_type in ["ext4", "xfs", "btrfs"] {
        let (vol, _) = rig.in_use(sized(create(fs_type, fs(fs_type)), GIB, 0));
        rig.write(&vol, "text");
        rig.rest(&vol);
        for (name, source) in sources(&rig, &vol) {
            let (made, _) = rig.in_use(copy(&format!("{name} {fs_type}"), source, mount(), &[]));
            let mounts = rig.kernel.mounts();
            let there = mounts.iter().find(|there| there.target.as_os_str() == made.staging().as_str());
            assert_eq!(there.expect("a mount").fs_type, fs_type);
        }
    }
}

#[test]
fn sources_that_are_not_there_are_named() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let cut = rig.cut("s", &vol);
    for id in ["none", "../../x", "vol-368530772790-0b1df86f-4c13-5b95-92dd-ca9634573666"] {
        assert!(rig.fails(Code::NotFound, copy("c", from_volume(id), mount(), &[])).contains(id));
        assert!(rig.fails(Code::NotFound, copy("c", from_snapshot(id), mount(), &[])).contains(id));
    }
    rig.fails(Code::NotFound, copy("c", from_volume(&cut.snapshot_id), mount(), &[]));
    rig.fails(Code::NotFound, copy("c", from_snapshot(&vol.id), mount(), &[]));
    rig.fails(Code::InvalidArgument, copy("c", from_volume(""), mount(), &[]));
    rig.fails(Code::InvalidArgument, copy("c", from_snapshot(""), mount(), &[]));
    rig.fails(Code::InvalidArgument, copy("c", csi::VolumeContentSource { r#type: None }, mount(), &[]));
    rig.fails(Code::NotFound, copy("c", from_volume(&id_of_itself()), mount(), &[]));
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 1);
}

/// The id that the volume `c` will have.
fn id_of_itself() -> String {
    hostloop::model::VolumeId::of_name(&hostloop::model::NodeKey::of(NODE), "c").to_string()
}

#[test]
fn a_repeat_is_ok_without_source_but_not_with_another() {
    let mut rig = Rig::new();
    let (vol, other) = (rig.volume("v", mount()), rig.volume("other", mount()));
    let others = sources(&rig, &other);
    let all = sources(&rig, &vol).map(|(name, source)| {
        let request = copy(name, source, mount(), &[]);
        (request.clone(), rig.made(request))
    });
    let snapshots: Vec<String> = rig.snapshots().into_iter().map(|cut| cut.snapshot_id).collect();
    let check = |rig: &Rig| {
        for (request, made) in &all {
            assert_eq!(rig.ok(request.clone()).volume.as_ref(), Some(&made.info));
            let with = |source| csi::CreateVolumeRequest { volume_content_source: source, ..request.clone() };
            for (_, source) in &others {
                rig.fails(Code::AlreadyExists, with(Some(source.clone())));
            }
            for source in [from_snapshot("none"), from_volume("none"), from_volume(&made.id)] {
                rig.fails(Code::AlreadyExists, with(Some(source)));
            }
            rig.fails(Code::AlreadyExists, with(None));
        }
        let kinds = [from_volume(&vol.id), from_snapshot(&snapshots[0])];
        for source in kinds {
            rig.fails(Code::AlreadyExists, copy("other", source, mount(), &[]));
        }
    };
    check(&rig);
    rig.ok(vol.delete_request());
    check(&rig);
    for id in &snapshots {
        let cut = rig.ok(get_snapshot(id)).snapshot.expect("a snapshot");
        if cut.source_volume_id == vol.id {
            rig.ok(delete_snapshot(id));
        }
    }
    check(&rig);
    rig.power_cut();
    check(&rig);
}

#[test]
fn a_snapshot_of_a_deleted_volume_can_be_restored() {
    let mut rig = both_pools();
    let mut cuts = Vec::new();
    for request in kinds() {
        let parameters = parameters(&request);
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        rig.rest(&vol);
        let cut = rig.cut(&vol.id, &vol);
        rig.ok(vol.delete_request());
        cuts.push((cut, parameters, vol.capability.clone()));
    }
    rig.power_cut();
    for (cut, parameters, capability) in cuts {
        let source = from_snapshot(&cut.snapshot_id);
        let made = rig.made(copy(&cut.snapshot_id, source, capability, &borrowed(&parameters)));
        assert_eq!(rig.content(&made, 4), "text");
        rig.ok(made.delete_request());
        rig.ok(delete_snapshot(&cut.snapshot_id));
    }
    rig.assert_clean();
    rig.assert_no_snapshot();
}

#[test]
fn a_copy_of_an_unformatted_volume_is_unformatted() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    for (name, source) in sources(&rig, &vol) {
        let before = rig.kernel.formats().len();
        let (made, _) = rig.in_use(copy(name, source, mount(), &[]));
        assert_eq!(rig.kernel.formats().len(), before + 1, "{name}");
        rig.write(&made, "text");
    }
    let (vol, _) = rig.in_use(create("formatted", mount()));
    rig.write(&vol, "text");
    for (name, source) in sources(&rig, &vol) {
        let before = rig.kernel.formats().len();
        let (made, _) = rig.in_use(copy(&format!("{name} formatted"), source, mount(), &[]));
        assert_eq!((rig.kernel.formats().len(), rig.read(&made, 4).as_str()), (before, "text"), "{name}");
    }
}

#[test]
fn a_copy_may_change_its_pool_and_provisioning() {
    let rig = both_pools();
    for (n, (from, to)) in [("default", "fast"), ("fast", "default")].into_iter().enumerate() {
        let request =
            csi::CreateVolumeRequest { parameters: map(&[("pool", from)]), ..create(from, mount()) };
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        rig.rest(&vol);
        for (name, source) in sources(&rig, &vol) {
            for provisioning in ["thin", "thick"] {
                let class = [("pool", to), ("provisioning", provisioning)];
                let made =
                    rig.made(copy(&format!("{name} {provisioning} {n}"), source.clone(), mount(), &class));
                let image = rig.kernel.stat(format!("{}/disk.img", rig.directory(&made))).expect("an image");
                assert_eq!(image.allocated >= SIZE as u64, provisioning == "thick");
                assert_eq!(rig.content(&made, 4), "text");
            }
        }
    }
}

/// A thick volume must not need a new block when it is written to, so that it shares blocks only where some are sure
/// to be free: in a pool of the driver's own that promises nothing twice.
#[test]
fn thick_copies_share_blocks_in_managed_pools_only() {
    let managed = "copies=/srv/copies.img,kind=image,size=4Gi";
    let twice = "twice=/srv/twice.img,kind=image,size=4Gi,overcommit=2";
    let kernel = machine_with_fast(FsType::Xfs);
    kernel.create_directories("/srv");
    let flags = [&WITH_FAST[..], &["--pool", managed, "--pool", twice]].concat();
    let rig = Rig::on(kernel, &flags);
    let all =
        [("default", false, false), ("fast", true, false), ("twice", true, false), ("copies", true, true)];
    for (pool, thin_shares, thick_shares) in all {
        for (from, to) in [("thin", "thin"), ("thin", "thick"), ("thick", "thin"), ("thick", "thick")] {
            let class = |provisioning| [("pool", pool), ("provisioning", provisioning)];
            let name = format!("{pool} {from} {to}");
            let (vol, _) = rig.in_use(create_with(&name, &class(from)));
            rig.kernel.write_file(format!("{}/file", vol.target("pod")), b"text").expect("write");
            rig.rest(&vol);
            rig.steps();
            let shares = |thick: bool| if thick { thick_shares } else { thin_shares };
            let cut = rig.cut(&name, &vol);
            let steps = rig.steps();
            assert_eq!(steps.contains(&"reflink"), shares(from == "thick"), "snapshot {name}: {steps:?}");
            assert_eq!(steps.contains(&"copy_range"), !shares(from == "thick"), "snapshot {name}: {steps:?}");
            let sources =
                [("of snapshot", from_snapshot(&cut.snapshot_id)), ("of volume", from_volume(&vol.id))];
            for (what, source) in sources {
                let thick = to == "thick" || (from == "thick" && what == "of volume");
                let made = rig.made(copy(&format!("{name} {what}"), source, mount(), &class(to)));
                let steps = rig.steps();
                assert_eq!(steps.contains(&"reflink"), shares(thick), "{what} {name}: {steps:?}");
                assert_eq!(rig.content(&made, 4), "text");
                rig.ok(made.delete_request());
            }
            rig.ok(delete_snapshot(&cut.snapshot_id));
            rig.ok(vol.delete_request());
        }
    }
}

#[test]
fn a_copy_without_room_is_refused_and_leaves_nothing() {
    let kernel = FakeKernel::new();
    kernel.set_space(20 * GIB as u64, 10 * GIB as u64);
    let rig = Rig::on(kernel, &["--reserve", "0"]);
    let thick = [("provisioning", "thick")];
    let vol = rig.made(sized(create_with("v", &thick), 3 * GIB, 0));
    let sources = sources(&rig, &vol);
    for (name, source) in &sources {
        rig.steps();
        let request = copy(name, source.clone(), mount(), &thick);
        let message = rig.fails(Code::ResourceExhausted, sized(request, 8 * GIB, 0));
        assert!(message.contains("pool default has room for"), "{message}");
        assert_eq!(rig.steps(), Vec::<&str>::new());
    }
    assert_eq!(rig.kernel.tree(format!("{DATA}/volumes")).len(), 4);
    let (name, source) = sources[0].clone();
    rig.made(copy(name, source, mount(), &thick));
}

#[test]
fn a_source_on_this_node_makes_no_volume_on_another() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    for (name, source) in sources(&rig, &vol) {
        let requirement =
            csi::TopologyRequirement { requisite: vec![topology("node-z")], preferred: Vec::new() };
        let request = csi::CreateVolumeRequest {
            accessibility_requirements: Some(requirement),
            ..copy(name, source, mount(), &[])
        };
        rig.fails(Code::ResourceExhausted, request);
    }
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 1);
}

#[test]
fn copies_of_copies_have_the_data() {
    let rig = both_pools();
    let (mut vol, _) = rig.in_use(sized(create("0", fs("btrfs")), GIB, 0));
    for n in 1..6 {
        rig.write(&vol, &format!("text {n}"));
        let sources = sources(&rig, &vol);
        let source = sources[n % 2].1.clone();
        let (next, _) = rig.in_use(copy(&n.to_string(), source, fs("btrfs"), &[]));
        assert_eq!(rig.read(&next, 6), format!("text {n}"));
        rig.rest(&vol);
        rig.ok(vol.delete_request());
        vol = next;
    }
}
