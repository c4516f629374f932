//! `hostloop volume NAME`: all that is known of one volume.

use serde::Serialize;

use super::cells::{bytes, claim, disk, names, text, used};
use super::gather::Found;
use super::snapshots::{self, SnapshotRow};
use super::volumes::{UNKNOWN_PREFIX, VolumeRow, all_rows};
use crate::admin::screen::age;
use crate::cli::ScopeArgs;

/// A volume with its snapshots, as a program reads it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OneVolume {
    #[serde(flatten)]
    pub(super) volume: VolumeRow,
    pub(super) snapshot_list: Vec<SnapshotRow>,
}

/// Finds the volumes that a name means: a claim of `namespace`, if that is one only, a PersistentVolume or a CSI id. There are
/// several if an earlier node of a volume still has a record of it.
pub(super) fn find(found: &Found, name: &str, namespace: Option<&str>) -> Vec<OneVolume> {
    let claim = ["pvc/", "persistentvolumeclaim/", "persistentvolumeclaims/"];
    let claim = claim.iter().find_map(|kind| name.strip_prefix(kind)).unwrap_or(name);
    let rows = all_rows(found);
    let of_claim = |row: &&VolumeRow| {
        row.claim.as_deref() == Some(claim)
            && namespace.is_none_or(|namespace| row.namespace.as_deref() == Some(namespace))
    };
    let named = |row: &&VolumeRow| row.persistent_volume.as_deref() == Some(name) || row.id == name;
    let mut meant: Vec<VolumeRow> = rows.iter().filter(of_claim).cloned().collect();
    if meant.is_empty() {
        meant = rows.iter().filter(named).cloned().collect();
    }
    let snapshots = snapshots::rows(found, &ScopeArgs::default(), None);
    let one = |volume: VolumeRow| OneVolume {
        snapshot_list: snapshots.iter().filter(|snapshot| snapshot.volume == volume.id).cloned().collect(),
        volume,
    };
    meant.into_iter().map(one).collect()
}

/// Reports whether a node has answered for a volume with this name.
pub(super) fn is_known(found: &Found, name: &str, namespace: Option<&str>) -> bool {
    find(found, name, namespace).iter().any(|one| !one.volume.health.starts_with(UNKNOWN_PREFIX))
}

/// Returns a volume for people.
pub(super) fn describe(one: &OneVolume) -> String {
    let row = &one.volume;
    let exactly = |bytes: Option<u64>, text: String| match bytes {
        Some(bytes) if bytes >= 1024 => format!("{text} ({bytes} bytes)"),
        _ => text,
    };
    let claim = match &row.namespace {
        Some(namespace) if row.claim.is_some() => format!("{namespace}/{}", claim(row)),
        _ => claim(row),
    };
    let measured = row.measured_seconds_ago.and_then(|seconds| i64::try_from(seconds).ok());
    let measured =
        measured.map_or_else(|| "never".to_owned(), |seconds| format!("{} ago", age(Some(seconds))));
    let mut lines = vec![
        ("Claim", claim),
        ("PersistentVolume", text(row.persistent_volume.as_ref())),
        ("StorageClass", text(row.storage_class.as_ref())),
        ("Id", row.id.clone()),
        ("Kind", row.kind.clone()),
        ("Node", text(row.node.as_ref())),
        ("Pool", text(row.pool.as_ref())),
        ("Backend", text(row.backend.as_ref())),
        ("Filesystem", text(row.content.as_ref())),
        ("Provisioning", text(row.provisioning.as_ref())),
        ("Phase", text(row.phase.as_ref())),
        ("Size", exactly(row.size_bytes, bytes(row.size_bytes))),
        ("Used", exactly(row.used_bytes, used(row))),
        ("Disk", exactly(row.disk_bytes, disk(row.disk_bytes, row.shared_bytes))),
        ("Measured", measured),
        ("Moves", row.moves.map_or_else(|| "?".to_owned(), |moves| moves.to_string())),
        ("Age", age(row.age_seconds)),
        ("Pods", names(row.pods.as_ref(), usize::MAX)),
        ("Health", row.health.clone()),
    ];
    let troubles = row.troubles.iter();
    lines.extend(
        troubles
            .map(|trouble| ("", format!("{} ({}): {}", trouble.reason, trouble.severity, trouble.message))),
    );
    lines.extend(row.unmeasured.iter().map(|why| ("Not measured", why.clone())));
    let lines = lines.into_iter().map(|(name, value)| {
        let name = if name.is_empty() { String::new() } else { format!("{name}:") };
        format!("{name:<18} {value}")
    });
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if !one.snapshot_list.is_empty() {
        text = format!("{text}\n\n{}", super::cells::snapshots(&one.snapshot_list, true, false));
    }
    text
}
