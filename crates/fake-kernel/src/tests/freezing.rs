//! Frozen filesystems: who waits, and who thaws.

use std::time::Duration;

use super::*;

const LONG: Duration = Duration::from_secs(3600);

/// A machine with a volume at /stage that has one file.
fn staged() -> (FakeKernel, Os, PathBuf) {
    let (kernel, os, image) = machine();
    stage(&kernel, &os, &image, true);
    kernel.write_file("/stage/file", b"old").unwrap();
    (kernel, os, image)
}

fn freeze(os: &Os) -> Box<dyn hostloop_kernel::Frozen> {
    os.mounts.freeze(p("/stage"), LONG).unwrap()
}

#[test]
fn nothing_gets_through_a_freeze() {
    let (kernel, os, image) = staged();
    kernel.create_directories("/target");
    os.mounts.bind(p("/stage"), p("/target"), &MountFlags::default()).unwrap();
    let before = (kernel.read_file(&image).unwrap().len(), kernel.stat(&image).unwrap().allocated);
    let frozen = freeze(&os);
    assert_eq!(kernel.frozen(), [p("/stage"), p("/target")]);
    for top in ["/stage", "/target"] {
        let at = |name: &str| p(top).join(name);
        errno_is(kernel.write(at("file"), 0, b"new"), Errno::EAGAIN);
        errno_is(kernel.write_file(at("file"), b"new"), Errno::EAGAIN);
        errno_is(kernel.write_file(at("another"), b"new"), Errno::EAGAIN);
        errno_is(kernel.link(at("file"), at("name")), Errno::EAGAIN);
        errno_is(kernel.remove_file(at("file")), Errno::EAGAIN);
        errno_is(os.files.rename(&at("file"), &at("name")), Errno::EAGAIN);
        errno_is(os.images.allocate(&at("file"), MIB), Errno::EAGAIN);
        errno_is(os.files.open_log(&at("file"), 0).map(drop), Errno::EAGAIN);
        assert_eq!(kernel.read_file(at("file")).unwrap(), b"old");
    }
    errno_is(os.filesystems.grow(FsType::Ext4, p("/dev/loop0"), p("/stage")), Errno::EAGAIN);
    // The pool around it goes on, and so does the image.
    os.files.create_file(p("/pool/other")).unwrap();
    assert_eq!((kernel.read_file(&image).unwrap().len(), kernel.stat(&image).unwrap().allocated), before);
    errno_is(os.mounts.unmount(p("/stage")), Errno::EBUSY);
    frozen.thaw().unwrap();
    kernel.write_file("/stage/file", b"new").unwrap();
    os.mounts.unmount(p("/stage")).unwrap();
}

#[test]
fn a_log_that_is_open_waits_too() {
    let (_, os, _) = staged();
    let mut log = os.files.open_log(p("/stage/log"), 0).unwrap();
    let frozen = freeze(&os);
    errno_is(log.append(b"x"), Errno::EAGAIN);
    drop(frozen);
    log.append(b"x").unwrap();
}

/// What was written before is on the device.
#[test]
fn a_freeze_is_a_sync() {
    let (kernel, os, _) = staged();
    let frozen = freeze(&os);
    kernel.power_cut();
    drop(frozen);
    assert!(kernel.frozen().is_empty());
    let os = kernel.os();
    stage(&kernel, &os, p("/pool/disk.img"), false);
    assert_eq!(kernel.read_file("/stage/file").unwrap(), b"old");
    kernel.write_file("/stage/file", b"new").unwrap();
}

#[test]
fn freeze_and_thaw_are_steps() {
    let (kernel, os, _) = staged();
    kernel.clear_steps();
    freeze(&os).thaw().unwrap();
    drop(freeze(&os));
    assert!(!os.mounts.thaw(p("/stage")).unwrap());
    let names: Vec<_> = kernel.steps().iter().map(|step| step.name).collect();
    assert_eq!(names, ["freeze", "thaw", "freeze", "thaw", "thaw"]);
    kernel.fail_at(1, Errno::EIO);
    errno_is(os.mounts.freeze(p("/stage"), LONG).map(drop), Errno::EIO);
    assert!(kernel.frozen().is_empty());
    // A thaw that fails does nothing; another one may help.
    kernel.fail_at(2, Errno::EIO);
    errno_is(freeze(&os).thaw(), Errno::EIO);
    assert_eq!(kernel.frozen(), [p("/stage")]);
    assert!(os.mounts.thaw(p("/stage")).unwrap() && kernel.frozen().is_empty());
}

#[test]
fn a_killed_process_leaves_nothing_frozen() {
    for (step, kill) in [(1, Kill::Before), (1, Kill::After), (2, Kill::Before), (2, Kill::After)] {
        let (kernel, os, _) = staged();
        kernel.kill_at(step, kill);
        drop(os.mounts.freeze(p("/stage"), LONG));
        assert!(kernel.is_dead() && kernel.frozen().is_empty(), "{step} {kill:?}");
    }
    let (kernel, os, _) = staged();
    let frozen = freeze(&os);
    kernel.restart();
    errno_is(frozen.thaw(), Errno::EIO);
    kernel.write_file("/stage/file", b"new").unwrap();
}

#[test]
fn the_end_of_a_container_leaves_it_frozen() {
    let (kernel, os, _) = staged();
    let frozen = freeze(&os);
    kernel.kill_container();
    drop(frozen);
    let os = kernel.restart();
    errno_is(kernel.write_file("/stage/file", b"new"), Errno::EAGAIN);
    errno_is(os.mounts.freeze(p("/stage"), LONG).map(drop), Errno::EBUSY);
    assert!(os.mounts.thaw(p("/stage")).unwrap());
    kernel.write_file("/stage/file", b"new").unwrap();

    // At a step too; the machine's restart helps as well.
    kernel.set_container(true);
    kernel.kill_at(1, Kill::After);
    errno_is(os.mounts.freeze(p("/stage"), LONG).map(drop), Errno::EIO);
    assert_eq!(kernel.frozen(), [p("/stage")]);
    kernel.restart();
    assert_eq!(kernel.frozen(), [p("/stage")]);
    kernel.reboot();
    assert!(kernel.frozen().is_empty());
}

/// The superblock stays, and its device with it, until it is mounted again and thawed.
#[test]
fn a_frozen_filesystem_outlives_its_mounts() {
    let (kernel, os, image) = staged();
    let frozen = freeze(&os);
    kernel.kill_container();
    drop(frozen);
    let os = kernel.restart();
    os.mounts.unmount(p("/stage")).unwrap();
    assert_eq!((kernel.loops().len(), kernel.frozen().len()), (1, 0));
    errno_is(os.filesystems.repair(FsType::Ext4, p("/dev/loop0")), Errno::EBUSY);
    let device = os.loops.find(os.files.stat(&image).unwrap().unwrap().id).unwrap().remove(0);
    os.mounts.mount(&device.path(), p("/stage"), FsType::Ext4, &MountFlags::default()).unwrap();
    errno_is(kernel.write_file("/stage/file", b"new"), Errno::EAGAIN);
    assert!(os.mounts.thaw(p("/stage")).unwrap());
    os.mounts.unmount(p("/stage")).unwrap();
    assert!(kernel.loops().is_empty());
}

#[test]
fn a_limit_can_pass_at_once() {
    let (kernel, os, _) = staged();
    let frozen = freeze(&os);
    kernel.expire_freezes();
    kernel.write_file("/stage/file", b"new").unwrap();
    errno_is(frozen.thaw(), Errno::ETIMEDOUT);
    kernel.set_freezes_expire(true);
    let frozen = freeze(&os);
    kernel.write_file("/stage/file", b"newer").unwrap();
    errno_is(frozen.thaw(), Errno::ETIMEDOUT);
    kernel.set_freezes_expire(false);
    freeze(&os).thaw().unwrap();
}

#[test]
fn an_administrator_freezes_until_he_thaws() {
    let (kernel, os, _) = staged();
    kernel.freeze_foreign("/stage").unwrap();
    errno_is(os.mounts.freeze(p("/stage"), LONG).map(drop), Errno::EBUSY);
    kernel.expire_freezes();
    kernel.restart();
    assert_eq!(kernel.frozen(), [p("/stage")]);
    assert!(kernel.thaw_foreign("/stage").unwrap() && !kernel.thaw_foreign("/stage").unwrap());
    assert_eq!(kernel.hazards(), Vec::<String>::new());
}

/// It would wait for itself.
#[test]
fn freezing_the_disk_itself_is_a_hazard() {
    let (kernel, os, _) = machine();
    drop(os.mounts.freeze(p("/"), LONG).unwrap());
    assert_eq!(kernel.hazards().len(), 1);
}
