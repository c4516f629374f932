//! Binds that are at the target already: of this process, of one before, and of one that was killed.

use hostloop_fake_kernel::Kill;
use nix::errno::Errno;

use super::*;

/// Pods cannot write to what is staged for reading: a repeat asks for what is there.
#[test]
fn a_repeat_is_fine_where_the_staging_is_read_only() {
    let rig = Rig::new();
    for vol in mountable(&rig) {
        rig.stage(&vol.used(mount_with("", &["ro"], Mode::SingleNodeWriter)));
        for _ in 0..2 {
            let target = rig.publish(&vol, "pod");
            rig.kernel.write_file(format!("{target}/file"), b"x").expect_err("read-only");
        }
    }
}

/// A filesystem that the kernel has made read-only after an error is so for everybody.
#[test]
fn a_repeat_on_a_read_only_filesystem_is_ok() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    rig.kernel.set_superblock_read_only(vol.staging(), true);
    rig.publish(&vol, "pod-1");
    assert_eq!(rig.mounts_at(&target), 1);
}

/// A machine before Linux 5.12 whose driver was killed between a bind and its flags, and a new driver.
fn without_flags() -> (Rig, Vol) {
    let mut rig = Rig::new();
    rig.kernel.set_binds_in_two_steps(true);
    let vol = rig.volume("v", mount());
    rig.stage(&vol);
    let request = read_only(rig.publish_request(&vol, "pod"));
    rig.kernel.clear_steps();
    rig.ok(request.clone());
    let steps = rig.kernel.steps();
    let step = steps.iter().find(|step| step.name == "remount").expect("a second step").number;
    rig.unpublish(&vol, "pod");
    rig.kernel.kill_at(step, Kill::Before);
    rig.call(request).expect_err("killed");
    rig.restart();
    (rig, vol)
}

#[test]
fn a_bind_without_its_flags_gets_them() {
    let (rig, vol) = without_flags();
    let file = format!("{}/file", vol.target("pod"));
    rig.kernel.write_file(&file, b"x").expect("it lacks them");
    let request = read_only(rig.publish_request(&vol, "pod"));
    rig.kernel.fail_every("tighten", Errno::EIO);
    let message = rig.fails(Code::Internal, request.clone());
    assert!(message.contains("give the bind"), "{message}");
    rig.kernel.heal();
    rig.ok(request);
    rig.kernel.write_file(&file, b"x").expect_err("read-only");
    assert_eq!(rig.mounts_at(&vol.target("pod")), 1);
}

#[test]
fn a_bind_with_a_writer_keeps_its_flags() {
    let (rig, vol) = without_flags();
    let request = read_only(rig.publish_request(&vol, "pod"));
    rig.kernel.fail_every("tighten", Errno::EBUSY);
    rig.fails(Code::AlreadyExists, request);
}

/// What was answered and taken away again says nothing of the next bind there.
#[test]
fn a_bind_of_a_failed_publish_gets_its_flags() {
    let rig = Rig::new();
    rig.kernel.set_binds_in_two_steps(true);
    let vol = rig.volume("v", mount());
    rig.stage(&vol);
    let request = read_only(rig.publish_request(&vol, "pod"));
    rig.ok(request.clone());
    rig.unpublish(&vol, "pod");
    for step in ["remount", "unmount", "detach_mount"] {
        rig.kernel.fail_every(step, Errno::EIO);
    }
    rig.fails(Code::Internal, request.clone());
    rig.kernel.heal();
    assert_eq!(rig.mounts_at(&vol.target("pod")), 1, "it is left");
    rig.ok(request);
    rig.kernel.write_file(format!("{}/file", vol.target("pod")), b"x").expect_err("read-only");
}

/// Nothing that a caller was told of gets laxer, also where another process told it.
#[test]
fn a_bind_of_an_earlier_process_gets_only_stricter() {
    let mut rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.stage(&vol);
    rig.ok(read_only(rig.publish_request(&vol, "pod")));
    rig.restart();
    rig.fails(Code::AlreadyExists, rig.publish_request(&vol, "pod"));
    let strict = vol.used(mount_with("", &["noexec"], Mode::SingleNodeWriter));
    rig.ok(read_only(rig.publish_request(&strict, "pod")));
    let target = vol.target("pod");
    let mount = rig.kernel.mounts().into_iter().find(|mount| mount.target.as_os_str() == target.as_str());
    let mount = mount.expect("a mount");
    assert!(mount.read_only && mount.flags.contains(&hostloop::model::VfsFlag::NoExec), "{mount:?}");
    // This process has told of it now.
    rig.fails(Code::AlreadyExists, read_only(rig.publish_request(&vol.used(nodev()), "pod")));
}

fn nodev() -> csi::VolumeCapability {
    mount_with("", &["nodev"], Mode::SingleNodeWriter)
}
