//! Mounts, loop devices and trees with mounts in them.

use super::*;

#[test]
fn an_autoclear_device_goes_with_its_last_user() {
    let (kernel, os, image) = machine();
    drop(attach(&os, &image));
    assert!(kernel.loops().is_empty());
    let device = attach(&os, &image);
    let other = os.loops.open(&device.device).unwrap();
    drop(device);
    assert_eq!(os.loops.find(os.files.stat(&image).unwrap().unwrap().id).unwrap().len(), 1);
    let stale = other.device.clone();
    // A killed process closes what it has.
    kernel.kill();
    assert!(kernel.loops().is_empty());
    let os = kernel.restart();
    errno_is(os.loops.open(&stale), Errno::ENXIO);
    os.loops.detach(&stale).unwrap();
    stage(&kernel, &os, &image, true);
    assert_eq!((kernel.loops().len(), kernel.loop_discards(0), kernel.attach_count()), (1, false, 3));
    kernel.restart();
    assert_eq!(kernel.loops().len(), 1);
}

#[test]
fn a_detach_waits_for_the_last_user() {
    let (kernel, os, image) = machine();
    let device = os.loops.attach(&image, AttachOptions { autoclear: false, ..options(false) }).unwrap();
    let known = device.device.clone();
    let pod = kernel.open("/dev/loop0").unwrap();
    drop(device);
    os.loops.detach(&known).unwrap();
    assert!(kernel.loops()[0].autoclear);
    drop(pod);
    assert!(kernel.loops().is_empty());
    errno_is(kernel.write("/dev/loop0", 0, b"x"), Errno::ENXIO);
}

#[test]
fn a_device_has_its_images_size_until_told_otherwise() {
    let (kernel, os, image) = machine();
    stage(&kernel, &os, &image, true);
    let device = os.loops.find(os.files.stat(&image).unwrap().unwrap().id).unwrap().remove(0);
    os.images.set_size(&image, 128 * MIB).unwrap();
    assert_eq!(os.loops.size(&device).unwrap(), 64 * MIB);
    os.loops.update_size(&device).unwrap();
    os.filesystems.grow(FsType::Ext4, &device.path(), p("/stage")).unwrap();
    assert_eq!(os.loops.size(&device).unwrap(), 128 * MIB);
    assert_eq!(os.files.space(p("/stage")).unwrap().total, 128 * MIB);
}

#[test]
fn mounts_stack_and_keep_each_other_busy() {
    let (kernel, os, image) = machine();
    let second = super::image(&os, "second.img", 64 * MIB);
    stage(&kernel, &os, &image, true);
    kernel.write_file("/stage/first", b"1").unwrap();
    stage(&kernel, &os, &second, true);
    assert!(!kernel.exists("/stage/first"));
    kernel.create_directories("/stage/below");
    os.mounts.bind(p("/pool"), p("/stage/below"), &MountFlags::default()).unwrap();
    errno_is(os.mounts.unmount(p("/stage")), Errno::EBUSY);
    os.mounts.unmount(p("/stage/below")).unwrap();
    os.mounts.unmount(p("/stage")).unwrap();
    assert!(kernel.exists("/stage/first"));
    let pod = kernel.open("/stage/first").unwrap();
    errno_is(os.mounts.unmount(p("/stage")), Errno::EBUSY);
    drop(pod);
    os.mounts.unmount(p("/stage")).unwrap();
    errno_is(os.mounts.unmount(p("/stage")), Errno::EINVAL);
}

#[test]
fn a_bind_is_read_only_by_itself() {
    let (kernel, os, image) = machine();
    stage(&kernel, &os, &image, true);
    kernel.create_directories("/target");
    os.mounts.bind(p("/stage"), p("/target"), &read_only()).unwrap();
    errno_is(kernel.write_file("/target/x", b"1"), Errno::EROFS);
    kernel.write_file("/stage/x", b"1").unwrap();
    assert_eq!(kernel.read_file("/target/x").unwrap(), b"1");
    let [staged, bound] = kernel.mounts().try_into().unwrap();
    assert_eq!((&staged.dev, &staged.source, &staged.root), (&bound.dev, &bound.source, &bound.root));
    assert!(!staged.read_only && bound.read_only && !bound.superblock_read_only && bound.is_shared());
    // The filesystem outlives its first mount.
    os.mounts.unmount(p("/stage")).unwrap();
    assert_eq!((kernel.loops().len(), kernel.exists("/target/x")), (1, true));
    os.mounts.unmount(p("/target")).unwrap();
    assert!(kernel.loops().is_empty());
}

#[test]
fn binds_show_where_they_come_from() {
    let (kernel, os, image) = machine();
    kernel.create_directories("/pool/volumes/v/data");
    kernel.create_directories("/target");
    os.mounts.bind(p("/pool/volumes/v/data"), p("/target"), &MountFlags::default()).unwrap();
    let device = attach(&os, &image);
    os.files.create_file(p("/pool/block")).unwrap();
    errno_is(os.mounts.bind(&device.device.path(), p("/target"), &MountFlags::default()), Errno::ENOTDIR);
    os.mounts.bind(&device.device.path(), p("/pool/block"), &read_only()).unwrap();
    let [directory, node] = kernel.mounts().try_into().unwrap();
    assert_eq!((directory.root.as_path(), directory.fs_type.as_str()), (p("/pool/volumes/v/data"), "ext4"));
    assert_eq!(directory.source, "/dev/vda1");
    assert_eq!((node.root.as_path(), node.fs_type.as_str()), (p("/loop0"), "devtmpfs"));
    let stat = os.files.stat(p("/pool/block")).unwrap().unwrap();
    assert_eq!((stat.kind, stat.rdev), (hostloop_kernel::FileKind::BlockDevice, device.device.rdev));
    kernel.write("/pool/block", 4096, b"hello").unwrap();
    os.loops.flush(&device.device).unwrap();
    assert_eq!(os.images.read_at(&image, 4096, 5).unwrap(), b"hello");
    errno_is(kernel.write("/pool/block", 64 * MIB, b"x"), Errno::ENOSPC);
}

#[test]
fn a_read_only_device_mounts_and_reads_only() {
    let (kernel, os, image) = machine();
    make(&os, &attach(&os, &image), FsType::Ext4).unwrap();
    kernel.create_directories("/stage");
    let device = os.loops.attach(&image, options(true)).unwrap();
    let path = device.device.path();
    errno_is(os.mounts.mount(&path, p("/stage"), FsType::Ext4, &MountFlags::default()), Errno::EACCES);
    errno_is(os.mounts.mount(&path, p("/stage"), FsType::Xfs, &read_only()), Errno::EINVAL);
    os.mounts.mount(&path, p("/stage"), FsType::Ext4, &read_only()).unwrap();
    errno_is(kernel.write_file("/stage/x", b"1"), Errno::EROFS);
    errno_is(kernel.write(&path, 0, b"x"), Errno::EPERM);
}

#[test]
fn superblocks_are_where_probes_look() {
    let (_, os, _) = machine();
    let at = |image: &Path, offset, len| os.images.read_at(image, offset, len).unwrap();
    let small = super::image(&os, "small", 4096);
    errno_is(make(&os, &attach(&os, &small), FsType::Ext4), Errno::EINVAL);
    let image = super::image(&os, "big", 512 * MIB);
    let device = attach(&os, &image);
    make(&os, &device, FsType::Ext4).unwrap();
    assert_eq!((at(&image, 1080, 2), at(&image, 1028, 4)), (vec![0x53, 0xEF], vec![0, 0, 2, 0]));
    make(&os, &device, FsType::Xfs).unwrap();
    assert_eq!((at(&image, 0, 4), at(&image, 1080, 2)), (b"XFSB".to_vec(), vec![0, 0]));
    make(&os, &device, FsType::Btrfs).unwrap();
    assert_eq!((at(&image, 0, 4), at(&image, 65600, 8)), (vec![0; 4], b"_BHRfS_M".to_vec()));
}

#[test]
fn removing_a_tree_stops_at_a_mount() {
    let (kernel, os, image) = machine();
    kernel.create_directories("/pool/v/data/target");
    kernel.create_directories("/pool/v/a");
    os.mounts.bind(p("/tmp"), p("/pool/v/data/target"), &MountFlags::default()).unwrap();
    kernel.write_file("/tmp/precious", b"1").unwrap();
    errno_is(os.trees.remove(p("/pool/v")), Errno::EBUSY);
    errno_is(os.trees.remove(p("/pool/v/data/target")), Errno::EBUSY);
    errno_is(os.files.remove_directory(p("/pool/v/data/target")), Errno::EBUSY);
    assert!(kernel.exists("/tmp/precious") && !kernel.exists("/pool/v/a"));
    os.mounts.unmount(p("/pool/v/data/target")).unwrap();
    os.trees.remove(p("/pool/v")).unwrap();
    os.trees.remove(p("/pool/v")).unwrap();
    assert_eq!(kernel.tree("/pool"), [image.to_str().unwrap()]);
}

#[test]
fn links_are_seen_and_resolved() {
    let (kernel, os, image) = machine();
    kernel.symlink("/pool", "/link");
    assert_eq!(os.files.stat(p("/link")).unwrap().unwrap().kind, hostloop_kernel::FileKind::Symlink);
    assert_eq!(os.files.canonicalize(p("/link/disk.img")).unwrap(), image);
    assert_eq!(os.files.canonicalize(p("/link/../tmp")).unwrap(), p("/tmp"));
    errno_is(os.mounts.bind(p("/tmp"), p("/link"), &MountFlags::default()), Errno::ENOTDIR);
    os.trees.remove(p("/link")).unwrap();
    assert!(kernel.exists(&image));
}

#[test]
fn one_image_on_two_devices_is_told_apart() {
    let (kernel, os, image) = machine();
    stage(&kernel, &os, &image, true);
    kernel.create_directories("/other");
    let device = attach(&os, &image);
    os.mounts.mount(&device.device.path(), p("/other"), FsType::Ext4, &MountFlags::default()).unwrap();
    assert_eq!(kernel.hazards().len(), 1);
}
