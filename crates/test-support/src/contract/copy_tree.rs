//! kernel::Trees::copy

use std::io;
use std::path::{Path, PathBuf};

use hostloop::kernel::{FileKind, Os};
use nix::errno::Errno;

use super::{Cleanup, MIB, directory, errno, flags, image};

/// Asserts what the trait promises.
pub fn copy_tree(os: &Os, dir: &Path) {
    for share in [false, true] {
        let dir = directory(os, dir.join(format!("share-{share}")));
        whole(os, &directory(os, dir.join("whole")), share);
        refused(os, &directory(os, dir.join("refused")), share);
        progress(os, &directory(os, dir.join("progress")), share);
        mounts(os, &directory(os, dir.join("mounts")), share);
    }
}

fn copy(os: &Os, source: &Path, target: &Path, share: bool) -> io::Result<()> {
    os.trees.copy(source, target, share, &mut |_| Ok(()))
}

fn write(os: &Os, file: &Path, bytes: &[u8]) {
    let mut log = os.files.open_log(file, 0).expect("open");
    log.append(bytes).expect("append");
    log.sync().expect("sync");
}

/// Directories in directories, with a file in each.
fn tree(os: &Os, root: PathBuf) -> PathBuf {
    let mut deep = directory(os, root.clone());
    for level in 0..100 {
        write(os, &deep.join("file"), format!("in level {level}").as_bytes());
        directory(os, deep.join("beside"));
        deep = directory(os, deep.join("level"));
    }
    root
}

fn whole(os: &Os, dir: &Path, share: bool) {
    let (source, target) = (tree(os, dir.join("source")), dir.join("target"));
    // A hole, some data, and a hole.
    let sparse = source.join("sparse");
    image(os, &sparse, 8 * MIB);
    let mut log = os.files.open_log(&sparse, 8 * MIB).expect("open");
    log.append(b"the end of it").expect("append");
    drop(log);
    os.images.set_size(&sparse, 16 * MIB).expect("set size");
    let before = os.files.list(&source).expect("list");

    copy(os, &source, &target, share).expect("copy");

    assert_eq!(os.files.list(&target).expect("list"), before);
    assert_eq!(os.files.list(&source).expect("list"), before);
    let (mut from, mut to) = (source.clone(), target.clone());
    for level in 0..100 {
        assert_eq!(os.files.read(&to.join("file")).expect("read"), format!("in level {level}").as_bytes());
        assert_eq!(os.files.list(&to.join("beside")).expect("list"), [""; 0]);
        (from, to) = (from.join("level"), to.join("level"));
    }
    let copied = target.join("sparse");
    let stat = |path: &Path| os.files.stat(path).expect("stat").expect("there");
    assert_eq!((stat(&copied).kind, stat(&copied).size), (FileKind::File, 16 * MIB));
    assert!(stat(&copied).allocated <= 2 * MIB, "{:?}", stat(&copied));
    assert_eq!(os.images.read_at(&copied, 8 * MIB, 14).expect("read"), b"the end of it\0");
    assert_ne!(stat(&copied).id, stat(&sparse).id);
    // Neither is the other's.
    write(os, &source.join("file"), b"changed in the source");
    write(os, &target.join("level/file"), b"changed in the copy");
    assert_eq!(os.files.read(&target.join("file")).expect("read"), b"in level 0");
    assert_eq!(os.files.read(&source.join("level/file")).expect("read"), b"in level 1");
    os.trees.remove(&source).expect("remove");
    assert_eq!(os.files.read(&target.join("file")).expect("read"), b"in level 0");
    os.trees.remove(&target).expect("remove");
}

fn refused(os: &Os, dir: &Path, share: bool) {
    let source = directory(os, dir.join("source"));
    let file = source.join("file");
    write(os, &file, b"content");
    let refused = |from: &Path, to: &Path| errno(copy(os, from, to, share));
    assert_eq!(refused(&dir.join("nothing"), &dir.join("target")), Some(Errno::ENOENT));
    assert_eq!(refused(&file, &dir.join("target")), Some(Errno::ENOTDIR));
    assert_eq!(refused(&source, &dir.join("no/target")), Some(Errno::ENOENT));
    assert_eq!(os.files.stat(&dir.join("target")).expect("stat"), None, "nothing is made for nothing");
    let there = directory(os, dir.join("there"));
    assert_eq!(refused(&source, &there), Some(Errno::EEXIST));
    assert_eq!(refused(&source, &file), Some(Errno::EEXIST));
    assert_eq!(os.files.list(&there).expect("list"), [""; 0]);
    assert_eq!(os.files.read(&file).expect("read"), b"content");
    let inside = directory(os, source.join("sub")).join("target");
    assert_eq!(refused(&source, &inside), Some(Errno::EINVAL), "a copy into itself has no end");
}

fn progress(os: &Os, dir: &Path, share: bool) {
    let source = directory(os, dir.join("source"));
    write(os, &source.join("large"), &vec![7; 40 << 20]);
    for i in 0..2000 {
        image(os, &source.join(format!("{i}")), 0);
    }
    let mut told = Vec::new();
    let mut note = |bytes| {
        told.push(bytes);
        Ok(())
    };
    os.trees.copy(&source, &dir.join("target"), share, &mut note).expect("copy");
    assert!(told.is_sorted() && told.len() >= 3, "{told:?}");
    assert_eq!(told.last(), Some(&(40 * MIB)));
    if !share {
        let steps = told.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(told[0] <= 17 * MIB && steps <= Some(40 * MIB), "{told:?}");
    }

    for calls in 1..=3 {
        let target = dir.join(format!("stopped-{calls}"));
        let mut left = calls;
        let mut stop = |_| {
            left -= 1;
            if left == 0 { Err(io::Error::other("the caller is going down")) } else { Ok(()) }
        };
        let error = os.trees.copy(&source, &target, share, &mut stop).expect_err("stopped");
        assert_eq!(error.to_string(), "the caller is going down");
        assert_eq!(left, 0, "and at once");
        os.trees.remove(&target).expect("remove what was made");
        assert_eq!(os.files.stat(&target).expect("stat"), None);
    }
}

fn mounts(os: &Os, dir: &Path, share: bool) {
    let _cleanup = Cleanup::new(os, dir);
    let (source, target) = (directory(os, dir.join("source")), dir.join("target"));
    let other = directory(os, dir.join("other"));
    write(os, &other.join("file"), b"content");
    let inside = directory(os, directory(os, source.join("sub")).join("inside"));
    os.mounts.bind(&other, &inside, &flags(&[])).expect("bind");
    assert_eq!(errno(copy(os, &source, &target, share)), Some(Errno::EXDEV));
    os.trees.remove(&target).expect("remove");
    os.mounts.unmount(&inside).expect("unmount");
    let file = source.join("sub/bound");
    write(os, &file, b"");
    os.mounts.bind(&other.join("file"), &file, &flags(&[])).expect("bind");
    assert_eq!(errno(copy(os, &source, &target, share)), Some(Errno::EXDEV));
    os.trees.remove(&target).expect("remove");
    os.mounts.unmount(&file).expect("unmount");
    // A source that is a mount itself is one tree.
    os.mounts.bind(&other, &inside, &flags(&[])).expect("bind");
    copy(os, &inside, &target, share).expect("copy");
    assert_eq!(os.files.read(&target.join("file")).expect("read"), b"content");
    os.mounts.unmount(&inside).expect("unmount");
}
