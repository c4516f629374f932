//! Directories with an enforced size on btrfs with full qgroups: their copies share everything, and are made in one step.

use hostloop::kernel::{Qgroups, QuotaLimits, is_full};
use hostloop::model::FsType;
use hostloop::wire::csi;
use tonic::Code;

use crate::cuts::*;
use crate::harness::machine;
use crate::life::*;
use crate::limited::{BYTES, FLAGS, LIMITED, POOL, kernel, largest, sized, troubles};
use crate::pull::nodes::Pair;
use crate::support::*;
use crate::wait::after_retries;

/// A pool on btrfs with full qgroups.
pub fn with_full_qgroups() -> Rig {
    let kernel = kernel(FsType::Btrfs);
    kernel.set_qgroups(POOL, Qgroups::Full);
    Rig::on(kernel, &FLAGS)
}

/// With full qgroups the limit is that of the volume's own subvolume.
#[test]
fn a_limit_of_a_subvolume_that_was_lost_is_set_again() {
    let mut rig = with_full_qgroups();
    let vol = rig.made(sized("v", BYTES, &LIMITED));
    let [(id, limits)] = rig.kernel.quotas(POOL)[..] else { panic!() };
    let number =
        hostloop::model::QuotaIds::default().candidates(&vol.id.parse().expect("an id")).next().expect("any");
    let set = |bytes: u64| {
        let limits = QuotaLimits { bytes, ..limits };
        let directory = format!("{POOL}/volumes/{}", vol.id);
        rig.kernel.spawn().quotas.set_limits(directory.as_ref(), number, limits).expect("set");
    };
    set(0);
    assert_eq!(troubles(&rig, &vol), ["LimitChanged"]);
    rig.stage(&vol);
    assert_eq!((rig.kernel.quotas(POOL), troubles(&rig, &vol)), (vec![(id, limits)], vec![]));
    set(4096);
    rig.restart();
    assert_eq!(rig.kernel.quotas(POOL), [(id, limits)]);
    rig.unstage(&vol);
    rig.ok(vol.delete_request());
    assert_eq!(rig.kernel.quotas(POOL), []);
}

/// A subvolume that a pod makes escapes full qgroups: the volume is used on, and its health tells of it.
#[test]
fn a_subvolume_in_a_volume_is_told() {
    let rig = with_full_qgroups();
    let (vol, target) = rig.in_use(sized("v", BYTES, &LIMITED));
    assert_eq!(troubles(&rig, &vol), [""; 0]);
    rig.kernel.make_subvolume(format!("{target}/nested")).expect("make");
    assert_eq!(troubles(&rig, &vol), ["SizeNotEnforced"]);
    rig.rest(&vol);
    rig.stage(&vol);
    rig.unstage(&vol);
    rig.ok(vol.delete_request());
    assert_eq!(rig.kernel.tree(format!("{POOL}/volumes")), [""; 0]);
}

/// Inconsistent qgroups limit nothing until everything was counted anew, which the start and each staging begin.
#[test]
fn inconsistent_qgroups_are_counted_anew() {
    let mut rig = with_full_qgroups();
    let vol = rig.made(sized("v", BYTES, &LIMITED));
    rig.kernel.set_qgroups(POOL, Qgroups::Inconsistent);
    assert_eq!(troubles(&rig, &vol), ["SizeNotEnforced"]);
    let said = rig.fails(Code::Unavailable, sized("w", BYTES, &LIMITED));
    assert!(said.contains("try again"), "{said}");
    rig.made(sized("w", BYTES, &LIMITED));
    rig.kernel.set_qgroups(POOL, Qgroups::Inconsistent);
    rig.stage(&vol);
    assert_eq!(troubles(&rig, &vol), [""; 0]);
    rig.kernel.set_qgroups(POOL, Qgroups::Inconsistent);
    rig.restart();
    assert_eq!(troubles(&rig, &vol), [""; 0]);
    rig.unstage(&vol);
}

/// A copy of the volume, with its size or a larger one.
fn made_from(rig: &Rig, name: &str, from: csi::VolumeContentSource, bytes: i64) -> Vol {
    rig.made(csi::CreateVolumeRequest {
        capacity_range: range(bytes, 0),
        ..copy(name, from, mount(), &LIMITED)
    })
}

fn file(target: &str) -> String {
    format!("{target}/file")
}

/// What a volume has in its file.
fn content(rig: &Rig, vol: &Vol) -> Vec<u8> {
    rig.stage(vol);
    let content = rig.kernel.read_file(file(&rig.publish(vol, "reader"))).expect("read");
    rig.rest_of(vol, "reader");
    content
}

impl Rig {
    fn rest_of(&self, vol: &Vol, pod: &str) {
        self.unpublish(vol, pod);
        self.unstage(vol);
    }
}

#[test]
fn a_volume_in_use_is_cut_at_one_moment_and_in_one_step() {
    let rig = with_full_qgroups();
    let (vol, target) = rig.in_use(sized("v", BYTES, &LIMITED));
    let written = (0..300).map(|n| format!("{target}/{n}"));
    written.for_each(|path| rig.kernel.write_file(path, b"x").expect("write"));
    rig.kernel.write_file(file(&target), b"before").expect("write");
    rig.kernel.clear_steps();
    let cut = rig.cut("s", &vol);
    assert!(rig.kernel.steps().len() < 20, "however many files there are: {:?}", rig.steps());
    rig.kernel.write_file(file(&target), b"after").expect("write");
    let restored = made_from(&rig, "r", from_snapshot(&cut.snapshot_id), BYTES);
    let cloned = made_from(&rig, "c", from_volume(&vol.id), 2 * BYTES);
    assert_eq!(content(&rig, &restored), b"before");
    assert_eq!(content(&rig, &cloned), b"after");
    // Each has a limit of its own, and whoever is full is so for nobody else.
    rig.stage(&cloned);
    let beside = rig.publish(&cloned, "pod");
    rig.kernel.write_file(format!("{beside}/large"), &vec![1; BYTES as usize]).expect("it is larger");
    let full = rig.kernel.write_file(format!("{beside}/more"), &vec![1; BYTES as usize]);
    assert!(is_full(&full.expect_err("it is limited")));
    rig.rest_of(&cloned, "pod");
    rig.rest(&vol);
    for vol in [&vol, &restored, &cloned] {
        assert_eq!(troubles(&rig, vol), [""; 0]);
        rig.ok(vol.delete_request());
    }
    rig.ok(delete_snapshot(&cut.snapshot_id));
    assert_eq!(rig.kernel.tree(format!("{POOL}/snapshots")), [""; 0]);
    after_retries("the large ones are removed", || rig.kernel.tree(format!("{POOL}/volumes")).is_empty());
    after_retries("no limit is left", || rig.kernel.quotas(POOL).is_empty());
}

/// What the volume needs to write everything anew is promised with the snapshot, and taken only once by those of one volume.
#[test]
fn a_snapshot_takes_what_its_volume_needs_to_be_rewritten() {
    let rig = with_full_qgroups();
    let (vol, target) = rig.in_use(sized("v", GIB, &LIMITED));
    let all = largest(&rig, &LIMITED);
    rig.kernel.write_file(file(&target), &vec![1; 64 << 20]).expect("write");
    rig.kernel.sync(POOL).expect("sync");
    let about = |bytes: i64| largest(&rig, &LIMITED).abs_diff(bytes) < MIB as u64;
    assert!(about(all), "what it takes of what it was promised");
    let first = rig.cut("s", &vol);
    assert!(about(all - 64 * MIB), "{} of {all}", largest(&rig, &LIMITED));
    let second = rig.cut("t", &vol);
    assert!(about(all - 64 * MIB), "{} of {all}", largest(&rig, &LIMITED));
    rig.kernel.write_file(file(&target), &vec![2; 64 << 20]).expect("it may");
    assert!(about(all - 64 * MIB), "{} of {all}", largest(&rig, &LIMITED));
    for cut in [first, second] {
        rig.ok(delete_snapshot(&cut.snapshot_id));
    }
    // What is large is removed after the answer.
    after_retries("it can be promised again", || about(all));
}

#[test]
fn a_snapshot_that_leaves_too_little_for_its_volume_is_refused() {
    let rig = with_full_qgroups();
    let (vol, target) = rig.in_use(sized("v", GIB, &LIMITED));
    rig.kernel.write_file(file(&target), &vec![1; 64 << 20]).expect("write");
    let rest = largest(&rig, &LIMITED) - 32 * MIB;
    let neighbour = rig.made(sized("n", rest, &LIMITED));
    rig.fails(Code::ResourceExhausted, snapshot("s", &vol));
    rig.fails(Code::ResourceExhausted, copy("c", from_volume(&vol.id), mount(), &LIMITED));
    rig.assert_no_snapshot();
    rig.ok(neighbour.delete_request());
    // Room for what it has, and not for its whole size.
    let rest = largest(&rig, &LIMITED) - 128 * MIB;
    rig.made(sized("n", rest, &LIMITED));
    rig.cut("s", &vol);
}

/// A snapshot lacks the subvolumes in a volume, so it is copied entry by entry, as long as nobody writes to it.
#[test]
fn what_has_subvolumes_in_it_is_not_copied_in_one_step() {
    let rig = with_full_qgroups();
    let (vol, target) = rig.in_use(sized("v", BYTES, &LIMITED));
    rig.kernel.make_subvolume(format!("{target}/nested")).expect("make");
    rig.kernel.write_file(format!("{target}/nested/file"), b"x").expect("write");
    rig.kernel.write_file(file(&target), b"text").expect("write");
    let said = rig.fails(Code::FailedPrecondition, snapshot("s", &vol));
    assert!(said.contains("subvolumes in it") && said.contains("stop its pods"), "{said}");
    rig.rest(&vol);
    let cut = rig.cut("s", &vol);
    let restored = made_from(&rig, "r", from_snapshot(&cut.snapshot_id), BYTES);
    assert_eq!(content(&rig, &restored), b"text");
    assert_eq!(rig.kernel.quotas(POOL).len(), 2, "the snapshot is a plain directory");
}

/// One that appears at the moment of the cut is seen after it.
#[test]
fn a_subvolume_that_appears_in_between_is_seen() {
    let rig = with_full_qgroups();
    let (vol, target) = rig.in_use(sized("v", BYTES, &LIMITED));
    let (kernel, nested) = (rig.kernel.clone(), format!("{target}/nested"));
    rig.kernel.set_pace(move |name, _| {
        if name == "snapshot" {
            drop(kernel.make_subvolume(&nested));
        }
    });
    let said = rig.fails(Code::Unavailable, snapshot("s", &vol));
    assert!(said.contains("try again"), "{said}");
    rig.assert_no_snapshot();
    assert_eq!(rig.kernel.tree(format!("{POOL}/snapshots")), [""; 0]);
}

/// A full volume is cut too, and its snapshot can be deleted.
#[test]
fn a_full_volume_is_cut() {
    let rig = with_full_qgroups();
    let (vol, target) = rig.in_use(sized("v", BYTES, &LIMITED));
    rig.kernel.write_file(file(&target), &vec![1; BYTES as usize]).expect_err("it is limited");
    let cut = rig.cut("s", &vol);
    let restored = made_from(&rig, "r", from_snapshot(&cut.snapshot_id), BYTES);
    assert_eq!(content(&rig, &restored).len(), rig.kernel.read_file(file(&target)).expect("read").len());
    rig.ok(delete_snapshot(&cut.snapshot_id));
    rig.ok(restored.delete_request());
}

/// A managed btrfs pool has full qgroups from the first directory with an enforced size on, and not before.
#[test]
fn a_managed_btrfs_pool_limits_directories() {
    let flags = ["--pool", "own=/var/lib/own.img,kind=image,size=1Gi,fs=btrfs"];
    let rig = Rig::on(machine(), &flags);
    let own = [("pool", "own"), ("backend", "directory")];
    rig.made(sized("loop", 64 * MIB, &own[..1]));
    assert!(largest(&rig, &own) > 64 * MIB, "there is room for one");
    assert!(!rig.steps().contains(&"switch_quotas_on"), "nobody has asked for one");
    let (vol, target) = rig.in_use(sized("v", BYTES, &own));
    assert_eq!(rig.steps().iter().filter(|step| **step == "switch_quotas_on").count(), 1);
    let other = rig.made(sized("w", BYTES, &own));
    assert!(!rig.steps().contains(&"switch_quotas_on"), "they are on");
    rig.kernel.write_file(file(&target), b"text").expect("write");
    let full = rig.kernel.write_file(format!("{target}/more"), &vec![7; BYTES as usize]);
    assert!(is_full(&full.expect_err("it is limited")));
    rig.cut("s", &vol);
    let mut rig = rig;
    rig.reboot();
    for vol in [vol, other] {
        assert_eq!(troubles(&rig, &vol), [""; 0]);
        rig.ok(vol.delete_request());
    }
}

/// Another node pulls what such a snapshot has, and a volume in use is cut for it at one moment.
#[test]
fn another_node_pulls_from_a_volume_in_use() {
    let kernel = machine();
    kernel.add_disk(DATA, FsType::Btrfs, 20 << 30);
    kernel.set_qgroups(DATA, Qgroups::Full);
    let (rig, directory) = (Rig::on(kernel, &[]), [("backend", "directory")]);
    let (vol, target) = rig.in_use(sized("v", BYTES, &directory));
    rig.kernel.write_file(file(&target), b"before").expect("write");
    let cut = rig.cut("s", &vol);
    rig.kernel.write_file(file(&target), b"after").expect("write");
    let pair = Pair::new(rig);
    pair.target.kernel.set_quotas(DATA, true);
    let restored = pair.pulled(copy("r", from_snapshot(&cut.snapshot_id), mount(), &directory));
    let cloned = pair.pulled(copy("c", from_volume(&vol.id), mount(), &directory));
    let target = pair.into_target();
    assert_eq!(content(&target, &restored), b"before");
    assert_eq!(content(&target, &cloned), b"after");
}
