//! A group moves to another node with all of its members: all are there or none, whatever ends in between.

use std::time::Duration;

use hostloop::cluster::permit::{VALID_FOR, expiry};
use hostloop::model::{GroupSnapshotId, Snapshot};
use hostloop::wire::csi;
use hostloop_fake_kernel::Kill;
use nix::errno::Errno;
use tonic::{Code, Status};

use super::nodes::{Node, Pair, SOURCE, TARGET};
use super::{handovers, pattern, tree_of};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::walk::part::ways;

/// A group of an image and a tree.
struct Moving {
    pair: Pair,
    volumes: Vec<String>,
    id: String,
    /// Its members: the image, and the tree.
    members: [String; 2],
}

impl Moving {
    fn new() -> Moving {
        let rig = Rig::new();
        let (image, device) = rig.in_use(create("image", block()));
        rig.kernel.write(&device, 0, &pattern(1 << 20, 1)).expect("write");
        let directory = [("backend", "directory"), ("pool", "directories")];
        let (tree, top) = rig.in_use(create_with("tree", &directory));
        rig.kernel.write_file(format!("{top}/file"), &pattern(1 << 20, 2)).expect("write");
        rig.rest(&image);
        rig.rest(&tree);
        let made = rig.ok(group("group", &[image.id.as_str(), tree.id.as_str()])).group_snapshot;
        let made = made.expect("a group");
        let of = |vol: &Vol| {
            let member = made.snapshots.iter().find(|member| member.source_volume_id == vol.id);
            member.expect("a member").snapshot_id.clone()
        };
        let members = [of(&image), of(&tree)];
        let volumes = vec![image.id.clone(), tree.id.clone()];
        let pair = Pair::with_patience(rig, Duration::from_millis(50));
        Moving { pair, volumes, id: made.group_snapshot_id, members }
    }

    fn take(&self) -> Result<u64, Status> {
        self.take_members(&self.members)
    }

    fn take_members(&self, members: &[String]) -> Result<u64, Status> {
        self.pair.take(&self.id, members, expiry())
    }

    fn release(&self, at: &Node, other: &str, number: u64) -> Result<(), Status> {
        self.pair.release(at, &self.id, other, number)
    }

    fn keep(&self, at: &Node, other: &str, said: (u64, bool)) -> Result<(), Status> {
        self.pair.keep(at, &self.id, other, said)
    }

    fn delete(&self, at: &Node) -> Result<(), Status> {
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: self.id.clone(),
            ..Default::default()
        };
        self.pair.runtime.block_on(at.controller.call(request)).map(drop)
    }

    fn get(&self, at: &Node) -> Option<csi::VolumeGroupSnapshot> {
        let request =
            csi::GetVolumeGroupSnapshotRequest { group_snapshot_id: self.id.clone(), ..Default::default() };
        self.pair.runtime.block_on(at.controller.call(request)).ok()?.group_snapshot
    }

    /// The members that a node lists.
    fn listed(&self, at: &Node) -> usize {
        let page = self.pair.runtime.block_on(at.controller.call(csi::ListSnapshotsRequest::default()));
        page.expect("ListSnapshots").entries.len()
    }

    /// All that restores of the members would have.
    fn data(&self, at: &Node) -> Vec<String> {
        let [image, tree] = &self.members;
        let mut data = tree_of(&at.kernel, &format!("snapshots/{tree}"));
        data.push(handovers::image(&at.kernel, image));
        data
    }

    fn holders(&self) -> Vec<&'static str> {
        let id: GroupSnapshotId = self.id.parse().expect("an id");
        handovers::nodes(&self.pair, |node| node.driver.store().group(&id).is_some())
    }

    fn finish(&self) -> u64 {
        self.pair.hand_over(&self.id, || self.take())
    }
}

/// The steps of the target and of the source in a whole move.
fn steps() -> (usize, usize) {
    let moving = Moving::new();
    moving.pair.source.kernel.clear_steps();
    moving.pair.target.kernel.clear_steps();
    moving.finish();
    (moving.pair.target.kernel.steps().len(), moving.pair.source.kernel.steps().len())
}

#[test]
fn a_moved_group_is_the_one_of_the_source() {
    let moving = Moving::new();
    let (source, target) = (&moving.pair.source, &moving.pair.target);
    let (before, data) = (moving.get(source).expect("it is there"), moving.data(source));
    let number = moving.take().expect("it is taken");
    assert_eq!(moving.take().expect("a repeated call finds it"), number);
    assert_eq!(moving.holders(), [SOURCE, TARGET]);
    let there = moving.get(target).expect("it is there");
    assert_eq!(
        (&there.group_snapshot_id, there.creation_time),
        (&before.group_snapshot_id, before.creation_time)
    );
    assert_eq!(there.snapshots.len(), 2);
    assert_eq!(moving.data(target), data);
    moving.finish();
    assert_eq!(moving.holders(), [TARGET]);
    assert_eq!((moving.listed(source), moving.listed(target)), (0, 2));
    let places = [DATA, crate::harness::DIRECTORIES_DIR].map(|pool| format!("{pool}/snapshots"));
    assert!(places.iter().all(|place| source.kernel.tree(place).is_empty()));
    let volumes: Vec<&str> = moving.volumes.iter().map(String::as_str).collect();
    let again = moving.pair.runtime.block_on(target.controller.call(group("group", &volumes)));
    assert_eq!(again.expect("it is found").group_snapshot.expect("a group").group_snapshot_id, moving.id);
    moving.delete(target).expect("it is deleted");
    assert_eq!(target.files(), Vec::<String>::new());
}

#[test]
fn the_target_ends_at_any_step_of_a_groups_move() {
    for n in 1..=steps().0 {
        for (kill, power) in ways(n, &[(Kill::Before, false), (Kill::Torn, true), (Kill::After, true)]) {
            let mut moving = Moving::new();
            let data = moving.data(&moving.pair.source);
            moving.pair.target.kernel.kill_at(n, kill);
            if let Ok(number) = moving.take() {
                moving.release(&moving.pair.source, TARGET, number).expect("it is released");
                // It may end in the record beside the data, which the next start writes.
                drop(moving.keep(&moving.pair.target, SOURCE, (number, true)));
            }
            assert!(moving.pair.target.kernel.is_dead(), "step {n}");
            if power {
                moving.pair.power_cut_target()
            } else {
                moving.pair.restart_target()
            }
            let whole = moving.get(&moving.pair.target).is_some();
            let listed = moving.listed(&moving.pair.target);
            assert_eq!(listed, if whole { 2 } else { 0 }, "step {n}, {kill:?}: all members or none");
            assert!(whole != moving.pair.target.files().is_empty(), "step {n}, {kill:?}");
            match moving.holders().contains(&SOURCE) {
                true => assert!(moving.finish() > 0),
                false => assert!(whole, "step {n}, {kill:?}: no node has it"),
            }
            assert_eq!(moving.holders(), [TARGET], "step {n}, {kill:?}");
            assert_eq!(moving.data(&moving.pair.target), data, "step {n}, {kill:?}");
        }
    }
}

#[test]
fn the_source_ends_at_any_step_of_a_groups_move() {
    for n in 1..=steps().1 {
        for (kill, power) in ways(n, &[(Kill::Before, false), (Kill::Torn, true), (Kill::After, true)]) {
            let mut moving = Moving::new();
            let data = moving.data(&moving.pair.source);
            moving.pair.source.kernel.kill_at(n, kill);
            if let Ok(number) = moving.take() {
                moving.release(&moving.pair.source, TARGET, number).expect_err("it ends");
            }
            assert!(moving.pair.source.kernel.is_dead(), "step {n}");
            if power {
                moving.pair.power_cut_source()
            } else {
                moving.pair.restart_source()
            }
            let listed = moving.listed(&moving.pair.source);
            assert!(listed == 0 || listed == 2, "step {n}, {kill:?}: {listed} members");
            match moving.get(&moving.pair.source).is_some() {
                true => assert!(moving.finish() > 0),
                false => {
                    assert!(moving.get(&moving.pair.target).is_some(), "step {n}, {kill:?}: no node has it")
                }
            }
            assert_eq!(moving.holders(), [TARGET], "step {n}, {kill:?}");
            assert_eq!(moving.data(&moving.pair.target), data, "step {n}, {kill:?}");
        }
    }
}

#[test]
fn a_failed_step_of_a_groups_take_leaves_nothing() {
    for n in 1..=steps().0 {
        for errno in ways(n, &[Errno::EIO, Errno::ENOSPC]) {
            let moving = Moving::new();
            moving.pair.target.kernel.fail_at(n, errno);
            if let Err(status) = moving.take() {
                let code = if errno == Errno::ENOSPC { Code::ResourceExhausted } else { Code::Internal };
                assert_eq!(status.code(), code, "step {n}: {}", status.message());
                // What is whole stays: another controller may have heard of it.
                let whole = moving.get(&moving.pair.target).is_some();
                assert!(whole != moving.pair.target.files().is_empty(), "step {n}");
                assert!(moving.holders().contains(&SOURCE), "step {n}");
            }
            let number = moving.take().expect("it is taken");
            assert!(number > 0 && moving.get(&moving.pair.target).is_some(), "step {n}");
        }
    }
}

/// The source names the members, and may be in wrong hands.
#[test]
fn a_group_replaces_no_snapshot_of_the_target() {
    let moving = Moving::new();
    let member = moving.members[0].parse().expect("an id");
    let store = moving.pair.target.driver.store();
    let source = moving.pair.source.driver.store().snapshot(&member).expect("a member");
    let own = Snapshot { group: None, name: "own".to_owned(), ..(*source).clone() };
    store.put_snapshot(own).expect("recorded");
    let status = moving.take().expect_err("it is a snapshot of the target");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(store.snapshot(&member).expect("it stays").name, "own");
}

/// The copies before it have taken longer than a permit lasts, and the caller has come back with others.
#[test]
fn a_member_whose_turn_comes_late_has_a_newer_permit() {
    let moving = Moving::new();
    let kernel = &moving.pair.target.kernel;
    kernel.hold("write_at");
    let ends = expiry() - VALID_FOR.as_secs() + 5;
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| moving.pair.take(&moving.id, &moving.members, ends));
        crate::wait::eventually("it writes", || kernel.waiting() > 0);
        std::thread::sleep(Duration::from_secs(7));
        assert_eq!(moving.take().expect_err("it is copied").code(), Code::Aborted);
        kernel.release();
        taking.join().expect("no panic").expect("it is taken");
    });
    assert_eq!(moving.holders(), [SOURCE, TARGET]);
}

#[test]
fn a_group_moves_with_all_of_its_members_only() {
    let moving = Moving::new();
    let status = moving.take_members(&moving.members[..1]).expect_err("one is missing");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!((moving.holders(), moving.pair.target.files()), (vec![SOURCE], Vec::<String>::new()));
    // The offer is there; it is taken back, and another one is made.
    let id: GroupSnapshotId = moving.id.parse().expect("an id");
    let offer = moving.pair.source.driver.store().group(&id).expect("a group").handover.clone();
    let number = offer.expect("an offer").number;
    moving.keep(&moving.pair.source, TARGET, (number, false)).expect("it is withdrawn");
    assert_eq!(moving.take().expect_err("it was withdrawn").code(), Code::FailedPrecondition);
    moving.keep(&moving.pair.source, TARGET, (number, true)).expect("it is alone");
    assert_ne!(moving.finish(), number);
    assert_eq!(moving.holders(), [TARGET]);
}

#[test]
fn a_deleted_group_is_deleted_on_both_nodes() {
    for at_source in [true, false] {
        let moving = Moving::new();
        moving.take().expect("it is taken");
        let (source, target) = (&moving.pair.source, &moving.pair.target);
        let (first, second) = if at_source { (source, target) } else { (target, source) };
        let other = if at_source { TARGET } else { SOURCE };
        let status = moving.delete(first).expect_err("the other one has it");
        let named =
            status.metadata().get_bin(hostloop::service::MOVED_TO).expect("a node").to_bytes().unwrap();
        assert_eq!(named, other);
        moving.delete(first).expect("it is gone there");
        moving.delete(second).expect_err("it names the first");
        moving.delete(second).expect("it is gone");
        assert_eq!(moving.holders(), Vec::<&str>::new());
        assert_eq!(target.files(), Vec::<String>::new());
    }
}
