//! AdoptVolume: an image or a directory of others becomes a volume.

mod interrupted;
mod refused;
mod written;

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

fn far_sources() -> impl Iterator<Item = (peer::AdoptVolumeRequest, String)> {
    sources()
        .into_iter()
        .filter(|(_, _, path)| path.starts_with("/old/"))
        .map(|(_, request, path)| (request, path))
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
    let seen = |rig: &Rig| {
        let found = rig.ok(look.clone());
        (found.made, found.left)
    };
    assert_eq!(seen(&rig), (false, String::new()), "there is no source");
    make_image(&rig.kernel, &path, FsType::Ext4, 100 << 20);
    assert_eq!(seen(&rig), (false, path.clone()));
    let blind = rig.restart_with(&[]);
    assert_eq!(seen(&blind), (false, String::new()), "it cannot be seen");
    let rig = blind.restart_with(&["--adopt-from", &flags()]);
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
