//! What nodes say and what the API server knows, joined: a function without I/O. What is not known is never taken for absent.

use std::time::Duration;

use crate::admin::api::doctor::{Known, Pv};
use crate::cluster::findings::{ExaminedNode, NodeFindings};
use crate::model::findings::{
    Finding, Fix, FixFinding, HeldMount, HeldRecord, LeftBy, MOVED_LEFT, ORPHAN_RECORD, STALE_MOUNT,
};
use crate::model::{SnapshotId, Timestamp};

use super::lost::{without_snapshot, without_volume};
use super::row::Row;
use super::wanted::{Held, unknown_of_snapshots, unknown_of_volumes, wants_snapshot, wants_volume};

/// All that was asked, once.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) nodes: Vec<ExaminedNode>,
    pub(super) known: Known,
    /// The driver that is meant; `None` to believe the node.
    pub(super) driver: Option<String>,
}

impl Look {
    pub(super) fn answers(&self) -> impl Iterator<Item = (&str, &NodeFindings)> {
        self.nodes.iter().filter_map(|node| Some((node.known.node_id.as_str(), node.answer.as_ref().ok()?)))
    }
}

/// Returns what is amiss and older than `grace`, in the order of nodes and classes.
pub(super) fn findings(look: &Look, grace: Duration) -> Vec<Row> {
    let mut rows = Vec::new();
    for (node, answer) in look.answers() {
        rows.extend(answer.findings.iter().map(|finding| of_node(look, node, answer, finding)));
        for record in &answer.records {
            rows.extend(of_record(look, node, answer, record));
            rows.extend(record.mounts.iter().filter_map(|mount| of_mount(look, node, answer, record, mount)));
        }
    }
    rows.extend(look.known.volumes.iter().flatten().filter_map(|volume| without_volume(look, volume)));
    rows.extend(look.known.contents.iter().flatten().filter_map(|content| without_snapshot(look, content)));
    let grace = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
    rows.retain(|row| row.age_seconds.is_none_or(|age| age >= grace));
    for row in &mut rows {
        if row.age_seconds.is_none() && grace > 0 && row.request.is_some() {
            row.keep("its age is not known: use --grace 0s to put it right".to_owned());
        }
    }
    rows.sort_by(|a, b| a.key().cmp(&b.key()));
    rows
}

fn age(now: Timestamp, since: Option<Timestamp>) -> Option<i64> {
    since.map(|since| now.seconds().saturating_sub(since.seconds()).max(0))
}

/// Something that a node says by itself.
fn of_node(look: &Look, node: &str, answer: &NodeFindings, finding: &Finding) -> Row {
    let mut row = Row {
        node: node.to_owned(),
        class: finding.class.clone(),
        id: finding.id.clone(),
        claim: finding.claim.as_ref().filter(|claim| !claim.name.is_empty()).map(ToString::to_string),
        persistent_volume: finding.claim.as_ref().map(|claim| claim.persistent_volume.clone()),
        pool: Some(finding.pool.clone()).filter(|pool| !pool.is_empty()),
        path: Some(finding.path.clone()).filter(|path| !path.is_empty()),
        age_seconds: age(answer.now, finding.since),
        bytes: finding.bytes,
        found: finding.found.clone(),
        deletes_data: finding.loses_data,
        ..Row::default()
    };
    let request = FixFinding {
        node_id: node.to_owned(),
        class: finding.class.clone(),
        id: finding.id.clone(),
        path: finding.path.clone(),
        seen: finding.seen.clone(),
        unnamed: finding.needs_unnamed,
        pod_gone: false,
    };
    match &finding.fix {
        Fix::Kept(why) => row.keep(why.clone()),
        Fix::Does(what) => row.fixed_by(what.clone(), request),
    }
    if finding.needs_unnamed
        && let Some(why) = why_not_unnamed(look, finding)
    {
        row.keep(why);
    }
    row
}

/// Returns why it cannot be said that no object names what was found.
fn why_not_unnamed(look: &Look, finding: &Finding) -> Option<String> {
    let held = Held::from(finding);
    let (unknown, wanted) = match finding.id.parse::<SnapshotId>() {
        Ok(_) => (unknown_of_snapshots(look), wants_snapshot(look, &held)),
        Err(_) => (unknown_of_volumes(look), wants_volume(look, &held)),
    };
    let rebuild =
        |wanted| format!("{wanted}; its record is lost: run \"hostloop state rebuild\" on the node");
    unknown.or_else(|| wanted.map(rebuild))
}

fn row_of(node: &str, answer: &NodeFindings, class: &str, record: &HeldRecord) -> Row {
    Row {
        node: node.to_owned(),
        class: class.to_owned(),
        id: record.id.clone(),
        claim: record.claim.as_ref().map(ToString::to_string),
        persistent_volume: record.claim.as_ref().map(|claim| claim.persistent_volume.clone()),
        pool: Some(record.pool.clone()),
        path: Some(record.path.clone()),
        age_seconds: age(answer.now, record.since),
        bytes: record.bytes,
        ..Row::default()
    }
}

/// What a node has recorded, and nothing names.
fn of_record(look: &Look, node: &str, answer: &NodeFindings, record: &HeldRecord) -> Option<Row> {
    if record.phase != "ready" {
        return None; // its node says what it is
    }
    match record.kind.as_str() {
        "volume" => orphan_volume(look, node, answer, record),
        "snapshot" => orphan_snapshot(look, node, answer, record),
        "left" => left(look, node, answer, record, record.left_by.as_ref()?),
        _ => None,
    }
}

fn orphan_volume(look: &Look, node: &str, answer: &NodeFindings, record: &HeldRecord) -> Option<Row> {
    let volumes = look.known.volumes.as_ref()?;
    if volumes.iter().any(|volume| volume.handle == record.id) {
        return None;
    }
    let mut row = row_of(node, answer, ORPHAN_RECORD, record);
    row.found = "a volume that no PersistentVolume names".to_owned();
    row.deletes_data = true;
    let why = unknown_of_volumes(look).or_else(|| wants_volume(look, &Held::from(record)));
    match why.or_else(|| record.uses.as_ref().map(|uses| format!("in use: {uses}"))) {
        Some(why) => row.keep(why),
        None => row.fixed_by("deletes the volume".to_owned(), request(node, ORPHAN_RECORD, record)),
    }
    Some(row)
}

fn orphan_snapshot(look: &Look, node: &str, answer: &NodeFindings, record: &HeldRecord) -> Option<Row> {
    let contents = look.known.contents.as_ref()?;
    if contents.iter().any(|content| content.handle.as_ref() == Some(&record.id)) {
        return None;
    }
    let mut row = row_of(node, answer, ORPHAN_RECORD, record);
    row.found = "a snapshot that no VolumeSnapshotContent names".to_owned();
    row.deletes_data = true;
    match wants_snapshot(look, &Held::from(record)) {
        Some(why) => row.keep(why),
        None => row.fixed_by("deletes the snapshot".to_owned(), request(node, ORPHAN_RECORD, record)),
    }
    Some(row)
}

fn request(node: &str, class: &str, record: &HeldRecord) -> FixFinding {
    FixFinding {
        node_id: node.to_owned(),
        class: class.to_owned(),
        id: record.id.clone(),
        path: record.path.clone(),
        seen: record.seen.clone(),
        unnamed: true,
        pod_gone: false,
    }
}

/// What a volume that has moved has left. It goes only if the volume's present node has just said that it has the volume.
fn left(look: &Look, node: &str, answer: &NodeFindings, record: &HeldRecord, by: &LeftBy) -> Option<Row> {
    let mut row = row_of(node, answer, MOVED_LEFT, record);
    row.found = format!("left of volume {}, which has moved to node {}", by.id, by.node_id);
    row.deletes_data = true;
    row.relies_on = Some(by.node_id.clone());
    match why_left_stays(look, record, by) {
        Some(why) => row.keep(why),
        None => row.fixed_by("deletes it".to_owned(), request(node, MOVED_LEFT, record)),
    }
    Some(row)
}

fn why_left_stays(look: &Look, record: &HeldRecord, by: &LeftBy) -> Option<String> {
    let Some(replicas) = &look.known.replicas else {
        return Some("which VolumeReplicas exist is not known".to_owned());
    };
    if replicas.contains(&by.id) || replicas.contains(&record.id) {
        return Some(
            "a VolumeReplica names the volume: the controller that moves volumes decides".to_owned(),
        );
    }
    let Some(volumes) = &look.known.volumes else {
        return Some("which PersistentVolumes exist is not known".to_owned());
    };
    let has_it = look.answers().any(|(node, answer)| {
        let is_it = |held: &HeldRecord| {
            held.id == by.id
                && held.kind == "volume"
                && held.phase == "ready"
                && held.generation >= by.generation
        };
        node == by.node_id && answer.records.iter().any(is_it)
    });
    if !has_it {
        return Some(format!("node {} has not said that it has the volume", by.node_id));
    }
    if volumes.iter().any(|volume| volume.handle == record.id) {
        return Some("a PersistentVolume names it".to_owned());
    }
    let names_it = |volume: &Pv| volume.handle == by.id && volume.node.as_ref() == Some(&by.node_id);
    if !volumes.iter().any(names_it) {
        return Some(format!("no PersistentVolume says that the volume is on node {}", by.node_id));
    }
    record.uses.as_ref().map(|uses| format!("in use: {uses}"))
}

/// A mount for a pod that is gone, or of a staged volume that nothing names.
fn of_mount(
    look: &Look,
    node: &str,
    answer: &NodeFindings,
    record: &HeldRecord,
    mount: &HeldMount,
) -> Option<Row> {
    // The driver itself takes down the inline volumes of pods that are gone.
    if !["volume", "left"].contains(&record.kind.as_str()) {
        return None;
    }
    let unnamed = match &mount.pod_uid {
        Some(uid) => {
            if look.known.pods.as_ref()?.contains(uid) {
                return None;
            }
            false
        }
        None => {
            let volumes = look.known.volumes.as_ref()?;
            let is_named = volumes.iter().any(|volume| volume.handle == record.id);
            if record.kind != "volume"
                || is_named
                || record.mounts.iter().any(|mount| mount.pod_uid.is_some())
            {
                return None;
            }
            true
        }
    };
    let mut row = row_of(node, answer, STALE_MOUNT, record);
    (row.bytes, row.path) = (None, Some(mount.path.clone()));
    row.age_seconds = age(answer.now, mount.since);
    row.found = match &mount.pod_uid {
        Some(uid) => format!("mounted for pod {uid}, which is gone"),
        None => "staged, for no pod, and no PersistentVolume names it".to_owned(),
    };
    let request = FixFinding {
        path: mount.path.clone(),
        seen: mount.seen.clone(),
        unnamed,
        pod_gone: !unnamed,
        ..request(node, STALE_MOUNT, record)
    };
    // The kernel shows a device as long as any container has it mounted, and a directory has none.
    let is_hidden = mount.seen.is_empty();
    let hidden = || "a container may still have the directory: unmount it by hand if none does".to_owned();
    let wanted = || match unnamed {
        true => unknown_of_volumes(look).or_else(|| wants_volume(look, &Held::from(record))),
        false => None,
    };
    match is_hidden.then(hidden).or_else(wanted) {
        Some(why) => row.keep(why),
        None => row.fixed_by("unmounts it".to_owned(), request),
    }
    Some(row)
}
