//! What a start must not touch, or not go on with.

use super::*;

#[test]
fn two_devices_stop_the_start_and_nothing_is_touched() {
    let kernel = rig().restart_with(&["--pool", POOL]).kernel.clone();
    let second = kernel.attach_foreign(IMAGE, false).expect("attach");
    let before = (kernel.loops(), kernel.mounts());
    let error = refused(&kernel, POOL);
    assert!(error.contains("attached 2 times") && error.contains("/dev/loop"), "{error}");
    assert_eq!((kernel.loops(), kernel.mounts()), before);
    kernel.detach_foreign(second.number);
    kernel.restart();
    let rig = Rig::on(kernel, &["--pool", POOL]);
    is_up(&rig.kernel, BYTES);
}

#[test]
fn a_partial_or_read_only_device_is_not_used() {
    let kernel = machine();
    drop(Rig::on(kernel.clone(), &["--pool", POOL]));
    kernel.restart();
    kernel.unmount_foreign(TARGET).expect("unmount");
    let reader = kernel.attach_foreign(IMAGE, true).expect("attach");
    assert!(refused(&kernel, POOL).contains("read-only"));
    kernel.detach_foreign(reader.number);
    assert!(kernel.loops().is_empty());
}

#[test]
fn damage_stops_the_start_and_names_the_tool() {
    let kernel = rebooted();
    kernel.damage(IMAGE).expect("damage");
    for _ in 0..2 {
        let error = refused(&kernel, POOL);
        assert!(error.contains("damaged") && error.contains(&format!("xfs_repair {IMAGE}")), "{error}");
        assert!(kernel.mounts().is_empty() && kernel.loops().is_empty(), "{:?}", kernel.mounts());
    }
    assert_eq!(formats_of(&kernel, IMAGE), 1);
}

#[test]
fn a_second_driver_on_the_image_is_refused() {
    let rig = rig();
    let other = ["--data-dir", "/var/lib/other"];
    let server = start_beside(&rig.kernel, &other).expect("it starts");
    let found = server.call(hostloop::wire::csi::NodeGetStorageHealthRequest::default());
    let error = found.expect("NodeGetStorageHealth").backend_health[0].message.clone();
    assert!(error.contains("in use by another driver") && error.contains(IMAGE), "{error}");
    is_up(&rig.kernel, BYTES);
}

/// Starts a further process on a data directory of its own.
fn start_beside(kernel: &FakeKernel, flags: &[&str]) -> Result<Server, String> {
    use clap::Parser;
    use hostloop::cli::{Cli, Command};
    let words = ["hostloop", "serve", "--node-id", NODE, "--pool", POOL];
    let Command::Serve(args) = Cli::try_parse_from(words.iter().chain(flags)).unwrap().command else {
        unreachable!()
    };
    let settings = hostloop::config::Config::new(&args, None).unwrap().role.settings().unwrap().clone();
    Server::try_start(kernel.spawn(), &settings).map_err(|error| error.to_string())
}

#[test]
fn a_file_that_is_not_a_pool_is_left_alone() {
    type Fill = fn(&FakeKernel);
    let whole: Fill = |kernel| {
        // A filesystem with somebody's files.
        drop(Rig::on(kernel.clone(), &["--pool", POOL]));
        kernel.remove_file(format!("{TARGET}/hostloop-pool")).expect("remove");
        kernel.reboot();
    };
    let cases: [(&str, Fill, &str); 5] = [
        (POOL, |kernel| kernel.write_file(IMAGE, &[0; 8192]).expect("write"), "holds nothing"),
        (POOL, |kernel| kernel.write_file(IMAGE, b"my thesis").expect("write"), "data of an unknown kind"),
        (POOL, |kernel| kernel.create_directories(IMAGE), "not a regular file"),
        (
            "copies=/srv/copies.img,kind=image,size=1Gi,fs=btrfs",
            whole,
            "holds an xfs filesystem, not the btrfs",
        ),
        (POOL, whole, "no file hostloop-pool"),
    ];
    for (pool, fill, hint) in cases {
        let kernel = machine();
        fill(&kernel);
        let (before, formats) = (kernel.stat(IMAGE), kernel.formats());
        for _ in 0..2 {
            let error = refused(&kernel, pool);
            assert!(error.contains(hint), "{hint}: {error}");
        }
        assert_eq!((kernel.stat(IMAGE), kernel.formats()), (before, formats), "{hint}");
        assert!(kernel.mounts().is_empty() && kernel.loops().is_empty(), "{hint}: {:?}", kernel.mounts());
    }
}

/// The disk with the image is not mounted, or the image was moved away.
#[test]
fn an_image_that_should_hold_volumes_is_not_made_anew() {
    let rig = rig();
    let (vol, _) = volume(&rig);
    let kernel = rig.kernel.clone();
    rig.unpublish(&vol, "pod");
    rig.unstage(&vol);
    drop(rig);
    kernel.reboot();
    kernel.remove_file(IMAGE).expect("remove");
    let error = refused(&kernel, POOL);
    assert!(error.contains("should hold volumes") && error.contains("missing"), "{error}");
    assert!(!kernel.exists(IMAGE));
}

#[test]
fn an_image_that_was_removed_in_use_is_not_made_anew() {
    let kernel = machine();
    drop(Rig::on(kernel.clone(), &["--pool", POOL]));
    kernel.remove_file(IMAGE).expect("remove");
    let error = refused(&kernel, POOL);
    assert!(error.contains(&format!("mounted at {TARGET}")), "{error}");
    assert!(!kernel.exists(IMAGE));
}

#[test]
fn an_exchanged_image_is_noticed() {
    let kernel = machine();
    drop(Rig::on(kernel.clone(), &["--pool", POOL]));
    kernel.reboot();
    let other = "other=/srv/copies.img,kind=image,size=1Gi";
    let error = refused(&kernel, other);
    assert!(error.contains("pool=copies") && error.contains("pool=other"), "{error}");
    assert!(kernel.mounts().is_empty() && kernel.loops().is_empty());
    kernel.restart();
    let rig = Rig::on(kernel, &["--pool", POOL]);
    is_up(&rig.kernel, BYTES);
}

#[test]
fn something_at_the_mount_point_is_not_hidden() {
    let kernel = machine();
    kernel.create_directories(TARGET);
    kernel.write_file(format!("{TARGET}/precious"), b"data").expect("write");
    let error = refused(&kernel, POOL);
    assert!(error.contains("not empty"), "{error}");
    kernel.remove_file(format!("{TARGET}/precious")).expect("remove");
    kernel.restart();
    is_up(&Rig::on(kernel, &["--pool", POOL]).kernel, BYTES);
}

#[test]
fn a_full_disk_is_one_clear_line_and_takes_nothing() {
    let kernel = machine();
    kernel.set_space(4 << 30, 500 << 20);
    let error = refused(&kernel, POOL);
    assert!(error.contains("no room") && error.contains("size="), "{error}");
    assert!(!kernel.exists(IMAGE) && !kernel.exists("/srv/copies.img.hostloop-new"));
    kernel.set_space(100 << 30, 50 << 30);
    kernel.restart();
    let rig = Rig::on(kernel.clone(), &["--pool", POOL]);
    kernel.set_space(4 << 30, 500 << 20);
    drop(rig);
    assert!(refused(&kernel, LARGER).contains("no room"));
    kernel.restart();
    is_up(&Rig::on(kernel, &["--pool", POOL]).kernel, BYTES);
}

#[test]
fn a_missing_tool_is_named_and_nothing_is_made() {
    let kernel = machine();
    kernel.set_tools(hostloop::model::FsType::Xfs, false);
    assert!(refused(&kernel, POOL).contains("mkfs.xfs"));
    assert!(!kernel.exists("/srv/copies.img.hostloop-new"));
}

#[test]
fn a_mkfs_that_outlived_its_driver_is_waited_for() {
    let kernel = machine();
    let new = "/srv/copies.img.hostloop-new";
    kernel.write_file(new, b"half a filesystem").expect("write");
    let device = kernel.attach_foreign(new, false).expect("attach");
    assert!(refused(&kernel, POOL).contains("still runs"));
    assert!(kernel.exists(new));
    kernel.detach_foreign(device.number);
    kernel.restart();
    is_up(&Rig::on(kernel, &["--pool", POOL]).kernel, BYTES);
}

#[test]
fn no_volume_is_mounted_over_the_image_or_the_pool() {
    let rig = rig();
    let vol = rig.made(in_pool("v"));
    for path in ["/srv", TARGET, &format!("{TARGET}/volumes")] {
        let request = hostloop::wire::csi::NodeStageVolumeRequest {
            staging_target_path: path.to_owned(),
            ..rig.stage_request(&vol)
        };
        let error = rig.fails(tonic::Code::InvalidArgument, request);
        assert!(error.contains("directory of pool"), "{error}");
    }
}

#[test]
fn a_block_device_that_is_too_small_is_left_alone() {
    let least = hostloop::model::FsType::Xfs.minimum_bytes();
    let machine_with = |bytes| {
        let kernel = machine();
        kernel.write_file("/srv/disk", b"").expect("write");
        kernel.os().images.set_size("/srv/disk".as_ref(), bytes).expect("truncate");
        let disk = kernel.attach_foreign("/srv/disk", false).expect("attach");
        (kernel, format!("copies={},kind=device", disk.path().display()))
    };
    let (kernel, flag) = machine_with(least - 4096);
    let error = refused(&kernel, &flag);
    assert!(error.contains("too small") && error.contains("300 MiB"), "{error}");
    assert!(kernel.formats().is_empty() && kernel.mounts().is_empty());

    let (kernel, flag) = machine_with(least);
    Rig::on(kernel.clone(), &["--pool", &flag]).ok(capacity(&[("pool", "copies")]));
    assert_eq!(kernel.formats().len(), 1, "one that is just large enough is not");
}

#[test]
fn a_block_device_with_anything_on_it_is_left_alone() {
    for at in [0, 64 << 20, BYTES - 4096] {
        let kernel = machine();
        kernel.write_file("/srv/disk", b"").expect("write");
        kernel.os().images.set_size("/srv/disk".as_ref(), BYTES).expect("truncate");
        let disk = kernel.attach_foreign("/srv/disk", false).expect("attach");
        let flag = format!("copies={},kind=device", disk.path().display());
        kernel.write(disk.path(), at, b"x").expect("write");
        let error = refused(&kernel, &flag);
        assert!(error.contains("left as it is") && error.contains("blkdiscard"), "{error}");
        assert!(kernel.formats().is_empty() && kernel.mounts().is_empty());
    }
}
