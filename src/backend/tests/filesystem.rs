//! A filesystem in an image.

use nix::errno::Errno;

use super::super::bind;
use super::*;
use crate::kernel::MountEntry;
use crate::model::VfsFlag;
use crate::model::health::Trouble;

fn blank(fs_type: FsType) -> Machine {
    Machine::new(filesystem(fs_type, Format::Blank))
}

fn targets(mounts: &[MountEntry]) -> Vec<&str> {
    mounts.iter().filter_map(|mount| mount.target.to_str()).collect()
}

#[test]
fn a_bind_of_a_part_is_told_from_the_whole() {
    for fs_type in FsType::ALL {
        let machine = Machine::formatted(fs_type);
        machine.publish("/pods/a", false).unwrap();
        machine.bind_part("/pods/part");
        let uses = machine.uses();
        assert_eq!(targets(&uses.mounts), [STAGING, "/pods/a"], "{fs_type}");
        assert_eq!(targets(&uses.partial), ["/pods/part"], "{fs_type}");
    }
}

#[test]
fn a_whole_btrfs_is_its_default_subvolume() {
    let machine = Machine::formatted(FsType::Btrfs);
    machine.kernel.create_directories("/stage/a/inside");
    machine.kernel.set_default_subvolume("/stage/a/inside");
    machine.unstage().unwrap();
    machine.stage().unwrap();
    let uses = machine.uses();
    assert_eq!((targets(&uses.mounts), targets(&uses.partial)), (vec![STAGING], vec![]));
}

#[test]
fn a_format_is_recorded_if_it_has_changed() {
    let machine = blank(FsType::Ext4);
    assert_eq!(machine.stage().unwrap(), [Format::Formatted], "mkfs has ended");
    machine.unstage().unwrap();
    assert_eq!(machine.stage().unwrap(), [Format::Formatted], "the record is older than the image");
    let machine = Machine::formatted(FsType::Ext4);
    machine.unstage().unwrap();
    assert_eq!(machine.stage().unwrap(), []);
}

#[test]
fn the_mount_that_is_hidden_meanwhile_is_told() {
    let machine = Machine::formatted(FsType::Ext4);
    let uses = machine.uses();
    let space = || bind::space_at(machine.place(), Path::new(STAGING), &uses);
    space().unwrap();
    assert_in_use(machine.failing("open", Errno::ESTALE, space), "another mount hides the volume's");
    assert_errno(machine.failing("statvfs", Errno::EIO, space), Errno::EIO);
}

#[test]
fn xfs_is_mounted_beside_its_copy_with_any_flags() {
    for data in [vec![], vec!["nouuid"], vec!["swalloc"], vec!["swalloc", "nouuid"]] {
        let machine = Machine::formatted(FsType::Xfs);
        let copy = Machine {
            paths: VolumePaths::new(Path::new("/pool/other"), &machine.volume.id, BackendKind::Loop),
            os: machine.kernel.os(),
            kernel: machine.kernel.clone(),
            volume: machine.volume.clone(),
        };
        machine.kernel.create_directories(&copy.paths.directory);
        machine.os.files.create_file(&copy.image()).unwrap();
        machine.os.images.reflink(&machine.image(), &copy.image()).unwrap();
        machine.unstage().unwrap();
        machine.os.loops.give_back_all().unwrap();
        let other = resolve(&machine.os, Path::new("/stage/other")).unwrap();
        let flags =
            MountFlags { data: data.iter().map(ToString::to_string).collect(), ..MountFlags::default() };
        machine.stage_with(&flags).unwrap();
        let copied = copy.staging(&flags, |stage| {
            copy.presence().stage(copy.place(), &Stage { target: &other, ..*stage }, &copy.uses())
        });
        copied.unwrap_or_else(|error| panic!("{data:?}: {error}"));
    }
}

/// A backup has frozen it, and the pod that has it waits for that to end.
#[test]
fn a_freeze_of_a_volume_in_use_outlives_a_staging() {
    let machine = Machine::formatted(FsType::Ext4);
    machine.publish("/pods/a", false).unwrap();
    machine.kernel.unmount_foreign(STAGING).unwrap();
    machine.kernel.freeze_foreign("/pods/a").unwrap();
    machine.stage().unwrap();
    assert!(machine.is_mounted(STAGING));
    assert_eq!(machine.kernel.frozen(), [Path::new("/pods/a"), Path::new(STAGING)]);
    assert!(machine.kernel.thaw_foreign("/pods/a").unwrap());
    machine.kernel.write_file("/pods/a/file", b"text").unwrap();
}

#[test]
fn a_flag_is_to_blame_only_where_there_is_one() {
    let machine = Machine::formatted(FsType::Ext4);
    machine.unstage().unwrap();
    let flags = MountFlags { data: vec!["commit=5".to_owned()], ..MountFlags::default() };
    let refused = machine.failing("mount", Errno::EINVAL, || machine.stage_with(&flags)).unwrap_err();
    assert!(matches!(&refused, Error::Invalid(text) if text.contains("correct mountOptions")), "{refused}");
    assert_errno(machine.failing("mount", Errno::EIO, || machine.stage_with(&flags)), Errno::EIO);
    assert_errno(machine.failing("mount", Errno::EINVAL, || machine.stage()), Errno::EINVAL);
    let vfs = MountFlags { vfs: [VfsFlag::NoExec].into(), ..MountFlags::default() };
    assert_errno(machine.failing("mount", Errno::EINVAL, || machine.stage_with(&vfs)), Errno::EINVAL);
}

#[test]
fn a_hidden_writer_cannot_be_held_back() {
    let machine = blank(FsType::Ext4);
    let writers = || machine.presence().writers(machine.place(), &machine.uses()).unwrap();
    assert!(matches!(writers(), Writers::None));
    machine.kernel.attach_foreign(machine.image(), false).unwrap();
    assert!(matches!(writers(), Writers::Unstoppable(text) if text.contains("/dev/loop0")));
}

#[test]
fn nothing_is_made_where_something_is_mounted_already() {
    let machine = blank(FsType::Ext4);
    machine.stage().unwrap();
    Mark::Formatted.clear(&machine.os, &machine.paths).unwrap();
    assert_in_use(machine.stage(), "is not formatted and yet mounted at /stage/a");
    let mut uses = machine.uses();
    uses.partial = std::mem::take(&mut uses.mounts);
    let make = |uses: &Uses| {
        machine
            .staging(&MountFlags::default(), |stage| machine.presence().stage(machine.place(), stage, uses))
    };
    machine.kernel.unmount_foreign(STAGING).unwrap();
    assert_in_use(make(&uses), "is not formatted and yet mounted");
    uses.partial.clear();
    let error = make(&uses).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "the mkfs of a driver that was killed: {error}");
}

#[test]
fn a_volume_is_marked_before_mkfs_begins() {
    for has_mark in [true, false] {
        let machine = blank(FsType::Ext4);
        if !has_mark {
            Mark::Blank.clear(&machine.os, &machine.paths).unwrap();
        }
        assert_errno(machine.failing("make", Errno::EIO, || machine.stage()), Errno::EIO);
        assert!(Mark::Formatting.is_set(&machine.os, &machine.paths).unwrap(), "{has_mark}");
        assert_eq!(machine.stage().unwrap(), [Format::Blank, Format::Formatted]);
    }
}

#[test]
fn data_without_a_mark_are_never_formatted_over() {
    for format in [Format::Blank, Format::Formatting] {
        let machine = Machine::new(filesystem(FsType::Ext4, format));
        Mark::Blank.clear(&machine.os, &machine.paths).unwrap();
        machine.os.images.write_at(&machine.image(), 1 << 20, b"perhaps a part of what mkfs writes").unwrap();
        assert_in_use(machine.stage(), "hostloop never formats over data");
    }
}

#[test]
fn another_filesystem_is_lost_and_one_with_errors_not() {
    for (has_errors, reason) in [(false, None), (true, Some("FilesystemErrors"))] {
        let mut machine = Machine::formatted(FsType::Ext4);
        machine.unstage().unwrap();
        if has_errors {
            machine.kernel.mark_errors(machine.image()).unwrap();
        }
        let found = |machine: &Machine| {
            let found: Vec<Trouble> = troubles(machine.place(), &Seen::now(&machine.os).unwrap());
            found.first().map(|trouble| trouble.reason)
        };
        assert_eq!(found(&machine), reason);
        machine.volume.content = filesystem(FsType::Xfs, Format::Formatted);
        assert_eq!(found(&machine), Some("FilesystemMissing"), "with errors: {has_errors}");
    }
}
