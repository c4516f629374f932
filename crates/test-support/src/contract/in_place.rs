//! kernel::Images: what a filesystem takes for itself, and files that are written without more than their blocks.

use std::path::Path;

use hostloop::kernel::{Extent, Os};
use nix::errno::Errno;

use super::copies::{bytes, write, written};
use super::{MIB, directory, errno, image};

const BLOCK: u64 = 4096;

/// Asserts what the trait promises.
pub fn in_place(os: &Os, dir: &Path) {
    upkeep(os, dir);
    given_space(os, &directory(os, dir.join("given space")));
    own_blocks(os, &directory(os, dir.join("own blocks")));
    with_a_content(os, &directory(os, dir.join("with a content")));
    if os.images.can_reflink(dir).expect("ask") {
        clones(os, &directory(os, dir.join("clones of them")));
    }
}

fn upkeep(os: &Os, dir: &Path) {
    let (upkeep, space) = (os.images.upkeep(dir).expect("upkeep"), os.files.space(dir).expect("space"));
    assert!(upkeep.per_block < BLOCK && upkeep.unusable < space.total, "{upkeep:?}");
    if let Some(metadata) = upkeep.metadata {
        assert!(metadata.used > 0 && metadata.growth <= space.available, "{upkeep:?} {space:?}");
        assert!(metadata.rounding <= metadata.growth && metadata.growth <= metadata.data, "{upkeep:?}");
        assert!(upkeep.whole_extents, "so far btrfs alone has either");
    }
    assert_eq!(errno(os.images.upkeep(&dir.join("none"))), Some(Errno::ENOENT));
}

/// What a file was given is not available, whether or not the filesystem has committed it.
fn given_space(os: &Os, dir: &Path) {
    let free = || os.files.space(dir).expect("space").left();
    let before = free();
    for number in 1..=4 {
        let file = dir.join(number.to_string());
        image(os, &file, 0);
        os.images.write_in_place(&file).expect("prepare");
        match number {
            4 => write(os, &file, 0, &bytes(4 * MIB, 1)),
            _ => os.images.allocate(&file, 4 * MIB).expect("allocate"),
        };
        if number % 2 == 0 {
            os.files.sync_file(&file).expect("sync");
        }
        let (taken, given) = (before.saturating_sub(free()), number * 4 * MIB);
        assert!(taken >= given, "{taken} bytes less are available, and {given} are taken");
    }
}

/// Where the file's bytes lie, block by block.
fn places(os: &Os, file: &Path) -> Vec<u64> {
    let blocks = |extent: &Extent| {
        let physical = extent.physical;
        (0..extent.length.div_ceil(BLOCK)).map(move |block| physical + block * BLOCK).collect::<Vec<_>>()
    };
    written(os, file).iter().flat_map(blocks).collect()
}

/// Writes every third block by itself.
fn rewrite(os: &Os, file: &Path, len: u64, seed: u64) {
    for block in (0..len / BLOCK).step_by(3) {
        os.images.write_at(file, block * BLOCK, &bytes(BLOCK, seed + block)).expect("write");
        os.files.sync_file(file).expect("sync");
    }
}

/// A prepared file stays where it is, whatever is written to it and how often.
fn own_blocks(os: &Os, dir: &Path) {
    let file = dir.join("file");
    image(os, &file, 0);
    assert!(os.images.write_in_place(&file).expect("prepare"), "it is empty");
    assert!(os.images.write_in_place(&file).expect("prepare it again"));
    assert!(os.images.is_in_place(&file).expect("ask"));
    write(os, &file, 0, &bytes(MIB, 1));
    let before = places(os, &file);
    assert_eq!(before.len() as u64, MIB / BLOCK);
    for seed in [2, 3] {
        rewrite(os, &file, MIB, seed);
        assert_eq!(places(os, &file), before, "every block is where it was");
    }
    assert!(os.images.write_in_place(&file).expect("prepare what is prepared"));
    assert_eq!(errno(os.images.write_in_place(&dir.join("none"))), Some(Errno::ENOENT));
    assert_eq!(errno(os.images.is_in_place(&dir.join("none"))), Some(Errno::ENOENT));
}

/// What a file holds that was not prepared is left as it is, and the answer is the truth.
fn with_a_content(os: &Os, dir: &Path) {
    let file = dir.join("file");
    image(os, &file, 0);
    write(os, &file, 0, &bytes(MIB, 1));
    let is = os.images.is_in_place(&file).expect("ask");
    assert_eq!(os.images.write_in_place(&file).expect("prepare"), is);
    assert_eq!(os.images.is_in_place(&file).expect("ask"), is);
    assert!(os.files.read(&file).expect("read") == bytes(MIB, 1));
    let before = places(os, &file);
    rewrite(os, &file, MIB, 2);
    assert!(!is || places(os, &file) == before, "every block is where it was");
}

/// A clone of a prepared file is one too: of what both have, only the blocks that are written get a new place.
fn clones(os: &Os, dir: &Path) {
    let (source, clone) = (dir.join("source"), dir.join("clone"));
    image(os, &source, 0);
    assert!(os.images.write_in_place(&source).expect("prepare"));
    write(os, &source, 0, &bytes(MIB, 1));
    os.files.sync_file(&source).expect("sync");
    os.files.create_file(&clone).expect("create");
    os.images.reflink(&source, &clone).expect("reflink");
    os.files.sync_file(&clone).expect("sync");
    assert!(os.images.is_in_place(&clone).expect("ask"), "as its source is");
    let whole_extents = os.images.upkeep(dir).expect("upkeep").whole_extents;
    for file in [&clone, &source] {
        let allocated = || os.files.stat(file).expect("stat").expect("there").allocated;
        let (before, taken) = (places(os, file), allocated());
        os.images.write_at(file, 10 * BLOCK, &bytes(BLOCK, 2)).expect("write");
        // Also what is set aside around it.
        assert!(allocated() <= taken + BLOCK, "{} of {taken} bytes", allocated());
        os.files.sync_file(file).expect("sync");
        assert!(allocated() <= taken + BLOCK, "{} of {taken} bytes", allocated());
        let now = places(os, file);
        let moved: Vec<usize> = (0..now.len()).filter(|block| now[*block] != before[*block]).collect();
        // The second one is alone with that block by then. Where an extent counts as a whole, it is not.
        let alone = file == &source && !whole_extents;
        assert_eq!(moved, if alone { vec![] } else { vec![10] }, "{}", file.display());
        os.images.write_at(file, 10 * BLOCK, &bytes(BLOCK, 3)).expect("write");
        assert_eq!(places(os, file), now, "it has the block for itself");
    }
}
