//! Every step fails once, or is the last of its process, before it has done anything, in its middle, and when it is done.

use super::*;
use crate::store::Durability;
use hostloop_fake_kernel::{Kill, Loss};
use nix::errno::Errno;
use proptest::prelude::*;

/// How much of a step is done that fails, or that is the last.
const DONE: [Kill; 3] = [Kill::Before, Kill::Torn, Kill::After];

/// A change of the scripts below.
#[derive(Debug, Clone, Copy)]
enum Op {
    Put(usize, u64),
    Rename(usize, usize, u64),
    Delete(usize, Durability),
    Reopen,
}

/// The store, what was acknowledged, and what a restart may find instead.
struct Run {
    disk: Disk,
    store: Option<Store>,
    acked: Model,
    /// States that the file may stand for: the last one that is surely durable, and what came after it.
    possible: Vec<Model>,
}

impl Run {
    fn new(disk: &Disk) -> Self {
        Run { disk: disk.clone(), store: None, acked: Model::new(), possible: vec![Model::new()] }
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.store = None;
        let store = open_with(&self.disk, 3)?;
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
            Op::Rename(from, to, size) => store.rename(&id(from), volume(to, size)).map(drop),
            Op::Delete(number, durability) => store.delete(&id(number), durability),
            Op::Reopen => Ok(()),
        }
    }

    fn after(&self, op: Op) -> Model {
        let mut next = self.acked.clone();
        match op {
            Op::Put(number, size) => drop(next.insert(id(number), size)),
            Op::Rename(from, to, size) => {
                next.remove(&id(from));
                next.insert(id(to), size);
            }
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
        Op::Rename(5, 6, 2),
        Op::Rename(3, 8, 10),
        Op::Delete(2, Durability::Synced),
        Op::Reopen,
    ]);
    ops.extend((0..12).map(|round| Op::Put(round % 2, 100 + round as u64)));
    ops.extend([
        Op::Delete(0, Durability::Lazy),
        Op::Rename(8, 3, 11),
        Op::Reopen,
        Op::Put(7, 7),
        Op::Delete(7, Durability::Lazy),
    ]);
    ops
}

/// Runs the script with a fault at step `at`; whether there was such a step.
fn run_with(at: usize, fault: Fault, done: Kill, power_cut: Option<Loss>) -> bool {
    let disk = Disk::new();
    let mut run = Run::new(&disk);
    disk.fail(at, fault, done);
    script().into_iter().for_each(|op| run.apply(op));
    let failed = disk.steps() > at;
    disk.heal();
    run.store = None;
    if let Some(loss) = power_cut {
        disk.power_cut_losing(loss);
    }
    run.reopen().unwrap();
    // And the file is as good as any: a further change holds even through a power cut.
    run.apply(Op::Put(9, 9));
    disk.power_cut();
    run.possible.truncate(1);
    run.reopen().unwrap();
    assert_eq!(run.acked.get(&id(9)), Some(&9));
    let left: Vec<_> = disk.names().into_iter().filter(|name| *name != previous()).collect();
    assert_eq!(left, [file()]);
    failed
}

#[test]
fn every_step_can_fail_or_be_the_last() {
    for fault in [Fault::Once(Errno::EIO), Fault::Once(Errno::ENOSPC), Fault::Dead] {
        for done in DONE {
            for power_cut in [None, Some(Loss::All), Some(Loss::Some(1))] {
                let steps = (0..).take_while(|at| run_with(*at, fault, done, power_cut)).count();
                assert!(steps > 60, "only {steps} steps");
            }
        }
    }
}

#[test]
fn a_failed_change_is_not_made_and_not_found_later() {
    // 0: append, 1: sync.
    for (step, done) in [0, 1].into_iter().flat_map(|step| DONE.map(|done| (step, done))) {
        let disk = Disk::new();
        let store = open(&disk).unwrap();
        store.put(volume(0, 1)).unwrap();
        disk.fail(step, Fault::Once(Errno::ENOSPC), done);
        let error = store.put(volume(1, 1)).unwrap_err();
        assert_eq!(crate::error::Error::from(error).errno(), Some(Errno::ENOSPC));
        assert_eq!(model(&store), [(id(0), 1)].into());
        store.put(volume(2, 2)).unwrap();
        disk.power_cut();
        assert_eq!(model(&open(&disk).unwrap()), [(id(0), 1), (id(2), 2)].into());
    }
}

#[test]
fn a_failed_put_is_taken_back_at_once_on_a_full_disk() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(0, 1)).unwrap();
    // The whole line arrives, and the append fails all the same.
    let from = disk.fail(0, Fault::Once(Errno::ENOSPC), Kill::After);
    store.put(volume(1, 1)).unwrap_err();
    let steps = ["append", "open_log", "reserve", "sync"];
    assert_eq!(disk.steps_since(from), steps, "the file is cut");
    store.delete(&id(1), Durability::Synced).unwrap();
    assert_eq!(disk.steps_since(from), steps, "there is nothing left to undo");
    drop(store);
    assert_eq!(model(&open(&disk).unwrap()), [(id(0), 1)].into());
}

#[test]
fn a_change_takes_back_what_failed_to_be_undone() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(0, 1)).unwrap();
    disk.fail(0, Fault::Once(Errno::EIO), Kill::After);
    disk.fail_also(1, 20);
    store.put(volume(1, 1)).unwrap_err();
    disk.heal();
    let before = disk.steps();
    store.delete(&id(1), Durability::Synced).unwrap();
    assert!(disk.steps() > before, "the file is repaired although there is nothing to delete");
    disk.power_cut();
    assert_eq!(model(&open(&disk).unwrap()), [(id(0), 1)].into());
}

#[test]
fn a_failed_compaction_fails_no_change() {
    let disk = Disk::new();
    let store = open_with(&disk, 10).unwrap();
    for round in 0..12 {
        store.put(volume(0, round)).unwrap();
    }
    // The 13th line starts a compaction, which begins with removing the stale file, and ends so when it fails.
    let from = disk.fail(2, Fault::Once(Errno::ENOSPC), Kill::Before);
    store.put(volume(0, 12)).unwrap();
    assert_eq!(disk.steps_since(from - 2), ["append", "sync", "remove_file", "remove_file"]);
    let from = disk.steps();
    store.put(volume(0, 13)).unwrap();
    assert_eq!(disk.steps_since(from), ["append", "sync"]);
    for round in 14..40 {
        store.put(volume(0, round)).unwrap();
    }
    assert!(disk.read().iter().filter(|byte| **byte == b'\n').count() < 16);
    disk.power_cut();
    assert_eq!(model(&open(&disk).unwrap()), [(id(0), 39)].into());
}

/// The name of a new file may be younger than the last sync of the directory: the start makes up for it before anything is
/// acknowledged.
#[test]
fn a_file_renamed_before_a_crash_keeps_its_name() {
    let whole = Disk::holding(&sample(2));
    let from = whole.steps();
    drop(open(&whole).unwrap());
    let rename = whole.steps_since(from).iter().position(|step| *step == "rename").unwrap();
    let disk = Disk::holding(&sample(2));
    let at = disk.fail(rename, Fault::Dead, Kill::After);
    assert!(open(&disk).is_err());
    assert_eq!(disk.steps_since(at), ["rename"]);
    disk.heal();
    open(&disk).unwrap().put(volume(2, 1002)).unwrap();
    disk.power_cut();
    assert_eq!(model(&open(&disk).unwrap()), sample_model(3));
}

#[test]
fn a_full_disk_does_not_stop_the_start() {
    let disk = Disk::holding(&sample(3));
    // The stale files are removed, the new one twice, then the new file cannot be opened.
    let at = disk.fail(3, Fault::Once(Errno::ENOSPC), Kill::Before);
    let store = open(&disk).unwrap();
    assert_eq!(disk.steps_since(at)[0], "open_log");
    assert_eq!(model(&store), sample_model(3));
    store.put(volume(3, 1003)).unwrap();
    disk.power_cut();
    assert_eq!(model(&open(&disk).unwrap()), sample_model(4));
}

fn any_op() -> impl Strategy<Value = (Op, Option<(usize, Kill, bool)>)> {
    let op = prop_oneof![
        6 => (0usize..6, 0u64..1000).prop_map(|(number, size)| Op::Put(number, size)),
        2 => (0usize..6).prop_map(|number| Op::Delete(number, Durability::Synced)),
        1 => (0usize..6).prop_map(|number| Op::Delete(number, Durability::Lazy)),
        1 => Just(Op::Reopen),
    ];
    (op, proptest::option::weighted(0.15, (0usize..9, proptest::sample::select(&DONE), any::<bool>())))
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_a_map(ops in proptest::collection::vec(any_op(), 1..60), power_cut: bool) {
        let disk = Disk::new();
        let mut run = Run::new(&disk);
        for (op, fault) in ops {
            if let Some((skip, done, space)) = fault {
                disk.fail(skip, Fault::Once(if space { Errno::ENOSPC } else { Errno::EIO }), done);
            }
            run.apply(op);
        }
        disk.heal();
        if power_cut {
            run.store = None;
            disk.power_cut();
        }
        prop_assert!(run.reopen().is_ok());
    }
}
