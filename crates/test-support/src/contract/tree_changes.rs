//! kernel::Trees::read and write beside an earlier tree

mod in_place;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hostloop::kernel::{Base, Os, Reuse};
use hostloop::model::pull::Piece;
use hostloop::model::tree::{Attributes, Basis, Entry, FileTime, Item, Kind, Position};
use nix::errno::Errno;

use super::tree_stream::{put, read};
use super::{MIB, directory, errno, image};

const BLOCK: u64 = 4096;

/// Asserts what the trait promises.
pub fn tree_changes(os: &Os, dir: &Path) {
    for seed in 1..=12 {
        random(os, &directory(os, dir.join(format!("random-{seed}"))), seed);
        in_place::random(os, &directory(os, dir.join(format!("in-place-{seed}"))), seed);
    }
    nothing_changed(os, &directory(os, dir.join("unchanged")));
    one_block(os, &directory(os, dir.join("one block")));
    split_links(os, &directory(os, dir.join("links")));
    deep(os, &directory(os, dir.join("deep")));
    not_there(os, &directory(os, dir.join("not there")));
}

/// What follows from where; the same for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// A regular file: the byte that fills each block, and the rest.
#[derive(Clone, Default)]
struct File {
    size: u64,
    blocks: BTreeMap<u64, u8>,
    mode: u32,
    changed: i64,
    attribute: Option<u8>,
}

#[derive(Clone)]
enum Node {
    /// The number of the file; what has the same one is the same file.
    File(usize),
    Symlink(String),
    Directory,
}

/// By the path of each, sorted, so that a directory comes before what is in it.
#[derive(Clone, Default)]
struct Tree {
    nodes: BTreeMap<Vec<String>, Node>,
    files: Vec<File>,
}

impl Tree {
    fn random(chance: &mut Chance) -> Self {
        let mut tree = Tree::default();
        (0..40).for_each(|_| tree.add(chance));
        tree
    }

    fn directories(&self) -> Vec<Vec<String>> {
        let below = self.nodes.iter().filter(|(_, node)| matches!(node, Node::Directory));
        below.map(|(path, _)| path.clone()).chain([Vec::new()]).collect()
    }

    fn paths(&self) -> Vec<Vec<String>> {
        self.nodes.keys().cloned().collect()
    }

    fn remove(&mut self, path: &[String]) {
        self.nodes.retain(|other, _| !other.starts_with(path));
    }

    fn add(&mut self, chance: &mut Chance) {
        let mut path = chance.of(&self.directories()).clone();
        path.push(format!("n{}", chance.below(12)));
        self.remove(&path);
        let node = match chance.below(8) {
            0 | 1 => Node::Directory,
            2 => Node::Symlink(format!("to/{}", chance.below(3))),
            3 if !self.files.is_empty() => Node::File(chance.below(self.files.len() as u64) as usize),
            _ => {
                self.files.push(File { mode: 0o600, changed: 1000, ..File::default() });
                let file = self.files.len() - 1;
                self.write(file, chance);
                Node::File(file)
            }
        };
        self.nodes.insert(path, node);
    }

    /// Writes to a file, cuts it off or makes it longer.
    fn write(&mut self, file: usize, chance: &mut Chance) {
        let file = &mut self.files[file];
        if chance.below(3) == 0 {
            file.size = chance.below(5 * BLOCK);
            file.blocks.retain(|block, _| block * BLOCK < file.size);
        }
        for _ in 0..chance.below(3) {
            let block = chance.below(40);
            file.blocks.insert(block, chance.below(3) as u8);
            file.size = file.size.max(block * BLOCK + 1 + chance.below(BLOCK));
        }
        // Not each change is told by a time.
        file.changed += chance.below(2) as i64;
    }

    fn change(&mut self, chance: &mut Chance) {
        for _ in 0..6 {
            let path = chance.of(&self.paths()).clone();
            match (chance.below(6), self.nodes.get(&path)) {
                (0, _) => self.remove(&path),
                (1, _) => self.add(chance),
                (2, Some(Node::File(file))) => self.files[*file].mode ^= 0o044,
                (3, Some(Node::File(file))) => self.files[*file].attribute = Some(chance.below(9) as u8),
                (4, Some(node)) => {
                    let (node, mut to) = (node.clone(), chance.of(&self.directories()).clone());
                    to.push("moved".to_owned());
                    if !matches!(node, Node::Directory) {
                        self.remove(&to);
                        self.remove(&path);
                        self.nodes.insert(to, node);
                    }
                }
                (_, Some(Node::File(file))) => self.write(*file, chance),
                _ => self.add(chance),
            }
        }
    }

    /// As a stream would bring it.
    fn items(&self) -> Vec<Item> {
        let mut numbers = BTreeMap::from([(Vec::new(), 0)]);
        let mut first: BTreeMap<usize, u64> = BTreeMap::new();
        let entry = |number, parent, name: &str, kind| Entry {
            number,
            parent,
            name: name.as_bytes().to_vec(),
            kind,
            linked: false,
            attributes: Attributes {
                mode: 0o755,
                mtime: FileTime { seconds: 1000, nanos: 5 },
                ..Attributes::default()
            },
            basis: Basis::Nothing,
        };
        let mut items = vec![Item::Entry(entry(0, 0, "", Kind::Directory))];
        for (path, node) in &self.nodes {
            let (name, above) = path.split_last().expect("a name");
            let (number, parent) = (numbers.len() as u64, numbers[above]);
            numbers.insert(path.clone(), number);
            match node {
                Node::Directory => items.push(Item::Entry(entry(number, parent, name, Kind::Directory))),
                Node::Symlink(target) => {
                    let target = target.clone().into_bytes();
                    items.push(Item::Entry(entry(number, parent, name, Kind::Symlink { target })));
                }
                Node::File(file) => {
                    if let Some(first) = first.get(file) {
                        let link = entry(number, parent, name, Kind::Link { entry: *first });
                        let attributes = Attributes::default();
                        items.push(Item::Entry(Entry { attributes, ..link }));
                        continue;
                    }
                    first.insert(*file, number);
                    let File { size, blocks, mode, changed, attribute } = &self.files[*file];
                    let made = entry(number, parent, name, Kind::File { size: *size });
                    let attributes = Attributes {
                        mode: *mode,
                        mtime: FileTime { seconds: *changed, nanos: 7 },
                        extended: attribute.map(|a| (b"user.a".to_vec(), vec![a])).into_iter().collect(),
                        ..Attributes::default()
                    };
                    items.push(Item::Entry(Entry { linked: true, attributes, ..made }));
                    for (block, fill) in blocks {
                        let len = (size - (block * BLOCK).min(*size)).min(BLOCK) as usize;
                        if len > 0 {
                            items.push(Item::Data(Piece::new(block * BLOCK, vec![*fill; len])));
                        }
                    }
                }
            }
        }
        items
    }

    fn make(&self, os: &Os, path: PathBuf) -> PathBuf {
        let mut writer = os.trees.write(&path, None).expect("make the top");
        self.items().iter().for_each(|item| put(&mut *writer, item).expect("write"));
        writer.finish().expect("finish");
        path
    }
}

/// Makes `target` from what the later of two trees has and the earlier has not, and from a copy of the earlier one. In as many
/// streams as it has parts of so many items. Says what was sent.
fn bring(
    os: &Os,
    (base, later): (&Path, &Path),
    (earlier, target): (&Path, &Path),
    most: usize,
) -> Vec<Item> {
    let mut writer = os.trees.write(target, Some((earlier, Reuse::Share))).expect("make the top");
    let (mut at, mut sent, mut whole) = (Position::default(), Vec::new(), false);
    while !whole {
        let mut items = Vec::new();
        let take = &mut |item| {
            if item != Item::Alive {
                items.push(item);
            }
            items.len() < most
        };
        os.trees.read(later, Some(Base::beside(base)), at, take).expect("read");
        whole = items.len() < most;
        for item in items {
            put(&mut *writer, &item).expect("write");
            at = at.behind(&item);
            sent.push(item);
        }
    }
    writer.finish().expect("finish");
    sent
}

fn bytes_in(items: &[Item]) -> u64 {
    items.iter().map(|item| if let Item::Data(piece) = item { piece.data.len() as u64 } else { 0 }).sum()
}

fn bases(items: &[Item]) -> Vec<Basis> {
    let basis = |item: &Item| match item {
        Item::Entry(Entry { kind: Kind::File { .. }, basis, .. }) => Some(*basis),
        _ => None,
    };
    items.iter().filter_map(basis).collect()
}

/// A tree as anybody sees it: each entry, and the bytes of each file, whether they are allocated or not.
fn seen(os: &Os, tree: &Path) -> Vec<Item> {
    let (items, _) = read(os, tree, Position::default());
    items
        .into_iter()
        .filter(|item| !matches!(item, Item::Data(piece) if piece.data.iter().all(|b| *b == 0)))
        .flat_map(blocks)
        .collect()
}

/// Data in blocks, without those that are zeros. Of other names only those in the tree count. To read
/// a symbolic link is an access to it.
fn blocks(item: Item) -> Vec<Item> {
    if let Item::Entry(entry) = item {
        let mut attributes = entry.attributes;
        if matches!(entry.kind, Kind::Symlink { .. }) {
            attributes.atime = FileTime::default();
        }
        return vec![Item::Entry(Entry { linked: false, attributes, ..entry })];
    }
    let Item::Data(piece) = item else { return vec![item] };
    let blocks = piece.data.chunks(BLOCK as usize).enumerate();
    let blocks = blocks.map(|(n, block)| Piece::new(piece.offset + n as u64 * BLOCK, block.to_vec()));
    blocks.filter(|block| block.data.iter().any(|byte| *byte != 0)).map(Item::Data).collect()
}

fn random(os: &Os, dir: &Path, seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut tree = Tree::random(&mut chance);
    let mut base = tree.make(os, dir.join("base"));
    let mut copy = tree.make(os, dir.join("copy"));
    for (round, most) in [usize::MAX, 1, 7].into_iter().enumerate() {
        tree.change(&mut chance);
        let later = tree.make(os, dir.join(format!("later-{round}")));
        let (before, target) = (seen(os, &copy), dir.join(format!("copy-{round}")));
        bring(os, (&base, &later), (&copy, &target), most);
        assert!(seen(os, &copy) == before, "seed {seed}, round {round}: the earlier copy is another one");
        for gone in [&base, &copy] {
            os.trees.remove(gone).expect("remove");
        }
        let (is, wanted) = (seen(os, &target), seen(os, &later));
        let differs = is.iter().zip(&wanted).find(|(is, wanted)| is != wanted);
        assert!(is == wanted, "seed {seed}, round {round}, {} of {}: {differs:?}", is.len(), wanted.len());
        (base, copy) = (later, target);
    }
}

fn nothing_changed(os: &Os, dir: &Path) {
    let mut chance = Chance(99);
    let mut tree = Tree::random(&mut chance);
    // Each file once: what has several names is compared, and made anew.
    let mut met = Vec::new();
    tree.nodes.retain(|_, node| match node {
        Node::File(file) => {
            !met.contains(file) && {
                met.push(*file);
                true
            }
        }
        _ => true,
    });
    let [base, later, copy] = ["base", "later", "copy"].map(|name| tree.make(os, dir.join(name)));
    let sent = bring(os, (&base, &later), (&copy, &dir.join("target")), usize::MAX);
    assert_eq!(bytes_in(&sent), 0);
    assert!(!met.is_empty() && bases(&sent) == vec![Basis::Everything; met.len()], "{:?}", bases(&sent));
    assert_eq!(seen(os, &dir.join("target")), seen(os, &later));
}

/// Of a large file only what has changed is sent, also where the blocks of its copies are shared.
fn one_block(os: &Os, dir: &Path) {
    let base = directory(os, dir.join("base"));
    let file = |tree: &Path| tree.join("large");
    image(os, &file(&base), 8 * MIB);
    let bytes: Vec<u8> = (0..4 * MIB).map(|n| (n / 1000) as u8 | 1).collect();
    os.images.write_at(&file(&base), 2 * MIB, &bytes).expect("write");
    os.files.sync_file(&file(&base)).expect("sync");
    let [later, copy] = ["later", "copy"].map(|name| dir.join(name));
    for to in [&later, &copy] {
        os.trees.copy(&base, to, true, &mut |_| Ok(())).expect("copy");
    }
    os.images.write_at(&file(&later), 3 * MIB, &[2; 100]).expect("write");
    os.images.erase_range(&file(&later), 4 * MIB, MIB).expect("erase");
    os.files.sync_file(&file(&later)).expect("sync");
    let target = dir.join("target");
    let sent = bring(os, (&base, &later), (&copy, &target), usize::MAX);
    assert_eq!((bytes_in(&sent), bases(&sent)), (BLOCK, vec![Basis::Content]));
    assert_eq!(seen(os, &target), seen(os, &later));
}

/// Two names of one file become two files, and the other way round.
fn split_links(os: &Os, dir: &Path) {
    let path = |name: &str| vec![name.to_owned()];
    let file = File { size: 10, blocks: BTreeMap::from([(0, 1)]), mode: 0o600, ..File::default() };
    let with = |nodes: [(&str, usize); 2]| Tree {
        nodes: nodes.into_iter().map(|(name, file)| (path(name), Node::File(file))).collect(),
        files: vec![file.clone(), file.clone()],
    };
    let (one, two) = (with([("a", 0), ("b", 0)]), with([("a", 0), ("b", 1)]));
    use Basis::{Content, Everything};
    // A file that has not changed is not copied, also if it has several names; but two files do not become one.
    for (name, earlier, later, expected) in [
        ("split", &one, &two, vec![Everything, Content]),
        ("joined", &two, &one, vec![Everything]),
        ("kept", &one, &one, vec![Everything]),
    ] {
        for most in [usize::MAX, 1, 2, 3] {
            let dir = directory(os, dir.join(format!("{name} {most}")));
            let [base, copy] = ["base", "copy"].map(|name| earlier.make(os, dir.join(name)));
            let (later, target) = (later.make(os, dir.join("later")), dir.join("target"));
            let items = bring(os, (&base, &later), (&copy, &target), most);
            assert_eq!(bases(&items), expected, "{name} {most}");
            os.trees.remove(&copy).expect("remove");
            assert_eq!(seen(os, &target), seen(os, &later), "{name} {most}");
        }
    }
}

/// Directories in directories, of which not all stay open.
fn deep(os: &Os, dir: &Path) {
    let mut tree = Tree::default();
    let mut path = Vec::new();
    for level in 0..150u8 {
        let file =
            File { size: 5000, blocks: BTreeMap::from([(0, level), (1, 1)]), mode: 0o600, ..File::default() };
        tree.files.push(file);
        let beside = [path.clone(), vec!["file".to_owned()]].concat();
        tree.nodes.insert(beside, Node::File(usize::from(level)));
        path.push("level".to_owned());
        tree.nodes.insert(path.clone(), Node::Directory);
    }
    let [base, copy] = ["base", "copy"].map(|name| tree.make(os, dir.join(name)));
    tree.files.iter_mut().step_by(7).for_each(|file| file.mode = 0o640);
    for file in tree.files.iter_mut().step_by(5) {
        file.blocks.insert(1, 9);
    }
    let (later, target) = (tree.make(os, dir.join("later")), dir.join("target"));
    bring(os, (&base, &later), (&copy, &target), 10);
    for tree in [&base, &copy] {
        os.trees.remove(tree).expect("remove");
    }
    assert_eq!(seen(os, &target), seen(os, &later));
}

/// A file that the earlier tree has not, or not so.
fn not_there(os: &Os, dir: &Path) {
    let tree = Tree {
        nodes: BTreeMap::from([(vec!["link".to_owned()], Node::Symlink("file".to_owned()))]),
        files: Vec::new(),
    };
    let base = tree.make(os, dir.join("base"));
    let file = File { size: 10, mode: 0o600, ..File::default() };
    let other = Tree { nodes: BTreeMap::from([(vec!["file".to_owned()], Node::File(0))]), files: vec![file] };
    let mut items = other.items();
    let mut refused = |name: &str, basis| {
        let target = dir.join("target");
        let mut writer = os.trees.write(&target, Some((&base, Reuse::Share))).expect("make the top");
        let Item::Entry(entry) = &mut items[1] else { unreachable!("a file") };
        (entry.name, entry.basis) = (name.as_bytes().to_vec(), basis);
        put(&mut *writer, &items[0]).expect("the top");
        let error = put(&mut *writer, &items[1]);
        drop(writer);
        os.trees.remove(&target).expect("remove");
        error
    };
    for basis in [Basis::Content, Basis::Everything] {
        assert_eq!(errno(refused("file", basis)), Some(Errno::EBADMSG), "it is not there");
        assert_eq!(errno(refused("link", basis)), Some(Errno::EBADMSG), "a link is never followed");
    }
    let file = File { size: 11, mode: 0o600, ..File::default() };
    let longer = Tree { nodes: other.nodes.clone(), files: vec![file] };
    os.trees.remove(&base).expect("remove");
    longer.make(os, base.clone());
    assert_eq!(errno(refused("file", Basis::Everything)), Some(Errno::EBADMSG), "of another size");
}
