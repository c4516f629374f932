//! Paths that a caller chose, and what is taken away from them.

use nix::errno::Errno;

use super::super::uses::{Evidence, evidence};
use super::*;

fn staged() -> Machine {
    Machine::formatted(FsType::Ext4)
}

#[test]
fn a_parent_is_to_be_created_if_it_is_missing() {
    let machine = staged();
    machine.kernel.write_file("/stage/file", b"").unwrap();
    for path in ["/none/a", "/stage/file/b/a"] {
        let error = resolve(&machine.os, Path::new(path)).unwrap_err();
        assert!(matches!(error, Error::NotFound(_)), "{error}");
    }
    let look = || resolve(&machine.os, Path::new("/stage/b"));
    assert_errno(machine.failing("canonicalize", Errno::EIO, look), Errno::EIO);
}

#[test]
fn a_mount_that_is_hidden_or_busy_stays() {
    let machine = staged();
    assert_in_use(machine.failing("unmount", Errno::ESTALE, || machine.unstage()), "another mount hides");
    assert_errno(machine.failing("unmount", Errno::EBUSY, || machine.unstage()), Errno::EBUSY);
    assert!(machine.is_mounted(STAGING));
    machine.unstage().unwrap();
    assert!(!machine.is_mounted(STAGING));
}

#[test]
fn a_busy_mount_of_a_stopped_filesystem_is_detached() {
    let stops: [&dyn Fn(&Machine); 3] = [
        &|machine| machine.kernel.set_failed(STAGING, true),
        &|machine| machine.kernel.set_superblock_read_only(STAGING, true),
        &|machine| machine.kernel.fail_every("sync_directory", Errno::EIO),
    ];
    for (number, stop) in stops.iter().enumerate() {
        let machine = staged();
        let target = resolve(&machine.os, Path::new(STAGING)).unwrap();
        stop(&machine);
        let uses = machine.uses();
        machine.kernel.fail_every("unmount", Errno::EBUSY);
        take_away(&machine.os, target.path(), &uses).unwrap_or_else(|error| panic!("{number}: {error}"));
        machine.kernel.heal();
        assert!(!machine.is_mounted(STAGING), "{number}");
    }
}

#[test]
fn a_busy_device_is_detached_if_it_does_not_answer() {
    for answers in [true, false] {
        let machine = Machine::new(Content::Block);
        machine.stage().unwrap();
        machine.publish("/pods/a", false).unwrap();
        let uses = machine.uses();
        machine.kernel.fail_every("unmount", Errno::EBUSY);
        if !answers {
            machine.kernel.fail_every("read", Errno::EIO);
        }
        let taken = take_away(&machine.os, Path::new("/pods/a"), &uses);
        machine.kernel.heal();
        assert_eq!(taken.is_err(), answers, "{taken:?}");
        assert_eq!(machine.is_mounted("/pods/a"), answers);
    }
}

#[test]
fn a_mount_that_nothing_hides_is_reached() {
    let machine = staged();
    let uses = machine.uses();
    let reach = || uses.reachable(&machine.os, |_| true);
    assert!(reach().unwrap().is_some());
    machine.kernel.mount_tmpfs(STAGING).unwrap();
    assert_in_use(reach(), "another mount hides the volume's at /stage/a (tmpfs");
    assert!(uses.reachable(&machine.os, |_| false).unwrap().is_none());
    machine.kernel.unmount_foreign(STAGING).unwrap();
    machine.publish("/pods/a", false).unwrap();
    // What is mounted over a shared mount is mounted over its binds too.
    machine.kernel.set_shared(false);
    machine.kernel.mount_tmpfs(STAGING).unwrap();
    let uses = machine.uses();
    let found = uses.reachable(&machine.os, |_| true).unwrap().unwrap();
    assert_eq!(found.target, Path::new("/pods/a"));
}

#[test]
fn whose_file_a_name_tells() {
    let machine = staged();
    let own = machine.paths.directory.to_str().unwrap().to_owned();
    let name = own.rsplit('/').next().unwrap();
    let other = format!("/elsewhere/volumes/{name}");
    machine.kernel.create_directories(&other);
    let cases = [
        (format!("{own}/disk.img.growing (deleted)"), Evidence::Foreign),
        (format!("{own}/disk.img (deleted)"), Evidence::Proven),
        (format!("{own}/disk.img"), Evidence::Suspected),
        (format!("{own}x/disk.img"), Evidence::Foreign),
        (format!("{other}/disk.img"), Evidence::Foreign),
        (format!("/volumes/{name}/disk.img"), Evidence::Proven),
        (format!("/gone/volumes/{name}/disk.img"), Evidence::Suspected),
        ("/disk.img".to_owned(), Evidence::Foreign),
    ];
    for (shown, expected) in cases {
        let found = evidence(machine.place(), Path::new(&shown)).unwrap();
        assert_eq!(found, expected, "{shown}");
    }
}
