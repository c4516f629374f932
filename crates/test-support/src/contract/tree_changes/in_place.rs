//! A later tree that is made by changing the files of the earlier one.

use std::path::Path;

use hostloop::kernel::{Base, Os, Reuse};
use hostloop::model::tree::{Item, Position};

use super::{Chance, Tree, seen};
use crate::contract::tree_stream::put;

/// A pass that changes the earlier tree in place can be interrupted at any entry and repeated. The result is the later tree.
pub(super) fn random(os: &Os, dir: &Path, seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut tree = Tree::random(&mut chance);
    let mut base = tree.make(os, dir.join("base"));
    let mut copy = tree.make(os, dir.join("copy"));
    for round in 0..4 {
        tree.change(&mut chance);
        let (later, target) =
            (tree.make(os, dir.join(format!("later-{round}"))), dir.join(format!("copy-{round}")));
        let mut items = Vec::new();
        let take = &mut |item| {
            items.push(item);
            true
        };
        os.trees.read(&later, Some(Base::beside(&base)), Position::default(), take).expect("read");
        bring_in_place(os, &items, &copy, &target, chance.below(items.len() as u64 + 1) as usize);
        for gone in [&base, &copy] {
            os.trees.remove(gone).expect("remove");
        }
        assert_eq!(seen(os, &target), seen(os, &later), "seed {seed}, round {round}");
        (base, copy) = (later, target);
    }
}

/// Makes `target` of `earlier` in place, twice: the first pass is interrupted after `most` items.
fn bring_in_place(os: &Os, items: &[Item], earlier: &Path, target: &Path, most: usize) {
    let mut writer = os.trees.write(target, Some((earlier, Reuse::InPlace))).expect("make the top");
    items.iter().take(most).for_each(|item| put(&mut *writer, item).expect("write"));
    drop(writer);
    os.trees.remove(target).expect("remove");
    let mut writer = os.trees.write(target, Some((earlier, Reuse::InPlace))).expect("make the top");
    items.iter().for_each(|item| put(&mut *writer, item).expect("write again"));
    writer.finish().expect("finish");
}
