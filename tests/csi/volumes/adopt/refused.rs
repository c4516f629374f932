//! What is not adopted: what is in use, damaged, elsewhere, or of a pool.

use super::*;

#[test]
fn a_source_in_use_is_not_adopted() {
    let rig = rig();
    let path = format!("{NEAR}/disk.img");
    make_image(&rig.kernel, &path, FsType::Ext4, 100 << 20);
    let device = rig.kernel.attach_foreign(&path, false).unwrap();
    let why = rig.fails(Code::FailedPrecondition, image(&path));
    assert!(why.contains(&device.path().display().to_string()), "{why}");
    rig.kernel.detach_foreign(device.number);
    let open = rig.kernel.open(&path).unwrap();
    let why = rig.fails(Code::FailedPrecondition, image(&path));
    assert!(why.contains("open"), "{why}");
    drop(open);

    let directory_path = format!("{NEAR_DIRECTORIES}/pvc-1");
    make_directory(&rig.kernel, &directory_path);
    rig.kernel.create_directories("/pod");
    let bind = |source: &str, target: &str| {
        let os = rig.kernel.os();
        os.mounts.bind(Path::new(source), Path::new(target), &MountFlags::default()).unwrap();
    };
    bind(&format!("{directory_path}/sub"), "/pod");
    let why = rig.fails(Code::FailedPrecondition, directory(&directory_path));
    assert!(why.contains("mounted at /pod"), "{why}");
    rig.kernel.unmount_foreign("/pod").unwrap();
    rig.kernel.mount_tmpfs(format!("{directory_path}/sub")).unwrap();
    let why = rig.fails(Code::FailedPrecondition, directory(&directory_path));
    assert!(why.contains("mounted at"), "{why}");
    rig.kernel.unmount_foreign(format!("{directory_path}/sub")).unwrap();
    bind(&directory_path, &directory_path);
    let why = rig.fails(Code::FailedPrecondition, directory(&directory_path));
    assert!(why.contains("mount point"), "{why}");
    rig.kernel.unmount_foreign(&directory_path).unwrap();

    assert_eq!(ids(&rig), Vec::<String>::new());
    rig.ok(image(&path));
    rig.ok(directory(&directory_path));
}

#[test]
fn a_damaged_filesystem_is_not_adopted() {
    let rig = rig();
    let path = format!("{NEAR}/disk.img");
    make_image(&rig.kernel, &path, FsType::Xfs, GIB as u64);
    rig.kernel.damage(&path).unwrap();
    let why = rig.fails(Code::FailedPrecondition, image(&path));
    assert!(why.contains("damaged") && why.contains("repair"), "{why}");
    let why =
        rig.fails(Code::InvalidArgument, peer::AdoptVolumeRequest { fs_type: "ext4".into(), ..image(&path) });
    assert!(why.contains("holds xfs"), "{why}");
    let os = rig.kernel.os();
    os.images.set_size(Path::new(&path), 512 << 20).unwrap();
    let why = rig.fails(Code::FailedPrecondition, image(&path));
    assert!(why.contains("cut off"), "{why}");
    assert!(rig.kernel.exists(&path));
}

#[test]
fn a_path_elsewhere_is_not_adopted() {
    let rig = rig();
    let vol = rig.volume("v", mount());
    make_image(&rig.kernel, "/else.img", FsType::Ext4, 100 << 20);
    rig.kernel.symlink("/else.img", format!("{NEAR}/link.img"));
    rig.kernel.symlink("/", format!("{NEAR}/link"));
    make_directory(&rig.kernel, &format!("{NEAR}/dir"));
    let refused = [
        (Code::InvalidArgument, "/else.img".to_owned()),
        (Code::InvalidArgument, NEAR.to_owned()),
        (Code::InvalidArgument, format!("{NEAR}/../old/disk.img")),
        (Code::InvalidArgument, format!("{NEAR}/link.img")),
        (Code::InvalidArgument, format!("{NEAR}/link/else.img")),
        (Code::InvalidArgument, format!("{NEAR}/dir")),
        (Code::NotFound, format!("{NEAR}/missing.img")),
        (Code::NotFound, format!("{NEAR}/missing/disk.img")),
    ];
    for (code, path) in refused {
        let why = rig.fails(code, image(&path));
        assert!(why.contains(path.rsplit('/').next().unwrap()), "{path}: {why}");
    }
    assert!(rig.kernel.exists("/else.img"));
    let rig = rig.restart_with(&["--adopt-from", "/var/lib"]);
    let why = rig.fails(Code::InvalidArgument, image(&vol.image()));
    assert!(why.contains("belongs to pool default"), "{why}");
    let directories = map(&[("backend", "directory"), ("pool", DIRECTORIES)]);
    for path in ["/var/lib/hostloop", DATA, "/var/lib/hostloop/volumes"] {
        let request = peer::AdoptVolumeRequest { parameters: directories.clone(), ..directory(path) };
        rig.fails(Code::InvalidArgument, request);
    }
    assert!(rig.kernel.exists(vol.image()));
}

#[test]
fn a_pool_of_another_driver_is_not_adopted() {
    let rig = rig();
    let other = "driver=second.csi.dev\nnode=node-a\npool=default\nid=1\n";
    for pool in ["/old/other", "/old/parent/sub/other"] {
        rig.kernel.create_directories(pool);
        rig.kernel.write_file(format!("{pool}/hostloop-pool"), other.as_bytes()).unwrap();
    }
    for image in ["/old/other/volumes/disk.img", "/old/other/a/b/disk.img"] {
        rig.kernel.create_directories(Path::new(image).parent().unwrap());
        make_image(&rig.kernel, image, FsType::Ext4, 100 << 20);
    }
    make_directory(&rig.kernel, "/old/other/a/pvc-1");
    let refused = [
        (image("/old/other/volumes/disk.img"), "/old/other/hostloop-pool"),
        (image("/old/other/a/b/disk.img"), "/old/other/hostloop-pool"),
        (directory("/old/other/a/pvc-1"), "/old/other/hostloop-pool"),
        (directory("/old/other"), "/old/other/hostloop-pool"),
        (directory("/old/parent"), "/old/parent/sub/other/hostloop-pool"),
    ];
    for (request, marker) in refused {
        let why = rig.fails(Code::InvalidArgument, request);
        assert!(why.contains(marker) && why.contains("another driver"), "{why}");
    }
    rig.kernel.remove_file("/old/parent/sub/other/hostloop-pool").unwrap();
    rig.kernel.symlink("/old/other", "/old/parent/link");
    rig.ok(directory("/old/parent"));
}

/// It is the default pool of that driver.
#[test]
fn a_data_directory_of_another_driver_is_not_adopted() {
    let rig = rig();
    let marker = "/old/parent/other/hostloop-installation";
    rig.kernel.create_directories("/old/parent/other/volumes/vol-1");
    rig.kernel.write_file(marker, b"driver=second.csi.dev\nnode=node-a\ninstallation=1\n").unwrap();
    make_image(&rig.kernel, "/old/parent/other/volumes/vol-1/disk.img", FsType::Ext4, 100 << 20);
    let refused = [
        image("/old/parent/other/volumes/vol-1/disk.img"),
        directory("/old/parent/other"),
        directory("/old/parent"),
    ];
    for request in refused {
        let why = rig.fails(Code::InvalidArgument, request);
        assert!(why.contains(marker) && why.contains("another driver"), "{why}");
    }
    rig.kernel.remove_file(marker).unwrap();
    rig.ok(directory("/old/parent/other"));
}

#[test]
fn a_pool_that_is_closed_is_not_adopted() {
    let kernel = machine_with_disk();
    kernel.create_directories("/old/all/gone");
    let adopt = flags();
    let flags = [
        "--adopt-from",
        &adopt,
        "--pool",
        "gone=/old/all/gone,reserve=0",
        "--pool",
        "own=/old/own.img,kind=image,size=1Gi,fs=xfs",
    ];
    let rig = Rig::on(kernel, &flags);
    rig.ok(create_with("v", &[("pool", "own")]));
    for path in ["/old/all/gone", "/var/lib/hostloop/pools/own"] {
        rig.kernel.remove_file(format!("{path}/hostloop-pool")).unwrap();
    }
    let rig = rig.restart_with(&flags);
    for pool in ["gone", "own"] {
        rig.fails(Code::ResourceExhausted, create_with("w", &[("pool", pool)]));
    }
    make_directory(&rig.kernel, "/old/all/gone/volumes/vol-1");
    let refused = [
        (directory("/old/all/gone"), "gone"),
        (directory("/old/all/gone/volumes/vol-1"), "gone"),
        (directory("/old/all"), "gone"),
        (peer::AdoptVolumeRequest { block: true, ..image("/old/own.img") }, "own"),
    ];
    for (request, pool) in refused {
        let why = rig.fails(Code::InvalidArgument, request);
        assert!(why.contains(&format!("belongs to pool {pool}")), "{why}");
    }
    make_directory(&rig.kernel, "/old/all/beside");
    rig.ok(directory("/old/all/beside"));
}

#[test]
fn a_node_adopts_nothing_without_the_flag() {
    let rig = Rig::on(machine_with_disk(), &[]);
    make_image(&rig.kernel, &format!("{NEAR}/disk.img"), FsType::Ext4, 100 << 20);
    let why = rig.fails(Code::FailedPrecondition, image(&format!("{NEAR}/disk.img")));
    assert!(why.contains("--adopt-from"), "{why}");
}

#[test]
fn a_dry_run_changes_nothing() {
    let rig = rig();
    let (near, far) = (format!("{NEAR}/disk.img"), format!("{FAR}/disk.img"));
    for (path, way) in [(&near, "rename"), (&far, "copy")] {
        make_image(&rig.kernel, path, FsType::Ext4, (100 << 20) + 512);
        assert!(!rig.ok(peer::AdoptVolumeRequest { look: true, ..image(path) }).made);
        let adopted = rig.ok(peer::AdoptVolumeRequest { dry_run: true, ..image(path) });
        assert!(!adopted.made);
        assert_eq!((adopted.way.as_str(), adopted.left.as_str()), (way, ""));
        assert_eq!(adopted.capacity_bytes, (100 << 20) + 4096, "whole blocks");
        assert_eq!(
            rig.kernel.stat(path).map(|stat| (stat.kind, stat.size)),
            Some((FileKind::File, (100 << 20) + 512))
        );
    }
    assert_eq!(ids(&rig), Vec::<String>::new());
}

#[test]
fn no_room_leaves_the_source_in_place() {
    let rig = rig();
    rig.kernel.set_space(10 << 30, 1 << 30);
    let path = format!("{FAR}/disk.img");
    make_image(&rig.kernel, &path, FsType::Ext4, 2 << 30);
    rig.fails(Code::ResourceExhausted, image(&path));
    assert!(rig.kernel.exists(&path));
    assert_eq!(rig.kernel.tree(format!("{DATA}/volumes")), Vec::<String>::new());
}

/// A tree can have a million files, and another driver can make a pool in it at any time.
#[test]
fn a_tree_is_searched_for_pools_twice() {
    for path in [format!("{FAR}/pvc-1"), format!("{NEAR_DIRECTORIES}/pvc-1")] {
        let rig = rig();
        make_directory(&rig.kernel, &path);
        rig.kernel.watch_looks(true);
        rig.ok(directory(&path));
        let searched = rig.kernel.looks().into_iter().filter(|look| look.name == "find").count();
        assert_eq!(searched, 2, "{path}: before any change, and at the last moment");
    }
}
