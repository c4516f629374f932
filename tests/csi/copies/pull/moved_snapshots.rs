//! A snapshot moves to another node: either node ends, or fails, at each of its steps.

use std::collections::BTreeSet;
use std::time::Duration;

use hostloop::cluster::permit::expiry;
use hostloop::model::{Moved, NodeKey, SnapshotId, Timestamp, VolumeId};
use hostloop::store::{Beside, Subject};
use hostloop::wire::csi;
use hostloop_fake_kernel::{FakeKernel, Kill};
use nix::errno::Errno;
use tonic::{Code, Status};

use super::nodes::{Node, Pair, SOURCE, TARGET};
use super::{directory, handovers, image_of, scattered, tree_of};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::walk::part::ways;

/// A snapshot that is to move from the source to the target.
struct Moving {
    pair: Pair,
    vol: Vol,
    id: String,
    is_tree: bool,
}

impl Moving {
    fn new(is_tree: bool) -> Moving {
        let rig = Rig::new();
        let (vol, cut) = if is_tree {
            directory(&rig)
        } else {
            let (vol, cut, _) = scattered(&rig);
            (vol, cut)
        };
        Moving {
            pair: Pair::with_patience(rig, Duration::from_millis(50)),
            vol,
            id: cut.snapshot_id,
            is_tree,
        }
    }

    fn take(&self) -> Result<u64, Status> {
        self.pair.take(&self.id, &[], expiry())
    }

    fn release(&self, at: &Node, other: &str, number: u64) -> Result<(), Status> {
        self.pair.release(at, &self.id, other, number)
    }

    fn keep(&self, at: &Node, other: &str, said: (u64, bool)) -> Result<(), Status> {
        self.pair.keep(at, &self.id, other, said)
    }

    fn delete(&self, at: &Node) -> Result<(), Status> {
        let request = csi::DeleteSnapshotRequest { snapshot_id: self.id.clone(), ..Default::default() };
        self.pair.runtime.block_on(at.controller.call(request)).map(drop)
    }

    fn get(&self, at: &Node) -> Option<csi::Snapshot> {
        let answer = self.pair.runtime.block_on(at.controller.call(get_snapshot(&self.id)));
        answer.ok().and_then(|answer| answer.snapshot)
    }

    /// All that a restore would have.
    fn data(&self, kernel: &FakeKernel) -> Vec<String> {
        if self.is_tree {
            return tree_of(kernel, &format!("snapshots/{}", self.id));
        }
        vec![handovers::image(kernel, &self.id)]
    }

    /// The nodes that have a record of it.
    fn holders(&self) -> Vec<&'static str> {
        let id: SnapshotId = self.id.parse().expect("an id");
        handovers::nodes(&self.pair, |node| node.driver.store().snapshot(&id).is_some())
    }

    /// Takes it and releases it, whatever has been done.
    fn finish(&self) -> u64 {
        self.pair.hand_over(&self.id, || self.take())
    }
}

/// The steps of the target and of the source in a call.
fn steps(is_tree: bool, work: impl Fn(&Moving)) -> (usize, usize) {
    let moving = Moving::new(is_tree);
    moving.pair.source.kernel.clear_steps();
    moving.pair.target.kernel.clear_steps();
    work(&moving);
    (moving.pair.target.kernel.steps().len(), moving.pair.source.kernel.steps().len())
}

fn take_steps(is_tree: bool) -> (usize, usize) {
    steps(is_tree, |moving| assert!(moving.take().is_ok()))
}

#[test]
fn a_taken_snapshot_is_the_one_of_the_source() {
    for is_tree in [false, true] {
        let moving = Moving::new(is_tree);
        let (source, target) = (&moving.pair.source, &moving.pair.target);
        let (before, data) = (moving.get(source).expect("it is there"), moving.data(&source.kernel));
        let number = moving.take().expect("it is taken");
        assert_eq!(moving.take().expect("a repeated call finds it"), number);
        let there = moving.get(target).expect("it is there");
        assert_eq!(
            (&there.snapshot_id, &there.source_volume_id),
            (&before.snapshot_id, &before.source_volume_id)
        );
        assert_eq!((there.size_bytes, &there.creation_time), (before.size_bytes, &before.creation_time));
        assert_eq!(moving.data(&target.kernel), data, "holes stay holes");
        assert_eq!(moving.holders(), [SOURCE, TARGET]);
        moving.finish();
        assert_eq!(moving.holders(), [TARGET]);
        assert!(!source.kernel.exists(format!("{DATA}/snapshots/{}", moving.id)));
        let taken = &target.driver.store().snapshots()[0];
        assert_eq!((taken.handover.as_ref(), taken.name.as_str()), (None, "cut"));
        // external-snapshotter repeats the call until it has heard of the snapshot.
        let again = moving.pair.runtime.block_on(target.controller.call(snapshot("cut", &moving.vol)));
        assert_eq!(again.expect("it is found").snapshot.expect("a snapshot").snapshot_id, moving.id);
        assert_eq!(target.driver.store().snapshots().len(), 1);
    }
}

#[test]
fn the_target_ends_at_any_step_of_a_take() {
    for is_tree in [false, true] {
        for n in 1..=take_steps(is_tree).0 {
            for (kill, power) in ways(n, &[(Kill::Before, false), (Kill::Torn, true), (Kill::After, true)]) {
                let mut moving = Moving::new(is_tree);
                let data = moving.data(&moving.pair.source.kernel);
                moving.pair.target.kernel.kill_at(n, kill);
                moving.take().expect_err("it ends");
                assert!(moving.pair.target.kernel.is_dead(), "step {n}");
                if power {
                    moving.pair.power_cut_target()
                } else {
                    moving.pair.restart_target()
                }
                let (whole, files) = (moving.get(&moving.pair.target).is_some(), moving.pair.target.files());
                assert!(whole != files.is_empty(), "step {n}, {kill:?}: {files:?}");
                moving.finish();
                assert_eq!(moving.holders(), [TARGET], "step {n}, {kill:?}");
                assert_eq!(moving.data(&moving.pair.target.kernel), data, "step {n}, {kill:?}");
            }
        }
    }
}

#[test]
fn a_failed_step_of_a_take_leaves_nothing() {
    for is_tree in [false, true] {
        for n in 1..=take_steps(is_tree).0 {
            for errno in ways(n, &[Errno::EIO, Errno::ENOSPC]) {
                let moving = Moving::new(is_tree);
                let data = moving.data(&moving.pair.source.kernel);
                moving.pair.target.kernel.fail_at(n, errno);
                if let Err(status) = moving.take() {
                    let code = if errno == Errno::ENOSPC { Code::ResourceExhausted } else { Code::Internal };
                    assert_eq!(status.code(), code, "step {n}: {}", status.message());
                    // What is whole stays: another controller may have heard of it.
                    let whole = moving.get(&moving.pair.target).is_some();
                    assert!(whole != moving.pair.target.files().is_empty(), "step {n}");
                    assert!(moving.holders().contains(&SOURCE), "step {n}");
                }
                moving.finish();
                assert_eq!(moving.data(&moving.pair.target.kernel), data, "step {n}");
            }
        }
    }
}

#[test]
fn the_source_ends_at_any_step_of_a_move() {
    let all = |moving: &Moving| assert!(moving.finish() > 0);
    for n in 1..=steps(false, all).1 {
        for (kill, power) in ways(n, &[(Kill::Before, false), (Kill::Torn, true), (Kill::After, true)]) {
            let mut moving = Moving::new(false);
            let data = moving.data(&moving.pair.source.kernel);
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
            let at_source = moving.get(&moving.pair.source).is_some();
            let at_target = moving.get(&moving.pair.target).is_some();
            assert!(at_source || at_target, "step {n}, {kill:?}: no node has it");
            match at_source {
                true => assert!(moving.finish() > 0),
                false => assert_eq!(moving.pair.source.files(), rest_of(&moving), "step {n}, {kill:?}"),
            }
            assert_eq!(moving.holders(), [TARGET], "step {n}, {kill:?}");
            assert_eq!(moving.data(&moving.pair.target.kernel), data, "step {n}, {kill:?}");
        }
    }
}

/// The files of the source without those of the snapshot.
fn rest_of(moving: &Moving) -> Vec<String> {
    let files = moving.pair.source.files().into_iter();
    files.filter(|file| !file.contains(&moving.id)).collect()
}

/// An order that comes late, or from a controller that believes something else.
#[test]
fn a_release_names_the_node_and_the_offer() {
    let moving = Moving::new(false);
    let (source, target) = (&moving.pair.source, &moving.pair.target);
    let refused = |answer: Result<(), Status>| {
        let status = answer.expect_err("it is refused");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        status.message().to_owned()
    };
    assert!(refused(moving.release(source, TARGET, 1)).contains("is not being moved"));
    let number = moving.take().expect("it is taken");
    assert!(refused(moving.release(source, TARGET, number + 1)).contains("nothing was changed"));
    refused(moving.release(source, "node-c", number));
    refused(moving.release(target, SOURCE, number + 1));
    refused(moving.keep(source, TARGET, (number, true)));
    refused(moving.keep(source, TARGET, (number + 1, false)));
    refused(moving.keep(target, SOURCE, (number, false)));
    assert_eq!(moving.holders(), [SOURCE, TARGET]);
    moving.finish();
    refused(moving.release(target, SOURCE, number));
    assert_eq!(moving.holders(), [TARGET], "the only one is kept");
}

#[test]
fn a_withdrawn_offer_keeps_the_snapshot_at_its_source() {
    let moving = Moving::new(false);
    let (source, target) = (&moving.pair.source, &moving.pair.target);
    let number = moving.take().expect("it is taken");
    for _ in 0..2 {
        moving.keep(source, TARGET, (number, false)).expect("it is withdrawn");
    }
    let status = moving.release(source, TARGET, number).expect_err("the source keeps it");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    for _ in 0..2 {
        moving.release(target, SOURCE, number).expect("the source has it");
        moving.keep(source, TARGET, (number, true)).expect("it is alone");
    }
    assert_eq!(moving.holders(), [SOURCE]);
    let other = moving.take().expect("it is taken");
    assert_ne!(other, number, "another offer");
    moving.release(source, TARGET, other).expect("the target has it");
    // A controller that comes late must not have the only one deleted.
    let status = moving.keep(source, TARGET, (other, false)).expect_err("it is not here");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    moving.keep(target, SOURCE, (other, true)).expect("it is alone");
    assert_eq!(moving.holders(), [TARGET]);
}

#[test]
fn a_release_is_remembered_for_a_month() {
    let moving = Moving::new(false);
    moving.finish();
    let source = &moving.pair.source;
    let cut = || moving.pair.runtime.block_on(source.controller.call(snapshot("cut", &moving.vol)));
    let status = cut().expect_err("it has moved");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    let store = source.driver.store();
    let id: SnapshotId = moving.id.parse().expect("an id");
    let id = VolumeId::of_taken(&NodeKey::of(SOURCE), &id);
    let earlier = Some(Timestamp::now().before(Duration::from_secs(31 * 24 * 60 * 60)));
    let (left, node_id) = (id.clone(), TARGET.to_owned());
    let release = Moved { id: id.clone(), left, by: 0, node_id, deleted: false, deleted_here: earlier };
    store.put_moved(release).expect("recorded");
    cut().expect("the name is free");
    assert!(!store.is_deleted(&id), "it is forgotten");
}

/// While both nodes have it, neither deletion leaves the other one behind in silence.
#[test]
fn a_deletion_names_the_other_node() {
    for at_source in [true, false] {
        let moving = Moving::new(false);
        moving.take().expect("it is taken");
        let (source, target) = (&moving.pair.source, &moving.pair.target);
        let (first, second) = if at_source { (source, target) } else { (target, source) };
        let other = if at_source { TARGET } else { SOURCE };
        let status = moving.delete(first).expect_err("the other one has it");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        let named =
            status.metadata().get_bin(hostloop::service::MOVED_TO).expect("a node").to_bytes().unwrap();
        assert_eq!(named, other);
        moving.delete(first).expect("it is gone there");
        moving.delete(second).expect_err("it names the first");
        moving.delete(second).expect("it is gone");
        assert_eq!(moving.holders(), Vec::<&str>::new());
    }
}

/// A snapshot that was deleted in the middle does not come back.
#[test]
fn a_snapshot_deleted_while_it_moves_stays_deleted() {
    let moving = Moving::new(false);
    moving.pair.target.kernel.clear_steps();
    moving.take().expect("it is taken");
    let names: BTreeSet<&'static str> =
        moving.pair.target.kernel.steps().into_iter().map(|step| step.name).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        let moving = Moving::new(false);
        let kernel = &moving.pair.target.kernel;
        kernel.hold(name);
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| moving.take());
            crate::wait::eventually("the step", || kernel.waiting() == 1);
            // Its node is asked first, and names the target.
            let at_source = moving.delete(&moving.pair.source).map_err(|status| status.code());
            let at_target = moving.delete(&moving.pair.target).map_err(|status| status.code());
            kernel.release();
            let taken = taking.join().expect("no panic");
            assert_eq!(at_target, Err(Code::Aborted), "{name}: it is being made");
            match at_source {
                // A stream reads it, which the deletion at the target has ended.
                Err(Code::Aborted) => {
                    assert_eq!(taken.map_err(|status| status.code()), Err(Code::Unavailable), "{name}")
                }
                Err(Code::FailedPrecondition) => {}
                other => panic!("{name}: {other:?} {taken:?}"),
            }
        });
        for node in [&moving.pair.source, &moving.pair.target] {
            // A first call may name the other node, and one before it find the stream still open.
            crate::wait::eventually("its deletion", || moving.delete(node).is_ok());
        }
        assert!(moving.holders().is_empty(), "{name}");
        assert_eq!(moving.pair.target.files(), Vec::<String>::new(), "{name}");
    }
}

/// The record may outlive its disk, and the source deletes its own by this word.
#[test]
fn a_copy_without_its_data_is_not_said_to_be_whole() {
    let moving = Moving::new(false);
    let number = moving.take().expect("it is taken");
    moving.pair.target.kernel.remove_file(image_of(&moving.id)).expect("it was there");
    let status = moving.take().expect_err("its data are gone");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("is not whole on node"), "{status}");
    assert_eq!(moving.holders(), [SOURCE, TARGET]);
    assert!(number > 0);
}

/// What the target has may be the only one, and is deleted by this word.
#[test]
fn a_source_without_its_data_takes_no_offer_back() {
    let moving = Moving::new(false);
    let number = moving.take().expect("it is taken");
    moving.pair.source.kernel.remove_file(image_of(&moving.id)).expect("it was there");
    let status = moving.keep(&moving.pair.source, TARGET, (number, false)).expect_err("it is not whole");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    moving.release(&moving.pair.source, TARGET, number).expect("the target has it");
    assert_eq!(moving.holders(), [TARGET]);
}

/// A state file that is rebuilt from these has to know of the other node.
#[test]
fn records_beside_the_data_name_the_other_node() {
    let moving = Moving::new(false);
    let number = moving.take().expect("it is taken");
    let record = format!("{DATA}/snapshots/{}/snapshot.json", moving.id);
    let says = |node: &Node| {
        let text = Beside::read(&node.kernel.read_file(&record).expect("a record")).expect("whole");
        let Subject::Snapshot(snapshot, _) = text.subject else { panic!("{text:?}") };
        snapshot.handover.map(|handover| (handover.node_id, handover.number))
    };
    assert_eq!(says(&moving.pair.source), Some((TARGET.to_owned(), number)));
    assert_eq!(says(&moving.pair.target), Some((SOURCE.to_owned(), number)));
    moving.finish();
    assert_eq!(says(&moving.pair.target), None);
}

#[test]
fn a_member_does_not_move_without_its_group() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("source", block()));
    rig.rest(&vol);
    let group = rig.ok(group("group", &[vol.id.as_str()])).group_snapshot.expect("a group");
    let id = group.snapshots[0].snapshot_id.clone();
    let moving = Moving { pair: Pair::new(rig), vol, id, is_tree: false };
    let status = moving.take().expect_err("it is a part of a group");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("moves as a whole"), "{}", status.message());
    assert_eq!(moving.pair.source.driver.store().groups()[0].handover, None);
    assert_eq!(moving.holders(), [SOURCE]);
}

#[test]
fn a_full_target_takes_no_snapshot() {
    let moving = Moving::new(false);
    moving.pair.target.kernel.set_space(1 << 30, 4 << 20);
    let status = moving.take().expect_err("there is no room");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(moving.holders(), [SOURCE]);
    assert_eq!(moving.pair.target.files(), Vec::<String>::new());
}

/// A controller needs this if the new node does not answer.
#[test]
fn a_source_says_where_its_snapshot_went() {
    for is_tree in [false, true] {
        let moving = Moving::new(is_tree);
        let (source, target) = (&moving.pair.source, &moving.pair.target);
        let went = |node: &Node| node.driver.find_snapshot(&moving.id).expect("an answer").moved_to;
        moving.take().expect("it is taken");
        assert_eq!((went(source), went(target)), (None, None), "both have it");
        moving.finish();
        assert_eq!((went(source).as_deref(), went(target)), (Some(TARGET), None));
    }
}
