//! Unpublishing and deleting take away what is the volume's, and never anything else.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use hostloop::wire::csi;
use tonic::Code;

use crate::harness::{Kind, MIB, Vol, World, kernel, run, text};

fn code(result: Result<(), tonic::Status>) -> Code {
    result.map_or_else(|e| e.code(), |()| Code::Ok)
}

/// A directory with a file, bound somewhere by an administrator.
fn foreign(world: &World) -> std::path::PathBuf {
    let directory = world.directory("foreign");
    std::fs::write(directory.join("precious"), "precious").expect("write");
    directory
}

fn precious(directory: &Path) {
    assert_eq!(std::fs::read_to_string(directory.join("precious")).expect("still there"), "precious");
}

#[test]
fn a_foreign_mount_on_a_target_stays() {
    let mut world = World::new(&[]);
    let foreign = foreign(&world);
    for kind in [Kind::Ext4, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), 64 * MIB, &[]);
        vol.up();
        std::fs::write(vol.file("a"), "data").expect("write");
        run("mount", &["--bind", text(&foreign), text(&vol.target("a"))]);
        assert_eq!(code(vol.unpublish("a")), Code::FailedPrecondition);
        assert_eq!(kernel::mounts(&vol.target("a")).len(), 2, "nothing was unmounted");
        precious(&vol.target("a"));
        run("umount", &[text(&vol.target("a"))]);
        assert_eq!(std::fs::read(vol.file("a")).expect("read"), b"data");
        vol.remove();
    }
    precious(&foreign);
    world.finish();
}

#[test]
fn a_foreign_mount_inside_a_published_volume_stays() {
    let mut world = World::new(&[]);
    let foreign = foreign(&world);
    for kind in [Kind::Ext4, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), 64 * MIB, &[]);
        vol.up();
        let inside = vol.target("a").join("inside");
        std::fs::create_dir(&inside).expect("mkdir");
        run("mount", &["--bind", text(&foreign), text(&inside)]);
        assert_eq!(code(vol.unpublish("a")), Code::FailedPrecondition);
        precious(&inside);
        assert_eq!(code(vol.delete()), Code::FailedPrecondition);
        run("umount", &[text(&inside)]);
        vol.remove();
    }
    precious(&foreign);
    world.finish();
}

/// As a container engine in a pod leaves it.
#[test]
fn mounts_inside_of_a_volume_are_named() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        vol.up();
        let names = |result: Result<(), tonic::Status>, inner: &[&Path]| {
            let refused = result.expect_err("something is mounted inside");
            assert_eq!(refused.code(), Code::FailedPrecondition, "{kind:?} {refused}");
            let missing = inner.iter().find(|inner| !refused.message().contains(text(inner)));
            assert_eq!(missing, None, "{kind:?} {refused}");
        };
        let mount_in = |place: &Path| {
            let [outer, inner] = ["outer", "outer/inner"].map(|name| place.join(name));
            for point in [&outer, &inner] {
                std::fs::create_dir_all(point).expect("mkdir");
                run("mount", &["-t", "tmpfs", "tmpfs", text(point)]);
            }
            [outer, inner]
        };
        let [outer, inner] = mount_in(&vol.target("a"));
        names(vol.unpublish("a"), &[&outer, &inner]);
        // Where mounts are shared, the staged one has them too, and loses them as well.
        run("umount", &[text(&inner)]);
        names(vol.unpublish("a"), &[&outer]);
        run("umount", &[text(&outer)]);
        vol.unpublish("a").expect("NodeUnpublishVolume");
        let [outer, inner] = mount_in(&vol.staging());
        names(vol.unstage(), &[&outer, &inner]);
        names(vol.delete(), &[&vol.staging()]);
        run("umount", &[text(&inner)]);
        run("umount", &[text(&outer)]);
        vol.unstage().expect("NodeUnstageVolume");
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}

#[test]
fn files_in_a_bare_target_stay() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Directory, Kind::Block] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), 64 * MIB, &[]);
        vol.stage().expect("NodeStageVolume");
        let target = vol.target("a");
        std::fs::create_dir(&target).expect("mkdir");
        std::fs::write(target.join("precious"), "precious").expect("write");
        assert_eq!(code(vol.unpublish("a")), Code::FailedPrecondition);
        precious(&target);
        std::fs::remove_file(target.join("precious")).expect("unlink");
        vol.unpublish("a").expect("an empty one is taken away");
        assert!(!target.exists());
        // A file with something in it is nobody's publish.
        std::fs::write(&target, "precious").expect("write");
        assert_eq!(code(vol.unpublish("a")), Code::FailedPrecondition);
        assert_eq!(std::fs::read_to_string(&target).expect("read"), "precious");
        std::fs::remove_file(&target).expect("unlink");
        vol.unpublish("a").expect("there is nothing");
        vol.unstage().expect("NodeUnstageVolume");
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}

/// They would be hidden, and be in the way of unpublishing.
#[test]
fn a_volume_is_not_mounted_over_files() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), 64 * MIB, &[]);
        std::fs::write(vol.staging().join("precious"), "precious").expect("write");
        assert_eq!(code(vol.stage()), Code::FailedPrecondition);
        precious(&vol.staging());
        std::fs::remove_file(vol.staging().join("precious")).expect("unlink");
        vol.stage().expect("NodeStageVolume");
        let target = vol.target("a");
        std::fs::create_dir(&target).expect("mkdir");
        std::fs::write(target.join("precious"), "precious").expect("write");
        assert_eq!(code(vol.publish("a")), Code::FailedPrecondition);
        precious(&target);
        std::fs::remove_file(target.join("precious")).expect("unlink");
        vol.publish("a").expect("an empty directory will do");
        vol.remove();
    }
    world.finish();
}

#[test]
fn a_directory_with_a_mount_inside_is_not_deleted() {
    let world = World::for_kind(Kind::Directory, &[]);
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &[]);
    let inside = world.volume_directory(vol.id()).join("data/deep/inside");
    std::fs::create_dir_all(&inside).expect("mkdir");
    std::fs::write(inside.parent().expect("a parent").join("own"), "own").expect("write");
    run("mount", &["-t", "tmpfs", "tmpfs", text(&inside)]);
    std::fs::write(inside.join("precious"), "precious").expect("write");
    for _ in 0..2 {
        assert_eq!(code(vol.delete()), Code::FailedPrecondition);
        precious(&inside);
    }
    assert_eq!(world.csi.list(0, "").expect("ListVolumes").entries.len(), 1, "it is still a volume");
    assert!(inside.parent().expect("a parent").join("own").exists(), "nothing was removed");
    run("umount", &[text(&inside)]);
    vol.delete().expect("DeleteVolume");
    world.finish();
}

/// Links that a pod could have made do not lead the driver out of the volume.
#[test]
fn deleting_follows_no_link() {
    let world = World::for_kind(Kind::Directory, &[]);
    let foreign = foreign(&world);
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &[]);
    vol.up();
    std::os::unix::fs::symlink(&foreign, vol.target("a").join("link")).expect("symlink");
    std::os::unix::fs::symlink("/", vol.target("a").join("root")).expect("symlink");
    vol.remove();
    precious(&foreign);
    world.finish();
}

/// A target that was exchanged for a link is not followed either.
#[test]
fn targets_outside_of_kubelets_directory_are_refused() {
    let world = World::new(&[]);
    let outside = world.dir.join("outside");
    std::fs::create_dir(&outside).expect("mkdir");
    let vol = Vol::create(&world, Kind::Ext4, "v", 64 * MIB, &[]);
    vol.stage().expect("NodeStageVolume");
    std::os::unix::fs::symlink(&outside, vol.target("a")).expect("symlink");
    let refused = code(vol.publish("a"));
    assert!(matches!(refused, Code::InvalidArgument | Code::FailedPrecondition), "{refused:?}");
    assert!(kernel::mounts(&outside).is_empty());
    std::fs::remove_file(vol.target("a")).expect("unlink");
    vol.unstage().expect("NodeUnstageVolume");
    vol.delete().expect("DeleteVolume");
    world.finish();
}

#[test]
fn a_mount_inside_of_a_snapshot_is_named() {
    let world = World::for_kind(Kind::Directory, &[]);
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &[]);
    let cut = world.csi.snapshot("cut", vol.id(), &[]).expect("CreateSnapshot");
    let inside = world.data.join("snapshots").join(&cut.snapshot_id).join("data/inside");
    std::fs::create_dir(&inside).expect("mkdir");
    run("mount", &["-t", "tmpfs", "tmpfs", text(&inside)]);
    let refused = world.csi.delete_snapshot(&cut.snapshot_id).expect_err("something is mounted inside");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains(text(&inside)), "{refused}");
    run("umount", &[text(&inside)]);
    world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
    vol.delete().expect("DeleteVolume");
    world.finish();
}

/// NodeGetVolumeStats and the checks of health open a mount for a moment, and take no lock.
#[test]
fn a_look_at_the_volume_only_delays_unpublishing() {
    let mut world = World::new(&[]);
    for kind in Kind::ALL {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), 512 * MIB, &[]);
        vol.up();
        let look = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(vol.target("a"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                drop(look.expect("open"));
            });
            vol.unpublish("a").unwrap_or_else(|refused| panic!("{kind:?}: {refused}"));
        });
        vol.publish("a").expect("NodePublishVolume");
        vol.remove();
    }
    world.finish();
}

/// As the pod of a move that was cancelled.
#[test]
fn a_pod_of_an_unknown_volume_can_leave() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    vol.up();
    let never = "vol-0123456789ab-00000000-0000-5000-8000-000000000000";
    let target = world.directory("never").join("mount");
    std::fs::create_dir(&target).expect("mkdir");
    let unstage = |path: &Path| csi::NodeUnstageVolumeRequest {
        volume_id: never.to_owned(),
        staging_target_path: text(path).to_owned(),
    };
    for _ in 0..2 {
        world.csi.unpublish(never, &target).expect("unpublished");
        world.csi.call(unstage(&target)).expect("unstaged");
        assert!(!target.exists());
    }
    // What is mounted is not of this volume.
    let refused =
        [world.csi.unpublish(never, &vol.target("a")), world.csi.call(unstage(&vol.staging)).map(drop)];
    for refused in refused {
        assert_eq!(code(refused), Code::FailedPrecondition);
    }
    std::fs::write(vol.file("a"), "data").expect("it is still mounted");
    vol.remove();
    world.finish();
}
