//! A raw device as pods have it: staged once, published any number of times.

use nix::errno::Errno;

use super::*;

fn staged() -> Machine {
    let machine = Machine::new(Content::Block);
    machine.stage().unwrap();
    machine
}

fn read_only_devices(machine: &Machine) -> usize {
    machine.kernel.loops().iter().filter(|device| device.read_only).count()
}

#[test]
fn a_device_that_only_its_name_tells_is_left_alone() {
    let machine = staged();
    let target = resolve(&machine.os, Path::new(STAGING)).unwrap();
    let unstage = |uses: &Uses| machine.presence().unstage(machine.place(), &target, uses);
    let device = machine.uses().loops.remove(0);
    let suspected = Uses { suspected: vec![device.clone()], ..Uses::default() };
    assert_in_use(unstage(&suspected), "perhaps attached as /dev/loop0");
    assert_eq!(machine.kernel.loops().len(), 1);
    unstage(&Uses::default()).unwrap();
    unstage(&Uses { loops: vec![device], ..suspected }).unwrap();
    assert_eq!(machine.kernel.loops(), [], "beside one that is proven to be the volume's");
}

#[test]
fn a_failed_publish_detaches_its_own_device_only() {
    let machine = staged();
    for read_only in [false, true] {
        let failed = machine.failing("bind", Errno::EIO, || machine.publish("/pods/a", read_only));
        assert_errno(failed, Errno::EIO);
        let left: Vec<bool> = machine.kernel.loops().iter().map(|device| device.read_only).collect();
        assert_eq!(left, [false], "the staged one, and no second one");
        assert!(!machine.kernel.exists("/pods/a"));
    }
}

#[test]
fn a_read_only_device_stays_as_long_as_one_pod_has_it() {
    let machine = staged();
    machine.publish("/pods/a", true).unwrap();
    machine.publish("/pods/b", true).unwrap();
    machine.publish("/pods/c", false).unwrap();
    for (target, left) in [("/pods/b", 1), ("/pods/a", 0)] {
        machine.kernel.unmount_foreign(target).unwrap();
        machine.presence().after_unpublish(machine.place()).unwrap();
        assert_eq!(read_only_devices(&machine), left, "after {target}");
    }
    assert_eq!(machine.kernel.loops().len(), 1);
}

#[test]
fn a_publish_that_another_mount_hides_is_still_one() {
    let machine = staged();
    machine.publish("/pods/a", false).unwrap();
    assert_eq!(machine.uses().mounts.len(), 1);
    machine.kernel.write_file("/pods/file", b"another").unwrap();
    machine.os.mounts.bind(Path::new("/pods/file"), Path::new("/pods/a"), &MountFlags::default()).unwrap();
    let uses = machine.uses();
    assert_eq!(uses.mounts.len(), 1, "{uses:?}");
    assert_eq!(uses.mounts[0].fs_type, "devtmpfs");
}
