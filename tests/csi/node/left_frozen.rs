//! A freeze has no owner and outlives the last mount. The next pod can write all the same.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::life::*;
use crate::snapshots::create_snapshot::snapshot_and_meanwhile;
use crate::support::*;

const FILESYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

fn writes_again(rig: &Rig, vol: &Vol) {
    rig.stage(vol);
    rig.publish(vol, "pod");
    rig.write(vol, "written");
    rig.unpublish(vol, "pod");
    rig.unstage(vol);
    rig.ok(vol.delete_request());
}

#[test]
fn the_last_unmount_thaws() {
    let rig = Rig::new();
    for fs_type in FILESYSTEMS {
        let (vol, target) = rig.in_use(create(fs_type, fs(fs_type)));
        rig.kernel.freeze_foreign(&target).expect("fsfreeze");
        rig.unpublish(&vol, "pod");
        assert!(!rig.kernel.frozen().is_empty(), "the staged mount can still be thawed by hand");
        rig.unstage(&vol);
        assert!(rig.kernel.loops().is_empty(), "a frozen superblock would keep the device");
        writes_again(&rig, &vol);
    }
    rig.assert_clean();
}

#[test]
fn a_publish_left_frozen_beside_another_stays_so() {
    let rig = Rig::new();
    let vol = rig.made(create("v", mode(Mode::SingleNodeMultiWriter)));
    rig.stage(&vol);
    let targets = ["a", "b"].map(|pod| rig.publish(&vol, pod));
    rig.kernel.freeze_foreign(&targets[0]).expect("fsfreeze");
    rig.unpublish(&vol, "b");
    assert!(!rig.kernel.frozen().is_empty(), "a pod has it");
    rig.unpublish(&vol, "a");
    rig.unstage(&vol);
    writes_again(&rig, &vol);
}

#[test]
fn staging_thaws_what_others_unmounted_frozen() {
    let rig = Rig::new();
    for fs_type in FILESYSTEMS {
        let (vol, target) = rig.in_use(create(fs_type, fs(fs_type)));
        rig.kernel.freeze_foreign(&target).expect("fsfreeze");
        for path in [&target, &vol.staging()] {
            rig.kernel.unmount_foreign(path).expect("umount");
        }
        assert_eq!(rig.kernel.loops().len(), 1, "the frozen superblock keeps it");
        let message = rig.fails(Code::FailedPrecondition, vol.delete_request());
        assert!(message.contains("frozen when it was unmounted"), "{message}");
        let unhealthy =
            rig.ok(csi::ControllerGetVolumeHealthRequest { volume_id: vol.id.clone(), ..Default::default() });
        assert!(format!("{unhealthy:?}").contains("AttachedWithoutMount"), "{unhealthy:?}");
        writes_again(&rig, &vol);
    }
    rig.assert_clean();
}

#[test]
fn a_retry_thaws_what_a_killed_driver_mounted_frozen() {
    let mut rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    rig.kernel.freeze_foreign(&target).expect("fsfreeze");
    rig.unpublish(&vol, "pod");
    // As if the call had ended between its mount and its thaw.
    rig.restart();
    writes_again(&rig, &vol);
}

#[test]
fn the_last_unmount_of_an_inline_volume_thaws() {
    let rig = Rig::new();
    let pod = rig.volume("v", mount()).with_id(format!("csi-{}", "ab".repeat(32)));
    let request = csi::NodePublishVolumeRequest {
        staging_target_path: String::new(),
        volume_context: map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
        ..rig.publish_request(&pod, "pod")
    };
    rig.ok(request);
    rig.kernel.freeze_foreign(pod.target("pod")).expect("fsfreeze");
    rig.unpublish(&pod, "pod");
    assert!(rig.kernel.frozen().is_empty() && rig.kernel.loops().is_empty());
}

/// The container of a driver ended while one of two volumes was frozen for a snapshot; a backup has frozen the other one.
#[test]
fn a_start_thaws_what_its_driver_left_frozen() {
    let mut rig = Rig::new();
    let (_, theirs) = rig.in_use(create("theirs", mount()));
    let (vol, ours) = rig.in_use(create("ours", mount()));
    rig.write(&vol, "text");
    rig.kernel.freeze_foreign(&theirs).expect("fsfreeze");
    let frozen = |rig: &Rig| {
        let frozen = rig.kernel.frozen();
        [&ours, &theirs].map(|target| frozen.iter().any(|mount| mount.as_os_str() == target.as_str()))
    };
    snapshot_and_meanwhile(&rig, &vol, || rig.kernel.kill_container()).expect_err("it ends");
    assert_eq!(frozen(&rig), [true, true]);
    rig.start_again();
    assert_eq!(frozen(&rig), [false, true]);
    assert_eq!(rig.kernel.tree(format!("{DATA}/frozen")), [""; 0], "another start thaws nothing");
    rig.write(&vol, "more");
}
