//! Copies: what they share, what they take, and what of a filesystem comes along.

use super::*;

/// A machine with an xfs pool of 1 GiB, and a durable file of 16 MiB in it.
fn sharing() -> (FakeKernel, Os, PathBuf) {
    let kernel = FakeKernel::new();
    kernel.add_disk("/pool", FsType::Xfs, 1 << 30);
    let os = kernel.os();
    let file = image(&os, "file", 0);
    kernel.write_file(&file, &vec![7; 16 << 20]).unwrap();
    os.files.sync_file(&file).unwrap();
    (kernel, os, file)
}

fn used(os: &Os) -> u64 {
    os.files.space(p("/pool")).unwrap().used
}

fn clone(os: &Os, source: &Path, name: &str) -> PathBuf {
    let target = image(os, name, 0);
    os.images.reflink(source, &target).unwrap();
    target
}

/// Copies all data of a file.
fn copy(os: &Os, source: &Path, target: &Path) -> std::io::Result<()> {
    os.images.set_size(target, os.files.stat(source)?.unwrap().size)?;
    let mut at = 0;
    while let Some((start, end)) = os.images.next_data(source, at)? {
        os.images.copy_range(source, target, start, end - start)?;
        at = end;
    }
    os.files.sync_file(target)
}

fn mount(os: &Os, image: &Path, at: &Path, words: &[&str]) -> std::io::Result<()> {
    let device = os.loops.attach(image, AttachOptions { block_size: 512, ..options(false) })?;
    let fs_type = match os.images.read_at(image, 0, 4)?.as_slice() {
        b"XFSB" => FsType::Xfs,
        _ if os.images.read_at(image, 65600, 8)? == b"_BHRfS_M" => FsType::Btrfs,
        _ => FsType::Ext4,
    };
    os.mounts.mount(&device.device.path(), at, fs_type, &MountFlags::parse(words.iter().copied()).unwrap())
}

/// A volume with this filesystem in the pool, mounted at /a with a synced and an unsynced file; and /b.
fn volume(kernel: &FakeKernel, os: &Os, fs_type: FsType) -> PathBuf {
    let volume = image(os, "volume", 512 * MIB);
    make(
        os,
        &os.loops.attach(&volume, AttachOptions { block_size: 512, ..options(false) }).unwrap(),
        fs_type,
    )
    .unwrap();
    kernel.create_directories("/a");
    kernel.create_directories("/b");
    mount(os, &volume, p("/a"), &[]).unwrap();
    kernel.write_file("/a/synced", b"1").unwrap();
    kernel.sync("/a").unwrap();
    kernel.write_file("/a/lost", b"2").unwrap();
    volume
}

#[test]
fn shared_blocks_count_once_until_they_are_written_to() {
    let (kernel, os, file) = sharing();
    let before = used(&os);
    let copy = clone(&os, &file, "copy");
    let third = clone(&os, &copy, "third");
    assert_eq!(used(&os), before);
    assert_eq!(os.files.stat(&third).unwrap().unwrap().allocated, 16 * MIB);
    assert_eq!(os.trees.usage(p("/pool")).unwrap().bytes, 3 * 16 * MIB + 4096);
    kernel.write(&copy, MIB, &vec![8; 1 << 20]).unwrap();
    assert_eq!(used(&os), before + MIB);
    kernel.write(&copy, MIB, &vec![9; 1 << 20]).unwrap();
    assert_eq!(used(&os), before + MIB, "the second time it has blocks of its own");
    assert_eq!(kernel.read(&file, MIB, 1).unwrap(), [7]);
    os.files.remove_file(&file).unwrap();
    assert_eq!(used(&os), before + MIB, "the others still have them");
    os.files.remove_file(&third).unwrap();
    assert_eq!(used(&os), before);
    os.files.remove_file(&copy).unwrap();
    assert_eq!(used(&os), before - 16 * MIB);
}

#[test]
fn a_full_disk_refuses_writes_to_shared_blocks() {
    let (kernel, os, file) = sharing();
    let copy = clone(&os, &file, "copy");
    kernel.set_space_at("/pool", 1 << 30, MIB);
    errno_is(kernel.write(&copy, 0, &vec![1; 2 << 20]), Errno::ENOSPC);
    errno_is(os.images.unshare(&copy), Errno::ENOSPC);
    kernel.write(&copy, 0, &vec![1; 1 << 20]).unwrap();
    errno_is(kernel.write(&file, 4 * MIB, b"x"), Errno::ENOSPC);
    kernel.write(&file, 0, b"x").unwrap();
    let target = image(&os, "target", 0);
    errno_is(os.images.copy_range(&file, &target, 0, MIB), Errno::ENOSPC);
    kernel.set_space_at("/pool", 1 << 30, 32 * MIB);
    os.images.unshare(&copy).unwrap();
    assert!(os.images.extents(&copy, 0, 99, true).unwrap().iter().all(|extent| !extent.shared));
}

#[test]
fn an_unplaced_extent_shows_its_earlier_place() {
    let (kernel, os, file) = sharing();
    let copy = clone(&os, &file, "copy");
    os.files.sync_file(&copy).unwrap();
    let old = os.images.extents(&copy, 0, 99, true).unwrap();
    kernel.write(&copy, 0, &vec![1; 4096]).unwrap();
    kernel.write(&copy, 16 * MIB, &vec![1; 4096]).unwrap();
    let seen = os.images.extents(&copy, 0, 99, false).unwrap();
    assert!(seen[0].located && seen[0].physical == old[0].physical, "{seen:?}");
    assert!(!seen.last().unwrap().located, "{seen:?}");
    let seen = os.images.extents(&copy, 0, 99, true).unwrap();
    assert!(seen[0].located && seen[0].physical != old[0].physical, "{seen:?}");
    assert_eq!(seen.iter().map(|extent| extent.length).sum::<u64>(), 16 * MIB + 4096);
}

#[test]
fn a_disk_shares_when_it_can_also_after_a_power_cut() {
    let (kernel, os, file) = sharing();
    kernel.create_directories("/other");
    kernel.write_file("/other/file", b"x").unwrap();
    assert!(os.images.can_reflink(p("/pool")).unwrap() && !os.images.can_reflink(p("/other")).unwrap());
    let target = image(&os, "target", 0);
    errno_is(os.images.reflink(p("/other/file"), &target), Errno::EXDEV);
    kernel.set_reflink("/pool", false);
    errno_is(os.images.reflink(&file, &target), Errno::EOPNOTSUPP);
    kernel.set_reflink("/pool", true);
    os.images.reflink(&file, &target).unwrap();
    let os = kernel.power_cut();
    assert_eq!(os.files.stat(&target).unwrap().unwrap().size, 0, "it was not synced");
    os.images.reflink(&file, &target).unwrap();
    os.files.sync_file(&target).unwrap();
    let before = used(&os);
    let os = kernel.power_cut();
    assert_eq!((os.files.read(&target).unwrap().len(), used(&os)), (16 << 20, before));
    let os = kernel.reboot();
    let pool = os.mounts.list().unwrap().into_iter().find(|mount| mount.target == p("/pool")).unwrap();
    assert_eq!((pool.fs_type.as_str(), pool.source.as_str()), ("xfs", "/dev/vdb"));
}

#[test]
fn a_killed_copy_has_a_part_of_the_bytes_and_no_files() {
    for name in ["reflink", "copy_range"] {
        let (kernel, os, _) = sharing();
        let volume = volume(&kernel, &os, FsType::Ext4);
        os.mounts.unmount(p("/a")).unwrap();
        let target = image(&os, "target", 0);
        kernel.kill_at(1, Kill::Torn);
        let died = match name {
            "reflink" => os.images.reflink(&volume, &target),
            _ => os.images.copy_range(&volume, &target, 0, 512 * MIB),
        };
        errno_is(died, Errno::EIO);
        let os = kernel.restart();
        os.images.set_size(&target, 512 * MIB).unwrap();
        errno_is(mount(&os, &target, p("/b"), &[]), Errno::EINVAL);
        os.images.erase(&target).unwrap();
        copy(&os, &volume, &target).unwrap();
        mount(&os, &target, p("/b"), &[]).unwrap();
        assert_eq!(kernel.tree("/b"), ["/b/lost", "/b/synced"], "{name}");
    }
}

#[test]
fn a_copy_of_what_changes_meanwhile_is_worth_nothing() {
    let (kernel, os, _) = sharing();
    let volume = volume(&kernel, &os, FsType::Ext4);
    let target = image(&os, "target", 512 * MIB);
    os.images.copy_range(&volume, &target, 0, 4096).unwrap();
    kernel.write_file("/a/late", b"3").unwrap();
    kernel.sync("/a").unwrap();
    copy(&os, &volume, &target).unwrap();
    errno_is(mount(&os, &target, p("/b"), &[]), Errno::EINVAL);
    let again = image(&os, "again", 0);
    copy(&os, &volume, &again).unwrap();
    mount(&os, &again, p("/b"), &[]).unwrap();
    assert_eq!(kernel.read_file("/b/late").unwrap(), b"3");
}

#[test]
fn a_clone_of_a_mounted_volume_has_what_was_synced() {
    let (kernel, os, _) = sharing();
    let volume = volume(&kernel, &os, FsType::Ext4);
    let copy = clone(&os, &volume, "copy");
    let device = os.loops.attach(&copy, AttachOptions { block_size: 512, ..options(true) }).unwrap();
    let refused = os.mounts.mount(&device.device.path(), p("/b"), FsType::Ext4, &read_only());
    errno_is(refused, Errno::EROFS);
    errno_is(os.filesystems.check(FsType::Ext4, &device.device.path()), Errno::EUCLEAN);
    drop(device);
    mount(&os, &copy, p("/b"), &[]).unwrap();
    assert_eq!((kernel.tree("/b"), kernel.tree("/a").len()), (vec!["/b/synced".to_owned()], 2));
    kernel.write_file("/b/own", b"3").unwrap();
    assert!(!kernel.exists("/a/own"));
    assert_eq!(kernel.hazards(), [""; 0]);
}

#[test]
fn writing_to_a_volume_changes_its_image() {
    let (kernel, os, _) = sharing();
    let volume = volume(&kernel, &os, FsType::Ext4);
    let copy = clone(&os, &volume, "copy");
    let places = |file: &Path| {
        let extents = os.images.extents(file, 0, 999, true).unwrap();
        extents.iter().map(|e| (e.logical, e.length, e.physical)).collect::<Vec<_>>()
    };
    let before = places(&volume);
    kernel.write_file("/a/synced", b"4").unwrap();
    assert_ne!(places(&volume), before);
    assert_eq!(places(&copy).iter().map(|e| e.1).sum::<u64>(), before.iter().map(|e| e.1).sum::<u64>());
    assert_ne!(
        os.images.read_at(&volume, 0, 1 << 20).unwrap(),
        os.images.read_at(&copy, 0, 1 << 20).unwrap()
    );
}

#[test]
fn a_copy_needs_a_uuid_of_its_own() {
    let (kernel, os, _) = sharing();
    let xfs = volume(&kernel, &os, FsType::Xfs);
    let copy = clone(&os, &xfs, "copy");
    errno_is(mount(&os, &copy, p("/b"), &[]), Errno::EINVAL);
    mount(&os, &copy, p("/b"), &["nouuid"]).unwrap();

    let (kernel, os, _) = sharing();
    let btrfs = volume(&kernel, &os, FsType::Btrfs);
    let copy = clone(&os, &btrfs, "copy");
    errno_is(mount(&os, &copy, p("/b"), &[]), Errno::EEXIST);
    let device = attach(&os, &copy);
    kernel.set_tools(FsType::Btrfs, false);
    errno_is(os.filesystems.renew_identity(FsType::Btrfs, &device.device.path()), Errno::ENOENT);
    kernel.set_tools(FsType::Btrfs, true);
    os.filesystems.renew_identity(FsType::Btrfs, &device.device.path()).unwrap();
    drop(device);
    mount(&os, &copy, p("/b"), &[]).unwrap();
    assert_eq!(kernel.read_file("/b/synced").unwrap(), b"1");
    // A copy of the copy meets the copy.
    let third = clone(&os, &copy, "third");
    kernel.create_directories("/c");
    errno_is(mount(&os, &third, p("/c"), &[]), Errno::EEXIST);
}

#[test]
fn a_check_finds_damage() {
    let (kernel, os, _) = sharing();
    let volume = volume(&kernel, &os, FsType::Xfs);
    os.mounts.unmount(p("/a")).unwrap();
    let device = attach(&os, &volume);
    let check = |fs_type| os.filesystems.check(fs_type, &device.device.path());
    check(FsType::Xfs).unwrap();
    errno_is(check(FsType::Btrfs), Errno::EUCLEAN);
    kernel.damage(&volume).unwrap();
    errno_is(check(FsType::Xfs), Errno::EUCLEAN);
    kernel.set_tools(FsType::Xfs, false);
    errno_is(check(FsType::Xfs), Errno::ENOENT);
}
