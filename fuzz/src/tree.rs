//! A tree of a hostile node as the real kernel gets it: whatever its entries are called, nothing may be made outside of
//! the directory of the copy. Only in it are files made; it lies in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hostloop::kernel::{Os, Reuse, linux};
use hostloop::model::tree::Item;
use tempfile::TempDir;

use crate::{messages, pull};

/// The largest file that an entry may announce. The writer would make any, but all of it would be in memory.
const LARGEST: u64 = 1 << 20;

/// What the file of the earlier tree has; as long as that of the seeds.
const EARLIER: [u8; 9000] = [7; 9000];

/// A directory in memory with a pool and another volume in it. One for each input, as libFuzzer ends without a drop.
fn place() -> TempDir {
    let directory =
        tempfile::Builder::new().prefix("hostloop-fuzz").tempdir_in("/dev/shm").expect("a directory");
    fs::create_dir_all(directory.path().join("pool/volumes")).expect("directories");
    fs::write(directory.path().join("pool/volumes/other"), "another volume").expect("a file");
    // An earlier tree, with names that the seeds have, and a way out of it.
    let earlier = directory.path().join("pool/volumes/earlier");
    fs::create_dir_all(earlier.join("d")).expect("directories");
    fs::write(earlier.join("d/f"), EARLIER).expect("a file");
    std::os::unix::fs::symlink("../other", earlier.join("s")).expect("a link");
    directory
}

fn machine() -> &'static Os {
    static MACHINE: OnceLock<Os> = OnceLock::new();
    MACHINE.get_or_init(|| linux::os(linux::Tools::find()))
}

/// Runs one input: messages of a stream, as in [`pull`].
pub fn run(input: &[u8]) {
    let (directory, os) = (place(), machine());
    let target = directory.path().join("pool/volumes/copy");
    let earlier = directory.path().join("pool/volumes/earlier");
    let Ok(mut writer) = os.trees.write(&target, Some((&earlier, Reuse::Share))) else {
        panic!("the directory of the copy can be made")
    };
    let mut whole = true;
    for message in messages::read(input) {
        let Ok(placed) = pull::tree(&message) else { break };
        let written = match placed.message {
            Item::Entry(entry) if announces(&entry.kind) > LARGEST => break,
            Item::Entry(entry) => writer.entry(entry),
            Item::Data(piece) if piece.end() > LARGEST => break,
            Item::Data(piece) => writer.data(piece.offset, &piece.data),
            Item::Zeros(zeros) if zeros.end() > LARGEST => break,
            Item::Zeros(zeros) => writer.zeros(zeros.offset, zeros.len),
            Item::Alive => Ok(()),
            Item::End { .. } => break,
        };
        whole = written.is_ok();
        if !whole {
            break;
        }
    }
    if whole {
        // An attribute that cannot be set is an error, which is fine.
        let _ = writer.finish();
    } else {
        drop(writer);
    }
    os.trees.remove(&target).expect("what was made can be removed");
    let left = ["", "/volumes", "/volumes/earlier", "/volumes/earlier/d", "/volumes/earlier/d/f"];
    let left = left.into_iter().chain(["/volumes/earlier/s", "/volumes/other"]);
    let left: Vec<PathBuf> = left.map(|path| PathBuf::from(format!("pool{path}"))).collect();
    assert_eq!(names(directory.path()), left);
    assert_eq!(fs::read(earlier.join("d/f")).expect("the earlier file"), EARLIER);
    let other = fs::read(directory.path().join("pool/volumes/other")).expect("the other volume");
    assert_eq!(other, b"another volume");
}

fn announces(kind: &hostloop::model::tree::Kind) -> u64 {
    match kind {
        hostloop::model::tree::Kind::File { size } => *size,
        _ => 0,
    }
}

/// Everything below a directory, sorted.
fn names(top: &Path) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![top.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            found.push(path.strip_prefix(top).expect("a path below").to_owned());
            if path.is_dir() && !path.is_symlink() {
                todo.push(path);
            }
        }
    }
    found.sort();
    found
}
