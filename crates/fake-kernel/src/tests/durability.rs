//! What a power cut leaves.

use super::*;

#[test]
fn contents_and_names_need_a_sync_each() {
    let (kernel, os, image) = machine();
    os.images.set_size(&image, 128 * MIB).unwrap();
    os.files.create_directory(p("/pool/a"), 0o700).unwrap();
    let mut log = os.files.open_log(p("/pool/log"), 0).unwrap();
    log.append(b"one").unwrap();
    os.files.sync_directory(p("/pool")).unwrap();
    log.sync().unwrap();
    log.append(b"two").unwrap();
    os.files.create_file(p("/pool/a/lost")).unwrap();
    os.files.sync_file(p("/pool/a/lost")).unwrap();
    let os = kernel.power_cut();
    assert_eq!(os.files.stat(&image).unwrap().unwrap().size, 64 * MIB);
    assert_eq!(os.files.read(p("/pool/log")).unwrap(), b"one");
    assert_eq!(kernel.tree("/pool"), ["/pool/a", "/pool/disk.img", "/pool/log"]);
    errno_is(log.append(b"three"), Errno::EIO);
    assert_eq!(os.files.read(p("/pool/log")).unwrap(), b"one");
}

#[test]
fn an_unsynced_removal_and_rename_come_undone() {
    let (kernel, os, image) = machine();
    os.images.allocate(&image, 64 * MIB).unwrap();
    os.files.sync_file(&image).unwrap();
    let used = os.files.space(p("/pool")).unwrap().used;
    os.files.remove_file(&image).unwrap();
    assert_eq!(os.files.space(p("/pool")).unwrap().used, used - 64 * MIB);
    let os = kernel.power_cut();
    assert_eq!(os.files.space(p("/pool")).unwrap().used, used);
    os.files.rename(&image, p("/pool/new")).unwrap();
    assert!(kernel.exists("/pool/new") && !kernel.exists(&image));
    let os = kernel.power_cut();
    assert!(!kernel.exists("/pool/new") && kernel.exists(&image));
    os.files.rename(&image, p("/pool/new")).unwrap();
    os.files.sync_directory(p("/pool")).unwrap();
    kernel.power_cut();
    assert_eq!(kernel.tree("/pool"), ["/pool/new"]);
}

#[test]
fn files_are_durable_when_synced_or_unmounted() {
    let (kernel, os, image) = machine();
    stage(&kernel, &os, &image, true);
    kernel.write_file("/stage/kept", b"1").unwrap();
    os.mounts.unmount(p("/stage")).unwrap();
    assert!(kernel.loops().is_empty() && !kernel.exists("/stage/kept"));
    stage(&kernel, &os, &image, false);
    assert_eq!(kernel.read_file("/stage/kept").unwrap(), b"1");
    kernel.write_file("/stage/synced", b"2").unwrap();
    kernel.sync("/stage").unwrap();
    kernel.write_file("/stage/lost", b"3").unwrap();
    let os = kernel.power_cut();
    assert!(kernel.mounts().is_empty() && kernel.loops().is_empty());
    stage(&kernel, &os, &image, false);
    assert_eq!(kernel.tree("/stage"), ["/stage/kept", "/stage/synced"]);
    kernel.write_file("/stage/late", b"4").unwrap();
    let os = kernel.reboot();
    stage(&kernel, &os, &image, false);
    assert!(kernel.exists("/stage/late"));
    assert_eq!(kernel.formats().len(), 1);
}

#[test]
fn an_erased_filesystem_is_gone_once_that_is_synced() {
    let (kernel, os, image) = machine();
    make(&os, &attach(&os, &image), FsType::Ext4).unwrap();
    os.images.erase(&image).unwrap();
    let os = kernel.power_cut();
    stage(&kernel, &os, &image, false);
    os.mounts.unmount(p("/stage")).unwrap();
    os.images.erase(&image).unwrap();
    os.files.sync_file(&image).unwrap();
    let os = kernel.power_cut();
    assert_eq!(os.images.next_data(&image, 0).unwrap(), None);
    let device = attach(&os, &image);
    errno_is(
        os.mounts.mount(&device.device.path(), p("/stage"), FsType::Ext4, &MountFlags::default()),
        Errno::EINVAL,
    );
}

#[test]
fn a_journal_after_a_power_cut_needs_a_writable_disk() {
    let (kernel, os, image) = machine();
    stage(&kernel, &os, &image, true);
    let os = kernel.power_cut();
    let device = os.loops.attach(&image, options(true)).unwrap();
    let path = device.device.path();
    errno_is(os.mounts.mount(&path, p("/stage"), FsType::Ext4, &read_only()), Errno::EROFS);
    drop(device);
    let device = attach(&os, &image);
    os.mounts.mount(&device.device.path(), p("/stage"), FsType::Ext4, &read_only()).unwrap();
}

#[test]
fn space_runs_out_and_comes_back() {
    let (kernel, os, image) = machine();
    kernel.set_space(1 << 30, 32 * MIB);
    errno_is(os.images.allocate(&image, 64 * MIB), Errno::ENOSPC);
    assert_eq!(os.files.stat(&image).unwrap().unwrap().allocated, 0);
    os.images.allocate(&image, 32 * MIB).unwrap();
    assert_eq!(os.files.space(p("/pool")).unwrap().available, 0);
    let mut log = os.files.open_log(p("/pool/log"), 0).unwrap();
    errno_is(log.append(b"x"), Errno::ENOSPC);
    os.images.erase(&image).unwrap();
    log.append(b"x").unwrap();
    assert_eq!(os.trees.usage(p("/pool")).unwrap().inodes, 3);
    // Sparse: a huge image takes nothing.
    os.images.set_size(&image, 1 << 40).unwrap();
    assert_eq!(os.files.space(p("/pool")).unwrap().available, 32 * MIB - 4096);
}

#[test]
fn a_full_volume_and_a_full_pool_under_a_thin_volume() {
    let (kernel, os, image) = machine();
    stage(&kernel, &os, &image, true);
    kernel.write_file("/stage/big", &vec![1; 40 << 20]).unwrap();
    errno_is(kernel.write_file("/stage/more", &vec![1; 40 << 20]), Errno::ENOSPC);
    assert!(os.files.stat(&image).unwrap().unwrap().allocated >= 40 * MIB);
    kernel.set_space(1 << 30, MIB);
    errno_is(kernel.write_file("/stage/more", &vec![1; 10 << 20]), Errno::EIO);
    assert_eq!(os.files.space(p("/stage")).unwrap().total, 64 * MIB);
}
