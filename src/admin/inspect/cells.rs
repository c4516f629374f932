//! How figures look in tables. What is not known is `?`, and what there is not is `-`; neither is ever 0.

use comfy_table::{Table, presets};

use super::nodes::{NodeRow, PoolRow};
use super::snapshots::SnapshotRow;
use super::volumes::VolumeRow;
use crate::admin::screen::age;
use crate::model::format_bytes;

/// The most names of pods in a cell, but for the wide table.
const NAMES: usize = 2;

pub(super) fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), format_bytes)
}

/// Returns allocated bytes, with those that others have, too.
pub(super) fn disk(disk: Option<u64>, shared: Option<u64>) -> String {
    match shared.filter(|shared| *shared > 0) {
        Some(shared) => format!("{} ({} shared)", bytes(disk), format_bytes(shared)),
        None => bytes(disk),
    }
}

/// Returns what a filesystem has in use: there is no such figure if it was looked for in vain.
pub(super) fn used(row: &VolumeRow) -> String {
    let looked = row.measured_seconds_ago.is_some() && row.unmeasured.is_none();
    match row.used_bytes {
        None if looked => "-".to_owned(),
        used => bytes(used),
    }
}

pub(super) fn text(text: Option<&String>) -> String {
    text.filter(|text| !text.is_empty()).map_or_else(|| "-".to_owned(), Clone::clone)
}

fn seconds(seconds: Option<u64>) -> Option<i64> {
    seconds.and_then(|seconds| i64::try_from(seconds).ok())
}

/// Returns the claim of a volume; of one that no claim can have, what it is.
pub(super) fn claim(row: &VolumeRow) -> String {
    match (&row.claim, row.kind.as_str()) {
        (Some(claim), "volume" | "") => claim.clone(),
        (Some(claim), kind) => format!("{claim} ({kind})"),
        (None, "volume" | "") => "-".to_owned(),
        (None, kind) => format!("({kind})"),
    }
}

pub(super) fn names(names: Option<&Vec<String>>, most: usize) -> String {
    let Some(names) = names else { return "?".to_owned() };
    let shown = names.iter().take(most).cloned().collect::<Vec<_>>().join(",");
    match names.len().saturating_sub(most) {
        _ if names.is_empty() => "-".to_owned(),
        0 => shown,
        more => format!("{shown},+{more}"),
    }
}

fn count(count: Option<usize>) -> String {
    count.map_or_else(|| "?".to_owned(), |count| count.to_string())
}

/// Returns a table without lines between its cells.
fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}

pub(super) fn volumes(rows: &[VolumeRow], all: bool, wide: bool) -> String {
    let mut columns = vec![
        "CLAIM",
        "NODE",
        "POOL",
        "BACKEND",
        "SIZE",
        "USED",
        "DISK",
        "SNAPSHOTS",
        "PODS",
        "HEALTH",
        "AGE",
    ];
    if all {
        columns.insert(0, "NAMESPACE");
    }
    if wide {
        columns.extend(["FILESYSTEM", "PROVISIONING", "MOVES", "MEASURED", "PERSISTENTVOLUME", "ID"]);
    }
    let cells = |row: &VolumeRow| {
        let mut cells = vec![
            claim(row),
            text(row.node.as_ref()),
            text(row.pool.as_ref()),
            text(row.backend.as_ref()),
            bytes(row.size_bytes),
            used(row),
            disk(row.disk_bytes, row.shared_bytes),
            count(row.snapshots),
            names(row.pods.as_ref(), if wide { usize::MAX } else { NAMES }),
            row.health.clone(),
            age(row.age_seconds),
        ];
        if all {
            cells.insert(0, text(row.namespace.as_ref()));
        }
        if wide {
            cells.extend([
                text(row.content.as_ref()),
                text(row.provisioning.as_ref()),
                row.moves.map_or_else(|| "?".to_owned(), |moves| moves.to_string()),
                age(seconds(row.measured_seconds_ago)),
                text(row.persistent_volume.as_ref()),
                row.id.clone(),
            ]);
        }
        cells
    };
    table(&columns, rows.iter().map(cells))
}

pub(super) fn snapshots(rows: &[SnapshotRow], all: bool, wide: bool) -> String {
    let mut columns = vec!["SNAPSHOT", "CLAIM", "NODE", "POOL", "SIZE", "DISK", "STATE", "AGE"];
    if all {
        columns.insert(0, "NAMESPACE");
    }
    if wide {
        columns.extend(["MEASURED", "GROUP", "CONTENT", "VOLUME", "ID"]);
    }
    let cells = |row: &SnapshotRow| {
        let name = match (&row.snapshot, row.kind.as_str()) {
            (Some(snapshot), _) => snapshot.clone(),
            (None, "snapshot") => "-".to_owned(),
            (None, kind) => format!("({kind})"),
        };
        let mut cells = vec![
            name,
            text(row.claim.as_ref()),
            row.node.clone().unwrap_or_else(|| "?".to_owned()),
            text(row.pool.as_ref()),
            bytes(row.size_bytes),
            disk(row.disk_bytes, row.shared_bytes),
            row.phase.clone(),
            age(row.age_seconds),
        ];
        if all {
            cells.insert(0, text(row.namespace.as_ref()));
        }
        if wide {
            cells.extend([
                age(seconds(row.measured_seconds_ago)),
                text(row.group.as_ref()),
                text(row.content.as_ref()),
                row.volume.clone(),
                row.id.clone(),
            ]);
        }
        cells
    };
    table(&columns, rows.iter().map(cells))
}

pub(super) fn nodes(rows: &[NodeRow], wide: bool) -> String {
    let mut columns = vec![
        "NODE",
        "POOL",
        "SIZE",
        "USED",
        "FREE",
        "ROOM",
        "PROMISED",
        "OVERCOMMIT",
        "VOLUMES",
        "VERSION",
        "CERTIFICATE",
        "LAST ANSWER",
        "STATUS",
    ];
    if wide {
        columns.extend([
            "RESERVE",
            "USABLE",
            "LACKING",
            "REMOVING",
            "SNAPSHOTS",
            "MEASURED",
            "PATH",
            "ADDRESS",
        ]);
    }
    let mut lines = Vec::new();
    for node in rows {
        if node.pools.is_empty() {
            lines.push(pool_cells(node, None, wide));
        }
        lines.extend(node.pools.iter().map(|pool| pool_cells(node, Some(pool), wide)));
    }
    table(&columns, lines)
}

fn pool_cells(node: &NodeRow, pool: Option<&PoolRow>, wide: bool) -> Vec<String> {
    let of = |which: fn(&PoolRow) -> Option<u64>| bytes(pool.and_then(which));
    let mut cells = vec![
        node.node.clone(),
        pool.map_or_else(|| "?".to_owned(), |pool| pool.name.clone()),
        of(|pool| pool.size_bytes),
        of(|pool| pool.used_bytes),
        of(|pool| pool.free_bytes),
        of(|pool| pool.room_bytes),
        of(|pool| pool.promised_bytes),
        pool.and_then(|pool| pool.overcommit).map_or_else(|| "?".to_owned(), |ratio| ratio.to_string()),
        count(pool.map(|pool| pool.volumes)),
        node.version.clone().unwrap_or_else(|| "?".to_owned()),
        certificate(node),
        age(seconds(node.last_answer_seconds_ago)),
        status(node, pool),
    ];
    if wide {
        cells.extend([
            of(|pool| pool.reserve_bytes),
            of(|pool| pool.usable_bytes),
            of(|pool| pool.lacking_bytes),
            of(|pool| pool.removing_bytes),
            count(pool.map(|pool| pool.snapshots)),
            age(seconds(pool.and_then(|pool| pool.measured_seconds_ago))),
            text(pool.map(|pool| &pool.path)),
            text(node.address.as_ref()),
        ]);
    }
    cells
}

/// Returns the time until the certificate of a node ends.
fn certificate(node: &NodeRow) -> String {
    match node.certificate_seconds_left {
        None if !node.answered => "?".to_owned(),
        Some(left) if left <= 0 => "expired".to_owned(),
        left => age(left),
    }
}

fn status(node: &NodeRow, pool: Option<&PoolRow>) -> String {
    if let Some(problem) = &node.problem {
        return format!("no answer: {problem}");
    }
    let problem = pool.and_then(|pool| pool.problem.as_ref());
    let lacking = pool.and_then(|pool| pool.lacking_bytes).filter(|bytes| *bytes > 0);
    match (problem, lacking) {
        (Some(problem), _) => format!("not usable: {problem}"),
        (None, Some(lacking)) => format!("lacks {} for what is promised", format_bytes(lacking)),
        (None, None) => "Ready".to_owned(),
    }
}
