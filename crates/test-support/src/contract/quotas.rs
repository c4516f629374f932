//! `Quotas`: what a directory with everything in it may take.

use std::io;
use std::path::Path;

use hostloop::kernel::{Enforceable, Os, Quota, QuotaLimits, errno_of, is_full};
use hostloop::model::{NodeKey, QuotaId, QuotaIds, VolumeId};
use nix::errno::Errno;

use super::{MIB, directory, errno};
use crate::wait::eventually;

/// A pod that may not go beyond any limit, as one without CAP_SYS_RESOURCE.
pub trait Pod {
    /// Writes behind the end of a file, which is made if need be.
    fn append(&self, file: &Path, bytes: &[u8]) -> io::Result<()>;
}

const LIMIT: u64 = 64 * MIB;
const PIECE: usize = 64 << 10;

/// A number that no other test has.
pub fn number(name: &str) -> QuotaId {
    let volume = VolumeId::of_name(&NodeKey::of("contract"), name);
    QuotaIds::default().candidates(&volume).next().expect("a number")
}

fn bytes(bytes: u64) -> QuotaLimits {
    QuotaLimits { bytes, inodes: 0 }
}

/// Writes until nothing more fits; how much did.
fn fill(pod: &dyn Pod, file: &Path) -> u64 {
    let piece = vec![0x5a; PIECE];
    for written in 0..4 * LIMIT / PIECE as u64 {
        if let Err(error) = pod.append(file, &piece) {
            assert!(is_full(&error), "{error}");
            return written * PIECE as u64;
        }
    }
    panic!("{} takes whatever is written to it", file.display());
}

/// After a filesystem that counts when it commits has counted.
fn used(os: &Os, directory: &Path, id: QuotaId) -> Quota {
    os.quotas.count_written(directory).expect("sync");
    os.quotas.quota(directory, id).expect("quota")
}

/// The same once it is so. xfs takes back what was removed in the background (fs/xfs/xfs_icache.c, xfs_inodegc_worker).
fn comes_to(os: &Os, directory: &Path, id: QuotaId, what: &str, is_so: impl Fn(&Quota) -> bool) {
    eventually(what, || is_so(&used(os, directory, id)));
}

/// Within one percent of the limit, and never beyond.
fn assert_at(written: u64, limit: u64) {
    assert!(written <= limit && written >= limit - limit / 100, "{written} of {limit}");
}

/// Calls what is not there yet with an errno that says so.
pub fn no_quotas(os: &Os, dir: &Path) {
    let (Enforceable::Off(why) | Enforceable::Nothing(why)) = os.quotas.enforceable(dir).expect("ask") else {
        panic!("nothing can be limited in {}", dir.display());
    };
    assert!(why.contains(';'), "what is, and what to do: {why}");
    let set = os.quotas.set_limits(&dir.join("none"), number("none"), bytes(LIMIT));
    assert_eq!(errno(set), Some(Errno::EOPNOTSUPP));
    os.files.create_directory(&dir.join("plain"), 0o755).expect("mkdir");
}

/// What was there before counts from here on, and so does what is made in it.
pub fn adopted(os: &Os, dir: &Path, pod: &dyn Pod) {
    let (id, path) = (number("adopted"), directory(os, dir.join("old")));
    let inner = directory(os, path.join("inner"));
    let deep = directory(os, inner.join("deep"));
    pod.append(&deep.join("file"), &vec![1; 8 << 20]).expect("write");
    for _ in 0..2 {
        os.quotas.adopt(&path, id).expect("adopt");
    }
    for inside in [&path, &inner, &deep] {
        assert!(os.quotas.counts(&path, inside, id).expect("ask"), "{}", inside.display());
    }
    let quota = os.quotas.quota(&path, id).expect("quota");
    assert!((8 * MIB..9 * MIB).contains(&quota.bytes) && quota.inodes == 4, "{quota:?}");
    assert_eq!(quota.limits, QuotaLimits::default());
    os.quotas.set_limits(&path, id, bytes(16 * MIB)).expect("limit");
    let more = fill(pod, &deep.join("more"));
    assert_at(8 * MIB + more, 16 * MIB);
    os.trees.remove(&path).expect("remove");
    os.quotas.give_back(&path, id).expect("give back");
}

/// What holds wherever bytes are limited. `sync` makes the whole filesystem durable.
pub fn quotas(os: &Os, dir: &Path, pod: &dyn Pod, sync: &dyn Fn()) {
    assert_ne!(os.quotas.enforceable(dir).expect("ask"), Enforceable::Nothing(String::new()));
    let (id, other) = (number("one"), number("other"));
    let (one, two, plain) = (dir.join("one"), dir.join("two"), directory(os, dir.join("plain")));
    for (id, path) in [(id, &one), (other, &two)] {
        assert!(os.quotas.quota(path, id).expect("quota").is_free());
        os.quotas.set_limits(path, id, QuotaLimits::default()).expect("lift what is not there");
        os.quotas.create_directory(path, 0o777, id, bytes(LIMIT)).expect("make");
        assert_eq!(errno(os.quotas.create_directory(path, 0o777, id, bytes(LIMIT))), Some(Errno::EEXIST));
    }
    assert_eq!(os.quotas.quota(&one, id).expect("quota").limits, bytes(LIMIT));
    let inner = directory(os, one.join("inner"));
    for (path, counts) in [(&one, true), (&inner, true), (&two, false), (&plain, false)] {
        assert_eq!(os.quotas.counts(&one, path, id).expect("ask"), counts, "{}", path.display());
    }
    fills_and_grows(os, dir, pod, sync, (id, other));
    removed(os, dir, pod, sync, id);
    assert!(!os.quotas.remove_at_once(&plain).expect("a plain directory"));
    assert!(os.files.stat(&plain.join("file")).expect("stat").is_some());
    assert!(!os.quotas.counts(&plain, &plain, id).expect("ask"), "a plain directory");
    os.trees.remove(&two).expect("remove");
    os.quotas.give_back(&two, other).expect("give back");
}

/// `dir` has the directories `one` and `two`, with a limit each.
fn fills_and_grows(os: &Os, dir: &Path, pod: &dyn Pod, sync: &dyn Fn(), (id, other): (QuotaId, QuotaId)) {
    let (one, two, plain) = (dir.join("one"), dir.join("two"), dir.join("plain"));
    let written = fill(pod, &one.join("file"));
    assert_at(written, LIMIT);
    // Its neighbours notice nothing.
    pod.append(&two.join("file"), &vec![1; 4 << 20]).expect("of a limit of its own");
    pod.append(&plain.join("file"), &vec![1; PIECE]).expect("of no limit");
    sync();
    let full = used(os, &one, id);
    assert!(full.bytes >= written && full.bytes <= LIMIT, "{full:?} for {written} bytes");
    let second = used(os, &two, other).bytes;
    assert!((4 * MIB..5 * MIB).contains(&second), "{second}");
    // It grows while it is in use, and is not made smaller than what is in it.
    os.quotas.set_limits(&one, id, bytes(2 * LIMIT)).expect("grow");
    let more = fill(pod, &one.join("more"));
    assert_at(written + more, 2 * LIMIT);
    os.quotas.set_limits(&one, id, bytes(LIMIT)).expect("shrink");
    let refused = pod.append(&one.join("file"), &[1; PIECE]).expect_err("it has more than that");
    assert!(is_full(&refused), "{refused}");
    os.quotas.set_limits(&one, id, QuotaLimits::default()).expect("lift");
    assert_eq!(os.quotas.quota(&one, id).expect("quota").limits, QuotaLimits::default());
    pod.append(&one.join("file"), &[1; PIECE]).expect("nothing limits it");
    os.quotas.set_limits(&one, id, bytes(LIMIT)).expect("set");
    // What is removed can be written again.
    os.files.remove_file(&one.join("file")).expect("unlink");
    os.files.remove_file(&one.join("more")).expect("unlink");
    sync();
    comes_to(os, &one, id, "the files are gone", |quota| quota.bytes < MIB);
    assert_at(fill(pod, &one.join("again")), LIMIT);
}

/// What is given back is free, and can be had again.
fn removed(os: &Os, dir: &Path, pod: &dyn Pod, sync: &dyn Fn(), id: QuotaId) {
    let one = dir.join("one");
    for round in 0..2 {
        // One of the ways in which it may go.
        if round == 0 || !os.quotas.remove_at_once(&one).expect("remove at once") {
            os.trees.remove(&one).expect("remove");
        }
        os.quotas.remove_at_once(&one).expect("nothing is there");
        os.quotas.give_back(&one, id).expect("give back");
        os.quotas.give_back(&one, id).expect("twice");
        sync();
        comes_to(os, &one, id, &format!("free, round {round}"), Quota::is_free);
        os.quotas.create_directory(&one, 0o777, id, bytes(LIMIT)).expect("make");
        pod.append(&one.join("file"), &vec![1; PIECE]).expect("write");
    }
    os.trees.remove(&one).expect("remove");
    os.quotas.give_back(&one, id).expect("give back");
}

/// Where files are counted too.
pub fn inode_quotas(os: &Os, dir: &Path, pod: &dyn Pod) {
    assert_eq!(os.quotas.enforceable(dir).expect("ask"), Enforceable::BytesAndInodes);
    let (id, path) = (number("inodes"), dir.join("inodes"));
    let limits = QuotaLimits { bytes: LIMIT, inodes: 100 };
    os.quotas.create_directory(&path, 0o777, id, limits).expect("make");
    let made = (0..200).take_while(|n| pod.append(&path.join(n.to_string()), b"").is_ok()).count();
    assert_eq!(made, 99, "the directory counts");
    let refused = pod.append(&path.join("more"), b"").expect_err("it has as many as it may");
    assert!(is_full(&refused), "{refused:?} {:?}", errno_of(&refused));
    let quota = os.quotas.quota(&path, id).expect("quota");
    assert_eq!((quota.inodes, quota.limits), (100, limits));
    os.quotas.set_limits(&path, id, QuotaLimits { inodes: 101, ..limits }).expect("grow");
    pod.append(&path.join("more"), b"").expect("one more");
    // A file of elsewhere cannot be brought in uncounted.
    pod.append(&dir.join("outside"), b"x").expect("write");
    let moved = os.files.rename(&dir.join("outside"), &path.join("outside"));
    assert_eq!(errno(moved), Some(Errno::EXDEV));
    os.trees.remove(&path).expect("remove");
    os.quotas.give_back(&path, id).expect("give back");
}
