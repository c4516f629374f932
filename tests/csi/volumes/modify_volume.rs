//! ControllerModifyVolume, and the mutable parameters of CreateVolume: real or refused, and all of it or nothing.

use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use nix::errno::Errno;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

fn modify(vol: &Vol, parameters: &[(&str, &str)]) -> csi::ControllerModifyVolumeRequest {
    csi::ControllerModifyVolumeRequest {
        volume_id: vol.id.clone(),
        mutable_parameters: map(parameters),
        ..Default::default()
    }
}

/// CreateVolume with mutable parameters.
fn create_mutable(name: &str, parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest { mutable_parameters: map(parameters), ..create(name, block()) }
}

/// What there is of a volume: allocated bytes, and of its device in use direct I/O and discards.
fn seen(rig: &Rig, vol: &Vol) -> (bool, Option<(bool, bool)>) {
    let image = rig.kernel.stat(format!("{}/disk.img", rig.directory(vol))).expect("an image");
    let device = rig.kernel.loops().into_iter().find(|device| device.backing == Some(image.id));
    let device = device.map(|device| (device.direct_io, rig.kernel.loop_discards(device.number)));
    (image.allocated >= image.size, device)
}

#[test]
fn a_volume_in_use_becomes_thick_and_thin_again() {
    let mut rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", block()));
    rig.write(&vol, "text");
    assert_eq!(seen(&rig, &vol), (false, Some((true, true))));
    rig.ok(modify(&vol, &[("provisioning", "thick")]));
    assert_eq!(seen(&rig, &vol), (true, Some((true, false))));
    rig.steps();
    rig.ok(modify(&vol, &[("provisioning", "thick")]));
    rig.power_cut();
    rig.stage(&vol);
    rig.publish(&vol, "pod");
    assert_eq!(seen(&rig, &vol), (true, Some((true, false))));
    assert_eq!(rig.kernel.read(&target, 0, 4).expect("read"), b"text");
    rig.ok(modify(&vol, &[("provisioning", "thin")]));
    rig.rest(&vol);
    rig.stage(&vol);
    rig.publish(&vol, "pod");
    assert_eq!(seen(&rig, &vol).1, Some((true, true)), "from the next attachment on");
    assert_eq!(rig.read(&vol, 4), "text");
}

/// A file that does not answer once never hides a device in use from what the answer promises of it.
#[test]
fn a_failed_look_keeps_no_device_with_its_discards() {
    for capability in [block(), mount()] {
        for n in 1..=40 {
            let rig = Rig::new();
            let (vol, _) = rig.in_use(create("v", capability.clone()));
            rig.kernel.fail_look_at(n, Errno::EIO);
            let thick = rig.call(modify(&vol, &[("provisioning", "thick")])).is_ok();
            rig.kernel.clear_plans();
            assert!(!thick || seen(&rig, &vol) == (true, Some((true, false))), "look {n}");
            rig.ok(modify(&vol, &[("provisioning", "thick")]));
            assert_eq!(seen(&rig, &vol), (true, Some((true, false))), "look {n}");
        }
    }
}

#[test]
fn a_repeat_changes_nothing() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    for parameters in [
        [("provisioning", "thick"), ("directIO", "false")],
        [("provisioning", "thin"), ("discard", "false")],
        [("directIO", "true"), ("discard", "false")],
    ] {
        rig.ok(modify(&vol, &parameters));
        let before = (seen(&rig, &vol), rig.ok(csi::ListVolumesRequest::default()));
        for _ in 0..2 {
            rig.ok(modify(&vol, &parameters));
            assert_eq!((seen(&rig, &vol), rig.ok(csi::ListVolumesRequest::default())), before);
        }
    }
}

#[test]
fn direct_io_and_discards_change_in_use_and_stay_so() {
    let mut rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.ok(modify(&vol, &[("directIO", "false")]));
    assert_eq!(seen(&rig, &vol).1, Some((false, true)), "what is not named stays");
    rig.ok(modify(&vol, &[("discard", "false")]));
    assert_eq!(seen(&rig, &vol).1, Some((false, false)));
    rig.rest(&vol);
    rig.reboot();
    rig.stage(&vol);
    assert_eq!(seen(&rig, &vol).1, Some((false, false)));
    rig.ok(modify(&vol, &[("directIO", "true"), ("discard", "true")]));
    assert_eq!(seen(&rig, &vol).1, Some((true, false)), "discards come back with the next attachment");
    rig.unstage(&vol);
    rig.stage(&vol);
    assert_eq!(seen(&rig, &vol).1, Some((true, true)));
}

#[test]
fn a_key_that_cannot_change_is_named_and_not_applied() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    let before = seen(&rig, &vol);
    rig.steps();
    let refused = [
        ("backend", "directory"),
        ("pool", "fast"),
        ("fsType", "xfs"),
        ("mkfsOptions", "-m 0"),
        ("sharedOnNode", "true"),
        ("iops", "100"),
        ("Provisioning", "thick"),
        ("", ""),
    ];
    for (key, value) in refused {
        let request = modify(&vol, &[("directIO", "false"), (key, value)]);
        let message = rig.fails(Code::InvalidArgument, request);
        assert!(message.contains("provisioning, directIO, discard"), "{message}");
        let message = rig.fails(Code::InvalidArgument, create_mutable("new", &[(key, value)]));
        assert!(message.contains("provisioning, directIO, discard"), "{message}");
    }
    for (key, value) in [("provisioning", "fat"), ("directIO", "1"), ("discard", "")] {
        let message = rig.fails(Code::InvalidArgument, modify(&vol, &[(key, value)]));
        assert!(message.contains(key), "{message}");
        rig.fails(Code::InvalidArgument, create_mutable("new", &[(key, value)]));
    }
    let both = [("provisioning", "thick"), ("discard", "true")];
    rig.fails(Code::InvalidArgument, modify(&vol, &both));
    rig.fails(Code::InvalidArgument, create_mutable("new", &both));
    assert_eq!((seen(&rig, &vol), rig.steps()), (before, vec![]));
    rig.ok(modify(&vol, &both[..1]));
    let message = rig.fails(Code::InvalidArgument, modify(&vol, &both[1..]));
    assert!(message.contains("thick"), "{message}");
}

#[test]
fn missing_fields_and_volumes_have_their_codes() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let nobody = |id: &str| csi::ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        ..modify(&vol, &[("directIO", "false")])
    };
    assert!(rig.fails(Code::InvalidArgument, nobody("")).contains("volume_id"));
    let message = rig.fails(Code::InvalidArgument, modify(&vol, &[]));
    assert!(message.contains("mutable_parameters"), "{message}");
    for id in ["none", "../x", "csi-0a", "vol-368530772790-0b1df86f-4c13-5b95-92dd-ca9634573666"] {
        assert!(rig.fails(Code::NotFound, nobody(id)).contains(id));
        let bad = csi::ControllerModifyVolumeRequest { mutable_parameters: map(&[("x", "y")]), ..nobody(id) };
        rig.fails(Code::NotFound, bad);
    }
}

#[test]
fn a_directory_is_thin_and_nothing_else() {
    let rig = Rig::new();
    let vol = rig.made(create_with("v", &[("backend", "directory"), ("pool", "directories")]));
    rig.ok(modify(&vol, &[("provisioning", "thin")]));
    for parameter in [("provisioning", "thick"), ("directIO", "false"), ("discard", "true")] {
        let message = rig.fails(Code::InvalidArgument, modify(&vol, &[parameter]));
        assert!(message.contains("directory"), "{message}");
    }
}

#[test]
fn thick_without_room_is_refused_and_changes_nothing() {
    let kernel = FakeKernel::new();
    kernel.set_space(20 * GIB as u64, GIB as u64 / 2);
    let rig = Rig::on(kernel, &["--reserve", "0", "--overcommit", "4"]);
    let large = csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create("v", block()) };
    let (vol, _) = rig.in_use(large);
    rig.write(&vol, "text");
    // What was measured before counts for a second.
    let rig = rig.restart_with(&["--reserve", "0", "--overcommit", "4"]);
    let (before, free) = (seen(&rig, &vol), rig.ok(capacity(&[])).available_capacity);
    rig.steps();
    let request = modify(&vol, &[("provisioning", "thick"), ("directIO", "false")]);
    rig.fails(Code::ResourceExhausted, request.clone());
    assert_eq!(seen(&rig, &vol), before);
    assert_eq!(rig.ok(capacity(&[])).available_capacity, free);
    assert_eq!(rig.read(&vol, 4), "text");
    // The disk fills up in the middle.
    rig.kernel.set_space(20 * GIB as u64, 20 * GIB as u64);
    let rig = rig.restart_with(&["--reserve", "0", "--overcommit", "4"]);
    let n = 1 + {
        let other = rig.in_use(csi::CreateVolumeRequest { name: "w".to_owned(), ..create("w", block()) }).0;
        rig.steps();
        rig.ok(modify(&other, &[("provisioning", "thick"), ("directIO", "false")]));
        let steps = rig.steps();
        rig.rest(&other);
        rig.ok(other.delete_request());
        steps.iter().position(|step| *step == "allocate").expect("its blocks")
    };
    rig.steps();
    rig.kernel.fail_at(n, Errno::ENOSPC);
    rig.fails(Code::ResourceExhausted, request.clone());
    assert_eq!(seen(&rig, &vol), before);
    rig.ok(request);
    assert_eq!(seen(&rig, &vol), (true, Some((false, false))));
}

#[test]
fn blocks_that_a_snapshot_has_too_become_its_own() {
    let rig = Rig::on(machine_with_fast(FsType::Xfs), &WITH_FAST);
    let request = csi::CreateVolumeRequest { parameters: map(&[("pool", "fast")]), ..create("v", block()) };
    let (vol, target) = rig.in_use(request);
    rig.write(&vol, "text");
    let cut = rig.cut("s", &vol);
    rig.ok(modify(&vol, &[("provisioning", "thick")]));
    assert!(seen(&rig, &vol).0);
    // Every block can be written anew on a disk that has no more room.
    rig.kernel.set_space_at(FAST, 100 << 30, 0);
    let bytes = vec![7; 1 << 20];
    for at in (0..SIZE as u64).step_by(1 << 20) {
        rig.kernel.write(&target, at, &bytes).expect("a thick volume has its blocks");
    }
    rig.kernel.set_space_at(FAST, 100 << 30, 50 << 30);
    let restored = rig.made(copy("restored", from_snapshot(&cut.snapshot_id), block(), &[("pool", "fast")]));
    assert_eq!(rig.content(&restored, 4), "text");
}

/// btrfs shares blocks and cannot give a file its own again.
#[test]
fn unshared_blocks_alone_become_thick_on_btrfs() {
    let rig = Rig::on(machine_with_fast(FsType::Btrfs), &WITH_FAST);
    let thick = |vol: &Vol| modify(vol, &[("provisioning", "thick")]);
    let [alone, copied] = ["alone", "copied"].map(|name| {
        let parameters = map(&[("pool", "fast")]);
        let (vol, _) = rig.in_use(csi::CreateVolumeRequest { parameters, ..create(name, block()) });
        rig.write(&vol, "text");
        vol
    });
    rig.cut("s", &copied);
    rig.ok(thick(&alone));
    assert_eq!(seen(&rig, &alone), (true, Some((true, false))));
    let message = rig.fails(Code::FailedPrecondition, thick(&copied));
    assert!(message.contains("shares blocks") && message.contains("delete the copies"), "{message}");
    assert_eq!(seen(&rig, &copied), (false, Some((true, true))));
}

#[test]
fn create_volume_takes_the_same_keys() {
    let mut rig = Rig::new();
    let class = csi::CreateVolumeRequest { parameters: map(&[("discard", "false")]), ..create("a", block()) };
    let mutable = csi::CreateVolumeRequest { mutable_parameters: map(&[("discard", "true")]), ..class };
    let first = rig.made(mutable.clone());
    assert_eq!(rig.made(mutable).info, first.info, "a repeat");
    rig.stage(&first);
    assert_eq!(seen(&rig, &first).1, Some((true, true)), "what a VolumeAttributesClass says wins");
    let thick = [("provisioning", "thick"), ("directIO", "false")];
    let vol = rig.made(create_mutable("b", &thick));
    rig.power_cut();
    rig.stage(&vol);
    assert_eq!(seen(&rig, &vol), (true, Some((false, false))));
    rig.fails(Code::AlreadyExists, create_mutable("b", &[("provisioning", "thin")]));
    assert_eq!(rig.made(create_mutable("b", &thick)).info, vol.info);
    assert_eq!(vol.info.volume_context, first.info.volume_context, "nothing in it can change");
}

/// Somebody else has attached the image as well.
#[test]
fn two_devices_are_switched_both_or_none() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", block()));
    rig.kernel.attach_foreign(vol.image(), false).expect("attached");
    let direct = || rig.kernel.loops().iter().map(|device| device.direct_io).collect::<Vec<_>>();
    rig.ok(modify(&vol, &[("directIO", "false")]));
    rig.ok(modify(&vol, &[("directIO", "true")]));
    assert_eq!(direct(), [true, true]);
    for (n, errno, code) in [
        (1, Errno::EIO, Code::Internal),
        (2, Errno::EIO, Code::Internal),
        (2, Errno::EINVAL, Code::InvalidArgument),
    ] {
        rig.kernel.fail_at(n, errno);
        rig.fails(code, modify(&vol, &[("directIO", "false")]));
        assert_eq!(direct(), [true, true], "step {n}");
    }
    rig.ok(modify(&vol, &[("directIO", "false")]));
    assert_eq!(direct(), [false, false]);
}

#[test]
fn many_changes_at_once_end_or_are_aborted() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", block()));
    for _ in 0..10 {
        let each = ["true", "false"].map(|value| modify(&vol, &[("directIO", value)]));
        let answers = rig.at_once(each.iter().cycle().take(16).cloned().collect());
        assert!(answers.iter().any(Result::is_ok));
        for status in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(status.code(), Code::Aborted, "{}", status.message());
        }
    }
    rig.ok(modify(&vol, &[("directIO", "true")]));
    assert_eq!(seen(&rig, &vol).1, Some((true, true)));
}

/// The disk has its bytes, and other volumes were promised them.
#[test]
fn thick_takes_nothing_promised_to_others() {
    let kernel = FakeKernel::new();
    kernel.set_space(20 * GIB as u64, 10 * GIB as u64);
    let rig = Rig::on(kernel, &["--overcommit", "1.5"]);
    let made = |name| {
        rig.made(csi::CreateVolumeRequest { capacity_range: range(7 * GIB, 0), ..create(name, block()) })
    };
    let (vol, other) = (made("v"), made("w"));
    let message = rig.fails(Code::ResourceExhausted, modify(&vol, &[("provisioning", "thick")]));
    assert!(message.contains("room for a thick volume of 5."), "{message}");
    rig.ok(other.delete_request());
    rig.ok(modify(&vol, &[("provisioning", "thick")]));
}
