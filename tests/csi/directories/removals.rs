//! Large directories: deleted at once for callers, and removed afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostloop::kernel::Qgroups;
use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::{FakeKernel, Kill};
use nix::errno::Errno;
use tonic::Code;

use crate::cuts::*;
use crate::harness::{DIRECTORIES, DIRECTORIES_DIR, machine};
use crate::life::*;
use crate::support::*;
use crate::wait::after_retries;
use crate::walk::part::ways;

const FLAGS: [&str; 4] = ["--pool", "limited=/pools/limited,reserve=0", "--reserve", "0"];
const POOL: &str = "/pools/limited";
/// More than what is removed before an answer.
const FILES: usize = 300;

/// What is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Large {
    /// A directory with an enforced size.
    Limited,
    /// One without.
    Plain,
    Snapshot,
    /// A subvolume of btrfs, whose bytes decide.
    Subvolume(Qgroups),
    /// A snapshot of one.
    SnapshotOfSubvolume,
}

impl Large {
    const ALL: [Large; 6] = [
        Large::Limited,
        Large::Plain,
        Large::Snapshot,
        Large::Subvolume(Qgroups::Full),
        Large::Subvolume(Qgroups::Simple),
        Large::SnapshotOfSubvolume,
    ];

    fn is_limited(self) -> bool {
        !matches!(self, Large::Plain | Large::Snapshot)
    }

    fn is_snapshot(self) -> bool {
        matches!(self, Large::Snapshot | Large::SnapshotOfSubvolume)
    }

    /// A machine with its pool.
    fn kernel(self) -> FakeKernel {
        let qgroups = match self {
            Large::Subvolume(qgroups) => qgroups,
            Large::SnapshotOfSubvolume => Qgroups::Full,
            _ => return kernel(FsType::Xfs),
        };
        let kernel = kernel(FsType::Btrfs);
        kernel.set_qgroups(POOL, qgroups);
        kernel
    }

    fn parameters(self) -> [(&'static str, &'static str); 2] {
        let pool = if self.is_limited() { "limited" } else { DIRECTORIES };
        [("backend", "directory"), ("pool", pool)]
    }

    fn pool(self) -> &'static str {
        if self.is_limited() { POOL } else { DIRECTORIES_DIR }
    }

    fn create(self, name: &str) -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create_with(name, &self.parameters()) }
    }

    /// What is in the pool.
    fn left(self, rig: &Rig) -> Vec<String> {
        ["volumes", "snapshots"]
            .iter()
            .flat_map(|at| rig.kernel.tree(format!("{}/{at}", self.pool())))
            .collect()
    }
}

/// Lets removals in the background begin only when it is dropped or told to.
#[derive(Clone)]
struct Gate(Arc<AtomicBool>);

impl Gate {
    fn new(kernel: &FakeKernel) -> Self {
        let gate = Gate(Arc::default());
        let open = Arc::clone(&gate.0);
        kernel.set_pace(move |name, _| {
            while matches!(name, "remove_tree" | "remove_subvolume")
                && std::thread::current().name() == Some("removal")
                && !open.load(Ordering::Acquire)
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        gate
    }

    fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

fn kernel(fs_type: FsType) -> FakeKernel {
    let kernel = machine();
    kernel.add_disk(POOL, fs_type, 20 << 30);
    kernel.set_quotas(POOL, true);
    kernel
}

fn fill(rig: &Rig, vol: &Vol) {
    rig.stage(vol);
    let target = rig.publish(vol, "pod");
    rig.kernel.create_directories(format!("{target}/deep/er"));
    let names = (0..FILES).map(|n| if n % 2 == 0 { format!("{n}") } else { format!("deep/er/{n}") });
    names.for_each(|name| rig.kernel.write_file(format!("{target}/{name}"), &[7; 4096]).expect("write"));
    rig.kernel.sync(&target).expect("sync");
    rig.rest(vol);
}

/// Makes something large, and gives the call that deletes it.
fn make(rig: &Rig, large: Large) -> Delete {
    let vol = rig.made(large.create("v"));
    fill(rig, &vol);
    if !large.is_snapshot() {
        return Delete::Volume(Box::new(vol));
    }
    let cut = rig.cut("s", &vol);
    rig.ok(vol.delete_request());
    after_retries("the volume is gone", || large.left(rig).iter().all(|path| !path.contains("vol-")));
    Delete::Snapshot(cut.snapshot_id)
}

enum Delete {
    Volume(Box<Vol>),
    Snapshot(String),
}

impl Delete {
    fn call(&self, rig: &Rig) -> Result<(), tonic::Status> {
        match self {
            Delete::Volume(vol) => rig.call(vol.delete_request()).map(drop),
            Delete::Snapshot(id) => rig.call(delete_snapshot(id)).map(drop),
        }
    }

    fn is_listed(&self, rig: &Rig) -> bool {
        match self {
            Delete::Volume(_) => !rig.ok(csi::ListVolumesRequest::default()).entries.is_empty(),
            Delete::Snapshot(_) => !rig.snapshots().is_empty(),
        }
    }
}

#[track_caller]
fn gone(rig: &Rig, large: Large) {
    is_gone_after(rig, large, "a deletion");
}

/// Waits until nothing is left; `what` names the events before.
#[track_caller]
fn is_gone_after(rig: &Rig, large: Large, what: &str) {
    let first = large.left(rig);
    after_retries(&format!("{what}: nothing is left of {first:?}"), || large.left(rig).is_empty());
    after_retries("the number is given back", || rig.kernel.quotas(POOL).is_empty());
}

#[test]
fn a_large_directory_is_gone_before_its_files() {
    for large in Large::ALL {
        let kernel = large.kernel();
        let gate = Gate::new(&kernel);
        let rig = Rig::on(kernel, &FLAGS);
        if large.is_snapshot() {
            gate.open();
        }
        let delete = make(&rig, large);
        gate.0.store(false, Ordering::Release);
        delete.call(&rig).expect("deleted");
        assert!(!large.left(&rig).is_empty(), "{large:?}: its files are there");
        assert!(!delete.is_listed(&rig));
        delete.call(&rig).expect("a repeat is fine");
        if let Delete::Volume(vol) = &delete {
            let volume_id = vol.id.clone();
            rig.fails(Code::NotFound, csi::ControllerGetVolumeRequest { volume_id });
            // Its name is free, and what has it now is another one.
            let again = rig.made(large.create("v"));
            assert_eq!(again.id, vol.id);
            let (_, top) = (rig.stage(&again), rig.publish(&again, "pod"));
            assert_eq!(rig.kernel.tree(&top), [""; 0]);
            rig.kernel.write_file(format!("{top}/mine"), b"data").expect("write");
            let numbers = if large.is_limited() { 2 } else { 0 };
            assert_eq!(rig.kernel.quotas(POOL).len(), numbers, "each has its own");
            gate.open();
            after_retries("the old one is gone", || {
                large.left(&rig).iter().all(|path| !path.contains("deep"))
            });
            after_retries("its number is given back", || rig.kernel.quotas(POOL).len() == numbers / 2);
            assert_eq!(rig.kernel.read_file(format!("{top}/mine")).expect("read"), b"data");
            rig.rest(&again);
            rig.ok(again.delete_request());
        }
        gate.open();
        gone(&rig, large);
    }
}

#[test]
fn space_that_is_not_free_yet_is_not_promised() {
    let kernel = kernel(FsType::Ext4);
    let gate = Gate::new(&kernel);
    let rig = Rig::on(kernel, &FLAGS);
    let room =
        |rig: &Rig| rig.ok(capacity(&Large::Limited.parameters())).maximum_volume_size.expect("a maximum");
    let empty = room(&rig);
    let delete = make(&rig, Large::Limited);
    delete.call(&rig).expect("deleted");
    let (taken, now) = ((FILES * 4096) as i64, room(&rig));
    assert!(now <= empty - taken, "{now} of {empty}: what is there counts");
    assert!(now > empty - 4 * taken, "{now} of {empty}: what could have been written does not any more");
    let [(_, limits)] = rig.kernel.quotas(POOL)[..] else { panic!("{:?}", rig.kernel.quotas(POOL)) };
    assert!((taken as u64..2 * taken as u64).contains(&limits.bytes), "{limits:?}: nobody can add to it");
    gate.open();
    gone(&rig, Large::Limited);
    after_retries("it is free", || room(&rig) == empty);
}

/// A driver that is killed at any step, or whose machine loses its power there, has either not begun, or goes on.
#[test]
fn whole_or_gone_whatever_ends_it() {
    for (at, large) in Large::ALL.into_iter().enumerate() {
        for power in [false, true] {
            for kill in ways(at + usize::from(power), &[Kill::Before, Kill::Torn, Kill::After]) {
                let steps = (1..).take_while(|n| ends_at(large, power, kill, *n)).count();
                assert!((8..60).contains(&steps), "{large:?} has {steps} steps");
            }
        }
    }
}

/// Whether there was such a step.
fn ends_at(large: Large, power: bool, kill: Kill, n: usize) -> bool {
    let what = format!("{large:?}, power {power}, {kill:?} at {n}");
    let mut rig = Rig::on(large.kernel(), &FLAGS);
    let delete = make(&rig, large);
    after_retries("nothing else is at work", || is_idle(&rig));
    rig.kernel.kill_at(n, kill);
    let answered = delete.call(&rig).is_ok();
    after_retries("it ends", || {
        rig.kernel.is_dead() || (answered && large.left(&rig).is_empty() && is_idle(&rig))
    });
    let ended = rig.kernel.is_dead();
    match power {
        true => rig.power_cut(),
        false => {
            rig.kernel.kill();
            rig.start_again();
        }
    }
    let listed = delete.is_listed(&rig);
    assert!(!(answered && listed), "{what}: it was acknowledged");
    if let (true, Delete::Volume(vol)) = (listed, &delete) {
        rig.stage(vol);
        let found = rig.kernel.tree(rig.publish(vol, "pod"));
        rig.rest(vol);
        assert_eq!(found.len(), FILES + 2, "{what}: it is whole");
    }
    delete.call(&rig).expect(&what);
    assert!(!delete.is_listed(&rig), "{what}");
    is_gone_after(&rig, large, &what);
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new(), "{what}");
    ended
}

/// Whether no step has been taken for a moment.
fn is_idle(rig: &Rig) -> bool {
    let before = rig.kernel.steps().len();
    std::thread::sleep(Duration::from_millis(20));
    rig.kernel.steps().len() == before
}

#[test]
fn a_removal_that_fails_is_told_and_retried() {
    let rig = Rig::on(kernel(FsType::Xfs), &FLAGS);
    let delete = make(&rig, Large::Limited);
    rig.kernel.fail_every("remove_tree", Errno::EIO);
    delete.call(&rig).expect("it is durable that it is to go");
    let health = || rig.ok(csi::NodeGetStorageHealthRequest::default()).backend_health;
    after_retries("health tells", || !health().is_empty());
    let [found] = &health()[..] else { panic!("{:?}", health()) };
    assert_eq!(found.reason, "RemovalFailing");
    assert!(found.message.contains("limited") && found.message.contains("EIO"), "{}", found.message);
    delete.call(&rig).expect("it is gone all the same");
    let other = rig.made(create_with("other", &Large::Limited.parameters()));
    let volume_id = other.id.clone();
    let own = rig.ok(csi::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() });
    assert_eq!(own.volume_health.expect("a health").health_statuses, [], "it is nothing to other volumes");
    rig.kernel.heal();
    rig.ok(other.delete_request());
    gone(&rig, Large::Limited);
    after_retries("health is good", || health().is_empty());
}

/// Somebody mounts something in what is being removed: the removal stops there, and goes on when that is gone.
#[test]
fn a_mount_in_it_is_not_entered() {
    let kernel = kernel(FsType::Xfs);
    let gate = Gate::new(&kernel);
    let rig = Rig::on(kernel, &FLAGS);
    make(&rig, Large::Limited).call(&rig).expect("deleted");
    let inner =
        rig.kernel.tree(format!("{POOL}/volumes")).into_iter().find(|path| path.ends_with("/deep/er"));
    let point = inner.expect("it is there");
    rig.kernel.mount_tmpfs(&point).expect("mount");
    rig.kernel.write_file(format!("{point}/theirs"), b"data").expect("write");
    gate.open();
    let health = || rig.ok(csi::NodeGetStorageHealthRequest::default()).backend_health;
    after_retries("health tells", || !health().is_empty());
    assert_eq!(rig.kernel.read_file(format!("{point}/theirs")).expect("read"), b"data");
    rig.kernel.unmount_foreign(&point).expect("unmount");
    gone(&rig, Large::Limited);
}

/// What frees room must not need any.
#[test]
fn a_directory_on_a_full_disk_goes_before_the_answer() {
    for large in Large::ALL {
        let rig = Rig::on(large.kernel(), &FLAGS);
        let delete = make(&rig, large);
        rig.kernel.fail_every("rename", Errno::ENOSPC);
        delete.call(&rig).expect("deleted");
        assert!(large.left(&rig).is_empty(), "{large:?}");
        rig.kernel.heal();
        gone(&rig, large);
    }
}

/// The end of the driver does not wait for it, and the next one goes on.
#[test]
fn the_next_driver_goes_on() {
    let kernel = kernel(FsType::Xfs);
    let mut rig = Rig::on(kernel, &FLAGS);
    let delete = make(&rig, Large::Limited);
    rig.kernel.fail_every("remove_tree", Errno::EIO);
    delete.call(&rig).expect("deleted");
    rig.restart();
    assert!(!Large::Limited.left(&rig).is_empty());
    assert!(!delete.is_listed(&rig));
    rig.kernel.heal();
    gone(&rig, Large::Limited);
}

/// An administrator has removed a directory; the number of another volume is not the one that it had.
#[test]
fn a_lost_directory_gives_its_number_back() {
    let rig = Rig::on(kernel(FsType::Xfs), &FLAGS);
    let [lost, other] = ["lost", "other"].map(|name| rig.made(Large::Limited.create(name)));
    let numbers = rig.kernel.quotas(POOL);
    let directory = format!("{POOL}/volumes/{}", lost.id);
    rig.kernel.spawn().trees.remove(directory.as_ref()).expect("remove");
    rig.ok(lost.delete_request());
    let left = rig.kernel.quotas(POOL);
    assert!(numbers.len() == 2 && left.len() == 1, "{left:?} of {numbers:?}");
    rig.ok(other.delete_request());
    gone(&rig, Large::Limited);
}
