//! What a node in wrong hands sends, and what the tests measure of the node that it is sent to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hostloop::model::pull::{Blocks, Changes, Piece, Placed};
use hostloop::model::tree::{Attributes, Basis, Entry, Item, Kind as Of, Position};
use hostloop::wire::{peer, pull};
use hostloop_test_support::hostile::{Hostile, sends};
use prost::Message as _;
use tonic::{Code, Status};

use super::attacked::{Attacked, described};
use crate::harness::MIB;

pub const SIZE: u64 = 16 * MIB;
/// More than a node copies from one other node at a time (8 of 16).
pub const COPIES: usize = 12;
/// The limit for what the process may ever take, in MiB, of which it takes some 20 without a copy.
pub const MEMORY: u64 = 100;

/// Nodes in wrong hands.
pub const HOSTILE: [&str; 2] = ["node-hostile", "node-hostile-too"];

/// The names of copies of the first of these nodes.
pub fn names() -> Vec<String> {
    names_of(HOSTILE[0])
}

/// The names of copies of this node.
pub fn names_of(node_id: &str) -> Vec<String> {
    (0..COPIES).map(|n| format!("copy-{n}-of-{node_id}")).collect()
}

/// Makes the messages of a tree.
pub type Messages = Box<dyn Fn() -> Vec<peer::PullTreeResponse> + Send + Sync>;

/// What the source says of itself, which a test changes.
#[derive(Clone)]
pub struct Says(Arc<Mutex<peer::OpenSourceResponse>>);

impl Says {
    pub fn change(&self, change: impl FnOnce(&mut peer::OpenSourceResponse)) {
        change(&mut self.0.lock().expect("no panic"));
    }
}

/// A source without any data, and what it says of itself.
pub fn source(content: peer::SourceContent) -> (Hostile, Says) {
    source_on(HOSTILE[0], content)
}

/// The same on this node.
pub fn source_on(node_id: &str, content: peer::SourceContent) -> (Hostile, Says) {
    let mut source = Hostile::new(node_id);
    let says = Says(Arc::new(Mutex::new(described(node_id, content, SIZE))));
    let (told, cut) = (says.clone(), AtomicU64::new(1));
    source.open = Arc::new(move |_| {
        // Each cut is a later one.
        let created_ns = cut.fetch_add(1, Ordering::Relaxed);
        Ok(peer::OpenSourceResponse { created_ns, ..told.0.lock().expect("no panic").clone() })
    });
    source.blocks = sends(|| {
        let end = Placed { after: 0, message: Blocks::End { sent_bytes: 0 } };
        [pull::encode_blocks(end)].into_iter()
    });
    let whole =
        || [entry(0, 0, Of::Directory, Vec::new()), of_tree((1, 0), Item::End { entries: 1, sent_bytes: 0 })];
    source.tree = sends(move || whole().into_iter());
    (source, says)
}

pub fn of_tree((entry, offset): (u64, u64), item: Item) -> peer::PullTreeResponse {
    pull::encode_tree(Placed { after: Position { entry, offset }, message: item })
}

pub fn entry(
    number: u64,
    parent: u64,
    kind: Of,
    extended: Vec<(Vec<u8>, Vec<u8>)>,
) -> peer::PullTreeResponse {
    let name = if number == 0 { Vec::new() } else { format!("e{number}").into_bytes() };
    let attributes = Attributes { mode: 0o755, extended, ..Attributes::default() };
    let linked = false;
    of_tree(
        (number, 0),
        Item::Entry(Entry { number, parent, name, kind, linked, attributes, basis: Basis::Nothing }),
    )
}

pub fn changed(after: u64, offset: u64, len: usize) -> peer::PullChangesResponse {
    pull::encode_changes(Placed { after, message: Changes::Data(Piece::new(offset, vec![9; len])) })
}

pub fn no_more(after: u64, sent_bytes: u64) -> peer::PullChangesResponse {
    pull::encode_changes(Placed { after, message: Changes::End { sent_bytes } })
}

/// Trees that take much more memory than their messages have bytes.
pub fn large_trees() -> [(&'static str, Messages); 2] {
    // Each takes 2 bytes of its message, and 48 bytes of memory when it is decoded.
    let extended = vec![peer::attributes::Extended::default(); 900_000];
    let many = peer::TreeEntry {
        number: 0,
        kind: Some(peer::tree_entry::Kind::Directory(peer::tree_entry::Directory {})),
        attributes: Some(peer::Attributes { extended, ..Default::default() }),
        ..Default::default()
    };
    // What waits until its directory is filled, as new files would inherit it.
    let waits = || vec![(b"security.a".to_vec(), vec![7; 60_000]); 17];
    // Made once: the node gives up a source that does not answer in time.
    let tree_entry = many.encode_to_vec();
    let checked = peer::CheckedEntry { crc32: crc32fast::hash(&tree_entry), tree_entry: tree_entry.into() };
    let message = Some(peer::pull_tree_response::Message::Entry(checked));
    let bomb = peer::PullTreeResponse { message, after: Some(Default::default()) };
    let bomb = move || vec![bomb.clone()];
    let level = |number: u64| entry(number, number.saturating_sub(1), Of::Directory, waits());
    let levels: Vec<_> = (0..30).map(level).collect();
    let nested = move || levels.clone();
    [("900,000 attributes of an entry", Box::new(bomb)), ("attributes of 30 levels", Box::new(nested))]
}

pub fn assert_little_memory(node: &Attacked, attack: &str) {
    let memory = node.memory();
    println!("{attack}: {memory} MiB of memory at most");
    assert!(memory < MEMORY, "{attack}: {memory} MiB");
}

/// How many ended with each code.
pub fn codes(ended: &[Result<(), Status>], code: Code) -> usize {
    ended.iter().filter(|ended| ended.as_ref().is_err_and(|status| status.code() == code)).count()
}
