//! Steps, plans and processes.

use super::*;

#[test]
fn steps_are_recorded_in_order() {
    let (kernel, os, image) = machine();
    kernel.clear_steps();
    os.files.sync_file(&image).unwrap();
    let hold = attach(&os, &image);
    os.files.stat(&image).unwrap();
    drop(hold);
    let steps = kernel.steps();
    let names: Vec<_> = steps.iter().map(|step| (step.number, step.name, step.subject.as_str())).collect();
    // The device is attached without discard, which is taken away from it afterwards.
    let image = "/pool/disk.img";
    assert_eq!(names, [(1, "sync_file", image), (2, "attach", image), (3, "stop_discard", "/dev/loop0")]);
}

#[test]
fn a_step_fails_once_and_does_nothing() {
    let (kernel, os, _) = machine();
    kernel.fail_at(2, Errno::ENOSPC);
    os.files.create_file(p("/pool/1")).unwrap();
    errno_is(os.files.create_file(p("/pool/2")), Errno::ENOSPC);
    assert!(!kernel.exists("/pool/2") && !kernel.is_dead());
    os.files.create_file(p("/pool/2")).unwrap();
}

#[test]
fn a_kill_lies_before_or_after_the_step() {
    for (kill, done) in [(Kill::Before, false), (Kill::After, true), (Kill::Torn, false)] {
        let (kernel, os, _) = machine();
        kernel.kill_at(1, kill);
        errno_is(os.files.create_file(p("/pool/1")), Errno::EIO);
        assert!(kernel.is_dead());
        assert_eq!(kernel.exists("/pool/1"), done, "{kill:?}");
        // A dead process sees and changes nothing, and a new one is whole.
        errno_is(os.files.create_file(p("/pool/2")), Errno::EIO);
        errno_is(os.files.stat(p("/pool")), Errno::EIO);
        errno_is(kernel.os().mounts.list(), Errno::EIO);
        let new = kernel.restart();
        assert!(!kernel.is_dead() && !kernel.exists("/pool/2"));
        new.files.create_file(p("/pool/2")).unwrap();
        errno_is(os.files.remove_file(p("/pool/2")), Errno::EIO);
        assert!(kernel.exists("/pool/2"));
    }
}

#[test]
fn a_torn_step_is_half_done() {
    let (kernel, os, image) = machine();
    let mut log = os.files.open_log(p("/pool/log"), 0).unwrap();
    kernel.kill_at(1, Kill::Torn);
    errno_is(log.append(b"abcdef"), Errno::EIO);
    assert_eq!(kernel.read_file("/pool/log").unwrap(), b"abc");

    let os2 = kernel.restart();
    kernel.kill_at(1, Kill::Torn);
    errno_is(os2.images.allocate(&image, 64 * MIB), Errno::EIO);
    assert_eq!(kernel.stat(&image).unwrap().allocated, 32 * MIB);

    let os3 = kernel.restart();
    kernel.create_directories("/pool/t/a/b");
    kernel.kill_at(1, Kill::Torn);
    errno_is(os3.trees.remove(p("/pool/t")), Errno::EIO);
    assert_eq!(kernel.tree("/pool/t"), ["/pool/t/a"]);
    errno_is(os.files.list(p("/pool")), Errno::EIO);
}

#[test]
fn a_torn_mkfs_leaves_bytes_but_no_filesystem() {
    for fs_type in FsType::ALL {
        let (kernel, os, _) = machine();
        let image = image(&os, "torn.img", 512 * MIB);
        let device = attach(&os, &image);
        kernel.kill_at(1, Kill::Torn);
        errno_is(make(&os, &device, fs_type), Errno::EIO);
        assert!(kernel.formats().is_empty() && kernel.loops().is_empty());
        let os = kernel.restart();
        assert!(os.images.next_data(&image, 0).unwrap().is_some());
        let device = attach(&os, &image);
        kernel.create_directories("/stage");
        let mount = || os.mounts.mount(&device.device.path(), p("/stage"), fs_type, &MountFlags::default());
        errno_is(mount(), Errno::EINVAL);
        make(&os, &device, fs_type).unwrap();
        mount().unwrap();
    }
}

#[test]
fn a_lock_is_held_by_one_process_for_its_life() {
    let (kernel, os, _) = machine();
    let lock = os.files.lock(p("/pool/lock")).unwrap();
    let other = kernel.spawn();
    let error = other.files.lock(p("/pool/lock")).err().unwrap();
    assert!(is_errno(&error, Errno::EWOULDBLOCK) && error.to_string().contains("1001"), "{error}");
    assert_eq!(kernel.read_file("/pool/lock").unwrap(), b"1001\n");
    let new = kernel.restart();
    let held = new.files.lock(p("/pool/lock")).unwrap();
    // The old value is dropped late: it must not take the new lock along.
    drop(lock);
    errno_is(new.files.lock(p("/pool/lock")), Errno::EWOULDBLOCK);
    drop(held);
    new.files.lock(p("/pool/lock")).unwrap();
}

/// The cheap safeguard for the walks over every step: a kill at any step of a staging, at any tear, leaves a
/// kernel on which the next process gets to the end, formatting no more than once more.
#[test]
fn a_staging_survives_a_kill_at_every_step() {
    let run = |kernel: &FakeKernel, os: &Os, image: &Path| -> std::io::Result<()> {
        kernel.create_directories("/stage");
        if kernel.mounts().is_empty() {
            let device = os.loops.attach(image, options(false))?;
            if os.images.next_data(image, 0)?.is_none() || kernel.formats().is_empty() {
                make(os, &device, FsType::Ext4)?;
            }
            os.mounts.mount(&device.device.path(), p("/stage"), FsType::Ext4, &MountFlags::default())?;
        }
        os.mounts.unmount(p("/stage"))
    };
    for kill in [Kill::Before, Kill::Torn, Kill::After] {
        for n in 1.. {
            let (kernel, os, image) = machine();
            kernel.kill_at(n, kill);
            if run(&kernel, &os, &image).is_ok() {
                assert_eq!(n, 6, "five steps: attach, stop_discard, make, mount, unmount");
                break;
            }
            let os = if n % 2 == 0 { kernel.power_cut() } else { kernel.restart() };
            run(&kernel, &os, &image).unwrap();
            assert!(kernel.loops().is_empty() && kernel.mounts().is_empty(), "{kill:?} at {n}");
            assert_eq!(kernel.formats().len(), 1, "{kill:?} at {n}");
        }
    }
}

#[test]
fn threads_share_one_machine() {
    let (kernel, os, _) = machine();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let os = os.clone();
            scope.spawn(move || {
                for n in 0..50 {
                    os.files.create_file(&p("/pool").join(format!("{thread}-{n}"))).unwrap();
                }
            });
        }
    });
    assert_eq!(kernel.tree("/pool").len(), 401);
}
