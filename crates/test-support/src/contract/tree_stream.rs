//! kernel::Trees::read and write

use std::io;
use std::path::{Path, PathBuf};

use hostloop::kernel::{Os, TreeWriter};
use hostloop::model::pull::Piece;
use hostloop::model::tree::{Attributes, Basis, Entry, Item, Kind, Position};
use nix::errno::Errno;

use super::{Cleanup, MIB, directory, errno, flags, image};

/// Asserts what the trait promises.
pub fn tree_stream(os: &Os, dir: &Path) {
    whole(os, &directory(os, dir.join("whole")));
    refused(os, &directory(os, dir.join("refused")));
    out_of_place(os, &directory(os, dir.join("out of place")));
}

/// Everything from a position on, and how many entries there are.
pub fn read(os: &Os, source: &Path, from: Position) -> (Vec<Item>, u64) {
    let mut items = Vec::new();
    let entries = os.trees.read(source, None, from, &mut |item| {
        items.push(item);
        true
    });
    (items, entries.expect("read"))
}

/// The position behind an item.
pub fn after(item: &Item) -> impl Fn(Position) -> Position + use<> {
    let item = item.clone();
    move |at| at.behind(&item)
}

/// Gives a writer an item.
pub fn put(writer: &mut dyn TreeWriter, item: &Item) -> io::Result<()> {
    match item {
        Item::Entry(entry) => writer.entry(entry.clone()),
        Item::Data(piece) => writer.data(piece.offset, &piece.data),
        Item::Zeros(zeros) => writer.zeros(zeros.offset, zeros.len),
        Item::Alive => Ok(()),
        Item::End { .. } => unreachable!("an end is not read"),
    }
}

/// Copies a tree in as many streams as it has parts of so many items.
pub fn copy(os: &Os, source: &Path, target: &Path, most: usize) {
    let mut writer = os.trees.write(target, None).expect("make the top");
    let (mut at, mut whole) = (Position::default(), false);
    while !whole {
        let mut items = Vec::new();
        let read = os.trees.read(source, None, at, &mut |item| {
            items.push(item);
            items.len() < most
        });
        read.expect("read");
        whole = items.len() < most;
        for item in &items {
            put(&mut *writer, item).expect("write");
            at = after(item)(at);
        }
    }
    writer.finish().expect("finish");
}

/// Makes a file with this content, durably.
pub fn write(os: &Os, file: &Path, bytes: &[u8]) {
    let mut log = os.files.open_log(file, 0).expect("open");
    log.append(bytes).expect("append");
    log.sync().expect("sync");
}

/// Directories in directories, with files in each.
fn tree(os: &Os, root: PathBuf) -> PathBuf {
    let mut deep = directory(os, root.clone());
    for level in 0..100 {
        write(os, &deep.join("file"), format!("in level {level}").as_bytes());
        write(os, &deep.join("z"), b"");
        directory(os, deep.join("beside"));
        deep = directory(os, deep.join("level"));
    }
    let sparse = root.join("sparse");
    image(os, &sparse, 8 * MIB);
    write_at(os, &sparse, 5 * MIB, &vec![5; (2 << 20) + 4096]);
    root
}

fn write_at(os: &Os, file: &Path, offset: u64, bytes: &[u8]) {
    os.images.write_at(file, offset, bytes).expect("write");
    os.files.sync_file(file).expect("sync");
}

fn whole(os: &Os, dir: &Path) {
    let source = tree(os, dir.join("source"));
    let (items, entries) = read(os, &source, Position::default());
    let of_entries = |items: &[Item]| {
        let number = |item: &Item| if let Item::Entry(entry) = item { Some(entry.number) } else { None };
        items.iter().filter_map(number).collect::<Vec<_>>()
    };
    assert_eq!(entries, 1 + 4 * 100 + 1);
    assert_eq!(of_entries(&items), (0..entries).collect::<Vec<_>>());
    let data: Vec<&Piece> = items
        .iter()
        .filter_map(|item| if let Item::Data(piece) = item { Some(piece) } else { None })
        .collect();
    assert!(data.iter().all(|piece| piece.is_intact() && piece.data.len() <= Piece::MOST));
    let large: u64 = data.iter().map(|piece| piece.data.len() as u64).filter(|len| *len >= 4096).sum();
    assert!((2 * MIB..3 * MIB).contains(&large), "holes are left out: {large}");
    // Whatever it is taken up after, the rest is the same.
    let mut at = Position::default();
    for (n, item) in items.iter().enumerate() {
        at = after(item)(at);
        if n % 37 == 0 || matches!(item, Item::Data(_)) && n % 5 == 0 {
            let (rest, count) = read(os, &source, at);
            assert!(rest == items[n + 1..], "after item {n}");
            assert_eq!(count, entries);
        }
    }
    for most in [1, 50, usize::MAX] {
        let target = dir.join(format!("target-{most}"));
        copy(os, &source, &target, most);
        let (copied, _) = read(os, &target, Position::default());
        assert!(copied == items, "with {most} items at a time");
        os.trees.remove(&target).expect("remove");
    }
    os.trees.remove(&source).expect("remove");
}

fn refused(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    let source = directory(os, dir.join("source"));
    write(os, &source.join("file"), b"content");
    let read = |path: &Path| os.trees.read(path, None, Position::default(), &mut |_| true);
    assert_eq!(errno(read(&dir.join("nothing"))), Some(Errno::ENOENT));
    assert_eq!(errno(os.trees.write(&source, None)), Some(Errno::EEXIST));
    assert_eq!(errno(os.trees.write(&dir.join("no/where"), None)), Some(Errno::ENOENT));
    let inside = directory(os, source.join("inside"));
    let other = directory(os, dir.join("other"));
    os.mounts.bind(&other, &inside, &flags(&[])).expect("bind");
    let error = read(&source).expect_err("a mount inside");
    assert!(error.to_string().contains(&inside.display().to_string()), "{error}");
    assert_eq!(errno(Err::<(), _>(error)), Some(Errno::EXDEV));
    os.mounts.unmount(&inside).expect("unmount");
    read(&source).expect("read");
}

/// Entries that have no place in the tree are refused, whatever sent them.
fn out_of_place(os: &Os, dir: &Path) {
    let entry = |number, parent, name: &str, kind| Entry {
        number,
        parent,
        name: name.as_bytes().to_vec(),
        kind,
        linked: false,
        attributes: Attributes { mode: 0o755, ..Attributes::default() },
        basis: Basis::Nothing,
    };
    let top = entry(0, 0, "", Kind::Directory);
    let file = |number, parent| entry(number, parent, &format!("file {number}"), Kind::File { size: 10 });
    let bad: [(&str, Vec<Entry>); 3] = [
        ("a directory that is left", vec![entry(1, 0, "d", Kind::Directory), file(2, 0), file(3, 1)]),
        ("a file as a directory", vec![file(1, 0), file(2, 1)]),
        ("a link to nothing", vec![file(1, 0), entry(2, 0, "link", Kind::Link { entry: 1 })]),
    ];
    for (what, entries) in bad {
        let target = dir.join(what);
        let mut writer = os.trees.write(&target, None).expect("make the top");
        writer.entry(top.clone()).expect("the top");
        let made: Vec<bool> = entries.iter().map(|entry| writer.entry(entry.clone()).is_ok()).collect();
        let expected: Vec<bool> = (1..=entries.len()).map(|n| n < entries.len()).collect();
        assert_eq!(made, expected, "{what}");
        drop(writer);
        os.trees.remove(&target).expect("remove");
    }
    let mut writer = os.trees.write(&dir.join("data"), None).expect("make the top");
    writer.entry(top.clone()).expect("the top");
    assert_eq!(errno(writer.data(0, b"data")), Some(Errno::EINVAL), "a directory has none");
}
