//! kernel::Images: extents, and copies of files.

use std::path::Path;

use hostloop::kernel::{Extent, Os};
use nix::errno::Errno;

use super::{MIB, directory, errno, image};

const KIB: u64 = 1 << 10;

/// Asserts what the trait promises.
pub fn copies(os: &Os, dir: &Path) {
    extents(os, &directory(os, dir.join("extents")));
    clones(os, &directory(os, dir.join("clones")));
    copied(os, &directory(os, dir.join("copied")));
}

/// Bytes that are nowhere twice, so that none of them can be mistaken for others.
pub fn bytes(len: u64, seed: u64) -> Vec<u8> {
    let word =
        |i: u64| (i + 1).wrapping_mul(seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len as usize).collect()
}

/// Writes at this place of a file, which ends there then.
pub fn write(os: &Os, file: &Path, offset: u64, bytes: &[u8]) {
    os.images.set_size(file, offset).expect("set size");
    let mut log = os.files.open_log(file, offset).expect("open");
    log.append(bytes).expect("append");
    log.sync().expect("sync");
}

fn all(os: &Os, file: &Path) -> Vec<Extent> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let next = os.images.extents(file, at, 2, true).expect("extents");
        let Some(last) = next.last() else { return found };
        assert!(next.len() <= 2 && next[0].logical >= at, "{next:?} from {at}");
        at = last.logical + last.length;
        found.extend(next);
    }
}

/// The extents that hold what was written. xfs allocates more than a writer asks for. It frees the rest when the file is
/// closed, unless another task holds the inode at that moment, and a file that grows then has it as zeros.
pub fn written(os: &Os, file: &Path) -> Vec<Extent> {
    all(os, file).into_iter().filter(|extent| !extent.unwritten).collect()
}

/// Where a file's bytes lie, without the cuts that a filesystem makes for itself.
fn lies(extents: &[Extent]) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for extent in extents {
        assert!(extent.located, "{extent:?}");
        match runs.last_mut() {
            Some((logical, physical, length))
                if *logical + *length == extent.logical && *physical + *length == extent.physical =>
            {
                *length += extent.length;
            }
            _ => runs.push((extent.logical, extent.physical, extent.length)),
        }
    }
    runs
}

fn extents(os: &Os, dir: &Path) {
    let file = dir.join("file");
    image(os, &file, 4 * MIB);
    assert_eq!(os.images.extents(&file, 0, 10, true).expect("of a hole"), []);
    write(os, &file, 0, &bytes(64 * KIB, 1));
    write(os, &file, MIB, &bytes(128 * KIB, 2));
    let found = written(os, &file);
    assert!(found.iter().all(|e| e.located && !e.shared), "{found:?}");
    let covered: Vec<(u64, u64)> =
        lies(&found).iter().map(|(logical, _, length)| (*logical, *length)).collect();
    let total = |from: u64, to: u64| {
        covered.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, length)| length).sum::<u64>()
    };
    assert_eq!((total(0, MIB), total(MIB, 4 * MIB)), (64 * KIB, 128 * KIB), "{found:?}");
    let part = os.images.extents(&file, 32 * KIB, 1, true).expect("extents");
    assert_eq!((part.len(), part[0].logical), (1, 32 * KIB), "it begins where it was asked for");
    assert_eq!(part[0].physical, found[0].physical + 32 * KIB);
    let from =
        |at| os.images.extents(&file, at, 9, true).expect("extents").into_iter().find(|e| !e.unwritten);
    assert_eq!(from(64 * KIB).expect("the next extent").logical, MIB);
    assert_eq!(from(2 * MIB), None, "beyond the end");
    assert_eq!(os.images.extents(&file, 0, 0, true).expect("none at all"), []);
    os.images.allocate(&file, 4 * MIB).expect("allocate");
    let zeros: Vec<Extent> = all(os, &file).into_iter().filter(|e| e.unwritten).collect();
    let length = zeros.iter().map(|e| e.length).sum::<u64>();
    assert!(length >= 2 * MIB && zeros.iter().all(|e| !e.located), "{zeros:?}");
    assert_eq!(errno(os.images.extents(&dir.join("none"), 0, 1, true)), Some(Errno::ENOENT));
}

fn clones(os: &Os, dir: &Path) {
    let (source, clone) = (dir.join("source"), dir.join("clone"));
    image(os, &source, 0);
    write(os, &source, 0, &bytes(16 * MIB, 1));
    os.images.set_size(&source, 20 * MIB).expect("a hole at the end");
    os.files.create_file(&clone).expect("create");
    let names = os.files.list(dir).expect("list");
    let possible = os.images.can_reflink(dir).expect("ask");
    assert_eq!(os.files.list(dir).expect("list"), names, "asking leaves nothing");
    if !possible {
        assert_eq!(errno(os.images.reflink(&source, &clone)), Some(Errno::EOPNOTSUPP));
        assert_eq!(errno(os.images.unshare(&source)), Some(Errno::EOPNOTSUPP));
        return;
    }
    let free = |os: &Os| os.files.space(dir).expect("space").available;
    let before = free(os);
    os.images.reflink(&source, &clone).expect("reflink");
    os.files.sync_file(&clone).expect("sync");
    assert!(before.saturating_sub(free(os)) < 8 * MIB, "the blocks are counted once");
    let stat = os.files.stat(&clone).expect("stat").expect("there");
    assert!(stat.size == 20 * MIB && stat.allocated >= 16 * MIB, "{stat:?}");
    assert_eq!(os.files.read(&clone).expect("read"), os.files.read(&source).expect("read"));
    let (of_source, of_clone) = (written(os, &source), written(os, &clone));
    assert!(of_source.iter().chain(&of_clone).all(|e| e.shared), "{of_source:?} {of_clone:?}");
    assert_eq!(lies(&of_source), lies(&of_clone));
    assert_eq!(errno(os.images.reflink(&source, &clone)), Some(Errno::EEXIST), "it is not empty any more");
    assert_eq!(errno(os.images.reflink(&source, &dir.join("none"))), Some(Errno::ENOENT));

    // What is written to one is not in the other, and lies elsewhere.
    write(os, &clone, 8 * MIB, &bytes(MIB, 2));
    assert_eq!(
        os.images.read_at(&source, 8 * MIB, MIB as usize).expect("read"),
        bytes(16 * MIB, 1)[8 << 20..9 << 20]
    );
    let (before, after) = (lies(&of_source), lies(&written(os, &clone)));
    assert_eq!(lies(&written(os, &source)), before);
    let place = |runs: &[(u64, u64, u64)], at: u64| {
        let run = runs.iter().find(|(logical, _, length)| (*logical..logical + length).contains(&at));
        run.map(|(logical, physical, _)| physical + (at - logical)).expect("an extent")
    };
    assert_eq!(place(&before, 4 * MIB), place(&after, 4 * MIB), "still shared");
    assert_ne!(place(&before, 8 * MIB), place(&after, 8 * MIB));

    match os.images.unshare(&clone) {
        Err(error) => assert_eq!(errno(Err::<(), _>(error)), Some(Errno::EOPNOTSUPP)),
        Ok(()) => {
            assert!(written(os, &clone).iter().all(|e| !e.shared));
            assert_ne!(
                place(&lies(&written(os, &source)), 4 * MIB),
                place(&lies(&written(os, &clone)), 4 * MIB)
            );
            assert_eq!(os.images.read_at(&clone, 0, 8 << 20).expect("read"), bytes(16 * MIB, 1)[..8 << 20]);
        }
    }
}

fn copied(os: &Os, dir: &Path) {
    let (source, copy) = (dir.join("source"), dir.join("copy"));
    // More than one buffer, and no whole number of blocks.
    let len = 9 * MIB + 1234;
    let data = bytes(len, 1);
    image(os, &source, 0);
    write(os, &source, 0, &data);
    image(os, &copy, 0);
    write(os, &copy, 0, &bytes(10 * MIB, 2));
    os.images.copy_range(&source, &copy, 0, len).expect("copy");
    os.files.sync_file(&copy).expect("sync");
    assert!(os.images.read_at(&copy, 0, len as usize).expect("read") == data);
    let rest = os.images.read_at(&copy, len, 10 << 20).expect("read");
    assert!(rest == bytes(10 * MIB, 2)[len as usize..], "what lies behind it is left");
    assert!(written(os, &copy).iter().all(|e| e.located && !e.shared), "blocks of its own");
    assert_ne!(lies(&written(os, &copy))[0].1, lies(&written(os, &source))[0].1);

    let part = dir.join("part");
    image(os, &part, 10 * MIB);
    os.images.copy_range(&source, &part, 5 * MIB + 100, 777).expect("copy a little");
    os.images.copy_range(&source, &part, 0, 0).expect("copy nothing");
    let (from, to) = (5 * MIB as usize + 100, 5 * MIB as usize + 877);
    let mut expected = vec![0; 10 << 20];
    expected[from..to].copy_from_slice(&data[from..to]);
    assert!(os.files.read(&part).expect("read") == expected);
    assert_eq!(errno(os.images.copy_range(&source, &part, len - 10, 11)), Some(Errno::EIO));
    assert_eq!(errno(os.images.copy_range(&source, &dir.join("none"), 0, 1)), Some(Errno::ENOENT));
}
