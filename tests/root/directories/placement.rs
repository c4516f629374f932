//! Directory volumes have no enforced size: they are only where nothing was promised that they could use up.

use std::path::Path;

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::{Code, Status};

use crate::client::parameters as map;
use crate::harness::kernel::{fill, pattern, read_at, write_at};
use crate::harness::process::{binary, command};
use crate::harness::volume::create_request;
use crate::harness::{Kind, MIB, Vol, World, clone_request, run, text};

const DIRECTORY: [(&str, &str); 1] = [("backend", "directory")];
const THICK: [(&str, &str); 1] = [("provisioning", "thick")];

/// NodePublishVolume of an inline volume, as kubelet calls it.
fn inline(world: &World, attributes: &[(&str, &str)]) -> Result<(), Status> {
    let mut volume_context = map(attributes);
    volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
    world.csi.publish(csi::NodePublishVolumeRequest {
        volume_id: "csi-1".to_owned(),
        target_path: text(&world.kubelet.join("pod")).to_owned(),
        volume_capability: Some(Kind::Ext4.capability(Mode::SingleNodeWriter)),
        volume_context,
        ..Default::default()
    })
}

fn unpublish_inline(world: &World) {
    world.csi.unpublish("csi-1", &world.kubelet.join("pod")).expect("NodeUnpublishVolume");
}

/// CreateVolume of a directory, which the driver refuses.
#[track_caller]
fn refused(world: &World, code: Code, parameters: &[(&str, &str)]) -> String {
    let parameters = [parameters, &[("enforcement", "none")]].concat();
    let error = world.csi.create(create_request(Kind::Directory, "refused", MIB, &parameters));
    let error = error.expect_err("a directory beside what was promised to others");
    assert_eq!(error.code(), code, "{error:?}");
    error.message().to_owned()
}

/// Refused with the name of the flag, and nothing is made.
#[track_caller]
fn inline_refused(world: &World, attributes: &[(&str, &str)], flag: &str) {
    let error = inline(world, attributes).expect_err("the administrator has not allowed it");
    assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
    assert!(error.message().contains(flag) && error.message().contains("administrator"), "{error:?}");
    assert_eq!(std::fs::read_dir(world.data.join("volumes")).expect("list").count(), 0);
    assert!(!world.kubelet.join("pod").exists());
}

/// What the issue saw: the author of a pod wrote 360 MiB through `size: 1Mi, backend: directory`.
#[test]
fn an_inline_volume_has_an_enforced_size() {
    let world = World::on("ext4", 512 * MIB, &[]);
    inline_refused(&world, &[("size", "1Mi"), ("backend", "directory")], "--inline-backends");
    inline_refused(&world, &[("size", "11Gi")], "--inline-max-size");
    world.finish();
}

#[test]
fn an_inline_volume_is_what_the_flags_allow() {
    let mut world = World::new(&["--inline-max-size", "64Mi"]);
    inline_refused(&world, &[("size", "65Mi")], "--inline-max-size");
    inline(&world, &[("size", "64Mi")]).expect("as large as it may be");
    unpublish_inline(&world);
    inline(&world, &[]).expect("the default size is no larger than that");
    // A smaller limit is for those to come.
    world.take_driver().stop();
    world.set_flags(&["--inline-max-size", "32Mi"]);
    world.start();
    inline(&world, &[("size", "64Mi")]).expect("it is there");
    unpublish_inline(&world);
    inline_refused(&world, &[("size", "64Mi")], "--inline-max-size");
    world.take_driver().stop();
    world.set_flags(&["--directories", "--inline-backends", "directory"]);
    world.start();
    inline(&world, &[("backend", "directory")]).expect("the administrator has allowed it");
    std::fs::write(world.kubelet.join("pod/file"), "data").expect("write");
    unpublish_inline(&world);
    inline_refused(&world, &[], "--inline-backends");
    world.finish();
}

#[test]
fn an_inline_volume_is_in_the_pools_for_it() {
    let mut world = World::empty(&[]);
    let [other, third] = ["other", "third"].map(|name| world.dir.join(name));
    std::fs::create_dir(&other).and_then(|()| std::fs::create_dir(&third)).expect("mkdir");
    let [other, third] = [("other", &other), ("third", &third)].map(|(n, p)| format!("{n}={}", text(p)));
    world.set_flags(&["--pool", &other, "--pool", &third]);
    world.start();
    let error = inline(&world, &[("size", "8Mi"), ("pool", "other")]).expect_err("not in this pool");
    assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
    assert!(error.message().contains("--inline-pools"), "{error:?}");
    world.take_driver().stop();
    world.set_flags(&["--pool", &other, "--pool", &third, "--inline-pools", "other,third"]);
    world.start();
    inline(&world, &[("size", "8Mi"), ("pool", "other")]).expect("in a pool of the flag");
    unpublish_inline(&world);
    let error = inline(&world, &[("size", "8Mi")]).expect_err("the default pool is none of them");
    assert!(error.message().contains("--inline-pools"), "{error:?}");
    world.finish();
}

/// What the issue saw: the directory took what was set aside for the thick volume.
#[test]
fn a_directory_is_not_made_beside_promises() {
    let world = World::on("ext4", 512 * MIB, &[]);
    let thick = Vol::create(&world, Kind::Block, "thick", 256 * MIB, &THICK);
    let message = refused(&world, Code::InvalidArgument, &[]);
    assert!(message.contains("directories=true") && message.contains("--directories"), "{message}");
    assert_eq!(world.csi.room(&DIRECTORY).expect("GetCapacity"), (0, 0));
    assert!(world.csi.room(&[]).expect("GetCapacity").0 > 0);
    thick.delete().expect("DeleteVolume");
    refused(&world, Code::InvalidArgument, &[]);
    world.finish();
}

/// A pool that is allocated to the last byte keeps its promises, whatever fills the disk around it.
#[test]
fn a_full_disk_takes_nothing_from_a_managed_pool() {
    let mut world = World::on("ext4", 1536 * MIB, &[]);
    world.take_driver().stop();
    let image = format!("loops={},kind=image,size=640Mi", text(&world.data.join("loops.img")));
    world.set_flags(&["--directories", "--pool", &image, "--inline-pools", "loops"]);
    world.start();
    let loops = [("pool", "loops")];
    assert_eq!(world.csi.room(&THICK).expect("GetCapacity"), (0, 0), "no loop volumes beside directories");
    let bytes = 448 * MIB;
    let thick = Vol::create(&world, Kind::Block, "thick", bytes, &[loops[0], THICK[0]]);
    let error = world.csi.create(create_request(Kind::Ext4, "beside", MIB, &[])).expect_err("a loop volume");
    assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
    assert!(error.message().contains("directory volumes"), "{error:?}");
    let directory = Vol::create(&world, Kind::Directory, "directory", MIB, &[]);
    thick.up();
    directory.up();
    let (filled, error) = fill(&directory.file("a"));
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(filled > 256 * MIB, "{filled} bytes through a volume of 1 MiB");
    // All of it, backwards and with gaps, and then the data as they were written.
    let (device, chunk) = (thick.target("a"), 4 * MIB);
    let backwards = |odd: u64| (0..bytes / chunk).rev().filter(move |n| n % 2 == odd);
    for n in backwards(0).chain(backwards(1)) {
        write_at(&device, n * chunk, &pattern(n, chunk as usize)).expect("the promise is kept");
    }
    for n in backwards(0).chain(backwards(1)) {
        assert_eq!(read_at(&device, n * chunk, chunk as usize), pattern(n, chunk as usize), "chunk {n}");
    }
    std::fs::remove_file(directory.file("a")).expect("unlink");
    directory.remove();
    thick.remove();
    world.take_driver().stop();
    run("umount", &[text(&world.data.join("pools/loops"))]);
    world.assert_nothing_left();
}

/// The other way round: directories that fill a filesystem of their own, and no more.
#[test]
fn directories_in_a_managed_pool_fill_that_only() {
    let mut world = World::on("ext4", 1024 * MIB, &[]);
    world.take_driver().stop();
    let pool = format!("scratch={},kind=image,size=320Mi,directories=true", text(&world.data.join("s.img")));
    world.set_flags(&["--pool", &pool]);
    world.start();
    let thick = Vol::create(&world, Kind::Block, "thick", 256 * MIB, &THICK);
    let directory = Vol::create(&world, Kind::Directory, "directory", MIB, &[("pool", "scratch")]);
    thick.up();
    directory.up();
    let (filled, error) = fill(&directory.file("a"));
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(filled < 320 * MIB, "{filled}");
    for n in 0..64 {
        write_at(&thick.target("a"), n * 4 * MIB, &pattern(n, 4 << 20)).expect("the promise is kept");
    }
    std::fs::remove_file(directory.file("a")).expect("unlink");
    directory.remove();
    thick.remove();
    world.take_driver().stop();
    run("umount", &[text(&world.data.join("pools/scratch"))]);
    world.assert_nothing_left();
}

/// Starts a process that has to refuse, and gives what it says.
#[track_caller]
fn refuses_to_start(world: &World) -> String {
    let ended = command(binary()).args(world.arguments()).output().expect("it starts");
    let said = String::from_utf8(ended.stderr).expect("text");
    assert_eq!(ended.status.code(), Some(1), "{said}");
    said.lines().last().unwrap_or_default().to_owned()
}

/// The filesystem counts, not the directory: on btrfs each subvolume has a device number of its own.
fn one_filesystem(fs_type: &str) {
    let mut world = World::on(fs_type, 512 * MIB, &[]);
    world.take_driver().stop();
    let other = world.data.parent().expect("the pool's filesystem").join("other");
    match fs_type {
        "btrfs" => run("btrfs", &["subvolume", "create", text(&other)]),
        _ => std::fs::create_dir(&other).expect("mkdir"),
    }
    let plain = format!("other={}", text(&other));
    let directories = format!("{plain},directories=true");
    for flags in [&["--pool", &*directories][..], &["--directories", "--pool", &plain][..]] {
        world.set_flags(flags);
        let said = refuses_to_start(&world);
        assert!(said.contains("the same filesystem") && said.contains("kind=image"), "{said}");
    }
    world.set_flags(&["--directories", "--pool", &directories]);
    world.start();
    let vol = Vol::create(&world, Kind::Directory, "v", MIB, &[("pool", "other")]);
    vol.up();
    vol.remove();
    world.finish();
}

#[test]
fn directories_and_promises_are_not_on_one_ext4() {
    one_filesystem("ext4");
}

#[test]
fn directories_and_promises_are_not_on_one_btrfs() {
    one_filesystem("btrfs");
}

fn warnings(log: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(log).expect("the log");
    log.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
}

/// Directories that were created with other flags keep working.
#[test]
fn directories_of_before_keep_working() {
    let mut world = World::on("ext4", 512 * MIB, &["--directories"]);
    let volume = Vol::create(&world, Kind::Directory, "old", MIB, &[]).info.clone();
    world.take_driver().stop();
    world.set_flags(&[]);
    world.start();
    let said = warnings(&world.dir.join("log")).join("\n");
    assert!(said.contains("directory volumes") && said.contains("--directories"), "{said}");
    let vol = Vol::of(&world, Kind::Directory, volume);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, 4096)).expect("write");
    refused(&world, Code::InvalidArgument, &[]);
    let clone = clone_request(Kind::Directory, "clone", MIB, vol.id(), &[("enforcement", "none")]);
    vol.down();
    let error = world.csi.create(clone).expect_err("a new one");
    assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
    let kept = world.csi.snapshot("kept", vol.id(), &[]).expect("a copy that cannot grow");
    let loops = Vol::create(&world, Kind::Ext4, "loop", 64 * MIB, &[]);
    loops.delete().expect("DeleteVolume");
    world.csi.delete_snapshot(&kept.snapshot_id).expect("DeleteSnapshot");
    vol.up();
    assert_eq!(read_at(&vol.file("a"), 0, 4096), pattern(1, 4096));
    vol.remove();
    world.finish();
}

/// And the loop volumes of a pool that is to become one of directories: as long as they are there, no directory is made.
#[test]
fn loop_volumes_of_before_keep_their_promises() {
    let mut world = World::on("ext4", 512 * MIB, &[]);
    let volume = Vol::create(&world, Kind::Ext4, "old", 64 * MIB, &THICK).info.clone();
    world.take_driver().stop();
    world.set_flags(&["--directories"]);
    world.start();
    let said = warnings(&world.dir.join("log")).join("\n");
    assert!(said.contains("loop volumes"), "{said}");
    let vol = Vol::of(&world, Kind::Ext4, volume);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, 4096)).expect("write");
    let message = refused(&world, Code::ResourceExhausted, &[]);
    assert!(message.contains("enforced size: 1"), "{message}");
    assert_eq!(world.csi.room(&DIRECTORY).expect("GetCapacity"), (0, 0));
    let error = world.csi.snapshot("s", vol.id(), &[]).expect_err("a snapshot is promised its space too");
    assert_eq!(error.code(), Code::FailedPrecondition, "{error:?}");
    vol.expand(128 * MIB).expect_err("more would be promised");
    assert_eq!(read_at(&vol.file("a"), 0, 4096), pattern(1, 4096));
    vol.remove();
    let (available, largest) = world.csi.room(&DIRECTORY).expect("GetCapacity");
    assert!(available > 0 && largest > 0);
    let directory = Vol::create(&world, Kind::Directory, "now", MIB, &[]);
    directory.delete().expect("DeleteVolume");
    world.finish();
}
