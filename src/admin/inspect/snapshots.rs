//! `hostloop snapshots`.

use std::collections::HashMap;

use serde::Serialize;

use super::gather::Found;
use super::order::{Keys, Ordered};
use super::volumes::is_of;
use crate::admin::api::inspect::{Cut, Known};
use crate::cli::ScopeArgs;
use crate::model::Timestamp;
use crate::model::details::SnapshotDetails;

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
    pub(super) kind: String,
    /// The claim of its volume.
    pub(super) claim: Option<String>,
    /// The CSI id of its volume, which may be gone.
    pub(super) volume: String,
    pub(super) group: Option<String>,
    pub(super) node: String,
    pub(super) pool: String,
    pub(super) phase: String,
    pub(super) size_bytes: u64,
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
            size: Some(self.size_bytes),
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
    rows.retain(|row| {
        namespace.is_none_or(|namespace| row.namespace.as_deref() == Some(namespace))
            && is_of(scope.node.as_ref(), Some(&row.node))
            && is_of(scope.pool.as_ref(), Some(&row.pool))
    });
    super::order::sort(&mut rows, scope.sort_by);
    rows
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
        node: node.to_owned(),
        pool: snapshot.pool.clone(),
        phase: snapshot.phase.clone(),
        size_bytes: snapshot.size_bytes,
        disk_bytes: snapshot.disk.bytes,
        shared_bytes: snapshot.disk.shared,
        measured_seconds_ago: snapshot.disk.age(now).map(|age| age.as_secs()),
        age_seconds: snapshot.created.map(age),
    }
}
