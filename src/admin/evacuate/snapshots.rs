//! `hostloop evacuate --with-snapshots`: every snapshot of a node moves to another one. The controllers say which node has a snapshot:
//! its id names the one that it was made on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::ended::{Ended, elsewhere};
use crate::admin::api::inspect::Cut;
use crate::admin::inspect::harmless;
use crate::admin::screen::{Screen, Style};
use crate::admin::seen::Name;
use crate::cluster::details::{AskedNode, NodeAnswer, Source};
use crate::cluster::handover::{NotMoved, SnapshotOrder};
use crate::cluster::moves::progress::percent;
use crate::model::details::{SnapshotDetails, VolumeDetails};
use crate::model::{Handover, Side};

/// How long the command waits before it asks again.
const PAUSE: Duration = Duration::from_secs(2);
/// How long an order may be refused that may be accepted later.
const PATIENCE: Duration = Duration::from_secs(60);
/// The percentage between two lines about a copy.
const STEP: u8 = 10;

/// Who knows the nodes, and moves snapshots between them.
pub(in crate::admin) trait Nodes {
    /// Asks all nodes what they have.
    fn ask_all(&self) -> impl Future<Output = Result<Vec<AskedNode>, String>> + Send;
    /// Has a snapshot moved.
    fn move_snapshot(&self, order: &SnapshotOrder) -> impl Future<Output = Result<(), NotMoved>> + Send;
}

impl Nodes for Source {
    async fn ask_all(&self) -> Result<Vec<AskedNode>, String> {
        Source::ask_all(self).await
    }

    async fn move_snapshot(&self, order: &SnapshotOrder) -> Result<(), NotMoved> {
        Source::move_snapshot(self, order).await
    }
}

/// What is asked for.
pub(in crate::admin) struct Wanted<'a> {
    /// The node that is to be emptied.
    pub(in crate::admin) node: &'a str,
    /// The node that gets what has no volume elsewhere; `None` for the one with the most room.
    pub(in crate::admin) to: Option<&'a str>,
    /// Only snapshots of this namespace.
    pub(in crate::admin) namespace: Option<&'a str>,
    /// The VolumeSnapshotContents of the driver.
    pub(in crate::admin) cuts: &'a [Cut],
    /// Where the volumes of claims are moving to.
    pub(in crate::admin) moving: &'a HashMap<Name, String>,
    /// Nodes on which no new pods start.
    pub(in crate::admin) cordoned: &'a [String],
}

/// A snapshot or a group, and what is to become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Its VolumeSnapshots, or their ids.
    pub(super) name: String,
    pub(super) id: String,
    /// The node that has it.
    pub(super) node: String,
    /// The target nodes, the best first; or the reason why it stays.
    pub(super) targets: Result<Vec<String>, String>,
}

/// A snapshot, as a program reads it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    snapshot: &'a str,
    id: &'a str,
    source_node: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_node: Option<&'a str>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
}

/// One run.
pub(in crate::admin) struct Emptying<'a, N> {
    pub(in crate::admin) nodes: N,
    pub(in crate::admin) screen: &'a mut Screen,
}

impl<N: Nodes> Emptying<'_, N> {
    /// Moves every snapshot of the node. Returns whether none stays.
    ///
    /// # Errors
    /// Why it is not known which ones there are.
    pub(in crate::admin) async fn run(&mut self, wanted: &Wanted<'_>) -> Result<bool, String> {
        let items = plan(&self.nodes.ask_all().await?, wanted)?;
        if items.is_empty() {
            self.screen.say(&format!("no snapshot is on node {}", wanted.node));
            return Ok(true);
        }
        let (mut good, mut left) = (0_usize, Vec::new());
        for item in &items {
            let ended = match &item.targets {
                Ok(targets) => self.move_to_one(item, targets).await,
                Err(why) => Ended::Stays(why.clone()),
            };
            self.report(item, &ended);
            match ended {
                Ended::On(_) => good += 1,
                Ended::Gone => {}
                Ended::Stays(why) => left.push((item, why)),
            }
        }
        self.screen.say(&format!("{good} of {} snapshots have moved", items.len()));
        if !left.is_empty() {
            self.screen.say(&format!("These stay on node {}:", wanted.node));
            for (item, why) in &left {
                self.screen.say(&harmless(&format!("  {}: {why}", item.name)));
            }
        }
        Ok(left.is_empty())
    }

    /// Moves a snapshot to the first of these nodes that has room. If that is refused, finds out which node has it.
    async fn move_to_one(&mut self, item: &Item, targets: &[String]) -> Ended {
        let why = match self.try_targets(item, targets).await {
            Ok(target) => return Ended::On(target),
            Err(why) => why,
        };
        let nodes = self.nodes.ask_all().await.unwrap_or_default();
        elsewhere(&nodes, item).unwrap_or(Ended::Stays(why))
    }

    async fn try_targets(&mut self, item: &Item, targets: &[String]) -> Result<String, String> {
        let mut full = Vec::new();
        for target in targets {
            let order = SnapshotOrder {
                id: item.id.clone(),
                node_id: item.node.clone(),
                target_node_id: target.clone(),
            };
            match self.move_to(item, &order).await {
                Ok(()) => return Ok(target.clone()),
                Err(NotMoved::Full(why)) => full.push(format!("node {target}: {why}")),
                Err(NotMoved::Working(why) | NotMoved::Later(why) | NotMoved::Refused(why)) => {
                    return Err(why);
                }
            }
        }
        Err(full.join("; "))
    }

    /// Asks until the snapshot has moved.
    async fn move_to(&mut self, item: &Item, order: &SnapshotOrder) -> Result<(), NotMoved> {
        let (mut shown, mut refused_since) = (None, None);
        loop {
            match self.nodes.move_snapshot(order).await {
                Ok(()) => return Ok(()),
                Err(NotMoved::Working(why)) => {
                    refused_since = None;
                    let done = percent(&why);
                    if done
                        .is_some_and(|done| shown.is_none_or(|shown: u8| done >= shown.saturating_add(STEP)))
                    {
                        shown = done;
                        let (name, done) = (&item.name, done.unwrap_or_default());
                        self.screen.say(&harmless(&format!(
                            "{name}: {done}% copied to node {}",
                            order.target_node_id
                        )));
                    }
                }
                Err(NotMoved::Later(why)) => {
                    if refused_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err(NotMoved::Later(why));
                    }
                }
                Err(error) => return Err(error),
            }
            sleep(PAUSE).await;
        }
    }

    fn report(&mut self, item: &Item, ended: &Ended) {
        let (outcome, target_node, message) = match ended {
            Ended::On(node) => ("Moved", Some(node.as_str()), ""),
            Ended::Gone => ("Gone", None, "no node has it any longer"),
            Ended::Stays(why) => ("Stays", None, why.as_str()),
        };
        let Item { name, id, node, .. } = item;
        if self.screen.style == Style::Json {
            let row = Row { snapshot: name, id, source_node: node, target_node, outcome, message };
            if let Ok(text) = serde_json::to_string(&row) {
                self.screen.line(&text);
            }
            return;
        }
        match ended {
            Ended::On(target) => self.screen.say(&harmless(&format!("{name}: is on node {target}"))),
            Ended::Gone => self.screen.say(&harmless(&format!("{name}: {message}"))),
            Ended::Stays(_) => {}
        }
    }
}

/// Returns the snapshots and groups of the node, each with its target nodes.
///
/// # Errors
/// If the node does not answer, or there is none.
pub(super) fn plan(nodes: &[AskedNode], wanted: &Wanted<'_>) -> Result<Vec<Item>, String> {
    let asked = nodes.iter().find(|asked| asked.known.node_id == wanted.node);
    let asked = asked.ok_or_else(|| {
        format!("there is no node {:?} of the driver; hostloop nodes lists them", wanted.node)
    })?;
    let here = asked.answer.as_ref();
    let here =
        here.map_err(|why| format!("node {} does not say which snapshots it has: {why}", wanted.node))?;
    let others: Vec<(&str, &NodeAnswer)> = nodes
        .iter()
        .filter(|asked| asked.known.node_id != wanted.node)
        .filter_map(|asked| Some((asked.known.node_id.as_str(), asked.answer.as_ref().ok()?)))
        .collect();
    let mut items: Vec<Item> = Vec::new();
    for (id, parts) in together(&here.snapshots, wanted) {
        let targets = targets(&parts, here, &others, wanted);
        items.push(item(id, &parts, wanted, targets));
    }
    // A move whose source has released the snapshot, and whose target has not heard of that.
    for (node_id, answer) in &others {
        for (id, parts) in together(&answer.snapshots, wanted) {
            let has_come = |part: &&SnapshotDetails| {
                let from = part.handover.as_ref().filter(|handover| handover.side == Side::Taken);
                part.phase == "ready" && from.is_some_and(|from| from.node_id == wanted.node)
            };
            if parts.iter().all(has_come) && items.iter().all(|item| item.id != id) {
                items.push(item(id, &parts, wanted, Ok(vec![(*node_id).to_owned()])));
            }
        }
    }
    items.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    Ok(items)
}

/// Returns what moves as one, by its id: each snapshot, and each group with its members.
fn together<'a>(
    snapshots: &'a [SnapshotDetails],
    wanted: &Wanted<'_>,
) -> BTreeMap<&'a str, Vec<&'a SnapshotDetails>> {
    let mut parts: BTreeMap<&str, Vec<&SnapshotDetails>> = BTreeMap::new();
    for snapshot in snapshots.iter().filter(|snapshot| is_meant(snapshot, wanted)) {
        let id = snapshot.group_id.as_ref().unwrap_or(&snapshot.id);
        parts.entry(id).or_default().push(snapshot);
    }
    parts
}

/// Returns the VolumeSnapshots of the node, by their names, or by their ids if they have none.
pub(super) fn names(nodes: &[AskedNode], wanted: &Wanted<'_>) -> Result<Vec<String>, String> {
    Ok(plan(nodes, wanted)?.into_iter().map(|item| item.name).collect())
}

fn item(
    id: &str,
    parts: &[&SnapshotDetails],
    wanted: &Wanted<'_>,
    targets: Result<Vec<String>, String>,
) -> Item {
    let name = |part: &&SnapshotDetails| {
        name_of(part, wanted.cuts).map_or_else(|| part.id.clone(), |name| name.to_string())
    };
    let mut names: Vec<String> = parts.iter().map(name).collect();
    names.sort();
    Item { name: names.join(", "), id: id.to_owned(), node: wanted.node.to_owned(), targets }
}

/// Returns the VolumeSnapshot of a snapshot, as the API server knows it, or else as the snapshot was made.
fn name_of(snapshot: &SnapshotDetails, cuts: &[Cut]) -> Option<Name> {
    let cut = cuts.iter().find(|cut| cut.id == snapshot.id).map(|cut| cut.snapshot.clone());
    cut.or_else(|| {
        let object = snapshot.object.clone()?;
        Some(Name { namespace: object.namespace, name: object.name })
    })
}

fn is_meant(snapshot: &SnapshotDetails, wanted: &Wanted<'_>) -> bool {
    let of_namespace =
        |namespace: &str| name_of(snapshot, wanted.cuts).is_some_and(|name| name.namespace == namespace);
    snapshot.kind != "cut" && wanted.namespace.is_none_or(of_namespace)
}

/// Where the volume of a snapshot is.
enum Place {
    /// On this node, or on its way there.
    On(String),
    /// On the node that is to be emptied. The text names it.
    Stays(String),
    Gone,
}

fn place_of(
    snapshot: &SnapshotDetails,
    here: &NodeAnswer,
    others: &[(&str, &NodeAnswer)],
    wanted: &Wanted<'_>,
) -> Place {
    let is_volume = |volume: &&VolumeDetails| volume.id == snapshot.volume_id && volume.kind == "volume";
    if let Some((node_id, _)) =
        others.iter().find(|(_, answer)| answer.volumes.iter().any(|it| is_volume(&it)))
    {
        return Place::On((*node_id).to_owned());
    }
    let Some(volume) = here.volumes.iter().find(is_volume) else { return Place::Gone };
    let claim = volume.claim.as_ref();
    let name = claim.map(|claim| Name { namespace: claim.namespace.clone(), name: claim.name.clone() });
    match name.and_then(|name| wanted.moving.get(&name)) {
        Some(node_id) => Place::On(node_id.clone()),
        None => Place::Stays(claim.map_or_else(|| volume.id.clone(), ToString::to_string)),
    }
}

/// Returns the nodes that a snapshot or the members of a group can go to, the best first.
///
/// # Errors
/// Why it stays.
fn targets(
    parts: &[&SnapshotDetails],
    here: &NodeAnswer,
    others: &[(&str, &NodeAnswer)],
    wanted: &Wanted<'_>,
) -> Result<Vec<String>, String> {
    if let Some(part) = parts.iter().find(|part| part.phase != "ready") {
        return Err(format!("it is {}; run the command again", part.phase));
    }
    // external-snapshotter may not have heard of it yet, and would make another one.
    let is_named = |part: &&SnapshotDetails| wanted.cuts.iter().any(|cut| cut.id == part.id);
    if !parts.iter().all(is_named) {
        return Err("no VolumeSnapshotContent names it; hostloop doctor says what to do".to_owned());
    }
    let (mut nodes, mut stays) = (BTreeSet::new(), None);
    for part in parts {
        match place_of(part, here, others, wanted) {
            Place::On(node_id) => drop(nodes.insert(node_id)),
            Place::Stays(name) => stays = Some(name),
            Place::Gone => {}
        }
    }
    let begun = parts.iter().find_map(|part| part.handover.as_ref());
    let begun = begun.filter(|handover| handover.side == Side::Offered);
    match (nodes.first(), wanted.to, begun) {
        (Some(node_id), ..) if nodes.len() == 1 && stays.is_none() => Ok(vec![node_id.clone()]),
        (_, Some(to), _) => Ok(vec![to.to_owned()]),
        // What has been copied is not copied again.
        (_, None, Some(Handover { node_id, .. })) => Ok(vec![node_id.clone()]),
        (first, None, None) => match (stays, first) {
            (Some(name), _) => Err(format!(
                "its volume {name} is on node {} and moves nowhere; move that first, or name a node (--to)",
                wanted.node
            )),
            (None, Some(_)) => {
                Err("the volumes of its group are on several nodes; name one (--to)".to_owned())
            }
            (None, None) => by_room(parts, others, wanted),
        },
    }
}

/// Returns the nodes with pools of the same names, the one with the most room first.
fn by_room(
    parts: &[&SnapshotDetails],
    others: &[(&str, &NodeAnswer)],
    wanted: &Wanted<'_>,
) -> Result<Vec<String>, String> {
    let names: BTreeSet<&str> = parts.iter().map(|part| part.pool.as_str()).collect();
    let room = |answer: &NodeAnswer| {
        let room_of = |name: &&str| {
            let pool = answer.node.pools.iter().find(|pool| pool.name == *name && pool.unusable.is_none());
            pool.and_then(|pool| pool.figures).map(|figures| figures.room)
        };
        names.iter().map(room_of).collect::<Option<Vec<u64>>>()?.into_iter().min()
    };
    let mut candidates: Vec<(u64, &str)> = others
        .iter()
        .filter(|(node_id, _)| !wanted.cordoned.iter().any(|cordoned| cordoned == node_id))
        .filter_map(|(node_id, answer)| Some((room(answer)?, *node_id)))
        .collect();
    candidates.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    match candidates.is_empty() {
        true => {
            let names: Vec<&str> = names.into_iter().collect();
            Err(format!("no other node that is not cordoned answers and has a pool {}", names.join(" and ")))
        }
        false => Ok(candidates.into_iter().map(|(_, node_id)| node_id.to_owned()).collect()),
    }
}
