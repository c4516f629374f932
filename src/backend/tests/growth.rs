//! Filesystems that are smaller than their volumes.

use nix::errno::Errno;

use super::*;
use crate::model::Provisioning;

/// Its filesystem has the size that the volume had before.
fn grown_image(fs_type: FsType, provisioning: Provisioning) -> Machine {
    let mut machine = Machine::empty(filesystem(fs_type, Format::Blank));
    machine.volume.parameters.provisioning = provisioning;
    machine.paths.bytes().create(machine.place(), b"").unwrap();
    machine.stage().unwrap();
    machine.paths.bytes().grow(machine.place(), 2 * BYTES).unwrap();
    machine.volume.capacity_bytes = 2 * BYTES;
    machine.volume.content = filesystem(fs_type, Format::Formatted);
    machine
}

fn thin(fs_type: FsType) -> Machine {
    grown_image(fs_type, Provisioning::Thin)
}

fn size_of_filesystem(machine: &Machine) -> u64 {
    match inspect(machine.os.images.as_ref(), &machine.image()).unwrap() {
        Signature::Filesystem { bytes, .. } => bytes,
        found => panic!("{found:?}"),
    }
}

#[test]
fn a_growth_that_fails_leaves_the_mount() {
    let machine = thin(FsType::Ext4);
    assert_errno(machine.failing("grow", Errno::EIO, || machine.finish_stage()), Errno::EIO);
    assert!(machine.is_mounted(STAGING));
    machine.finish_stage().unwrap();
    assert_eq!(size_of_filesystem(&machine), 2 * BYTES);
}

#[test]
fn unused_volumes_grow_without_the_capability() {
    for at in ["/pods/whole", "/pods/part"] {
        let machine = thin(FsType::Ext4);
        machine.kernel.set_sys_resource(false);
        if at == "/pods/whole" {
            machine.publish(at, false).unwrap();
        } else {
            machine.bind_part(at);
        }
        machine.finish_stage().unwrap();
        assert!(machine.is_mounted(STAGING) && machine.is_mounted(at), "{at}");
        assert_eq!(size_of_filesystem(&machine), BYTES, "{at}");
        machine.kernel.unmount_foreign(at).unwrap();
        machine.finish_stage().unwrap();
        assert!(machine.is_mounted(STAGING), "{at}");
        assert_eq!(size_of_filesystem(&machine), 2 * BYTES, "{at}");
    }
}

/// A resize2fs that outlives its driver keeps the mount busy.
#[test]
fn a_busy_mount_of_an_earlier_driver_goes_later() {
    let machine = thin(FsType::Ext4);
    machine.kernel.set_sys_resource(false);
    let error = machine.failing("unmount", Errno::EBUSY, || machine.finish_stage()).unwrap_err();
    assert!(matches!(&error, Error::Unavailable(text) if text.contains("is open; try again")), "{error}");
    assert!(machine.is_mounted(STAGING));
    assert_errno(machine.failing("unmount", Errno::EIO, || machine.finish_stage()), Errno::EIO);
    machine.finish_stage().unwrap();
    assert_eq!(size_of_filesystem(&machine), 2 * BYTES);
}

#[test]
fn a_volume_grows_through_a_writable_mount() {
    let machine = thin(FsType::Ext4);
    machine.publish("/pods/whole", true).unwrap();
    machine.bind_part("/pods/part");
    machine.kernel.unmount_foreign(STAGING).unwrap();
    machine.kernel.clear_steps();
    machine.presence().grow_in_use(machine.place(), &machine.uses()).unwrap();
    let steps = machine.kernel.steps();
    assert!(steps.iter().any(|step| step.name == "grow" && step.subject == "/pods/part"), "{steps:?}");
}

#[test]
fn a_copy_that_grows_is_thick_where_its_volume_is() {
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let machine = grown_image(FsType::Ext4, provisioning);
        machine.kernel.set_sys_resource(false);
        machine.unstage().unwrap();
        machine.kernel.clear_steps();
        machine.stage().unwrap();
        assert_eq!(size_of_filesystem(&machine), 2 * BYTES);
        let allocated = machine.kernel.stat(machine.image()).unwrap().allocated;
        assert_eq!(allocated >= 2 * BYTES, provisioning == Provisioning::Thick, "{allocated}");
    }
}

#[test]
fn a_copy_that_fails_for_room_says_so() {
    for (step, errno, is_full) in [
        ("reflink", Errno::ENOSPC, true),
        ("reflink", Errno::EDQUOT, true),
        ("reflink", Errno::EIO, false),
        ("create_file", Errno::ENOSPC, true),
        ("create_file", Errno::EIO, false),
    ] {
        let machine = thin(FsType::Ext4);
        machine.kernel.set_sys_resource(false);
        machine.unstage().unwrap();
        let error = machine.failing(step, errno, || machine.stage()).unwrap_err();
        assert_eq!(matches!(error, Error::Exhausted(_)), is_full, "{step} {errno}: {error}");
        assert!(error.to_string().contains("give the driver CAP_SYS_RESOURCE"), "{error}");
        assert_eq!(size_of_filesystem(&machine), BYTES);
        machine.stage().unwrap();
    }
}

#[test]
fn data_are_copied_if_blocks_cannot_be_shared() {
    let machine = thin(FsType::Ext4);
    machine.kernel.set_sys_resource(false);
    machine.kernel.write_file("/stage/a/file", b"kept").unwrap();
    machine.kernel.set_reflink("/pool", false);
    machine.unstage().unwrap();
    machine.stage().unwrap();
    assert_eq!(size_of_filesystem(&machine), 2 * BYTES);
    assert_eq!(machine.kernel.read_file("/stage/a/file").unwrap(), b"kept");
}

#[test]
fn a_copy_does_not_replace_an_attached_image() {
    let machine = thin(FsType::Ext4);
    machine.kernel.set_sys_resource(false);
    machine.unstage().unwrap();
    let uses = machine.uses();
    machine.kernel.attach_foreign(machine.image(), true).unwrap();
    let stage = |stage: &Stage<'_>| machine.presence().stage(machine.place(), stage, &uses);
    let error = machine.staging(&MountFlags::default(), stage).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(size_of_filesystem(&machine), BYTES);
}
