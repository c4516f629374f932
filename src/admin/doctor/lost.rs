//! Objects whose data no node has. Only a node that has looked at everything says that it does not have something.

use std::collections::BTreeSet;

use super::join::Look;
use super::row::Row;
use crate::admin::api::doctor::{Content, Pv};
use crate::cluster::findings::NodeFindings;
use crate::model::findings::{CONTENT_WITHOUT_SNAPSHOT, PV_WITHOUT_VOLUME};
use crate::model::{NodeKey, SnapshotId, VolumeId};

/// Reports whether all nodes have answered, and have looked at everything.
fn is_all_known(look: &Look) -> bool {
    !look.nodes.is_empty() && look.nodes.iter().all(|node| node.answer.as_ref().is_ok_and(is_whole))
}

/// Reports whether a node has looked at everything.
fn is_whole(answer: &NodeFindings) -> bool {
    answer.unknown.is_empty()
}

/// A PersistentVolume whose volume nothing has.
pub(super) fn without_volume(look: &Look, volume: &Pv) -> Option<Row> {
    let is_ours = look.driver.as_ref().is_some_and(|driver| *driver == volume.driver);
    if !is_ours || volume.being_deleted {
        return None;
    }
    // A move changes the node of a volume and of its PersistentVolume one after the other.
    if look.known.replicas.as_ref().is_none_or(|replicas| replicas.contains(&volume.handle)) {
        return None;
    }
    let holders: BTreeSet<&str> = look
        .answers()
        .filter(|(_, answer)| answer.records.iter().any(|record| record.id == volume.handle))
        .map(|(node, _)| node)
        .collect();
    let by_key = || node_of_key(look, volume.handle.parse::<VolumeId>().ok()?.node_key());
    let node = volume.node.clone().or_else(by_key)?;
    if holders.contains(node.as_str()) {
        return None;
    }
    let answer = look.answers().find(|(name, _)| *name == node).map(|(_, answer)| answer);
    let found = match (answer, holders.first()) {
        (_, Some(other)) if volume.node.is_some() => {
            format!("its volume is on node {other}, and not on node {node}, which the PersistentVolume names")
        }
        (_, Some(_)) => return None,
        (Some(answer), None) if is_whole(answer) => format!("node {node} has no volume {}", volume.handle),
        // Which nodes there are was asked, and this is none of them.
        (None, None) if look.nodes.iter().all(|it| it.known.node_id != node) => {
            format!("its node {node} is not part of the cluster")
        }
        _ => return None,
    };
    let advice = match holders.first() {
        Some(other) => format!(
            "an adoption may not have ended: run \"hostloop evacuate {node} --to {other} --now\"; the PersistentVolume is of data that exist"
        ),
        None if !is_all_known(look) => {
            "another node may have it, and not all nodes have answered in full: look again when they do".to_owned()
        }
        None => "its data may be elsewhere: look for a disk that is not mounted, for \"hostloop state check\" on the node, and for a \
                 backup, before you delete the PersistentVolume"
            .to_owned(),
    };
    let mut row = Row {
        node,
        class: PV_WITHOUT_VOLUME.to_owned(),
        id: volume.handle.clone(),
        claim: volume.claim.as_ref().map(ToString::to_string),
        persistent_volume: Some(volume.name.clone()),
        age_seconds: volume.age,
        bytes: Some(volume.bytes),
        found,
        ..Row::default()
    };
    row.keep(advice);
    Some(row)
}

fn node_of_key(look: &Look, key: &str) -> Option<String> {
    let mut ids = look.nodes.iter().map(|node| &node.known.node_id);
    ids.find(|id| NodeKey::of(id).to_string() == key).cloned()
}

/// A VolumeSnapshotContent whose snapshot nothing has.
pub(super) fn without_snapshot(look: &Look, content: &Content) -> Option<Row> {
    let is_ours = look.driver.as_ref().is_some_and(|driver| *driver == content.driver);
    let handle = content.handle.as_ref().filter(|_| is_ours && !content.being_deleted)?;
    // After an adoption, an id has the key of the node that made the snapshot, and another node has it.
    if !is_all_known(look)
        || look.answers().any(|(_, answer)| answer.records.iter().any(|it| it.id == *handle))
    {
        return None;
    }
    let node = node_of_key(look, handle.parse::<SnapshotId>().ok()?.node_key())?;
    let mut row = Row {
        node: node.clone(),
        class: CONTENT_WITHOUT_SNAPSHOT.to_owned(),
        id: handle.clone(),
        claim: Some(content.snapshot.to_string()),
        age_seconds: content.age,
        found: format!("VolumeSnapshotContent {}: no node has the snapshot {handle}", content.name),
        ..Row::default()
    };
    row.keep(
        "nothing can be restored from it: look at \"hostloop state check\" on the node, then delete the VolumeSnapshot".to_owned(),
    );
    Some(row)
}
