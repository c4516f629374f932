//! `hostloop snapshots`.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::gather::Found;
use super::order::{Keys, Ordered};
use super::volumes::{UNKNOWN, UNKNOWN_NODE, UNKNOWN_PREFIX, is_of};
use crate::admin::api::inspect::{Cut, Known};
use crate::cli::ScopeArgs;
use crate::model::details::SnapshotDetails;
use crate::model::{NodeKey, SnapshotId, Timestamp};

/// A snapshot, as a program reads it. What is not known is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotRow {
    pub(super) namespace: Option<String>,
    /// The VolumeSnapshot.
    pub(super) snapshot: Option<String>,
    /// The VolumeSnapshotContent.
    pub(super) content: Option<String>,
    /// The CSI id.
    pub(super) id: String,
    /// `snapshot`, `member` or `cut`; empty if it is not known.
    pub(super) kind: String,
    /// The claim of its volume.
    pub(super) claim: Option<String>,
    /// The CSI id of its volume, which may be gone.
    pub(super) volume: String,
    pub(super) group: Option<String>,
    pub(super) node: Option<String>,
    pub(super) pool: Option<String>,
    /// Also that its node did not answer.
    pub(super) phase: String,
    pub(super) size_bytes: Option<u64>,
    pub(super) disk_bytes: Option<u64>,
    /// Bytes of these that other volumes and snapshots have, too.
    pub(super) shared_bytes: Option<u64>,
    /// Seconds since these bytes were measured.
    pub(super) measured_seconds_ago: Option<u64>,
    pub(super) age_seconds: Option<i64>,
}

impl Ordered for SnapshotRow {
    fn keys(&self) -> Keys<'_> {
        Keys {
            name: (self.namespace.as_deref(), self.snapshot.as_deref().unwrap_or(&self.id), &self.id),
            disk: self.disk_bytes,
            used: None,
            size: self.size_bytes,
            age: self.age_seconds,
        }
    }
}

/// Returns the rows that are meant: of `namespace`, if it is one only.
pub(super) fn rows(found: &Found, scope: &ScopeArgs, namespace: Option<&str>) -> Vec<SnapshotRow> {
    let cuts: HashMap<&str, &Cut> =
        found.objects.snapshots.iter().flatten().map(|cut| (cut.id.as_str(), cut)).collect();
    let volumes: HashMap<&str, &Known> =
        found.objects.volumes.iter().flatten().map(|known| (known.id.as_str(), known)).collect();
    let mut rows = Vec::new();
    for asked in &found.nodes {
        for snapshot in asked.answer.iter().flat_map(|answer| &answer.snapshots) {
            let cut = cuts.get(snapshot.id.as_str()).copied();
            let known = volumes.get(snapshot.volume_id.as_str()).copied();
            rows.push(row(&asked.known.node_id, snapshot, cut, known));
        }
    }
    add_unknown(&mut rows, found, &volumes);
    let may_be_on =
        |node: Option<&String>| node.is_none_or(|node| found.unanswered().any(|(silent, _)| silent == node));
    rows.retain(|row| {
        namespace.is_none_or(|namespace| row.namespace.as_deref() == Some(namespace))
            && (is_of(scope.node.as_ref(), row.node.as_ref())
                || row.node.is_none() && may_be_on(scope.node.as_ref()))
            && (is_of(scope.pool.as_ref(), row.pool.as_ref()) || row.phase.starts_with(UNKNOWN_PREFIX))
    });
    super::order::sort(&mut rows, scope.sort_by);
    rows
}

/// Adds what the API server knows of the snapshots that may be on nodes which did not answer. The id of a snapshot says which node made it. If
/// that one has answered, or has left the cluster, the snapshot may have been moved to any of those that did not answer.
fn add_unknown(rows: &mut Vec<SnapshotRow>, found: &Found, volumes: &HashMap<&str, &Known>) {
    let silent: HashMap<String, &str> =
        found.unanswered().map(|(node, _)| (NodeKey::of(node).to_string(), node)).collect();
    if silent.is_empty() {
        return;
    }
    // A snapshot can have been taken to another node.
    let answered: HashSet<String> = rows.iter().map(|row| row.id.clone()).collect();
    for cut in found.objects.snapshots.iter().flatten().filter(|cut| !answered.contains(&cut.id)) {
        let Ok(id) = cut.id.parse::<SnapshotId>() else { continue };
        let node = silent.get(id.node_key()).map(|node| (*node).to_owned());
        let known = volumes.get(cut.volume.as_str());
        rows.push(SnapshotRow {
            namespace: Some(cut.snapshot.namespace.clone()),
            snapshot: Some(cut.snapshot.name.clone()),
            content: Some(cut.content.clone()),
            id: cut.id.clone(),
            claim: known.and_then(|known| known.claim.as_ref()).map(|claim| claim.name.clone()),
            volume: cut.volume.clone(),
            phase: if node.is_some() { UNKNOWN } else { UNKNOWN_NODE }.to_owned(),
            node,
            size_bytes: cut.bytes,
            age_seconds: cut.age,
            ..SnapshotRow::default()
        });
    }
}

fn row(node: &str, snapshot: &SnapshotDetails, cut: Option<&Cut>, known: Option<&Known>) -> SnapshotRow {
    let named = snapshot.object.as_ref();
    let now = Timestamp::now();
    let age = |created: Timestamp| now.seconds().saturating_sub(created.seconds());
    SnapshotRow {
        namespace: cut
            .map(|cut| cut.snapshot.namespace.clone())
            .or_else(|| named.map(|object| object.namespace.clone())),
        snapshot: cut
            .map(|cut| cut.snapshot.name.clone())
            .or_else(|| named.map(|object| object.name.clone())),
        content: cut.map(|cut| cut.content.clone()).or_else(|| named.map(|object| object.content.clone())),
        id: snapshot.id.clone(),
        kind: snapshot.kind.clone(),
        claim: known.and_then(|known| known.claim.as_ref()).map(|claim| claim.name.clone()),
        volume: snapshot.volume_id.clone(),
        group: snapshot.group_id.clone(),
        node: Some(node.to_owned()),
        pool: Some(snapshot.pool.clone()),
        phase: snapshot.phase.clone(),
        size_bytes: Some(snapshot.size_bytes),
        disk_bytes: snapshot.disk.bytes,
        shared_bytes: snapshot.disk.shared,
        measured_seconds_ago: snapshot.disk.age(now).map(|age| age.as_secs()),
        age_seconds: snapshot.created.map(age),
    }
}
