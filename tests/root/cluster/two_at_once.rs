//! Two nodes in wrong hands attack a node at the same time, which copies from both: the limits for its memory are for all of them.
//!
//! docs/security.md has what these tests print.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop::model::pull::Piece;
use hostloop::wire::peer;
use hostloop_test_support::hostile::{Hostile, sends};
use tonic::Code;

use super::attacked::Attacked;
use super::hostile_source::{
    HOSTILE, SIZE, assert_little_memory, changed, codes, large_trees, names_of, source_on,
};
use crate::harness::{Kind, World};

/// Updates all copies of both nodes at a time, which are `bad` from then on.
fn attack(attack: &str, kind: Kind, sources: &[Hostile; 2], bad: &AtomicBool) {
    let node = Attacked::by_all(&sources.each_ref(), World::empty_for(kind, &[]), &[]);
    let all: Vec<String> = HOSTILE.iter().flat_map(|node_id| names_of(node_id)).collect();
    for name in &all {
        node.create(name, kind, SIZE, &[]).expect("a copy");
    }
    bad.store(true, Ordering::Relaxed);
    let ended = node.update_all(&all, SIZE);
    // One of 16 turns stays for copies within the node.
    assert_eq!((codes(&ended, Code::Internal), codes(&ended, Code::Aborted)), (15, 9), "{ended:?}");
    assert_little_memory(&node, &format!("two nodes, {attack}"));
    for name in &all {
        node.delete(name);
    }
    node.finish();
}

#[test]
fn large_messages_of_two_nodes_take_little_memory() {
    for (what, len) in [("pieces of 15 MiB", 15 << 20), ("a piece of 1 MiB and a byte", Piece::MOST + 1)] {
        let sources = HOSTILE.map(|node_id| {
            let (mut source, _) = source_on(node_id, peer::SourceContent::Block);
            source.changes = sends(move || [changed(0, 0, len)].into_iter());
            source
        });
        attack(what, Kind::Block, &sources, &AtomicBool::new(false));
    }
}

#[test]
fn many_attributes_of_two_nodes_take_little_memory() {
    for (what, tree) in large_trees() {
        let (tree, bad) = (Arc::new(tree), Arc::new(AtomicBool::new(false)));
        let sources = HOSTILE.map(|node_id| {
            let (mut source, _) = source_on(node_id, peer::SourceContent::Directory);
            let (first, is_bad, tree) = (Arc::clone(&source.tree), Arc::clone(&bad), Arc::clone(&tree));
            let bombs = sends(move || tree().into_iter());
            source.tree = Arc::new(move || if is_bad.load(Ordering::Relaxed) { bombs() } else { first() });
            source
        });
        attack(what, Kind::Directory, &sources, &bad);
    }
}
