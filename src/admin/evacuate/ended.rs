//! What became of a snapshot whose order was refused.

use super::snapshots::Item;
use crate::cluster::details::AskedNode;
use crate::model::details::SnapshotDetails;

/// What became of a snapshot or a group of the node that is to be emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is on this node now.
    On(String),
    /// No node has it: it was deleted meanwhile.
    Gone,
    /// It has stayed, or its place is unknown. The text says why.
    Stays(String),
}

/// Returns where a snapshot or a group is if its node no longer has it: the order may have ended an earlier move that was given up, and
/// another command may have moved or deleted the snapshot. `None` if it is still there, or if that is not known.
pub(super) fn elsewhere(nodes: &[AskedNode], item: &Item) -> Option<Ended> {
    let is_it = |part: &&SnapshotDetails| part.group_id.as_ref().unwrap_or(&part.id) == &item.id;
    let here = nodes.iter().find(|asked| asked.known.node_id == item.node)?;
    if here.answer.as_ref().ok()?.snapshots.iter().any(|part| is_it(&part)) {
        return None;
    }
    let mut is_known = true;
    for asked in nodes {
        let Ok(answer) = &asked.answer else {
            is_known = false;
            continue;
        };
        let parts: Vec<&SnapshotDetails> = answer.snapshots.iter().filter(is_it).collect();
        match parts.iter().all(|part| part.phase == "ready") {
            true if parts.is_empty() => {}
            true => return Some(Ended::On(asked.known.node_id.clone())),
            // It is being copied or deleted there.
            false => is_known = false,
        }
    }
    is_known.then_some(Ended::Gone)
}
