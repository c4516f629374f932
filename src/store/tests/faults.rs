//! Every step fails once, or is the last of its process, with and without its effect.

use super::*;
use crate::store::Durability;
use crate::store::testing::Fault;
use nix::errno::Errno;
use proptest::prelude::*;

/// A change of the scripts below.
#[derive(Debug, Clone, Copy)]
enum Op {
    Put(usize, u64),
    Delete(usize, Durability),
    Reopen,
}

/// The store, what was acknowledged, and what a restart may find instead.
struct Run {
    disks: MemDisks,
    store: Option<Store>,
    acked: Model,
    /// States that the file may stand for: the last one that is surely durable, and what came after it.
    possible: Vec<Model>,
}

impl Run {
    fn new(disks: &MemDisks) -> Self {
        Run { disks: disks.clone(), store: None, acked: Model::new(), possible: vec![Model::new()] }
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.store = None;
        let store = open_with(&self.disks, 3)?;
        let found = model(&store);
        assert!(self.possible.contains(&found), "{found:?} is none of {:?}", self.possible);
        // What a start finds is durable.
        self.acked = found.clone();
        self.possible = vec![found];
        self.store = Some(store);
        Ok(())
    }

    fn change(store: &Store, op: Op) -> Result<(), StoreError> {
        match op {
            Op::Put(number, size) => store.put(volume(number, size)).map(drop),
            Op::Delete(number, durability) => store.delete(&id(number), durability),
            Op::Reopen => Ok(()),
        }
    }

    fn after(&self, op: Op) -> Model {
        let mut next = self.acked.clone();
        match op {
            Op::Put(number, size) => drop(next.insert(id(number), size)),
            Op::Delete(number, _) => drop(next.remove(&id(number))),
            Op::Reopen => {}
        }
        next
    }

    fn apply(&mut self, op: Op) {
        if self.store.is_none() || matches!(op, Op::Reopen) {
            let _ = self.reopen();
        }
        let Some(store) = &self.store else { return };
        let next = self.after(op);
        let result = Self::change(store, op);
        match (&result, op) {
            (Ok(()), Op::Delete(_, Durability::Lazy)) => self.possible.push(next.clone()),
            (Ok(()), Op::Reopen) => {}
            (Ok(()), _) => self.possible = vec![next.clone()],
            (Err(_), _) => self.possible.push(next.clone()),
        }
        if result.is_ok() {
            self.acked = next;
        }
        assert_eq!(model(store), self.acked, "memory after {op:?}: {result:?}");
    }
}

fn script() -> Vec<Op> {
    let mut ops: Vec<Op> = (0..4).map(|number| Op::Put(number, 10)).collect();
    ops.extend([
        Op::Delete(1, Durability::Lazy),
        Op::Put(5, 1),
        Op::Delete(2, Durability::Synced),
        Op::Reopen,
    ]);
    ops.extend((0..12).map(|round| Op::Put(round % 2, 100 + round as u64)));
    ops.extend([Op::Delete(0, Durability::Lazy), Op::Reopen, Op::Put(7, 7), Op::Delete(7, Durability::Lazy)]);
    ops
}

/// Runs the script with a fault at step `at`; whether there was such a step.
fn run_with(at: usize, fault: Fault, effect: bool, power_cut: bool) -> bool {
    let disks = MemDisks::default();
    let mut run = Run::new(&disks);
    disks.fail(at, fault, effect);
    script().into_iter().for_each(|op| run.apply(op));
    let failed = disks.has_failed();
    disks.heal();
    run.store = None;
    if power_cut {
        disks.power_cut();
    }
    run.reopen().unwrap();
    // And the file is as good as any: a further change holds even through a power cut.
    run.apply(Op::Put(9, 9));
    disks.power_cut();
    run.possible.truncate(1);
    run.reopen().unwrap();
    assert_eq!(run.acked.get(&id(9)), Some(&9));
    assert_eq!(disks.names(), [file()]);
    failed
}

#[test]
fn every_step_can_fail_or_be_the_last() {
    for fault in [Fault::Once(Errno::EIO), Fault::Once(Errno::ENOSPC), Fault::Dead] {
        for (effect, power_cut) in [(false, false), (false, true), (true, false), (true, true)] {
            let steps = (0..).take_while(|at| run_with(*at, fault, effect, power_cut)).count();
            assert!(steps > 60, "only {steps} steps");
        }
    }
}

#[test]
fn a_failed_change_is_not_made_and_not_found_later() {
    // 0: append, 1: sync.
    for (step, effect) in [(0, false), (0, true), (1, false), (1, true)] {
        let disks = MemDisks::default();
        let store = open(&disks).unwrap();
        store.put(volume(0, 1)).unwrap();
        disks.fail(step, Fault::Once(Errno::ENOSPC), effect);
        let error = store.put(volume(1, 1)).unwrap_err();
        assert_eq!(crate::error::Error::from(error).errno(), Some(Errno::ENOSPC));
        assert_eq!(model(&store), [(id(0), 1)].into());
        store.put(volume(2, 2)).unwrap();
        disks.power_cut();
        assert_eq!(model(&open(&disks).unwrap()), [(id(0), 1), (id(2), 2)].into());
    }
}

#[test]
fn a_failed_put_is_taken_back_at_once_on_a_full_disk() {
    let disks = MemDisks::default();
    let store = open(&disks).unwrap();
    store.put(volume(0, 1)).unwrap();
    // The whole line arrives, and the append fails all the same.
    disks.fail(0, Fault::Once(Errno::ENOSPC), true);
    let before = disks.steps();
    store.put(volume(1, 1)).unwrap_err();
    // The append, and then cut and sync.
    assert_eq!(disks.steps(), before + 3);
    store.delete(&id(1), Durability::Synced).unwrap();
    assert_eq!(disks.steps(), before + 3, "there is nothing left to undo");
    drop(store);
    assert_eq!(model(&open(&disks).unwrap()), [(id(0), 1)].into());
}

#[test]
fn what_could_not_be_taken_back_is_by_the_next_change() {
    let disks = MemDisks::default();
    let store = open(&disks).unwrap();
    store.put(volume(0, 1)).unwrap();
    disks.fail(0, Fault::Dead, true);
    store.put(volume(1, 1)).unwrap_err();
    disks.heal();
    let before = disks.steps();
    store.delete(&id(1), Durability::Synced).unwrap();
    assert!(disks.steps() > before, "the file is repaired although there is nothing to delete");
    disks.power_cut();
    assert_eq!(model(&open(&disks).unwrap()), [(id(0), 1)].into());
}

#[test]
fn a_failed_compaction_fails_no_change_and_is_not_tried_each_time() {
    let disks = MemDisks::default();
    let store = open_with(&disks, 10).unwrap();
    for round in 0..12 {
        store.put(volume(0, round)).unwrap();
    }
    // The 13th line starts a compaction: append, sync, then removing the stale file.
    disks.fail(2, Fault::Once(Errno::ENOSPC), false);
    store.put(volume(0, 12)).unwrap();
    assert!(disks.has_failed());
    let steps = disks.steps();
    store.put(volume(0, 13)).unwrap();
    assert_eq!(disks.steps(), steps + 2);
    for round in 14..40 {
        store.put(volume(0, round)).unwrap();
    }
    assert!(read(&disks).iter().filter(|byte| **byte == b'\n').count() < 16);
    disks.power_cut();
    assert_eq!(model(&open(&disks).unwrap()), [(id(0), 39)].into());
}

#[test]
fn a_full_disk_does_not_stop_the_start() {
    let disks = disk_with(&sample(3));
    // Removing the stale file twice, then the new file cannot be opened.
    disks.fail(2, Fault::Once(Errno::ENOSPC), false);
    let store = open(&disks).unwrap();
    assert!(disks.has_failed());
    assert_eq!(model(&store), sample_model(3));
    store.put(volume(3, 1003)).unwrap();
    disks.power_cut();
    assert_eq!(model(&open(&disks).unwrap()), sample_model(4));
}

fn any_op() -> impl Strategy<Value = (Op, Option<(usize, bool, bool)>)> {
    let op = prop_oneof![
        6 => (0usize..6, 0u64..1000).prop_map(|(number, size)| Op::Put(number, size)),
        2 => (0usize..6).prop_map(|number| Op::Delete(number, Durability::Synced)),
        1 => (0usize..6).prop_map(|number| Op::Delete(number, Durability::Lazy)),
        1 => Just(Op::Reopen),
    ];
    (op, proptest::option::weighted(0.15, (0usize..9, any::<bool>(), any::<bool>())))
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_a_map(ops in proptest::collection::vec(any_op(), 1..60), power_cut: bool) {
        let disks = MemDisks::default();
        let mut run = Run::new(&disks);
        for (op, fault) in ops {
            if let Some((skip, effect, space)) = fault {
                disks.fail(skip, Fault::Once(if space { Errno::ENOSPC } else { Errno::EIO }), effect);
            }
            run.apply(op);
        }
        disks.heal();
        if power_cut {
            run.store = None;
            disks.power_cut();
        }
        prop_assert!(run.reopen().is_ok());
    }
}
