//! What nodes say and what the API server knows, joined: a function without I/O. What is not known is never taken for absent.

use std::time::Duration;

use crate::admin::api::doctor::{Content, Known, Pv};
use crate::cluster::findings::{ExaminedNode, NodeFindings};
use crate::model::findings::{
    Finding, Fix, FixFinding, HeldMount, HeldRecord, LeftBy, MOVED_LEFT, ORPHAN_RECORD, STALE_MOUNT,
};
use crate::model::{SnapshotId, Timestamp};

use super::lost::{without_snapshot, without_volume};
use super::row::Row;

/// All that was asked, once.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) nodes: Vec<ExaminedNode>,
    pub(super) known: Known,
    /// The driver that is meant; `None` to believe the node.
    pub(super) driver: Option<String>,
    /// All nodes were asked, and not one of them only.
    pub(super) all_nodes: bool,
}

impl Look {
    pub(super) fn answers(&self) -> impl Iterator<Item = (&str, &NodeFindings)> {
        self.nodes.iter().filter_map(|node| Some((node.known.node_id.as_str(), node.answer.as_ref().ok()?)))
    }

    /// The PersistentVolume that has this handle, or the name of which a record has.
    fn named(&self, id: &str, persistent_volume: Option<&str>) -> Option<String> {
        let volumes = self.known.volumes.as_deref().unwrap_or_default();
        if let Some(volume) = volumes.iter().find(|volume| volume.handle == id) {
            return Some(format!("PersistentVolume {} names it", volume.name));
        }
        let name = persistent_volume.filter(|name| !name.is_empty())?;
        let same = volumes.iter().find(|volume| volume.name == name)?;
        Some(format!("there is a PersistentVolume {name}, with the volume handle {:?}", same.handle))
    }

    fn content_of(&self, id: &str) -> Option<&Content> {
        self.known.contents.iter().flatten().find(|content| content.handle.as_deref() == Some(id))
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
            row.keep("since when it is so is not known; --grace 0s puts it right all the same".to_owned());
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
        persistent_volume: finding.persistent_volume.clone(),
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
    let rebuild = "its record is lost: run \"hostloop state rebuild\" on the node";
    if finding.id.parse::<SnapshotId>().is_ok() {
        return match (&look.known.contents, look.content_of(&finding.id)) {
            (None, _) => Some("which VolumeSnapshotContents there are is not known".to_owned()),
            (_, Some(content)) => Some(format!("VolumeSnapshotContent {} names it; {rebuild}", content.name)),
            (Some(_), None) => None,
        };
    }
    if look.known.volumes.is_none() {
        return Some("which PersistentVolumes there are is not known".to_owned());
    }
    let named = look.named(&finding.id, finding.persistent_volume.as_deref());
    named
        .map(|named| format!("{named}; {rebuild}"))
        .or_else(|| claimed(look, &finding.id, finding.persistent_volume.as_deref()))
}

/// Returns what else may still want a volume: a claim whose volume is being made, an attachment, a move.
fn claimed(look: &Look, id: &str, persistent_volume: Option<&str>) -> Option<String> {
    let Some(replicas) = &look.known.replicas else {
        return Some("which VolumeReplicas there are is not known".to_owned());
    };
    let Some(attached) = &look.known.attached else {
        return Some("which VolumeAttachments there are is not known".to_owned());
    };
    if replicas.contains(id) {
        return Some("a VolumeReplica names it".to_owned());
    }
    let attached = persistent_volume.filter(|name| attached.contains(*name));
    attached.map(|name| format!("a VolumeAttachment names PersistentVolume {name}"))
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
    let claims = look.known.claims.as_ref();
    // external-provisioner names a volume after the uid of its claim, and makes the PersistentVolume after it.
    let wanting = claims.and_then(|claims| claims.iter().find(|(uid, _)| record.name.contains(uid.as_str())));
    let mut row = row_of(node, answer, ORPHAN_RECORD, record);
    row.found = "a volume that no PersistentVolume names".to_owned();
    row.deletes_data = true;
    let name = row.persistent_volume.clone();
    let unsure = claims.is_none().then(|| "which claims there are is not known".to_owned());
    let wanted = wanting.map(|(_, claim)| format!("it was made for claim {claim}, which still exists"));
    let why = unsure.or(wanted).or_else(|| look.named(&record.id, name.as_deref()));
    let why = why.or_else(|| claimed(look, &record.id, name.as_deref()));
    match why.or_else(|| record.uses.as_ref().map(|uses| format!("in use: {uses}"))) {
        Some(why) => row.keep(why),
        None => row.fixed_by("deletes the volume".to_owned(), request(node, ORPHAN_RECORD, record)),
    }
    Some(row)
}

fn orphan_snapshot(look: &Look, node: &str, answer: &NodeFindings, record: &HeldRecord) -> Option<Row> {
    let contents = look.known.contents.as_ref()?;
    if look.content_of(&record.id).is_some() {
        return None;
    }
    let wants = |content: &&Content| {
        let is_made_for = !content.snapshot_uid.is_empty() && record.name.contains(&content.snapshot_uid);
        is_made_for || record.content.as_ref() == Some(&content.name)
    };
    let mut row = row_of(node, answer, ORPHAN_RECORD, record);
    row.found = "a snapshot that no VolumeSnapshotContent names".to_owned();
    row.deletes_data = true;
    match contents.iter().find(wants) {
        Some(content) => {
            row.keep(format!("VolumeSnapshotContent {} wants it, and does not name it yet", content.name))
        }
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
    }
}

/// What a volume that has moved has left. It goes only if the volume's present node has just said that it has the volume.
fn left(look: &Look, node: &str, answer: &NodeFindings, record: &HeldRecord, by: &LeftBy) -> Option<Row> {
    let mut row = row_of(node, answer, MOVED_LEFT, record);
    row.found = format!("left of volume {}, which has moved to node {}", by.id, by.node_id);
    row.deletes_data = true;
    match why_left_stays(look, record, by) {
        Some(why) => row.keep(why),
        None => row.fixed_by("deletes it".to_owned(), request(node, MOVED_LEFT, record)),
    }
    Some(row)
}

fn why_left_stays(look: &Look, record: &HeldRecord, by: &LeftBy) -> Option<String> {
    let Some(replicas) = &look.known.replicas else {
        return Some("which VolumeReplicas there are is not known".to_owned());
    };
    if replicas.contains(&by.id) || replicas.contains(&record.id) {
        return Some(
            "a VolumeReplica names the volume: the controller that moves volumes decides".to_owned(),
        );
    }
    let Some(volumes) = &look.known.volumes else {
        return Some("which PersistentVolumes there are is not known".to_owned());
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
        ..request(node, STALE_MOUNT, record)
    };
    match mount.seen.is_empty() {
        // The kernel shows a device as long as any container has it mounted, and a directory has none.
        true => {
            row.keep("a container may still have the directory: unmount it by hand if none does".to_owned())
        }
        false => row.fixed_by("unmounts it".to_owned(), request),
    }
    Some(row)
}
