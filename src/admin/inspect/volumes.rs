//! `hostloop volumes`: what the nodes say of their volumes, joined with what the API server knows of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::gather::Found;
use super::order::{Keys, Ordered};
use crate::admin::api::inspect::{Known, User};
use crate::cli::ScopeArgs;
use crate::model::Timestamp;
use crate::model::details::{DetailedTrouble, VolumeDetails};

/// The health of a volume that no node has.
pub(super) const MISSING: &str = "Missing";
/// The health of a volume whose node did not answer.
pub(super) const UNKNOWN: &str = "Unknown (node did not answer)";
/// The state of a snapshot that may be on any of several nodes which did not answer.
pub(super) const UNKNOWN_NODE: &str = "Unknown (a node did not answer)";
/// The start of the health of a volume that may exist and for which no node has answered.
pub(super) const UNKNOWN_PREFIX: &str = "Unknown";

/// A volume, as a program reads it. What is not known is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeRow {
    pub(super) namespace: Option<String>,
    pub(super) claim: Option<String>,
    pub(super) persistent_volume: Option<String>,
    pub(super) storage_class: Option<String>,
    /// The CSI id.
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) node: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) backend: Option<String>,
    pub(super) content: Option<String>,
    pub(super) provisioning: Option<String>,
    pub(super) phase: Option<String>,
    pub(super) size_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    pub(super) disk_bytes: Option<u64>,
    /// Bytes of these that other volumes and snapshots have, too.
    pub(super) shared_bytes: Option<u64>,
    /// Seconds since these bytes were measured.
    pub(super) measured_seconds_ago: Option<u64>,
    /// Why the last measurement failed.
    pub(super) unmeasured: Option<String>,
    pub(super) snapshots: Option<usize>,
    /// The names of the pods that have it; of those that the API server does not name, the uids.
    pub(super) pods: Option<Vec<String>>,
    pub(super) health: String,
    pub(super) troubles: Vec<TroubleRow>,
    /// How often it has moved to another node.
    pub(super) moves: Option<u64>,
    pub(super) age_seconds: Option<i64>,
}

/// What is wrong with a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct TroubleRow {
    pub(super) severity: String,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Ordered for VolumeRow {
    fn keys(&self) -> Keys<'_> {
        let name = self.claim.as_deref().or(self.persistent_volume.as_deref()).unwrap_or(&self.id);
        Keys {
            name: (self.namespace.as_deref(), name, &self.id),
            disk: self.disk_bytes,
            used: self.used_bytes,
            size: self.size_bytes,
            age: self.age_seconds,
        }
    }
}

/// What is known of all objects, by what a volume is known by.
struct Index<'a> {
    by_id: HashMap<&'a str, &'a Known>,
    pods: HashMap<&'a str, &'a User>,
    /// The pods of a claim, by its namespace and name.
    users: HashMap<(&'a str, &'a str), Vec<&'a User>>,
    snapshots: HashMap<&'a str, usize>,
    generations: HashMap<&'a str, u64>,
    /// Whether pods were asked for, and came.
    has_pods: bool,
    /// The namespace that they are of; `None` for all.
    pods_of: Option<&'a str>,
    all_answered: bool,
}

impl<'a> Index<'a> {
    fn of(found: &'a Found) -> Self {
        let known = found.objects.volumes.iter().flatten();
        let pods = || found.objects.pods.iter().flatten();
        let mut users: HashMap<(&str, &str), Vec<&User>> = HashMap::new();
        for pod in pods() {
            for claim in &pod.claims {
                users.entry((&pod.name.namespace, claim)).or_default().push(pod);
            }
        }
        let (mut snapshots, mut generations) = (HashMap::new(), HashMap::new());
        for answer in found.nodes.iter().filter_map(|node| node.answer.as_ref().ok()) {
            for snapshot in answer.snapshots.iter().filter(|snapshot| snapshot.kind != "cut") {
                let count: &mut usize = snapshots.entry(snapshot.volume_id.as_str()).or_default();
                *count = count.saturating_add(1);
            }
            for volume in &answer.volumes {
                let latest: &mut u64 = generations.entry(volume.id.as_str()).or_default();
                *latest = volume.generation.max(*latest);
            }
        }
        Index {
            by_id: known.map(|known| (known.id.as_str(), known)).collect(),
            pods: pods().map(|pod| (pod.uid.as_str(), pod)).collect(),
            users,
            snapshots,
            generations,
            has_pods: found.objects.pods.is_some(),
            pods_of: found.objects.pods_of.as_deref(),
            all_answered: found.unanswered().next().is_none(),
        }
    }

    fn row(&self, node: &str, volume: &VolumeDetails) -> VolumeRow {
        let known = self.by_id.get(volume.id.as_str()).copied();
        let mut row = self.of_known(known, volume);
        row.id.clone_from(&volume.id);
        row.kind.clone_from(&volume.kind);
        row.node = Some(node.to_owned());
        row.pool = Some(volume.pool.clone());
        row.backend = Some(volume.backend.clone());
        row.content = Some(volume.content.clone());
        row.provisioning = Some(volume.provisioning.clone());
        row.phase = Some(volume.phase.clone());
        row.size_bytes = Some(volume.size_bytes);
        row.used_bytes = volume.used_bytes;
        row.disk_bytes = volume.disk.bytes;
        row.shared_bytes = volume.disk.shared;
        row.measured_seconds_ago = volume.disk.age(Timestamp::now()).map(|age| age.as_secs());
        row.unmeasured.clone_from(&volume.unmeasured);
        // Those that were made before a move are on the earlier node.
        row.snapshots = (self.all_answered || volume.generation == 0)
            .then(|| self.snapshots.get(volume.id.as_str()).copied().unwrap_or(0));
        row.moves = Some(volume.generation);
        let outdated = self.generations.get(volume.id.as_str()).is_some_and(|last| *last > volume.generation);
        row.health = health_of(volume, outdated);
        row.troubles = volume.troubles.iter().flatten().map(trouble).collect();
        row
    }

    /// Returns what the API server knows of a volume; without it, what the node knows of its claim.
    fn of_known(&self, known: Option<&Known>, volume: &VolumeDetails) -> VolumeRow {
        let named = volume.claim.as_ref();
        let by_uid =
            |uid: &String| self.pods.get(uid.as_str()).map_or(uid.clone(), |pod| pod.name.name.clone());
        let mut row = match known {
            Some(known) => row_of(known),
            None => VolumeRow {
                namespace: named.map(|claim| claim.namespace.clone()),
                claim: named.map(|claim| claim.name.clone()),
                persistent_volume: named.map(|claim| claim.persistent_volume.clone()),
                ..VolumeRow::default()
            },
        };
        let since = |created: Timestamp| Timestamp::now().seconds().saturating_sub(created.seconds());
        row.age_seconds = row.age_seconds.or_else(|| volume.created.map(since));
        // A look that failed has found no pod, and there may be some.
        let is_known =
            volume.disk.measured.is_some() && (volume.unmeasured.is_none() || !volume.pods.is_empty());
        row.pods = is_known.then(|| volume.pods.iter().map(by_uid).collect());
        if row.namespace.is_none() {
            let pods = volume.pods.iter().filter_map(|uid| self.pods.get(uid.as_str()));
            row.namespace = pods.map(|pod| pod.name.namespace.clone()).next();
        }
        if matches!(volume.kind.as_str(), "volume" | "inline") {
            self.add_users(&mut row);
        }
        row
    }

    /// Adds the pods that wait for the volume, or whose mounts the node does not tell.
    fn add_users(&self, row: &mut VolumeRow) {
        let (Some(namespace), Some(claim)) = (&row.namespace, &row.claim) else { return };
        if !self.has_pods || self.pods_of.is_some_and(|of| of != namespace) {
            return;
        }
        let users = self.users.get(&(namespace.as_str(), claim.as_str())).into_iter().flatten();
        let mut pods = row.pods.take().unwrap_or_default();
        pods.extend(users.map(|pod| pod.name.name.clone()));
        pods.sort();
        pods.dedup();
        row.pods = Some(pods);
    }
}

fn row_of(known: &Known) -> VolumeRow {
    VolumeRow {
        namespace: known.claim.as_ref().map(|claim| claim.namespace.clone()),
        claim: known.claim.as_ref().map(|claim| claim.name.clone()),
        persistent_volume: Some(known.name.clone()),
        storage_class: known.class.clone(),
        age_seconds: known.age,
        ..VolumeRow::default()
    }
}

fn trouble(trouble: &DetailedTrouble) -> TroubleRow {
    let DetailedTrouble { severity, reason, message } = trouble.clone();
    TroubleRow { severity, reason, message }
}

/// Returns how a volume is, in a word.
fn health_of(volume: &VolumeDetails, outdated: bool) -> String {
    match volume.phase.as_str() {
        "creating" => return "Creating".to_owned(),
        "deleting" => return "Deleting".to_owned(),
        _ if outdated => return "Outdated (it has moved away)".to_owned(),
        _ => {}
    }
    let Some(troubles) = &volume.troubles else { return "?".to_owned() };
    let reasons: Vec<&str> = troubles.iter().map(|trouble| trouble.reason.as_str()).collect();
    if reasons.is_empty() { "Healthy".to_owned() } else { reasons.join(",") }
}

/// Returns a row for each volume of a node that answered, and for each PersistentVolume of which none of them has a volume.
pub(super) fn all_rows(found: &Found) -> Vec<VolumeRow> {
    let index = Index::of(found);
    let mut rows = Vec::new();
    for asked in &found.nodes {
        let volumes = asked.answer.iter().flat_map(|answer| &answer.volumes);
        rows.extend(volumes.map(|volume| index.row(&asked.known.node_id, volume)));
    }
    // An earlier node of a volume may still have a record with its id.
    let has = |row: &VolumeRow| {
        let known = index.by_id.get(row.id.as_str());
        known.and_then(|known| known.node.as_ref()).is_none_or(|node| row.node.as_ref() == Some(node))
    };
    let held: HashSet<String> = rows.iter().filter(|row| has(row)).map(|row| row.id.clone()).collect();
    for row in rows.iter_mut().filter(|row| !held.contains(&row.id)) {
        if !row.health.starts_with("Outdated") {
            row.health = "Unknown (its PersistentVolume names another node)".to_owned();
        }
    }
    let answered: BTreeMap<&str, bool> =
        found.nodes.iter().map(|node| (node.known.node_id.as_str(), node.answer.is_ok())).collect();
    let all_answered = answered.values().all(|answered| *answered);
    for known in found.objects.volumes.iter().flatten().filter(|known| !held.contains(&known.id)) {
        let answers = match &known.node {
            Some(node) => answered.get(node.as_str()).copied(),
            None => Some(all_answered),
        };
        let health = match answers {
            Some(true) => MISSING,
            Some(false) => UNKNOWN,
            None => "Unknown (node is not part of the cluster)",
        };
        let mut row = VolumeRow {
            id: known.id.clone(),
            kind: "volume".to_owned(),
            node: known.node.clone(),
            size_bytes: Some(known.bytes).filter(|bytes| *bytes > 0),
            health: health.to_owned(),
            ..row_of(known)
        };
        index.add_users(&mut row);
        rows.push(row);
    }
    rows
}

/// Returns the rows that are meant: of `namespace`, if it is one only.
pub(super) fn rows(found: &Found, scope: &ScopeArgs, namespace: Option<&str>) -> Vec<VolumeRow> {
    let mut rows = all_rows(found);
    rows.retain(|row| {
        namespace.is_none_or(|namespace| row.namespace.as_deref() == Some(namespace))
            && is_of(scope.node.as_ref(), row.node.as_ref())
            && (is_of(scope.pool.as_ref(), row.pool.as_ref())
                || (row.pool.is_none() && row.health == UNKNOWN))
    });
    super::order::sort(&mut rows, scope.sort_by);
    rows
}

/// Returns whether something is what is asked for; what is not known is not.
pub(super) fn is_of(asked: Option<&String>, has: Option<&String>) -> bool {
    asked.is_none_or(|asked| has == Some(asked))
}
