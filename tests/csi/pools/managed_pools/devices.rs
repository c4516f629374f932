//! The devices of managed pools: those that are there already, and those that go away.

use std::path::Path;
use std::time::Duration;

use hostloop::model::{FsType, MountFlags};

use super::*;

/// A machine with the pool, whose driver was killed.
fn killed() -> FakeKernel {
    let kernel = machine();
    drop(Rig::on(kernel.clone(), &["--pool", POOL]));
    kernel.restart();
    kernel
}

fn mount_at(kernel: &FakeKernel, device: &str, target: &str, fs_type: FsType) {
    kernel.create_directories(target);
    let mounts = kernel.spawn().mounts;
    mounts.mount(Path::new(device), Path::new(target), fs_type, &MountFlags::default()).expect("mount");
}

/// Whether a start checks the filesystem.
fn checks(kernel: &FakeKernel, flag: &str) -> bool {
    kernel.clear_steps();
    drop(Rig::on(kernel.clone(), &["--pool", flag]));
    kernel.steps().iter().any(|step| step.name == "mount" && step.subject.contains(".check"))
}

#[test]
fn a_new_or_mounted_filesystem_is_not_checked() {
    let kernel = machine();
    assert!(!checks(&kernel, POOL), "it was just made");
    kernel.restart();
    let device = format!("/dev/loop{}", devices_of(&kernel, IMAGE)[0]);
    mount_at(&kernel, &device, "/other", FsType::Xfs);
    kernel.unmount_foreign(TARGET).expect("unmount");
    assert!(!checks(&kernel, POOL), "its volumes may be in use");
    is_up(&kernel, BYTES);

    // Somebody else's filesystem gets no marker as long as it is in use.
    kernel.restart();
    kernel.unmount_foreign(TARGET).expect("unmount");
    kernel.remove_file("/other/hostloop-pool").expect("remove");
    let said = refused(&kernel, POOL);
    assert!(said.contains("is mounted elsewhere"), "{said}");
    assert!(!kernel.exists("/other/hostloop-pool"));
}

#[test]
fn a_device_mounted_by_another_name_is_taken_over() {
    let disk = || {
        let kernel = machine();
        kernel.write_file("/srv/disk", b"").expect("write");
        kernel.os().images.set_size("/srv/disk".as_ref(), BYTES).expect("truncate");
        let device = kernel.attach_foreign("/srv/disk", false).expect("attach").path().display().to_string();
        (kernel, device)
    };
    let (kernel, device) = disk();
    kernel.write_file("/srv/disk2", b"").expect("write");
    kernel.os().images.set_size("/srv/disk2".as_ref(), BYTES).expect("truncate");
    let second = kernel.attach_foreign("/srv/disk2", false).expect("attach").path().display().to_string();
    let flag = |device: &str| format!("copies={device},kind=device,fs=btrfs");
    drop(Rig::on(kernel.clone(), &["--pool", &flag(&device)]));
    kernel.restart();
    kernel.unmount_foreign(TARGET).expect("unmount");
    kernel.symlink(&device, "/srv/by-id");
    mount_at(&kernel, "/srv/by-id", TARGET, FsType::Btrfs);
    let mounts = kernel.mounts();
    let rig = Rig::on(kernel.clone(), &["--pool", &flag(&device)]);
    assert!(rig.ok(capacity(&[("pool", "copies")])).available_capacity > 0);
    assert_eq!(kernel.mounts(), mounts);
    drop(rig);
    let said = refused(&kernel, &flag(&second));
    assert!(said.contains("is not the configured image or device"), "{said}");
}

#[test]
fn a_device_that_goes_away_is_looked_for_again() {
    let kernel = killed();
    for (errno, why) in [
        (Errno::ENXIO, "its loop device comes and goes"),
        (Errno::ENODEV, "its loop device comes and goes"),
        (Errno::EIO, "open its loop device"),
    ] {
        kernel.fail_every("open", errno);
        let said = refused(&kernel, POOL);
        assert!(said.contains(why), "{errno}: {said}");
        kernel.heal();
    }
    kernel.restart();
    is_up(&Rig::on(kernel, &["--pool", POOL]).kernel, BYTES);
}

/// Where the disk of the image can do no direct I/O, its data are cached twice, and nothing else is different.
#[test]
fn a_device_is_used_without_direct_io_unless_it_fails() {
    for (errno, used) in [(Errno::EINVAL, true), (Errno::EIO, false)] {
        let kernel = killed();
        kernel.reboot();
        kernel.attach_foreign(IMAGE, false).expect("attach");
        kernel.fail_every("set_direct_io", errno);
        if used {
            drop(Rig::on(kernel.clone(), &["--pool", POOL]));
            is_up(&kernel, BYTES);
            assert!(!kernel.loops()[0].direct_io);
        } else {
            let said = refused(&kernel, POOL);
            assert!(said.contains("adopt its loop device"), "{said}");
        }
    }
}

#[test]
fn a_failed_lock_is_told_from_a_lock_of_another() {
    let kernel = machine();
    drop(Rig::on(kernel.clone(), &["--pool", POOL]));
    let locks = |step: &&hostloop_fake_kernel::Step| step.name == "lock" && step.subject.contains(IMAGE);
    let lock = kernel.steps().iter().find(locks).expect("a lock").number;
    let kernel = machine();
    kernel.fail_at(lock, Errno::EIO);
    let rig = Rig::on(kernel, &["--pool", POOL]);
    let found = rig.ok(hostloop::wire::csi::NodeGetStorageHealthRequest::default()).backend_health;
    let said = found.iter().find(|entry| entry.reason == "PoolUnavailable").expect("a trouble");
    assert!(said.message.contains("lock its image") && !said.message.contains("another driver"), "{said:?}");
}

#[test]
fn a_start_waits_for_the_mkfs_of_an_earlier_one() {
    let kernel = machine();
    let new = "/srv/copies.img.hostloop-new";
    kernel.write_file(new, b"half a filesystem").expect("write");
    let device = kernel.attach_foreign(new, false).expect("attach");
    let other = kernel.clone();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        other.detach_foreign(device.number);
    });
    is_up(&Rig::on(kernel, &["--pool", POOL]).kernel, BYTES);
    ends.join().expect("it ends");
}

#[test]
fn an_image_that_cannot_be_allocated_is_refused() {
    for (errno, why) in [
        (Errno::ENOSPC, "no room"),
        (Errno::EDQUOT, "no room"),
        (Errno::EFBIG, "no room"),
        (Errno::EOPNOTSUPP, "cannot allocate files (fallocate)"),
        (Errno::EIO, "allocate /srv/copies.img.hostloop-new: "),
    ] {
        let kernel = machine();
        kernel.fail_every("allocate", errno);
        let said = refused(&kernel, POOL);
        assert!(said.contains(why) && (why == "no room") == said.contains("no room"), "{errno}: {said}");
        assert!(!kernel.exists(IMAGE) && !kernel.exists("/srv/copies.img.hostloop-new"));
    }
}
