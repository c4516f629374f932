//! Binds on kernels before Linux 5.12 and 5.2, which get their flags in a second step: made by telling the driver that the
//! newer calls are not there. A driver that is killed between the steps is the real one, at exactly that call.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use nix::sys::signal::Signal;
use tonic::Code;

use crate::harness::calls::Calls;
use crate::harness::process::{binary, command};
use crate::harness::{Kind, Vol, World, kernel, run, text};

/// What a kernel between 5.2 and 5.11 does not have, and what one before has not either.
pub const NEWER: [&[i64]; 2] =
    [&[libc::SYS_mount_setattr], &[libc::SYS_mount_setattr, libc::SYS_open_tree, libc::SYS_move_mount]];

fn start(world: &mut World, calls: &[Calls]) {
    Calls::hold(calls, || world.start_as(command(binary()).args(world.arguments())));
}

fn options(path: &Path) -> Vec<String> {
    let mounts = kernel::mounts(path);
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    mounts[0].options.split(',').map(str::to_owned).collect()
}

#[track_caller]
fn is_read_only(path: &Path) {
    let options = options(path);
    assert!(options[0] == "ro", "{options:?}");
    assert!(std::fs::File::create(path.join("other")).is_err(), "it is writable");
}

/// The second step is made, and it keeps what the staged mount has.
#[test]
fn a_publish_has_its_flags_all_the_same() {
    for missing in NEWER {
        let mut world = World::empty(&[]);
        start(&mut world, &[Calls::missing(missing)]);
        for kind in [Kind::Ext4, Kind::Xfs] {
            let vol = Vol::create(&world, kind, &format!("old {kind:?}"), kind.size(), &[]);
            let vol = vol.with_flags(&["noexec", "noatime"]);
            vol.stage().expect("NodeStageVolume");
            vol.publish_as("a", true).expect("NodePublishVolume");
            vol.publish("b").expect("NodePublishVolume");
            is_read_only(&vol.target("a"));
            for pod in ["a", "b"] {
                let options = options(&vol.target(pod));
                assert!(["noexec", "noatime"].iter().all(|f| options.iter().any(|o| o == f)), "{options:?}");
            }
            std::fs::write(vol.file("b"), "written").expect("write");
            vol.publish_as("a", true).expect("the same again");
            assert_eq!(vol.publish_as("b", true).expect_err("it was answered").code(), Code::AlreadyExists);
            vol.unpublish("b").expect("NodeUnpublishVolume");
            vol.remove();
        }
        world.finish();
    }
}

/// The driver dies between the bind and its flags. The retry makes it what was asked for, on the same kernel and on a newer
/// one. What somebody else has mounted where a volume was to go is left as it is.
#[test]
fn a_kill_before_the_flags_is_put_right_by_the_retry() {
    for (missing, repaired_by) in [(NEWER[0], NEWER[0]), (NEWER[1], NEWER[1]), (NEWER[1], &[])] {
        let mut world = World::empty(&[]);
        start(&mut world, &[Calls::missing(missing), Calls::deadly_remount()]);
        let vol = Vol::create(&world, Kind::Ext4, "half", Kind::Ext4.size(), &[]);
        vol.stage().expect("NodeStageVolume");
        // Binds without flags take one step.
        vol.publish("w").expect("NodePublishVolume");
        vol.publish_as("a", true).expect_err("the driver dies");
        let volume = vol.info.clone();
        drop(vol);
        let ended = world.take_driver().wait();
        assert_eq!(ended.signal(), Some(Signal::SIGSYS as i32), "{ended}");

        let strange = world.directory("strange");
        run("mount", &["-t", "tmpfs", "tmpfs", text(&strange)]);
        start(&mut world, &if repaired_by.is_empty() { vec![] } else { vec![Calls::missing(repaired_by)] });
        let vol = Vol::of(&world, Kind::Ext4, volume);
        let (target, other) = (vol.target("a"), vol.target("b"));
        let left = options(&target);
        assert!(left[0] == "rw", "the kill left it as the bind made it: {left:?}");
        std::fs::create_dir(&other).expect("mkdir");
        run("mount", &["--bind", text(&strange), text(&other)]);
        let before = options(&other);

        assert_eq!(vol.publish_as("b", true).expect_err("another's mount").code(), Code::FailedPrecondition);
        assert_eq!(options(&other), before, "the mount of somebody else");
        vol.publish_as("a", true).expect("the retry");
        is_read_only(&target);
        assert_eq!(options(&vol.target("w"))[0], "rw", "the other target");
        assert_eq!(options(&vol.staging())[0], "rw", "the staging path");
        std::fs::write(vol.target("w").join("file"), "written").expect("write");
        std::fs::write(strange.join("file"), "written").expect("write");
        assert_eq!(vol.unpublish("b").expect_err("another's mount").code(), Code::FailedPrecondition);
        assert_eq!(options(&other), before, "the mount of somebody else");

        run("umount", &[text(&other)]);
        run("umount", &[text(&strange)]);
        std::fs::remove_dir(&other).expect("rmdir");
        vol.unpublish("w").expect("NodeUnpublishVolume");
        vol.remove();
        world.finish();
    }
}
