use super::super::super::super::is_errno;
use super::*;
use hostloop_model::tree;

/// The directories `numbers`, each in the one before.
fn directory(number: u64) -> Entry {
    let user = nix::unistd::Uid::effective().as_raw();
    let attributes = tree::Attributes {
        mode: 0o755,
        uid: user,
        gid: nix::unistd::Gid::effective().as_raw(),
        ..Default::default()
    };
    let (parent, name) = (number - 1, b"below".to_vec());
    Entry {
        number,
        parent,
        name,
        kind: Kind::Directory,
        linked: false,
        attributes,
        basis: tree::Basis::Nothing,
    }
}

#[test]
fn a_deep_tree_keeps_few_attributes_in_memory() {
    let temp = tempfile::tempdir().expect("tempdir");
    let mut writer = Writer::new(&temp.path().join("tree"), None).expect("make the top");
    let with = |entry: Entry, name: &str, bytes: usize| {
        let extended = vec![(name.as_bytes().to_vec(), vec![7; bytes])];
        Entry { attributes: tree::Attributes { extended, ..entry.attributes }, ..entry }
    };
    let top = Entry { number: 0, parent: 0, name: Vec::new(), ..directory(1) };
    writer.entry(with(top, "user.a", 1000)).expect("make the top");
    for number in 1..=30 {
        writer.entry(with(directory(number), "user.a", 1000)).expect("make a directory");
    }
    assert!(writer.levels.iter().all(|level| level.extended == 0), "what waits");
    let here = temp.path().join("tree/below/below");
    let value = rustix::fs::getxattr(&here, "user.a", &mut [0; 2000][..]).expect("its attribute");
    assert_eq!(value, 1000);
    // An ACL waits, since new files would inherit it. This one is larger than ext4 allows.
    let mut number = 31;
    let refused = loop {
        if let Err(error) = writer.entry(with(directory(number), "system.posix_acl_default", 60_000)) {
            break error;
        }
        number += 1;
    };
    assert!(is_errno(&refused, Errno::E2BIG), "{refused}");
    assert_eq!(number, 31 + MAX_WAITING as u64 / 60_024);
}

/// Until the tree takes all the memory that it may: the number of entries that were taken.
fn fill(writer: &mut Writer, entry: impl Fn(u64) -> Entry) -> u64 {
    writer.memory.take(super::super::memory::MOST - 10_000).map_err(|_| "no memory").unwrap();
    for number in 1..100 {
        if let Err(refused) = writer.entry(entry(number)) {
            assert!(is_errno(&refused, Errno::E2BIG), "{refused}");
            assert!(refused.to_string().contains("keep more than 24 MiB of names"), "{refused}");
            return number - 1;
        }
    }
    panic!("it has no limit")
}

#[test]
fn names_of_a_tree_take_bounded_memory() {
    let temp = tempfile::tempdir().expect("tempdir");
    let new = |name: &str| Writer::new(&temp.path().join(name), None).expect("make the top");
    assert_eq!(fill(&mut new("deep"), directory), 10_000 / (LEVEL as u64 + 5));
    let file = |number: u64| Entry {
        name: format!("{number:05}").into_bytes(),
        parent: 0,
        kind: Kind::File { size: 0 },
        linked: true,
        ..directory(number)
    };
    assert_eq!(fill(&mut new("linked"), file), 10_000 / (LINKED as u64 + 5));
    // Those beside each other take none when they are done.
    let mut writer = new("wide");
    for number in 1..=20 {
        let name = format!("{number}").into_bytes();
        writer.entry(Entry { parent: 0, name, ..directory(number) }).expect("make a directory");
    }
    let file = Entry { parent: 20, ..file(21) };
    writer.entry(file).expect("make a file");
    let left = LEVEL + 2 + LINKED + 5 + LEADS + 2;
    assert_eq!(writer.memory.bytes(), left);
    Box::new(writer).finish().expect("finish");
}

#[test]
fn a_deep_tree_keeps_few_directories_open() {
    let temp = tempfile::tempdir().expect("tempdir");
    let mut writer = Writer::new(&temp.path().join("tree"), None).expect("make the top");
    let deep = 3 * MAX_OPEN as u64;
    for number in 1..=deep {
        writer.entry(directory(number)).expect("make a directory");
    }
    let open = |writer: &Writer| writer.levels.iter().filter(|level| level.directory.is_some()).count();
    assert_eq!((writer.levels.len(), open(&writer)), (3 * MAX_OPEN + 1, MAX_OPEN));
    // All the way up again.
    let file = Entry { name: b"beside".to_vec(), parent: 0, ..directory(deep + 1) };
    writer.entry(file).expect("make one beside the first");
    assert_eq!((writer.levels.len(), open(&writer)), (2, 2));
    assert!(temp.path().join("tree/beside").is_dir());
}
