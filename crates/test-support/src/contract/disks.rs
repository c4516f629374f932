//! kernel::Files, kernel::Images, kernel::Trees

use std::path::Path;

use hostloop::kernel::{FileKind, Os};
use nix::errno::Errno;

use super::{MIB, directory, errno, image};

/// Asserts what the trait promises.
pub fn disks(os: &Os, dir: &Path) {
    names(os, &directory(os, dir.join("names")));
    sizes(os, &directory(os, dir.join("sizes")));
    logs(os, &directory(os, dir.join("logs")));
    trees(os, &directory(os, dir.join("trees")));
    fingerprints(os, &directory(os, dir.join("fingerprints")));
    places(os, dir);
}

fn names(os: &Os, dir: &Path) {
    let (file, sub) = (dir.join("b"), dir.join("a"));
    assert_eq!(os.files.stat(&file).expect("stat"), None);
    os.files.create_file(&file).expect("create");
    assert_eq!(errno(os.files.create_file(&file)), Some(Errno::EEXIST));
    assert_eq!(os.files.stat(&file.join("x")).expect("stat below a file"), None);
    os.files.create_directory(&sub, 0o2777).expect("mkdir");
    assert_eq!(errno(os.files.create_directory(&sub, 0o755)), Some(Errno::EEXIST));
    assert_eq!(errno(os.files.create_directory(&dir.join("no/x"), 0o755)), Some(Errno::ENOENT));
    assert_eq!(os.files.list(dir).expect("list"), ["a", "b"]);
    let kind = |path: &Path| os.files.stat(path).expect("stat").map(|s| s.kind);
    assert_eq!((kind(&file), kind(&sub)), (Some(FileKind::File), Some(FileKind::Directory)));
    let id = os.files.stat(&file).expect("stat").expect("there").id;
    os.files.rename(&file, &dir.join("c")).expect("rename");
    assert_eq!(os.files.stat(&dir.join("c")).expect("stat").expect("there").id, id);
    assert_eq!(errno(os.files.rename(&file, &dir.join("d"))), Some(Errno::ENOENT));
    os.files.create_file(&sub.join("x")).expect("create");
    assert_eq!(errno(os.files.remove_directory(&sub)), Some(Errno::ENOTEMPTY));
    os.files.remove_file(&sub.join("x")).expect("unlink");
    os.files.remove_file(&sub.join("x")).expect("unlink nothing");
    os.files.remove_directory(&sub).expect("rmdir");
    os.files.remove_directory(&sub).expect("rmdir nothing");
    assert_eq!(errno(os.files.list(&sub)), Some(Errno::ENOENT));
    assert_eq!(errno(os.files.read(&file)), Some(Errno::ENOENT));
    os.files.sync_directory(dir).expect("sync");
}

fn sizes(os: &Os, dir: &Path) {
    let file = dir.join("image");
    image(os, &file, 8 * MIB);
    let stat = |path: &Path| os.files.stat(path).expect("stat").expect("there");
    assert_eq!((stat(&file).size, stat(&file).allocated), (8 * MIB, 0));
    assert_eq!(os.images.next_data(&file, 0).expect("next data"), None);
    assert_eq!(os.images.next_data(&file, 99 * MIB).expect("next data beyond the end"), None);
    assert_eq!(os.images.read_at(&file, 8 * MIB - 10, 100).expect("read"), [0; 10]);
    assert_eq!(os.images.read_at(&file, 9 * MIB, 100).expect("read beyond the end"), [0; 0]);
    os.images.allocate(&file, 16 * MIB).expect("allocate");
    assert!(stat(&file).size == 16 * MIB && stat(&file).allocated >= 16 * MIB);
    os.files.sync_file(&file).expect("sync");
    os.images.write_at(&file, MIB + 100, &[7; 9000]).expect("write");
    os.images.write_at(&file, 15 * MIB, &vec![8; MIB as usize]).expect("write");
    os.images.zero(&file).expect("zero");
    for offset in [MIB, 15 * MIB] {
        assert_eq!(os.images.read_at(&file, offset, MIB as usize).expect("read"), vec![0; MIB as usize]);
    }
    assert!(stat(&file).size == 16 * MIB && stat(&file).allocated >= 16 * MIB, "it keeps its blocks");
    os.images.write_at(&file, 2 * MIB, &vec![9; MIB as usize]).expect("write");
    let before = stat(&file).allocated;
    os.images.erase_range(&file, 2 * MIB + 100, 200_000).expect("erase a range");
    let mut expected = vec![9; MIB as usize];
    expected[100..200_100].fill(0);
    assert!(os.images.read_at(&file, 2 * MIB, MIB as usize).expect("read") == expected);
    os.files.sync_file(&file).expect("sync");
    assert!(stat(&file).size == 16 * MIB && stat(&file).allocated <= before - 150_000, "whole blocks go");
    os.images.erase_range(&file, 2 * MIB + 200_100, 50).expect("erase within a block");
    expected[200_100..200_150].fill(0);
    assert!(os.images.read_at(&file, 2 * MIB, MIB as usize).expect("read") == expected);
    os.images.erase_range(&file, 15 * MIB, 5 * MIB).expect("erase beyond the end");
    assert_eq!(stat(&file).size, 16 * MIB);
    os.images.erase_range(&file, 0, 0).expect("erase nothing");
    os.images.erase(&file).expect("erase");
    assert!(stat(&file).size == 16 * MIB && stat(&file).allocated < MIB);
    let total = os.files.space(dir).expect("space").total;
    assert_eq!(errno(os.images.allocate(&file, total + MIB)), Some(Errno::ENOSPC));
    assert_eq!(stat(&file).size, 16 * MIB, "what was there is left");
    os.images.allocate(&dir.join("image"), 0).expect("allocate nothing");
}

fn logs(os: &Os, dir: &Path) {
    let stat = |path: &Path| os.files.stat(path).expect("stat").expect("there");
    let file = dir.join("log");
    let mut log = os.files.open_log(&file, 0).expect("open");
    log.append(b"hello world").expect("append");
    log.sync().expect("sync");
    assert_eq!(os.files.read(&file).expect("read"), b"hello world");
    drop(log);
    let mut log = os.files.open_log(&file, 5).expect("open");
    log.append(b"!").expect("append");
    assert_eq!(os.files.read(&file).expect("read"), b"hello!");
    assert_eq!(os.images.read_at(&file, 1, 3).expect("read"), b"ell");
    let (start, end) = os.images.next_data(&file, 0).expect("next data").expect("data");
    assert!(start == 0 && end >= 6);
    assert_eq!(errno(os.files.open_log(&file, 99)), Some(Errno::EINVAL), "shorter than what was read of it");

    let (file, total) = (dir.join("log with room"), os.files.space(dir).expect("space").total);
    let mut log = os.files.open_log(&file, 0).expect("open");
    log.append(b"hello").expect("append");
    log.reserve(0).expect("nothing");
    log.reserve(MIB).expect("set room aside");
    assert!(stat(&file).size == 5 && stat(&file).allocated >= MIB, "{:?}", stat(&file));
    log.reserve(4 * MIB).expect("set more room aside");
    assert!(stat(&file).size == 5 && stat(&file).allocated >= 4 * MIB, "{:?}", stat(&file));
    assert_eq!(errno(log.reserve(total + MIB)), Some(Errno::ENOSPC));
    log.append(b" world").expect("append");
    log.sync().expect("sync");
    drop(log);
    drop(os.files.open_log(&file, 11).expect("open what is whole"));
    assert!(stat(&file).allocated >= MIB, "the room outlives who took it");
    assert_eq!(os.files.read(&file).expect("read"), b"hello world");
    drop(os.files.open_log(&file, 5).expect("cut"));
    assert!(stat(&file).allocated < MIB, "and goes with a cut");

    let lock = os.files.lock(&dir.join("lock")).expect("lock");
    let second = os.files.lock(&dir.join("lock")).err().expect("held");
    assert!(second.to_string().contains("held by process "), "{second}");
    assert_eq!(errno(Err::<(), _>(second)), Some(Errno::EWOULDBLOCK));
    drop(lock);
    drop(os.files.lock(&dir.join("lock")).expect("free again"));
}

fn trees(os: &Os, dir: &Path) {
    let root = directory(os, dir.join("root"));
    let empty = os.trees.usage(&root).expect("usage");
    let mut deep = root.clone();
    for level in 0..100 {
        deep = directory(os, deep.join(format!("d{level}")));
        image(os, &deep.join("f"), 0);
    }
    os.images.allocate(&deep.join("f"), MIB).expect("allocate");
    let usage = os.trees.usage(&root).expect("usage");
    assert_eq!(usage.inodes, empty.inodes + 200);
    let found = os.trees.find(&root, &["d100", "d99"]).expect("find").expect("an entry");
    assert_eq!(root.join(&found), deep, "beyond the levels that stay open");
    assert_eq!(os.trees.find(&root, &["d100", "d101"]).expect("find"), None);
    assert_eq!(errno(os.trees.find(&deep.join("f"), &["f"])), Some(Errno::ENOTDIR));
    assert!(usage.bytes >= empty.bytes + MIB, "{usage:?}");
    // In parts: as many entries as it is told, and not one more.
    let mut asked = 0;
    let mut three = || {
        asked += 1;
        asked <= 3
    };
    assert!(!os.trees.remove_while(&root, &mut three).expect("remove a part"));
    assert_eq!(asked, 4);
    let left = os.trees.usage(&root).expect("usage").inodes;
    assert!((usage.inodes - 3..=usage.inodes).contains(&left), "{left} of {}", usage.inodes);
    os.trees.remove(&root).expect("remove");
    assert_eq!(os.files.stat(&root).expect("stat"), None);
    os.trees.remove(&root).expect("remove nothing");
    assert!(!os.trees.remove_while(&root, &mut || false).expect("it asks before it looks"));
    image(os, &root, MIB);
    os.trees.remove(&root).expect("remove a file");
    assert_eq!(os.files.stat(&root).expect("stat"), None);
    assert_eq!(errno(os.trees.usage(&root)), Some(Errno::ENOENT));
}

fn fingerprints(os: &Os, dir: &Path) {
    // Times of files come from a clock that goes on every few milliseconds.
    let tick = || std::thread::sleep(std::time::Duration::from_millis(20));
    let (root, now) =
        (directory(os, dir.join("root")), |path: &Path| os.trees.fingerprint(path).expect("fingerprint"));
    let (below, file) = (directory(os, root.join("below")), root.join("below/file"));
    let (mut seen, mut at) = (std::collections::BTreeSet::new(), root.clone());
    assert!(seen.insert(now(&at)));
    image(os, &file, MIB);
    assert!(seen.insert(now(&at)), "a new file");
    tick();
    os.images.write_at(&file, 0, b"one").expect("write");
    assert!(seen.insert(now(&at)), "its bytes");
    os.files.rename(&file, &below.join("renamed")).expect("rename");
    assert!(seen.insert(now(&at)), "its name");
    os.files.rename(&root, &dir.join("other")).expect("rename");
    at = dir.join("other");
    assert!(!seen.insert(now(&at)), "the name of the top does not count");
    let one = at.join("below/renamed");
    let (whole, before) = (now(&at), now(&one));
    os.files.rename(&one, &dir.join("file")).expect("rename");
    assert_eq!(now(&dir.join("file")), before, "of a file either");
    tick();
    os.images.write_at(&dir.join("file"), 0, b"two").expect("write");
    assert_ne!(now(&dir.join("file")), before);
    assert_ne!(now(&at), whole, "a file that is gone");
    assert_eq!(errno(os.trees.fingerprint(&one)), Some(Errno::ENOENT));
}

fn places(os: &Os, dir: &Path) {
    let space = os.files.space(dir).expect("space");
    assert!(space.total > 0 && space.available <= space.total && space.used <= space.total);
    let (largest, file) = (os.images.largest_file(dir).expect("its largest file"), dir.join("largest"));
    os.files.create_file(&file).expect("create");
    os.images.set_size(&file, largest).expect("the largest file");
    assert_eq!(errno(os.images.set_size(&file, largest + 1)), Some(Errno::EFBIG), "{largest}");
    os.files.remove_file(&file).expect("remove");
    if let Some(alignment) = os.images.direct_io_alignment(dir).expect("alignment") {
        assert!(alignment.is_power_of_two() && alignment <= 65536, "{alignment}");
    }
    assert_eq!(os.files.canonicalize(&dir.join("names/../names")).expect("canonicalize"), dir.join("names"));
}
