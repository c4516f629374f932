//! Directories with files that are immutable or append-only (chattr(1)), or with subvolumes that are read-only.

use std::path::Path;

use hostloop::wire::csi;
use tonic::Code;

use crate::directories::qgroups::with_full_qgroups;
use crate::directories::quotas::{Disk, place, plain_disk, with_simple_quotas, world_on};
use crate::directories::removals::fill;
use crate::harness::process::{binary, command};
use crate::harness::{Kind, MIB, Vol, World, after_retries, entries, run, text};

const PLAIN: [(&str, &str); 2] = [("pool", "plain"), ("enforcement", "none")];

fn plain_world(disk: &Disk) -> World {
    let pool = place(disk, "plain");
    World::new(&["--pool", &format!("plain={},directories=true,reserve=0", text(&pool))])
}

fn chattr(word: &str, path: &Path) {
    run("chattr", &[word, text(path)]);
}

fn gone(pool: &Path) {
    let left = || entries(&pool.join("volumes")).len() + entries(&pool.join("snapshots")).len();
    after_retries("nothing is left", || left() == 0);
}

/// A volume that is not in use, with files, some of which are protected, and so are directories and its top.
fn protected<'a>(world: &'a World, parameters: &[(&str, &str)], files: usize) -> Vol<'a> {
    let vol = Vol::create(world, Kind::Directory, "v", 256 * MIB, parameters);
    vol.up();
    let top = vol.target("a");
    fill(&top, files);
    let (deep, other) = (top.join("deep/er"), top.join("other"));
    std::fs::create_dir_all(&deep).expect("mkdir");
    std::fs::create_dir(&other).expect("mkdir");
    for file in [&deep.join("immutable"), &deep.join("append-only"), &deep.join("free"), &other.join("free")]
    {
        std::fs::write(file, b"data").expect("write");
    }
    chattr("+i", &deep.join("immutable"));
    chattr("+a", &deep.join("append-only"));
    chattr("+a", &other);
    chattr("+i", &deep);
    chattr("+i", &top.join("deep"));
    chattr("+i", &top);
    vol.down();
    vol
}

fn whole_life(world: World, parameters: &[(&str, &str)], pool: &Path) {
    for files in [1, 600] {
        let vol = protected(&world, parameters, files);
        let cut = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot");
        vol.delete().expect("DeleteVolume");
        let mut request = crate::harness::volume::create_request(Kind::Directory, "r", 256 * MIB, parameters);
        request.volume_content_source = Some(csi::VolumeContentSource {
            r#type: Some(csi::volume_content_source::Type::Snapshot(
                csi::volume_content_source::SnapshotSource { snapshot_id: cut.snapshot_id.clone() },
            )),
        });
        let restored = Vol::of(&world, Kind::Directory, world.csi.create(request).expect("CreateVolume"));
        world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
        restored.up();
        let file = restored.target("a").join("deep/er/immutable");
        assert_eq!(std::fs::read(file).expect("read"), b"data");
        restored.down();
        restored.delete().expect("DeleteVolume");
        gone(pool);
    }
    assert_eq!(world.csi.storage_health().expect("health"), [""; 0]);
    world.finish();
}

#[test]
fn immutable_files_do_not_block_a_deletion() {
    for fs_type in ["ext4", "xfs", "btrfs"] {
        println!("{fs_type}");
        let disk = plain_disk(fs_type);
        whole_life(plain_world(&disk), &PLAIN, &disk.path.join("plain"));
    }
}

#[test]
fn immutable_files_in_a_subvolume_are_deleted() {
    let disk = with_full_qgroups();
    whole_life(world_on(&disk), &[("pool", "limited")], &disk.path.join("pool"));
    let Some(disk) = with_simple_quotas() else { return };
    whole_life(world_on(&disk), &[("pool", "limited")], &disk.path.join("pool"));
}

/// What a pod makes of its volume on btrfs keeps it from being removed in one step.
#[test]
fn read_only_subvolumes_do_not_block_a_deletion() {
    let disk = with_full_qgroups();
    let world = world_on(&disk);
    let vol = Vol::create(&world, Kind::Directory, "v", 256 * MIB, &[("pool", "limited")]);
    vol.up();
    let (nested, cut) = (vol.target("a").join("nested"), vol.target("a").join("cut"));
    run("btrfs", &["-q", "subvolume", "create", text(&nested)]);
    std::fs::create_dir(nested.join("in it")).expect("mkdir");
    std::fs::write(nested.join("in it/file"), b"data").expect("write");
    chattr("+i", &nested.join("in it/file"));
    run("btrfs", &["-q", "subvolume", "snapshot", "-r", text(&nested), text(&cut)]);
    run("btrfs", &["property", "set", "-f", text(&nested), "ro", "true"]);
    vol.down();
    vol.delete().expect("DeleteVolume");
    gone(&disk.path.join("pool"));
    assert_eq!(world.csi.storage_health().expect("health"), [""; 0]);
    world.finish();
}

/// A driver without CAP_LINUX_IMMUTABLE says which file it is, and health does.
#[test]
fn a_file_that_cannot_be_released_is_named() {
    let disk = plain_disk("ext4");
    let pool = place(&disk, "plain");
    let mut world = World::empty(&["--pool", &format!("plain={},directories=true,reserve=0", text(&pool))]);
    let mut weak = command("setpriv");
    weak.args(["--bounding-set", "-linux_immutable", binary()]).args(world.arguments());
    world.start_as(&mut weak);
    let volume = {
        let vol = protected(&world, &PLAIN, 1);
        chattr("-i", &pool.join("volumes").join(vol.id()).join("data"));
        let error = vol.delete().expect_err("it cannot be removed");
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("/data/"), "it names a file: {}", error.message());
        assert!(error.message().contains("EPERM"), "{}", error.message());
        vol.info.clone()
    };
    let told = world.csi.storage_troubles().expect("health");
    let [(reason, message)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(reason, "RemovalFailing");
    assert!(message.contains(&volume.volume_id), "{message}");
    world.take_driver().stop();
    world.start();
    Vol::of(&world, Kind::Directory, volume).delete().expect("DeleteVolume");
    gone(&pool);
    world.finish();
}

/// Only an administrator can make an image or the directory of a volume immutable, and means it.
#[test]
fn a_volume_that_an_administrator_protects_stays() {
    let disk = plain_disk("ext4");
    let pool = place(&disk, "plain");
    let world = World::new(&["--pool", &format!("plain={},directories=true,reserve=0", text(&pool))]);
    for (kind, parameters, inside) in
        [(Kind::Ext4, &[][..], "disk.img"), (Kind::Block, &[], "disk.img"), (Kind::Directory, &PLAIN, "")]
    {
        let vol = Vol::create(&world, kind, "v", 64 * MIB, parameters);
        let volumes = if kind == Kind::Directory { pool.join("volumes") } else { world.data.join("volumes") };
        let path = volumes.join(vol.id()).join(inside);
        let before = std::fs::metadata(&path).expect("stat").len();
        chattr("+i", &path);
        let error = vol.delete().expect_err("it cannot be removed");
        assert_eq!(error.code(), Code::Internal, "{kind:?}");
        assert!(error.message().contains(text(&volumes.join(vol.id()).join(inside))), "{}", error.message());
        assert_eq!(std::fs::metadata(&path).expect("stat").len(), before, "{kind:?}");
        assert_eq!(world.csi.storage_health().expect("health"), ["RemovalFailing"], "{kind:?}");
        chattr("-i", &path);
        vol.delete().expect("DeleteVolume");
        assert_eq!(world.csi.storage_health().expect("health"), [""; 0], "{kind:?}");
    }
    world.finish();
}
