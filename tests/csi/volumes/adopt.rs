//! AdoptVolume: an image or a directory of others becomes a volume.

use std::path::Path;

use hostloop::kernel::{FileKind, MakeOptions};
use hostloop::model::{FsType, MountFlags};
use hostloop::wire::{csi, peer};
use hostloop_fake_kernel::{FakeKernel, Kill, Step};
use tonic::Code;

use crate::harness::{DIRECTORIES, DIRECTORIES_DIR, machine};
use crate::life::*;
use crate::support::*;

/// On the filesystem and the mount of the default pool.
const NEAR: &str = "/var/lib/hostloop/old";
/// On those of the pool of directories.
const NEAR_DIRECTORIES: &str = "/pools/directories/old";
/// On another disk.
const FAR: &str = "/old";
const CONTENT: &[u8] = b"what the application wrote";

fn machine_with_disk() -> FakeKernel {
    let kernel = machine();
    kernel.add_disk(FAR, FsType::Ext4, 50 << 30);
    for directory in [NEAR, NEAR_DIRECTORIES, FAR] {
        kernel.create_directories(directory);
    }
    kernel
}

fn flags() -> String {
    format!("{NEAR};{NEAR_DIRECTORIES};{FAR}")
}

fn rig_on(kernel: FakeKernel) -> Rig {
    Rig::on(kernel, &["--adopt-from", &flags()])
}

fn rig() -> Rig {
    rig_on(machine_with_disk())
}

/// Makes an image with a filesystem, and a file in it.
fn make_image(kernel: &FakeKernel, path: &str, fs_type: FsType, bytes: u64) {
    let (os, at) = (kernel.os(), Path::new("/mnt"));
    kernel.create_directories(at);
    kernel.write_file(path, b"").unwrap();
    os.images.set_size(Path::new(path), bytes).unwrap();
    let device = kernel.attach_foreign(path, false).unwrap();
    let options = MakeOptions { extra: Vec::new(), zeroed: true };
    os.filesystems.make(&device.path(), fs_type, &options).unwrap();
    os.mounts.mount(&device.path(), at, fs_type, &MountFlags::default()).unwrap();
    kernel.write_file("/mnt/file", CONTENT).unwrap();
    kernel.sync("/mnt/file").unwrap();
    kernel.unmount_foreign(at).unwrap();
    kernel.detach_foreign(device.number);
    kernel.sync(path).unwrap();
}

fn make_directory(kernel: &FakeKernel, path: &str) {
    kernel.create_directories(format!("{path}/sub"));
    kernel.write_file(format!("{path}/sub/file"), CONTENT).unwrap();
    kernel.sync(format!("{path}/sub/file")).unwrap();
}

fn image(path: &str) -> peer::AdoptVolumeRequest {
    let source = Some(peer::adopt_volume_request::Source::Image(path.to_owned()));
    peer::AdoptVolumeRequest { source, ..peer::AdoptVolumeRequest::default() }
}

fn directory(path: &str) -> peer::AdoptVolumeRequest {
    peer::AdoptVolumeRequest {
        source: Some(peer::adopt_volume_request::Source::Directory(path.to_owned())),
        parameters: map(&[("backend", "directory"), ("pool", DIRECTORIES)]),
        size_bytes: 64 << 20,
        ..peer::AdoptVolumeRequest::default()
    }
}

/// The volume as kubelet uses it.
fn used(adopted: &peer::AdoptVolumeResponse) -> Vol {
    let info = csi::Volume {
        volume_id: adopted.volume_id.clone(),
        capacity_bytes: adopted.capacity_bytes as i64,
        volume_context: adopted.volume_context.clone(),
        ..csi::Volume::default()
    };
    Vol::new(info, if adopted.block { block() } else { mount() })
}

/// What a pod reads from the volume.
fn read(rig: &Rig, adopted: &peer::AdoptVolumeResponse, file: &str) -> Vec<u8> {
    let vol = used(adopted);
    settled(|| rig.call(rig.stage_request(&vol))).unwrap();
    settled(|| rig.call(rig.publish_request(&vol, "pod"))).unwrap();
    let content = rig.kernel.read_file(format!("{}/{file}", vol.target("pod"))).unwrap();
    settled(|| rig.call(vol.unpublish_request("pod"))).unwrap();
    settled(|| rig.call(vol.unstage_request())).unwrap();
    content
}

/// Repeats a call as its callers do while the driver works on the volume by itself, such as on a record that was late.
fn settled<T>(mut call: impl FnMut() -> Result<T, tonic::Status>) -> Result<T, tonic::Status> {
    for _ in 0..100 {
        match call() {
            Err(status) if status.code() == Code::Aborted => {
                std::thread::sleep(std::time::Duration::from_millis(20))
            }
            answer => return answer,
        }
    }
    call()
}

fn ids(rig: &Rig) -> Vec<String> {
    let listed = rig.ok(csi::ListVolumesRequest::default()).entries.into_iter();
    listed.filter_map(|entry| entry.volume).map(|volume| volume.volume_id).collect()
}

#[test]
fn an_image_of_the_same_mount_is_renamed() {
    for fs_type in FsType::ALL {
        let rig = rig();
        let path = format!("{NEAR}/disk.img");
        make_image(&rig.kernel, &path, fs_type, GIB as u64);
        let inode = rig.kernel.stat(&path).unwrap().id;
        let adopted = rig.ok(image(&path));
        assert_eq!((adopted.way.as_str(), adopted.left.as_str()), ("rename", ""));
        assert_eq!((adopted.fs_type.as_str(), adopted.capacity_bytes), (fs_type.as_str(), GIB as u64));
        assert!(!rig.kernel.exists(&path));
        assert_eq!(rig.image(&used(&adopted)).id, inode, "the very file");
        assert_eq!(read(&rig, &adopted, "file"), CONTENT, "{fs_type}");
        assert_eq!(rig.ok(image(&path)), adopted, "a repeated call");
        assert!(rig.ok(peer::AdoptVolumeRequest { look: true, ..image(&path) }).made);
        assert_eq!(ids(&rig), [adopted.volume_id.as_str()]);
        rig.ok(used(&adopted).delete_request());
        rig.fails(Code::NotFound, image(&path));
        assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
    }
}

#[test]
fn an_image_of_another_disk_is_copied() {
    for remove_source in [false, true] {
        let rig = rig();
        let path = format!("{FAR}/disk.img");
        make_image(&rig.kernel, &path, FsType::Ext4, 100 << 20);
        let request = peer::AdoptVolumeRequest { remove_source, ..image(&path) };
        let adopted = rig.ok(request.clone());
        assert_eq!((adopted.way.as_str(), adopted.capacity_bytes), ("copy", 100 << 20));
        let left = format!("{path}.adopted-{}", adopted.volume_id);
        assert_eq!((rig.kernel.exists(&path), rig.kernel.exists(&left)), (false, !remove_source));
        assert_eq!(adopted.left, if remove_source { String::new() } else { left.clone() });
        assert_eq!(read(&rig, &adopted, "file"), CONTENT);
        assert_eq!(rig.ok(request), adopted, "a repeated call");
        if !remove_source {
            let why = rig.fails(Code::InvalidArgument, image(&left));
            assert!(why.contains(&adopted.volume_id), "{why}");
            rig.ok(peer::AdoptVolumeRequest { remove_source: true, ..image(&path) });
            assert!(!rig.kernel.exists(&left), "removed by a later call");
        }
        assert_eq!(ids(&rig), [adopted.volume_id.as_str()]);
    }
}

#[test]
fn an_image_with_a_second_name_is_copied() {
    let rig = rig();
    let path = format!("{NEAR}/disk.img");
    make_image(&rig.kernel, &path, FsType::Ext4, 100 << 20);
    rig.kernel.link(&path, format!("{NEAR}/other.img")).unwrap();
    let adopted = rig.ok(image(&path));
    assert_eq!(adopted.way, "copy");
    assert_ne!(rig.image(&used(&adopted)).id, rig.kernel.stat(format!("{NEAR}/other.img")).unwrap().id);
}

#[test]
fn a_directory_of_the_same_mount_is_renamed() {
    let rig = rig();
    let path = format!("{NEAR_DIRECTORIES}/pvc-1");
    make_directory(&rig.kernel, &path);
    let adopted = rig.ok(directory(&path));
    assert_eq!((adopted.way.as_str(), adopted.capacity_bytes), ("rename", 64 << 20));
    assert!(!rig.kernel.exists(&path));
    assert_eq!(read(&rig, &adopted, "sub/file"), CONTENT);
    assert_eq!(rig.ok(directory(&path)), adopted, "a repeated call");
}

#[test]
fn a_directory_with_an_enforced_size_is_copied() {
    let kernel = machine_with_disk();
    kernel.add_disk("/pools/limited", FsType::Xfs, 20 << 30);
    kernel.set_quotas("/pools/limited", true);
    kernel.create_directories("/pools/limited/old");
    let from = "/pools/limited/old;/old";
    let rig = Rig::on(kernel, &["--adopt-from", from, "--pool", "limited=/pools/limited,reserve=0"]);
    for path in ["/pools/limited/old/pvc-1", "/old/pvc-1"] {
        make_directory(&rig.kernel, path);
        let limited = map(&[("backend", "directory"), ("pool", "limited")]);
        let request = peer::AdoptVolumeRequest { parameters: limited, ..directory(path) };
        let small = peer::AdoptVolumeRequest { size_bytes: 1, ..request.clone() };
        rig.kernel.write_file(format!("{path}/large"), &[7; 2 << 20]).unwrap();
        let why = rig.fails(Code::OutOfRange, small);
        assert!(why.contains("MiB"), "{why}");
        let adopted = rig.ok(request);
        assert_eq!(adopted.way, "copy", "{path}");
        assert_eq!(read(&rig, &adopted, "sub/file"), CONTENT);
    }
}

#[test]
fn a_raw_block_image_keeps_its_bytes() {
    let rig = rig();
    let path = format!("{NEAR}/raw.img");
    rig.kernel.write_file(&path, &[7; 5000]).unwrap();
    let why = rig.fails(Code::InvalidArgument, image(&path));
    assert!(why.contains("data of an unknown kind") && why.contains("raw block"), "{why}");
    let adopted = rig.ok(peer::AdoptVolumeRequest { block: true, ..image(&path) });
    assert_eq!(adopted.capacity_bytes, 8192, "whole blocks");
    let vol = used(&adopted);
    assert_eq!(rig.kernel.read(vol.image(), 4990, 10).unwrap(), [7; 10]);
    rig.stage(&vol);
}

#[test]
fn a_claim_is_kept_with_an_adopted_volume() {
    let rig = rig();
    let path = format!("{NEAR}/disk.img");
    make_image(&rig.kernel, &path, FsType::Ext4, 100 << 20);
    let key = |name: &str| format!("csi.storage.k8s.io/{name}");
    let (namespace, name, volume) = (key("pvc/namespace"), key("pvc/name"), key("pv/name"));
    let parameters = map(&[(&namespace, "shop"), (&name, "data"), (&volume, "pv-1")]);
    rig.ok(peer::AdoptVolumeRequest { parameters, ..image(&path) });
    let page = rig.ok(peer::ListDetailsRequest::default());
    let [seen] = &page.volumes[..] else { panic!("one volume") };
    assert_eq!(
        [&seen.claim_namespace, &seen.claim_name, &seen.persistent_volume].map(String::as_str),
        ["shop", "data", "pv-1"]
    );
}

#[test]
fn another_claim_does_not_get_the_volume() {
    let rig = rig();
    let path = format!("{NEAR}/disk.img");
    make_image(&rig.kernel, &path, FsType::Ext4, 100 << 20);
    let of = |claim: &str, volume: &str| {
        let key = |name: &str| format!("csi.storage.k8s.io/{name}");
        let (namespace, name, pv) = (key("pvc/namespace"), key("pvc/name"), key("pv/name"));
        let parameters = map(&[(&namespace, "shop"), (&name, claim), (&pv, volume)]);
        peer::AdoptVolumeRequest { parameters, ..image(&path) }
    };
    let adopted = rig.ok(of("data", "pv-1"));
    for other in [of("other", "pv-1"), of("data", "pv-2")] {
        for look in [false, true] {
            let why = rig.fails(Code::FailedPrecondition, peer::AdoptVolumeRequest { look, ..other.clone() });
            assert!(why.contains("shop/data") && why.contains("pv-1"), "{why}");
        }
    }
    assert_eq!(rig.ok(of("data", "pv-1")), adopted);
}

#[test]
fn a_path_makes_no_second_volume() {
    for remade in ["disk.img", "other.img"] {
        let rig = rig();
        let path = format!("{FAR}/disk.img");
        make_image(&rig.kernel, &path, FsType::Ext4, 100 << 20);
        let adopted = rig.ok(image(&path));
        make_image(&rig.kernel, &format!("{FAR}/{remade}"), FsType::Ext4, 100 << 20);
        let made = rig.ok(peer::AdoptVolumeRequest { look: true, ..image(&path) });
        assert!(made.made && made.volume_id == adopted.volume_id, "whatever is at the path");
        if remade == "disk.img" {
            for dry_run in [false, true] {
                let why =
                    rig.fails(Code::FailedPrecondition, peer::AdoptVolumeRequest { dry_run, ..image(&path) });
                assert!(why.contains(&adopted.volume_id) && why.contains("something else"), "{why}");
            }
            assert_eq!(ids(&rig), [adopted.volume_id.as_str()]);
            assert!(rig.kernel.exists(&path), "it is left alone");
        }
    }
}

#[test]
fn a_look_needs_no_flag_and_no_source() {
    let rig = rig();
    let path = format!("{NEAR}/disk.img");
    let look = peer::AdoptVolumeRequest { look: true, ..image(&path) };
    assert!(!rig.ok(look.clone()).made);
    make_image(&rig.kernel, &path, FsType::Ext4, 100 << 20);
    rig.ok(image(&path));
    let rig = rig.restart_with(&[]);
    assert!(rig.ok(look).made);
}

#[test]
fn a_look_says_where_the_source_is() {
    for (request, path) in far_sources() {
        let look = peer::AdoptVolumeRequest { look: true, ..request.clone() };
        let rig = prepared(&path);
        rig.ok(request.clone());
        let is_rename = |step: &Step| step.name == "rename" && step.subject.contains(".adopted-");
        let rename = rig.kernel.steps().into_iter().find(is_rename).unwrap().number;
        let rig = prepared(&path);
        rig.kernel.fail_at(rename, nix::errno::Errno::EIO);
        assert!(rig.call(request.clone()).is_err());
        let found = settled(|| rig.call(look.clone())).unwrap();
        assert_eq!((found.made, found.left.as_str()), (true, path.as_str()));
        let adopted = settled(|| rig.call(request.clone())).unwrap();
        assert_eq!(rig.ok(look.clone()).left, adopted.left);
        rig.kernel.os().trees.remove(Path::new(&adopted.left)).unwrap();
        assert_eq!(rig.ok(look).left, "");
    }
}

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

/// Every source, and what it becomes.
fn sources() -> [(&'static str, peer::AdoptVolumeRequest, String); 4] {
    let [near, far] = [NEAR, FAR].map(|root| format!("{root}/disk.img"));
    let [near_tree, far_tree] = [NEAR_DIRECTORIES, FAR].map(|root| format!("{root}/pvc-1"));
    [
        ("file", image(&near), near),
        ("file", image(&far), far),
        ("sub/file", directory(&near_tree), near_tree),
        ("sub/file", directory(&far_tree), far_tree),
    ]
}

fn prepared(path: &str) -> Rig {
    let rig = rig();
    match path.ends_with(".img") {
        true => make_image(&rig.kernel, path, FsType::Ext4, (64 << 20) + 512),
        false => make_directory(&rig.kernel, path),
    }
    rig.kernel.clear_steps();
    rig
}

/// After any kill or failure: one volume with the data, and nothing else.
fn check(rig: &Rig, request: &peer::AdoptVolumeRequest, (file, path): (&str, &str), what: &str) {
    let adopted = match settled(|| rig.call(request.clone())) {
        Ok(adopted) => adopted,
        Err(status) => panic!("{what}: {:?} {}", status.code(), status.message()),
    };
    assert_eq!(ids(rig), [adopted.volume_id.as_str()], "{what}");
    assert_eq!(read(rig, &adopted, file), CONTENT, "{what}");
    assert!(!rig.kernel.exists(path), "{what}");
    let is_left = adopted.way == "copy";
    assert_eq!(
        (rig.kernel.exists(format!("{path}.adopted-{}", adopted.volume_id)), is_left),
        (is_left, !adopted.left.is_empty()),
        "{what}"
    );
    for pool in [DATA, DIRECTORIES_DIR] {
        let others = |name: &String| !name.contains(&adopted.volume_id);
        let volumes: Vec<_> = rig.kernel.tree(format!("{pool}/volumes")).into_iter().filter(others).collect();
        assert_eq!(volumes, Vec::<String>::new(), "{what}");
    }
    settled(|| rig.call(used(&adopted).delete_request())).unwrap();
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new(), "{what}");
}

#[test]
fn an_adoption_is_finished_after_a_kill_at_any_step() {
    for (file, request, path) in sources() {
        let rig = prepared(&path);
        rig.ok(request.clone());
        let steps = rig.kernel.steps().len();
        assert!(steps > 5, "{steps}");
        for step in 1..=steps {
            for kill in [Kill::Before, Kill::Torn, Kill::After] {
                let what = format!("{path}, killed {kill:?} at step {step}");
                let mut rig = prepared(&path);
                rig.kernel.kill_at(step, kill);
                let _ = rig.call(request.clone());
                rig.start_again();
                check(&rig, &request, (file, &path), &what);
            }
        }
    }
}

#[test]
fn an_adoption_is_finished_after_a_power_cut() {
    for (file, request, path) in sources() {
        let steps = {
            let rig = prepared(&path);
            rig.ok(request.clone());
            rig.kernel.steps().len()
        };
        for step in 1..=steps {
            let what = format!("{path}, power cut after step {step}");
            let mut rig = prepared(&path);
            rig.kernel.kill_at(step, Kill::After);
            let _ = rig.call(request.clone());
            rig.power_cut();
            if path == format!("{NEAR_DIRECTORIES}/pvc-1")
                && rig.kernel.exists(&path)
                && !ids(&rig).is_empty()
            {
                // A directory with two names, which no real filesystem has.
                rig.fails(Code::FailedPrecondition, request.clone());
                continue;
            }
            check(&rig, &request, (file, &path), &what);
        }
        let mut rig = prepared(&path);
        rig.ok(request.clone());
        rig.power_cut();
        check(&rig, &request, (file, &path), "acknowledged");
    }
}

#[test]
fn an_image_that_is_not_adopted_keeps_its_size() {
    let path = format!("{NEAR}/disk.img");
    let rig = prepared(&path);
    rig.ok(image(&path));
    let (steps, mut kept) = (rig.kernel.steps().len(), 0);
    for step in 1..=steps {
        let rig = prepared(&path);
        rig.kernel.fail_at(step, nix::errno::Errno::EIO);
        let failed = rig.call(image(&path)).is_err();
        if let (true, Some(stat)) = (failed, rig.kernel.stat(&path)) {
            assert_eq!(stat.size, (64 << 20) + 512, "failed at step {step}");
            kept += 1;
        }
    }
    assert!(kept > 3, "{kept} of {steps}");
}

#[test]
fn an_adoption_that_fails_anywhere_can_be_repeated() {
    for (file, request, path) in sources() {
        let rig = prepared(&path);
        rig.ok(request.clone());
        for step in 1..=rig.kernel.steps().len() {
            let what = format!("{path}, failed at step {step}");
            let rig = prepared(&path);
            rig.kernel.fail_at(step, nix::errno::Errno::EIO);
            let _ = rig.call(request.clone());
            rig.kernel.clear_plans();
            check(&rig, &request, (file, &path), &what);
        }
    }
}

/// The first request ended with an error, and its caller may have gone on with the source.
#[test]
fn a_repeated_adoption_removes_no_source() {
    let mut repeated = 0;
    for (_, request, path) in sources() {
        let request = peer::AdoptVolumeRequest { remove_source: true, ..request };
        let rig = prepared(&path);
        rig.ok(request.clone());
        for step in 1..=rig.kernel.steps().len() {
            let rig = prepared(&path);
            rig.kernel.fail_at(step, nix::errno::Errno::EIO);
            let failed = rig.call(request.clone()).is_err();
            rig.kernel.clear_plans();
            let made = settled(|| rig.call(csi::ListVolumesRequest::default())).unwrap().entries.len();
            if failed && made == 1 && rig.kernel.exists(&path) {
                let adopted = settled(|| rig.call(request.clone())).unwrap();
                let left = format!("{path}.adopted-{}", adopted.volume_id);
                assert!(rig.kernel.exists(&left) && adopted.left == left, "{path}, failed at step {step}");
                repeated += 1;
            }
        }
    }
    assert!(repeated > 0);
}

const WRITTEN: &[u8] = b"what it has written since.";

/// The file that a program writes to while its directory or image is adopted, with the length that it had.
fn write_later(kernel: &FakeKernel, path: &str) {
    assert_eq!(WRITTEN.len(), CONTENT.len());
    let file = if path.contains(".img") { path.to_owned() } else { format!("{path}/sub/file") };
    kernel.write(file, 0, WRITTEN).unwrap();
}

fn far_sources() -> impl Iterator<Item = (peer::AdoptVolumeRequest, String)> {
    sources()
        .into_iter()
        .filter(|(_, _, path)| path.starts_with("/old/"))
        .map(|(_, request, path)| (request, path))
}

/// A machine on which a program writes to the source before a call of the driver, once.
fn written_before(path: &str, call: &'static str, at: impl Fn(&str) -> bool + Send + Sync + 'static) -> Rig {
    let rig = prepared(path);
    let (kernel, source) = (rig.kernel.clone(), path.to_owned());
    let written = std::sync::atomic::AtomicBool::new(false);
    rig.kernel.set_pace(move |name, subject| {
        if name == call && at(subject) && !written.swap(true, std::sync::atomic::Ordering::SeqCst) {
            let renamed = kernel.tree(FAR).into_iter().find(|name| name.starts_with(&source)).unwrap();
            write_later(&kernel, &renamed);
        }
    });
    rig
}

#[test]
fn a_write_after_the_comparison_is_seen() {
    for (request, path) in far_sources() {
        // The record of the volume is written when the copy has been compared.
        let rig = written_before(&path, "open_log", |subject| subject.ends_with(".json"));
        let why = rig.fails(Code::Unavailable, request.clone());
        assert!(why.contains("changed while it was looked at"), "{why}");
        assert!(rig.kernel.exists(&path) && ids(&rig).is_empty(), "{path}");
        rig.ok(request);
    }
}

#[test]
fn a_source_written_after_its_copy_stays() {
    for (request, path) in far_sources() {
        let rig = prepared(&path);
        rig.ok(request.clone());
        let renames = |step: &Step| step.name == "rename" && step.subject.contains(".adopted-");
        let rename = rig.kernel.steps().into_iter().find(renames).unwrap().number;
        let rig = prepared(&path);
        rig.kernel.fail_at(rename, nix::errno::Errno::EIO);
        assert!(rig.call(request.clone()).is_err());
        let inode = rig.kernel.stat(&path).unwrap().id;
        write_later(&rig.kernel, &path);
        let why = settled(|| rig.call(request.clone())).unwrap_err();
        assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
        assert!(why.message().contains(&format!("{path} was written to after it was copied")), "{why}");
        let tried = peer::AdoptVolumeRequest { dry_run: true, ..request.clone() };
        let why = rig.call(tried).unwrap_err();
        assert!(why.message().contains("was written to after it was copied"), "{why}");
        assert_eq!(rig.kernel.stat(&path).map(|stat| stat.id), Some(inode));
        rig.kernel.os().files.rename(Path::new(&path), Path::new("/old/moved")).unwrap();
        assert_eq!(rig.ok(request).left, "", "without the source, the volume is whole");
    }
}

#[test]
fn a_source_written_at_the_end_is_not_removed() {
    for (request, path) in far_sources() {
        let request = peer::AdoptVolumeRequest { remove_source: true, ..request };
        let rig = written_before(&path, "fingerprint", |subject| subject.contains(".adopted-"));
        let adopted = rig.ok(request);
        assert_eq!(adopted.left, format!("{path}.adopted-{}", adopted.volume_id));
        assert!(rig.kernel.exists(&adopted.left), "a program goes on with what it has open");
    }
}
