//! kernel::Mounts, freezing.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use hostloop::kernel::{Os, is_errno};
use hostloop::model::FsType;
use nix::errno::Errno;

use super::{Cleanup, MIB, assert_gone, devices_of, directory, errno, flags, formatted};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

/// Long enough for a writer that does not have to wait.
const A_WHILE: Duration = Duration::from_millis(300);

/// Asserts what the traits promise.
pub fn freeze(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    for fs_type in FsType::ALL {
        let home = directory(os, dir.join(fs_type.as_str()));
        let (image, at) = (home.join("disk.img"), directory(os, home.join("mounted")));
        let open = formatted(os, &image, fs_type, fs_type.minimum_bytes().max(64 * MIB));
        os.mounts.mount(&open.device.path(), &at, fs_type, &flags(&[])).expect("mount");
        drop(open);
        writers_wait(os, &at);
        ends(os, &at);
        limit(os, &at);
        twice(os, &at);
        written(os, &at, &image);
        left(os, &at);
        os.mounts.unmount(&at).expect("unmount");
        assert_gone(os, &image);
    }
    refused(os, dir);
}

/// Writes a file durably, however long that takes. Sets `done` then.
fn writer<'s>(
    scope: &'s Scope<'s, '_>,
    os: &'s Os,
    file: &'s Path,
    done: &'s AtomicBool,
) -> ScopedJoinHandle<'s, ()> {
    scope.spawn(|| {
        loop {
            match os.files.create_file(file).and_then(|()| os.files.sync_file(file)) {
                // The fake kernel has no way to let anybody wait.
                Err(error) if is_errno(&error, Errno::EAGAIN) => sleep(Duration::from_millis(1)),
                result => break result.expect("write"),
            }
        }
        done.store(true, Ordering::SeqCst);
    })
}

/// Asserts that a new file can be written, without waiting.
fn writes(os: &Os, at: &Path, name: &str) {
    os.files.create_file(&at.join(name)).unwrap_or_else(|error| panic!("it is frozen: {error}"));
    os.files.sync_directory(at).expect("sync");
}

fn writers_wait(os: &Os, at: &Path) {
    writes(os, at, "before");
    let (file, done) = (at.join("meanwhile"), AtomicBool::new(false));
    scope(|scope| {
        let frozen = os.mounts.freeze(at, LONG).expect("freeze");
        let writer = writer(scope, os, &file, &done);
        sleep(A_WHILE);
        assert!(!done.load(Ordering::SeqCst), "written in spite of the freeze");
        // Readers do not wait.
        assert!(os.files.stat(&at.join("before")).expect("stat").is_some());
        assert_eq!(os.images.read_at(&at.join("before"), 0, 10).expect("read"), b"");
        frozen.thaw().expect("it has held");
        writer.join().expect("writer");
    });
    assert!(done.load(Ordering::SeqCst) && os.files.stat(&file).expect("stat").is_some());
}

/// A freeze that was ended and made again is noticed by what was written to the device.
fn written(os: &Os, at: &Path, image: &Path) {
    let device = devices_of(os, image).pop().expect("a device");
    let count = || os.loops.written(&device).expect("written").expect("this kernel counts");
    writes(os, at, "counted");
    let frozen = os.mounts.freeze(at, LONG).expect("freeze");
    let before = count();
    assert_eq!(os.images.read_at(image, 0, 4096).expect("read").len(), 4096);
    assert_eq!(count(), before, "nothing is written");
    frozen.thaw().expect("it has held");
    writes(os, at, "counted, too");
    let frozen = os.mounts.freeze(at, LONG).expect("freeze");
    assert!(count() > before);
    drop(frozen);
}

fn ends(os: &Os, at: &Path) {
    drop(os.mounts.freeze(at, LONG).expect("freeze"));
    writes(os, at, "after a drop");
    os.mounts.freeze(at, LONG).expect("freeze again").thaw().expect("thaw");
    writes(os, at, "after a thaw");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _frozen = os.mounts.freeze(at, LONG).expect("freeze");
        std::panic::resume_unwind(Box::new("a bug"));
    }));
    assert!(panicked.is_err());
    writes(os, at, "after a panic");
    assert!(!os.mounts.thaw(at).expect("thaw"), "nothing is left");
}

fn limit(os: &Os, at: &Path) {
    // Enough for the freeze itself on a machine with much to do.
    let limit = Duration::from_secs(1);
    let started = Instant::now();
    let (file, done) = (at.join("at the limit"), AtomicBool::new(false));
    let frozen = os.mounts.freeze(at, limit).expect("freeze");
    scope(|scope| {
        // Nobody thaws it.
        writer(scope, os, &file, &done).join().expect("writer");
    });
    assert!(started.elapsed() >= limit, "only {:?}", started.elapsed());
    assert_eq!(errno(frozen.thaw()), Some(Errno::ETIMEDOUT));
    writes(os, at, "after the limit");
}

fn twice(os: &Os, at: &Path) {
    let (file, done) = (at.join("twice"), AtomicBool::new(false));
    scope(|scope| {
        let frozen = os.mounts.freeze(at, LONG).expect("freeze");
        assert_eq!(errno(os.mounts.freeze(at, LONG).map(drop)), Some(Errno::EBUSY));
        let writer = writer(scope, os, &file, &done);
        sleep(A_WHILE);
        assert!(!done.load(Ordering::SeqCst), "the first freeze is no more");
        assert_eq!(errno(os.mounts.unmount(at)), Some(Errno::EBUSY));
        frozen.thaw().expect("the first one has held");
        writer.join().expect("writer");
    });
}

/// Somebody else thaws.
fn left(os: &Os, at: &Path) {
    assert!(!os.mounts.thaw(at).expect("not frozen"));
    let frozen = os.mounts.freeze(at, LONG).expect("freeze");
    assert!(os.mounts.thaw(at).expect("thaw"));
    writes(os, at, "after another's thaw");
    assert_eq!(errno(frozen.thaw()), Some(Errno::EINVAL));
    // A read-only mount of it shows the same filesystem.
    let bound = directory(os, at.parent().expect("a parent").join("bound"));
    os.mounts.bind(at, &bound, &flags(&["ro"])).expect("bind");
    let frozen = os.mounts.freeze(&bound, LONG).expect("freeze");
    assert!(os.mounts.thaw(at).expect("thaw"));
    drop(frozen);
    os.mounts.unmount(&bound).expect("unmount");
    writes(os, at, "after all");
}

/// Nothing around a path is frozen or thawed in its place.
fn refused(os: &Os, dir: &Path) {
    for (path, expected) in [("no", Errno::ENOENT), ("plain", Errno::EINVAL), ("file", Errno::ENOTDIR)] {
        match path {
            "plain" => drop(directory(os, dir.join(path))),
            "file" => os.files.create_file(&dir.join(path)).expect("create"),
            _ => {}
        }
        assert_eq!(errno(os.mounts.freeze(&dir.join(path), LONG).map(drop)), Some(expected), "{path}");
        assert_eq!(errno(os.mounts.thaw(&dir.join(path))), Some(expected), "{path}");
    }
    writes(os, dir, "not frozen");
    // A filesystem in memory.
    assert_eq!(errno(os.mounts.freeze(Path::new("/dev"), LONG).map(drop)), Some(Errno::EOPNOTSUPP));
}
