//! `hostloop nodes`: a node with its pools.

use serde::Serialize;

use super::gather::Found;
use crate::cluster::details::{AskedNode, NodeAnswer};
use crate::model::Timestamp;
use crate::model::details::{PoolBytes, PoolDetails};

/// A node, as a program reads it. What is not known is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow {
    pub(super) node: String,
    pub(super) address: Option<String>,
    pub(super) answered: bool,
    /// Why it did not answer.
    pub(super) problem: Option<String>,
    pub(super) version: Option<String>,
    /// Seconds until its certificate ends; less than 0 after that.
    pub(super) certificate_seconds_left: Option<i64>,
    /// Seconds since it answered.
    pub(super) last_answer_seconds_ago: Option<u64>,
    pub(super) volumes: Option<usize>,
    pub(super) snapshots: Option<usize>,
    pub(super) pools: Vec<PoolRow>,
}

/// A pool of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolRow {
    pub(super) name: String,
    pub(super) path: String,
    /// Why it cannot be used.
    pub(super) problem: Option<String>,
    pub(super) volumes: usize,
    pub(super) snapshots: usize,
    pub(super) size_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    pub(super) free_bytes: Option<u64>,
    pub(super) reserve_bytes: Option<u64>,
    pub(super) usable_bytes: Option<u64>,
    pub(super) room_bytes: Option<u64>,
    pub(super) promised_bytes: Option<u64>,
    pub(super) promised_thin_bytes: Option<u64>,
    pub(super) promised_thick_bytes: Option<u64>,
    pub(super) promised_snapshot_bytes: Option<u64>,
    pub(super) lacking_bytes: Option<u64>,
    pub(super) removing_bytes: Option<u64>,
    pub(super) overcommit: Option<f64>,
    /// Seconds since these bytes were measured.
    pub(super) measured_seconds_ago: Option<u64>,
}

/// Returns a row for each node, by their names.
pub(super) fn rows(found: &Found) -> Vec<NodeRow> {
    let now = Timestamp::now();
    let mut rows: Vec<NodeRow> = found.nodes.iter().map(|asked| row(asked, now)).collect();
    rows.sort_by(|a, b| a.node.cmp(&b.node));
    rows
}

fn since(time: Timestamp, now: Timestamp) -> u64 {
    now.as_nanos().saturating_sub(time.as_nanos()) / 1_000_000_000
}

fn row(asked: &AskedNode, now: Timestamp) -> NodeRow {
    let known = &asked.known;
    let named = NodeRow {
        node: known.node_id.clone(),
        address: known.address.clone(),
        last_answer_seconds_ago: known.last_answer.map(|time| since(time, now)),
        ..NodeRow::default()
    };
    let answer = match &asked.answer {
        Ok(answer) => answer,
        Err(problem) => return NodeRow { problem: Some(problem.clone()), ..named },
    };
    let left = |end: Timestamp| end.seconds().saturating_sub(now.seconds());
    NodeRow {
        answered: true,
        version: Some(answer.node.version.clone()),
        certificate_seconds_left: answer.node.certificate_end.map(left),
        last_answer_seconds_ago: Some(0),
        volumes: Some(answer.volumes.len()),
        snapshots: Some(answer.snapshots.len()),
        pools: answer.node.pools.iter().map(|pool| pool_row(pool, answer, now)).collect(),
        ..named
    }
}

fn pool_row(pool: &PoolDetails, answer: &NodeAnswer, now: Timestamp) -> PoolRow {
    let bytes = |which: fn(&PoolBytes) -> u64| pool.figures.as_ref().map(which);
    PoolRow {
        name: pool.name.clone(),
        path: pool.path.clone(),
        problem: pool.unusable.clone(),
        volumes: answer.volumes.iter().filter(|volume| volume.pool == pool.name).count(),
        snapshots: answer.snapshots.iter().filter(|snapshot| snapshot.pool == pool.name).count(),
        size_bytes: bytes(|pool| pool.size),
        used_bytes: bytes(|pool| pool.used),
        free_bytes: bytes(|pool| pool.free),
        reserve_bytes: bytes(|pool| pool.reserve),
        usable_bytes: bytes(|pool| pool.usable),
        room_bytes: bytes(|pool| pool.room),
        promised_bytes: bytes(PoolBytes::promised),
        promised_thin_bytes: bytes(|pool| pool.promised_thin),
        promised_thick_bytes: bytes(|pool| pool.promised_thick),
        promised_snapshot_bytes: bytes(|pool| pool.promised_snapshots),
        lacking_bytes: bytes(|pool| pool.lacking),
        removing_bytes: bytes(|pool| pool.removing),
        overcommit: pool.figures.map(|pool| pool.overcommit),
        measured_seconds_ago: pool.figures.map(|pool| since(pool.measured, now)),
    }
}
