//! AdoptVolume on the real kernel: images and directories that others have made.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostloop::wire::{csi, peer};
use tonic::Code;

use crate::client::parameters as map;
use crate::harness::disk::{attach, make_filesystem, mount_loop};
use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, run, text};

const SIZE: u64 = 400 * MIB;

/// A driver, the directory beside its volumes from which it adopts, and another one that is not on the filesystem of the pool.
fn world(fs_type: &str, directories: bool) -> (World, PathBuf, PathBuf) {
    let mut world = World::empty_on(fs_type, 2048 * MIB, &[]);
    let (near, far) = (world.data.join("old"), world.dir.join("far"));
    for directory in [&near, &far] {
        std::fs::create_dir_all(directory).expect("mkdir");
    }
    let from = format!("{};{}", text(&near), text(&far));
    let mut flags = vec!["--adopt-from", &from];
    flags.extend(directories.then_some("--directories"));
    world.set_flags(&flags);
    world.start();
    (world, near, far)
}

/// Makes an image with a file in its filesystem.
fn make_image(world: &World, image: &Path, kind: Kind) {
    let mount_point = world.dir.join("mnt");
    std::fs::create_dir_all(&mount_point).expect("mkdir");
    make_filesystem(image, kind.name(), SIZE, &[]);
    mount_loop(image, &mount_point);
    write_at(&mount_point.join("file"), 0, &pattern(7, 3 << 20)).expect("write");
    run("umount", &[text(&mount_point)]);
}

fn image(path: &Path) -> peer::AdoptVolumeRequest {
    let source = Some(peer::adopt_volume_request::Source::Image(text(path).to_owned()));
    peer::AdoptVolumeRequest { source, ..peer::AdoptVolumeRequest::default() }
}

fn adopted<'a>(world: &'a World, kind: Kind, answer: &peer::AdoptVolumeResponse) -> Vol<'a> {
    let info = csi::Volume {
        volume_id: answer.volume_id.clone(),
        capacity_bytes: answer.capacity_bytes as i64,
        volume_context: answer.volume_context.clone(),
        ..csi::Volume::default()
    };
    Vol::of(world, kind, info)
}

fn adopt_image(kind: Kind, is_near: bool, way: &str) {
    let (world, near, far) = world("ext4", false);
    let path = if is_near { near } else { far }.join("disk.img");
    make_image(&world, &path, kind);
    let before = path.metadata().expect("stat");
    let dry = world.csi.call(peer::AdoptVolumeRequest { dry_run: true, ..image(&path) }).expect("a dry run");
    assert_eq!((dry.way.as_str(), path.exists()), (way, true));
    let answer = world.csi.call(image(&path)).expect("AdoptVolume");
    assert_eq!(
        (answer.way.as_str(), answer.fs_type.as_str(), answer.capacity_bytes),
        (way, kind.name(), SIZE)
    );
    assert!(!path.exists());
    assert_eq!(world.csi.call(image(&path)).expect("a repeated call"), answer);
    let vol = adopted(&world, kind, &answer);
    let inode = world.image(vol.id()).metadata().expect("stat").ino();
    assert_eq!(inode == before.ino(), is_near);
    vol.up();
    assert_eq!(read_at(&vol.target("a").join("file"), 0, 3 << 20), pattern(7, 3 << 20));
    write_at(&vol.target("a").join("more"), 0, &pattern(8, 1 << 20)).expect("write");
    vol.expand(SIZE + 100 * MIB).expect("ControllerExpandVolume");
    if kind != Kind::Ext4 {
        // ext4 grows when it is mounted next, where a right is missing.
        vol.node_expand("a", SIZE + 100 * MIB).expect("NodeExpandVolume");
    }
    vol.down();
    vol.up();
    assert_eq!(read_at(&vol.target("a").join("more"), 0, 1 << 20), pattern(8, 1 << 20));
    vol.down();
    vol.remove();
    world.finish();
}

#[test]
fn ext4_beside_the_volumes_is_renamed() {
    adopt_image(Kind::Ext4, true, "rename");
}

#[test]
fn xfs_beside_the_volumes_is_renamed() {
    adopt_image(Kind::Xfs, true, "rename");
}

#[test]
fn btrfs_beside_the_volumes_is_renamed() {
    adopt_image(Kind::Btrfs, true, "rename");
}

#[test]
fn ext4_on_another_filesystem_is_copied() {
    adopt_image(Kind::Ext4, false, "copy");
}

/// OpenEBS rawfile formats btrfs so: pods have the subvolume `default`, and its early releases have snapshots beside it.
#[test]
fn btrfs_with_a_default_subvolume_shows_that() {
    let (world, near, _) = world("ext4", false);
    let (path, mount_point) = (near.join("disk.img"), world.dir.join("mnt"));
    std::fs::create_dir_all(&mount_point).expect("mkdir");
    make_filesystem(&path, "btrfs", SIZE, &[]);
    mount_loop(&path, &mount_point);
    let (default, snapshots) = (mount_point.join("default"), mount_point.join(".snapshots"));
    run("btrfs", &["subvolume", "create", text(&default)]);
    run("btrfs", &["subvolume", "set-default", text(&default)]);
    write_at(&default.join("file"), 0, &pattern(7, 3 << 20)).expect("write");
    std::fs::create_dir(&snapshots).expect("mkdir");
    run("btrfs", &["subvolume", "snapshot", "-r", text(&default), text(&snapshots.join("s1"))]);
    run("umount", &[text(&mount_point)]);
    let answer = world.csi.call(image(&path)).expect("AdoptVolume");
    assert_eq!((answer.way.as_str(), answer.fs_type.as_str()), ("rename", "btrfs"));
    let vol = adopted(&world, Kind::Btrfs, &answer);
    vol.up();
    assert_eq!(read_at(&vol.target("a").join("file"), 0, 3 << 20), pattern(7, 3 << 20));
    assert!(!vol.target("a").join("default").exists());
    vol.expand(SIZE + 100 * MIB).expect("ControllerExpandVolume");
    vol.node_expand("a", SIZE + 100 * MIB).expect("NodeExpandVolume");
    vol.down();
    vol.up();
    assert_eq!(read_at(&vol.target("a").join("file"), 0, 3 << 20), pattern(7, 3 << 20));
    vol.down();
    vol.remove();
    world.finish();
}

/// The file of a block volume of csi-driver-host-path has whole MiB, and its PersistentVolume the size that was asked for.
#[test]
fn a_smaller_block_file_gets_the_size_of_its_claim() {
    let (world, near, _) = world("ext4", false);
    let path = near.join("692cb36c-ec74-11f1-b961-6ef829ae2668");
    write_at(&path, 0, &pattern(3, 10 << 20)).expect("write");
    let size = 10 * MIB + MIB / 2;
    let answer = world.csi.call(peer::AdoptVolumeRequest { block: true, size_bytes: size, ..image(&path) });
    let answer = answer.expect("AdoptVolume");
    assert_eq!((answer.way.as_str(), answer.capacity_bytes), ("rename", size));
    let vol = adopted(&world, Kind::Block, &answer);
    vol.up();
    assert_eq!(read_at(&vol.target("a"), 0, 10 << 20), pattern(3, 10 << 20));
    assert_eq!(read_at(&vol.target("a"), 10 << 20, 512 << 10), vec![0; 512 << 10]);
    vol.down();
    vol.remove();
    world.finish();
}

#[test]
fn an_image_with_two_names_shares_its_blocks() {
    let (world, near, _) = world("xfs", false);
    let path = near.join("disk.img");
    make_image(&world, &path, Kind::Ext4);
    std::fs::hard_link(&path, near.join("other.img")).expect("link");
    let answer = world.csi.call(image(&path)).expect("AdoptVolume");
    assert_eq!(answer.way, "reflink");
    assert!(Path::new(&answer.left).exists() && !path.exists(), "{answer:?}");
    let vol = adopted(&world, Kind::Ext4, &answer);
    vol.up();
    assert_eq!(read_at(&vol.target("a").join("file"), 0, 3 << 20), pattern(7, 3 << 20));
    vol.down();
    vol.remove();
    world.finish();
}

#[test]
fn an_image_in_use_is_not_adopted() {
    let (world, near, _) = world("ext4", false);
    let path = near.join("disk.img");
    make_image(&world, &path, Kind::Ext4);
    let device = attach(&path, &[]);
    let refused = world.csi.call(image(&path)).expect_err("it is attached");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&device), "{}", refused.message());
    run("losetup", &["--detach", &device]);
    crate::harness::eventually("it is detached", || crate::harness::kernel::loops(&near).is_empty());
    let open = std::fs::File::open(&path).expect("open");
    let refused = world.csi.call(image(&path)).expect_err("it is open");
    assert!(refused.message().contains("open"), "{}", refused.message());
    drop(open);

    write_at(&path, 2 << 20, &[0xff; 8 << 20]).expect("damage");
    let refused = world.csi.call(image(&path)).expect_err("it is damaged");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{}", refused.message());
    assert!(refused.message().contains("damaged"), "{}", refused.message());
    std::os::unix::fs::symlink(&path, near.join("link.img")).expect("link");
    let refused = world.csi.call(image(&near.join("link.img"))).expect_err("it is a link");
    assert_eq!(refused.code(), Code::InvalidArgument, "{}", refused.message());
    assert!(path.exists());
    world.finish();
}

fn adopt_directory(is_near: bool, way: &str) {
    let (world, near, far) = world("ext4", true);
    let path = if is_near { near } else { far }.join("pvc-1");
    std::fs::create_dir_all(path.join("sub")).expect("mkdir");
    write_at(&path.join("sub/file"), 0, &pattern(9, 5 << 20)).expect("write");
    std::os::unix::fs::symlink("sub/file", path.join("link")).expect("link");
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).expect("chown");
    let request = peer::AdoptVolumeRequest {
        source: Some(peer::adopt_volume_request::Source::Directory(text(&path).to_owned())),
        parameters: map(&[("backend", "directory")]),
        size_bytes: SIZE,
        ..peer::AdoptVolumeRequest::default()
    };
    let answer = world.csi.call(request.clone()).expect("AdoptVolume");
    assert_eq!((answer.way.as_str(), answer.capacity_bytes), (way, SIZE));
    assert_eq!((path.exists(), Path::new(&answer.left).exists()), (false, !is_near));
    assert_eq!(world.csi.call(request).expect("a repeated call"), answer);
    let vol = adopted(&world, Kind::Directory, &answer);
    vol.up();
    let target = vol.target("a");
    assert_eq!(read_at(&target.join("link"), 0, 5 << 20), pattern(9, 5 << 20));
    assert_eq!(target.metadata().expect("stat").uid(), 1000);
    vol.down();
    vol.remove();
    world.finish();
}

#[test]
fn a_directory_beside_the_volumes_is_renamed() {
    adopt_directory(true, "rename");
}

#[test]
fn a_directory_on_another_filesystem_is_copied() {
    adopt_directory(false, "copy");
}
