//! Inline volumes whose pod is gone: no caller deletes them.

use std::time::Duration;

use hostloop::driver::Driver;
use hostloop::model::Volume;
use hostloop::wire::csi;
use hostloop_fake_kernel::Kill;

use crate::harness::DIRECTORIES_DIR;
use crate::life::*;
use crate::node::inline::{DIRECTORIES, ID, KINDS, inline, target};
use crate::support::*;
use crate::walk::part::ways;

/// The directory of the pod that has the volume.
const POD: &str = "/var/lib/kubelet/pods/uid";
const PODS: &str = "/var/lib/kubelet/pods";

/// A machine on which another pod runs, with an inline volume.
fn published((backend, pool): (&str, &str)) -> Rig {
    let flags = [&DIRECTORIES[..], &["--kubelet-dir", KUBELET]].concat();
    let rig = Rig::with(&flags);
    rig.kernel.create_directories(format!("{PODS}/other"));
    rig.ok(inline(&rig, ID, &[("size", "64Mi"), ("backend", backend), ("pool", pool)]));
    rig.kernel.write_file(format!("{}/file", target(ID)), b"data").expect("write");
    rig
}

fn remove(rig: &Rig, path: &str) {
    rig.kernel.spawn().trees.remove(path.as_ref()).expect("remove");
}

/// The same after a power cut, and without its pod.
fn orphaned(kind: (&str, &str)) -> (Rig, Driver) {
    let mut rig = published(kind);
    drop(rig.driver_after_power_cut());
    remove(&rig, POD);
    let driver = rig.driver_on(rig.kernel.restart());
    (rig, driver)
}

fn look(driver: &Driver) {
    driver.delete_orphaned_inline_volumes(Duration::ZERO);
}

fn reasons(driver: &Driver) -> Vec<(String, String)> {
    let troubles = driver.node_get_storage_health().expect("health");
    troubles.into_iter().map(|trouble| (trouble.reason.to_owned(), trouble.message)).collect()
}

fn count(driver: &Driver) -> usize {
    driver.figures().orphans.iter().map(|orphans| orphans.inline).sum()
}

fn left(rig: &Rig) -> Vec<String> {
    [DATA, DIRECTORIES_DIR].iter().flat_map(|pool| rig.kernel.tree(format!("{pool}/volumes"))).collect()
}

#[test]
fn a_lost_pods_volume_goes_at_the_second_look() {
    for kind in KINDS {
        let (mut rig, driver) = orphaned(kind);
        assert_eq!((reasons(&driver), count(&driver)), (vec![], 0));
        look(&driver);
        assert!(!left(&rig).is_empty(), "one look is not enough");
        let [(reason, message)] = &reasons(&driver)[..] else { panic!("{:?}", reasons(&driver)) };
        assert_eq!((reason.as_str(), count(&driver)), ("InlineVolumeOrphaned", 1));
        assert!(message.contains("pod uid") && message.contains("64 Mi"), "{message}");
        driver.delete_orphaned_inline_volumes(Duration::from_secs(300));
        assert!(!left(&rig).is_empty(), "it is not time yet");
        look(&driver);
        assert_eq!(left(&rig), [""; 0], "{kind:?}");
        assert_eq!((reasons(&driver), count(&driver)), (vec![], 0));
        drop(driver);
        rig.start_again();
        let empty = Rig::with(&DIRECTORIES);
        let room = |rig: &Rig| rig.ok(capacity(&[("backend", kind.0), ("pool", kind.1)])).available_capacity;
        let (room, all) = (room(&rig), room(&empty));
        assert!(room >= all - MIB, "its space is free: {room} of {all}");
        rig.ok(csi::NodeUnpublishVolumeRequest { volume_id: ID.to_owned(), target_path: target(ID) });
        rig.assert_clean();
    }
}

/// If kubelet's directory may be hidden, nothing is deleted, and the log says so.
#[test]
fn a_kubelet_directory_in_doubt_deletes_nothing() {
    type Change = fn(&Rig);
    let cases: [(&str, Change); 4] = [
        ("no other pod", |rig| remove(rig, &format!("{PODS}/other"))),
        ("no directory of pods", |rig| remove(rig, PODS)),
        ("a file instead", |rig| {
            remove(rig, PODS);
            rig.kernel.write_file(PODS, b"").expect("write");
        }),
        ("a link instead", |rig| {
            remove(rig, PODS);
            rig.kernel.create_directories("/var/lib/elsewhere/other");
            rig.kernel.symlink("/var/lib/elsewhere", PODS);
        }),
    ];
    for (what, change) in cases {
        let (rig, driver) = orphaned(KINDS[0]);
        change(&rig);
        (0..4).for_each(|_| look(&driver));
        assert!(!left(&rig).is_empty(), "{what}");
        let [(reason, message)] = &reasons(&driver)[..] else { panic!("{what}: {:?}", reasons(&driver)) };
        assert_eq!((reason.as_str(), count(&driver)), ("InlineVolumeOrphaned", 1), "{what}");
        assert!(message.contains("not deleted") && message.contains(PODS), "{what}: {message}");
    }
}

/// At a path that is not text, of another orchestrator, or of a driver that does not know kubelet's directory.
#[test]
fn a_volume_without_a_known_pod_stays_and_is_told() {
    for case in 0..3 {
        let (mut rig, driver) = orphaned(KINDS[0]);
        let [volume] = &driver.store().volumes()[..] else { panic!("one volume") };
        let inline_target = match case {
            0 => None,
            1 => Some("/var/lib/kubelet/pods/uid/mount".to_owned()),
            _ => volume.inline_target.clone(),
        };
        driver.store().put(Volume { inline_target, ..(**volume).clone() }).expect("put");
        drop(driver);
        if case == 2 {
            rig = rig.restart_with(&DIRECTORIES);
        }
        rig.kernel.kill();
        let driver = rig.driver_on(rig.kernel.restart());
        look(&driver);
        assert_eq!(count(&driver), 0, "it may be about to be used");
        (0..3).for_each(|_| look(&driver));
        assert!(!left(&rig).is_empty());
        assert!(reasons(&driver)[0].1.contains("not deleted"), "{:?}", reasons(&driver));
        assert_eq!(count(&driver), 1);
    }
}

/// An earlier call, to another path, may have failed after it was recorded.
#[test]
fn a_publish_records_its_target() {
    let (mut rig, driver) = orphaned(KINDS[0]);
    let [volume] = &driver.store().volumes()[..] else { panic!("one volume") };
    let other = Some(target(ID).replace("/uid/", "/gone/"));
    driver.store().put(Volume { inline_target: other, ..(**volume).clone() }).expect("put");
    drop(driver);
    rig.start_again();
    rig.ok(inline(&rig, ID, &[("size", "64Mi")]));
    let driver = rig.driver_after_power_cut();
    assert_eq!(driver.store().volumes()[0].inline_target, Some(target(ID)));
    remove(&rig, POD);
    (0..2).for_each(|_| look(&driver));
    assert_eq!(left(&rig), [""; 0]);
}

#[test]
fn a_volume_in_use_is_no_orphan() {
    for kind in KINDS {
        let mut rig = published(kind);
        rig.kernel.kill();
        let driver = rig.driver_on(rig.kernel.restart());
        let [volume] = &driver.store().volumes()[..] else { panic!("one volume") };
        // Its mount keeps the directory of the pod, so that another path stands for one that is gone.
        let gone = target(ID).replace("/uid/", "/gone/");
        driver.store().put(Volume { inline_target: Some(gone), ..(**volume).clone() }).expect("put");
        (0..3).for_each(|_| look(&driver));
        assert_eq!(rig.kernel.read_file(format!("{}/file", target(ID))).expect("read"), b"data");
        assert_eq!((reasons(&driver), count(&driver)), (vec![], 0), "{kind:?}");
        rig.kernel.unmount_foreign(target(ID)).expect("unmount");
        (0..2).for_each(|_| look(&driver));
        assert_eq!(left(&rig), [""; 0], "{kind:?}");
        rig.start_again();
    }
}

/// Each look must see the same.
#[test]
fn a_pod_that_came_back_begins_the_time_again() {
    let (rig, driver) = orphaned(KINDS[0]);
    look(&driver);
    rig.kernel.create_directories(POD);
    look(&driver);
    assert_eq!((reasons(&driver), count(&driver)), (vec![], 0));
    remove(&rig, POD);
    look(&driver);
    let elsewhere = "/var/lib/kubelet/other-pods";
    rig.kernel.create_directories(format!("{elsewhere}/another"));
    let os = rig.kernel.spawn();
    os.files.rename(PODS.as_ref(), "/var/lib/kubelet/before".as_ref()).expect("rename");
    os.files.rename(elsewhere.as_ref(), PODS.as_ref()).expect("rename");
    look(&driver);
    assert!(!left(&rig).is_empty(), "it is another directory");
    look(&driver);
    assert_eq!(left(&rig), [""; 0]);
}

/// kubelet may not know the volume although it has the directory of the pod.
#[test]
fn an_unused_volume_of_a_pod_stays_and_is_told() {
    let mut rig = published(KINDS[0]);
    let driver = rig.driver_after_power_cut();
    look(&driver);
    assert_eq!((reasons(&driver), count(&driver)), (vec![], 0), "it may be about to be published");
    (0..3).for_each(|_| look(&driver));
    assert!(!left(&rig).is_empty());
    assert!(reasons(&driver)[0].1.contains("pods/uid is there"), "{:?}", reasons(&driver));
    drop(driver);
    rig.start_again();
    rig.ok(inline(&rig, ID, &[("size", "64Mi")]));
    let driver = rig.driver_on(rig.kernel.restart());
    (0..3).for_each(|_| look(&driver));
    assert_eq!((reasons(&driver), count(&driver)), (vec![], 0));
}

/// What cannot be deleted is tried again.
#[test]
fn an_orphan_that_cannot_be_deleted_is_tried_again() {
    for (kind, step) in KINDS.into_iter().zip(["remove_file", "remove_tree"]) {
        let (rig, driver) = orphaned(kind);
        look(&driver);
        rig.kernel.fail_every(step, nix::errno::Errno::EIO);
        look(&driver);
        let found: Vec<String> = reasons(&driver).into_iter().map(|(reason, _)| reason).collect();
        assert_eq!(found, ["RemovalFailing", "InlineVolumeOrphaned"], "{kind:?}");
        assert_eq!(count(&driver), 1);
        rig.kernel.heal();
        (0..2).for_each(|_| look(&driver));
        assert_eq!(left(&rig), [""; 0], "{kind:?}");
        assert_eq!((reasons(&driver), count(&driver)), (vec![], 0));
    }
}

/// A driver that is killed at any step, or whose machine loses its power there: the next one goes on.
#[test]
fn whatever_ends_the_deletion_the_next_driver_goes_on() {
    for (at, kind) in KINDS.into_iter().enumerate() {
        for power in [false, true] {
            for kill in ways(at + usize::from(power), &[Kill::Before, Kill::Torn, Kill::After]) {
                let steps = (1..).take_while(|n| ends_at(kind, power, kill, *n)).count();
                assert!((4..40).contains(&steps), "{kind:?} has {steps} steps");
            }
        }
    }
}

/// Whether there was such a step.
fn ends_at(kind: (&str, &str), power: bool, kill: Kill, n: usize) -> bool {
    let what = format!("{kind:?}, power {power}, {kill:?} at {n}");
    let (mut rig, driver) = orphaned(kind);
    rig.kernel.sync(PODS).expect("sync");
    look(&driver);
    rig.kernel.kill_at(n, kill);
    look(&driver);
    let ended = rig.kernel.is_dead();
    drop(driver);
    rig.kernel.kill();
    let driver = rig.driver_on(if power { rig.kernel.power_cut() } else { rig.kernel.restart() });
    (0..2).for_each(|_| look(&driver));
    assert_eq!(left(&rig), [""; 0], "{what}");
    assert_eq!((reasons(&driver), count(&driver)), (vec![], 0), "{what}");
    drop(driver);
    rig.start_again();
    rig.assert_clean();
    ended
}
