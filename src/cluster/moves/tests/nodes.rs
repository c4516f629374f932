//! The nodes: volumes of numbers. They refuse what real ones refuse, and note what must never be asked for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::api::Fault;
use crate::cluster::moves::copies::{NewCopy, Updated};
use crate::cluster::moves::nodes::{NodeError, Nodes, PassRequest, Presence, Result};
use crate::cluster::moves::resources::VolumeReplicaSpec;
use crate::model::{NodeKey, VolumeId};

/// What a node has under an id.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Held {
    pub(crate) generation: u64,
    /// What a pod wrote last.
    pub(crate) data: u64,
    /// The source of a copy that is not complete.
    pub(crate) copy_of: Option<String>,
    /// The copy is identical to its source, which was fenced and not in use.
    pub(crate) exact: bool,
    pub(crate) sealed: bool,
    /// A pod uses it.
    pub(crate) in_use: bool,
    /// The id that it had before it moved away.
    pub(crate) was: Option<String>,
    /// The nodes that it was adopted from.
    pub(crate) adopted_from: Vec<String>,
    pub(crate) pool: String,
}

#[derive(Default)]
pub(crate) struct Cluster {
    pub(crate) nodes: BTreeMap<String, BTreeMap<String, Held>>,
    /// These do not answer.
    pub(crate) silent: BTreeSet<String>,
    /// These have no room for a copy.
    pub(crate) full: BTreeSet<String>,
    /// The room for the copy of a volume on a node, if it is another than usual.
    pub(crate) rooms: BTreeMap<(String, String), u64>,
    /// These have no room for what a pass brings.
    pub(crate) crowded: BTreeSet<String>,
    /// Nodes without room for a last pass.
    pub(crate) crowded_last: BTreeSet<String>,
    /// Nodes on which a copy is larger than its limit after a last pass.
    pub(crate) exceeded_last: BTreeSet<String>,
    /// These answer only after so long.
    pub(crate) slow: BTreeMap<String, Duration>,
    /// The disks of these have failed: they have their records, and no data.
    pub(crate) broken: BTreeSet<String>,
    /// The least sizes with which copies were completed, and the parameters that volumes got.
    pub(crate) completed_with: Vec<u64>,
    pub(crate) modified: Vec<BTreeMap<String, String>>,
    /// Source and copy of the cuts that are kept.
    pub(crate) cuts: BTreeSet<(String, String)>,
    /// What must never be.
    pub(crate) wrong: Vec<String>,
    /// The names of all calls.
    pub(crate) calls: Vec<&'static str>,
    /// The call of this number, counted from 0, fails.
    pub(crate) fault: Option<(usize, Fault)>,
    /// What the copies were made with, and the passes.
    pub(crate) made: Vec<NewCopy>,
    pub(crate) passes: Vec<PassRequest>,
    /// What the next passes send in bytes, and how long they take.
    pub(crate) sends: VecDeque<(u64, Duration)>,
    /// The number of the next passes over a fenced volume that find it in use.
    pub(crate) busy_passes: usize,
    /// An administrator deletes the copies: rule 2 does not hold them.
    pub(crate) administrator_deletes: bool,
}

#[derive(Clone, Default)]
pub(crate) struct FakeNodes(Arc<Mutex<Cluster>>);

impl FakeNodes {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.0.lock().unwrap()
    }

    async fn delay(&self, node: &str) {
        let late = self.lock().slow.get(node).copied().unwrap_or_default();
        tokio::time::sleep(late).await;
    }

    fn call<T>(
        &self,
        name: &'static str,
        node: &str,
        act: impl FnOnce(&mut Cluster, &mut BTreeMap<String, Held>) -> Result<T>,
    ) -> Result<T> {
        let mut cluster = self.lock();
        let number = cluster.calls.len();
        cluster.calls.push(name);
        let fault = cluster.fault.filter(|(failing, _)| *failing == number).map(|(_, fault)| fault);
        let silent = || Err(NodeError::Silent(format!("node {node} does not answer")));
        if cluster.silent.contains(node) || fault == Some(Fault::Lost) {
            return silent();
        }
        let Some(mut held) = cluster.nodes.remove(node) else { return silent() };
        let answer = act(&mut cluster, &mut held);
        cluster.nodes.insert(node.to_owned(), held);
        if fault == Some(Fault::AnswerLost) {
            Err(NodeError::Running("no answer in time".to_owned()))
        } else {
            answer
        }
    }
}

fn missing<T>(id: &str) -> Result<T> {
    Err(NodeError::NotFound(format!("volume {id} does not exist")))
}

fn in_use<T>(why: &str) -> Result<T> {
    Err(NodeError::InUse(why.to_owned()))
}

/// Returns the volume of a spec at its source, if that has the generation.
fn source<'a>(held: &'a mut BTreeMap<String, Held>, spec: &VolumeReplicaSpec) -> Result<&'a mut Held> {
    match held.get_mut(&spec.volume_id) {
        None => missing(&spec.volume_id),
        Some(volume) if volume.generation != spec.generation => in_use("it has another generation"),
        Some(volume) => Ok(volume),
    }
}

#[tonic::async_trait]
impl Nodes for FakeNodes {
    fn members(&self) -> Option<Vec<String>> {
        Some(self.lock().nodes.keys().cloned().collect())
    }

    async fn room(&self, copy: &NewCopy) -> Result<u64> {
        self.delay(&copy.target).await;
        self.call("room", &copy.target, |cluster, held| {
            let usual = if cluster.full.contains(&copy.target) { 0 } else { (100 - held.len() as u64) << 30 };
            Ok(cluster.rooms.get(&(copy.source.clone(), copy.target.clone())).copied().unwrap_or(usual))
        })
    }

    async fn find(&self, node: &str, volume_id: &str) -> Result<Presence> {
        self.delay(node).await;
        self.call("find", node, |cluster, held| {
            let is_cut = cluster.cuts.iter().any(|(source, _)| source == volume_id);
            let has_left = held.values().any(|volume| volume.was.as_deref() == Some(volume_id));
            Ok(match held.get(volume_id) {
                Some(_) if cluster.broken.contains(node) => {
                    Presence::Unusable(format!("the pool of volume {volume_id} is not available"))
                }
                Some(volume) => Presence::Has(volume.generation),
                None if is_cut && !has_left && !held.is_empty() => Presence::Deleted,
                None => Presence::Nothing,
            })
        })
    }

    async fn pool(&self, node: &str, volume_id: &str) -> Result<Option<String>> {
        self.call("pool", node, |_, held| Ok(held.get(volume_id).map(|volume| volume.pool.clone())))
    }

    async fn adopted(&self, node: &str, volume_id: &str) -> Result<Option<(u64, Vec<String>)>> {
        self.call("adopted", node, |_, held| {
            Ok(held.get(volume_id).map(|volume| (volume.generation, volume.adopted_from.clone())))
        })
    }

    async fn create(&self, copy: &NewCopy) -> Result<()> {
        let id = VolumeId::of_name(&NodeKey::of(&copy.target), &copy.name).to_string();
        self.call("create", &copy.target, |cluster, held| {
            cluster.made.push(copy.clone());
            let heard = cluster.nodes.iter().filter(|(name, _)| !cluster.silent.contains(*name));
            let there = heard.filter_map(|(_, held)| held.get(&copy.source)).chain(held.get(&copy.source));
            let Some(volume) = there.max_by_key(|volume| volume.generation) else {
                return missing(&copy.source);
            };
            let (generation, data) = (volume.generation, volume.data);
            cluster.cuts.insert((copy.source.clone(), id.clone()));
            let pool = copy.parameters.get("pool").cloned().unwrap_or_default();
            let made = Held { generation, data, copy_of: Some(copy.source.clone()), pool, ..Held::default() };
            held.entry(id).or_insert(made);
            Ok(())
        })
    }

    async fn update(&self, spec: &VolumeReplicaSpec, pass: &PassRequest) -> Result<Updated> {
        let sends = self.lock().sends.pop_front();
        tokio::time::sleep(sends.map_or(Duration::ZERO, |(_, time)| time)).await;
        self.call("update", &spec.target_node, |cluster, held| {
            cluster.passes.push(pass.clone());
            let Some(mut copy) = held.get(&spec.copy_id).cloned() else { return missing(&spec.copy_id) };
            if cluster.silent.contains(&spec.source_node) {
                return Err(NodeError::Failed("the node of the source does not answer".to_owned()));
            }
            if !cluster.cuts.contains(&(spec.volume_id.clone(), spec.copy_id.clone())) {
                return missing("the cut");
            }
            if cluster.broken.contains(&spec.source_node) {
                return Err(NodeError::Failed("the pool of the source is not available".to_owned()));
            }
            let volume = match spec.is_on_one_node() {
                true => source(held, spec)?.clone(),
                false => source(cluster.nodes.get_mut(&spec.source_node).expect("a node"), spec)?.clone(),
            };
            if pass.last && cluster.exceeded_last.contains(&spec.target_node) {
                return Err(NodeError::Refused("the copy is larger than its limit".to_owned()));
            }
            let has_no_room = pass.last && cluster.crowded_last.contains(&spec.target_node);
            if has_no_room || cluster.crowded.contains(&spec.target_node) {
                return Err(NodeError::NoRoom("the pool is full".to_owned()));
            }
            let changed_bytes = volume.data - copy.data;
            let was_in_use = volume.in_use || volume.sealed && cluster.busy_passes > 0;
            cluster.busy_passes -= usize::from(was_in_use && !volume.in_use);
            (copy.data, copy.exact) = (volume.data, volume.sealed && !was_in_use);
            held.insert(spec.copy_id.clone(), copy);
            let sent_bytes = sends.map_or(changed_bytes, |(bytes, _)| bytes);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
            Ok(Updated { sent_bytes, changed_bytes, cut_ns: now, source_in_use: was_in_use })
        })
    }

    async fn complete(&self, spec: &VolumeReplicaSpec, stale: bool, least_bytes: u64) -> Result<()> {
        self.call("complete", &spec.target_node, |cluster, held| {
            cluster.completed_with.push(least_bytes);
            let next = spec.next_generation();
            let Some(copy) = held.get(&spec.copy_id) else {
                let done = held.get(&spec.volume_id).is_some_and(|volume| volume.generation == next);
                return if done { Ok(()) } else { missing(&spec.copy_id) };
            };
            let is_given_up = stale && cluster.broken.contains(&spec.source_node);
            let may_replace = |there: &Held| {
                spec.is_on_one_node()
                    && (there.sealed || is_given_up)
                    && there.generation == spec.generation
                    && !there.in_use
            };
            if held.get(&spec.volume_id).is_some_and(|there| !may_replace(there)) {
                return in_use("the node has the volume");
            }
            if !copy.exact && !stale {
                return in_use("seal the source first");
            }
            if let Some(mut left) = held.remove(&spec.volume_id) {
                left.was = Some(spec.volume_id.clone());
                held.insert(spec.left_id().expect("the id of a volume"), left);
            }
            let mut volume = held.remove(&spec.copy_id).expect("a copy");
            (volume.copy_of, volume.generation) = (None, next);
            held.insert(spec.volume_id.clone(), volume);
            Ok(())
        })
    }

    async fn modify(&self, spec: &VolumeReplicaSpec, parameters: &BTreeMap<String, String>) -> Result<()> {
        self.call("modify", &spec.target_node, |cluster, held| {
            cluster.modified.push(parameters.clone());
            if held.contains_key(&spec.volume_id) { Ok(()) } else { missing(&spec.volume_id) }
        })
    }

    async fn fence(&self, spec: &VolumeReplicaSpec) -> Result<()> {
        self.call("fence", &spec.source_node, |cluster, held| {
            let volume = source(held, spec)?;
            volume.sealed = true;
            if cluster.broken.contains(&spec.source_node) {
                return Err(NodeError::Failed("the pool is not available".to_owned()));
            }
            if volume.in_use { in_use("a pod uses it") } else { Ok(()) }
        })
    }

    async fn unfence(&self, spec: &VolumeReplicaSpec) -> Result<()> {
        self.call("unfence", &spec.source_node, |cluster, held| {
            if cluster.nodes.values().any(|other| other.contains_key(&spec.volume_id)) {
                cluster.wrong.push("two nodes give the volume to pods".to_owned());
            }
            source(held, spec)?.sealed = false;
            Ok(())
        })
    }

    async fn retire(&self, spec: &VolumeReplicaSpec) -> Result<String> {
        self.call("retire", &spec.source_node, |_, held| {
            let left = spec.left_id().expect("the id of a volume");
            let is_replaced = |volume: &Held| volume.generation == spec.next_generation();
            if held.contains_key(&left) && held.get(&spec.volume_id).is_none_or(is_replaced) {
                return Ok(left);
            }
            if spec.is_on_one_node() {
                return match held.get(&spec.volume_id) {
                    Some(volume) if volume.generation >= spec.next_generation() => Ok(left),
                    Some(_) => in_use("its copy has not taken over the id"),
                    None => missing(&spec.volume_id),
                };
            }
            let mut volume = match held.get(&spec.volume_id) {
                None => return missing(&spec.volume_id),
                Some(volume) if volume.generation > spec.generation => {
                    return in_use("it has another generation");
                }
                Some(volume) => volume.clone(),
            };
            volume.was = Some(spec.volume_id.clone());
            held.remove(&spec.volume_id);
            held.insert(left.clone(), volume);
            Ok(left)
        })
    }

    async fn reclaim(&self, spec: &VolumeReplicaSpec) -> Result<()> {
        self.call("reclaim", &spec.source_node, |cluster, held| {
            let target = cluster.nodes.get(&spec.target_node);
            let is_used = |target: &BTreeMap<String, Held>| target.values().any(|volume| volume.in_use);
            if target.is_some_and(is_used) && !cluster.silent.contains(&spec.target_node) {
                cluster.wrong.push("the volume was taken back from a pod".to_owned());
            }
            match held.get_mut(&spec.volume_id) {
                None => missing(&spec.volume_id),
                Some(volume) if volume.generation == spec.reclaimed_generation() => Ok(()),
                Some(volume) if volume.generation != spec.generation => in_use("it has another generation"),
                Some(volume) => {
                    (volume.generation, volume.sealed) = (spec.reclaimed_generation(), false);
                    Ok(())
                }
            }
        })
    }

    async fn retire_copy(&self, spec: &VolumeReplicaSpec) -> Result<String> {
        self.call("retire-copy", &spec.target_node, |_, held| {
            let node = NodeKey::of(&spec.target_node);
            let generation = spec.reclaimed_generation();
            let left =
                VolumeId::of_retired(&node, &spec.volume_id.parse().expect("an id"), generation).to_string();
            if held.contains_key(&left) {
                return Ok(left);
            }
            match held.get(&spec.volume_id) {
                None => return missing(&spec.volume_id),
                Some(volume) if volume.generation >= generation => {
                    return in_use("it has a later generation");
                }
                Some(_) => {}
            }
            let mut volume = held.remove(&spec.volume_id).expect("a volume");
            volume.was = Some(spec.volume_id.clone());
            held.insert(left.clone(), volume);
            Ok(left)
        })
    }

    async fn release(&self, spec: &VolumeReplicaSpec) -> Result<()> {
        self.call("release", &spec.source_node, |cluster, _| {
            cluster.cuts.remove(&(spec.volume_id.clone(), spec.copy_id.clone()));
            Ok(())
        })
    }

    async fn delete_copy(&self, spec: &VolumeReplicaSpec) -> Result<()> {
        self.call("delete-copy", &spec.target_node, |cluster, held| {
            let Some(copy) = held.get(&spec.copy_id) else { return Ok(()) };
            if copy.copy_of.as_ref() != Some(&spec.volume_id) || copy.generation != spec.generation {
                return in_use("it is no copy of this volume");
            }
            let at_source = cluster.nodes.get(&spec.source_node);
            let is_broken = cluster.broken.contains(&spec.source_node);
            let at_source = if spec.is_on_one_node() { Some(&*held) } else { at_source };
            let has_volume = !is_broken && at_source.is_some_and(|there| there.contains_key(&spec.volume_id));
            let lost = is_broken
                || cluster.silent.contains(&spec.source_node)
                || at_source.is_none_or(BTreeMap::is_empty);
            if !has_volume && lost && !cluster.administrator_deletes {
                cluster.wrong.push("the only copy was deleted".to_owned());
            }
            held.remove(&spec.copy_id);
            Ok(())
        })
    }

    async fn delete_left(&self, spec: &VolumeReplicaSpec, left_id: &str) -> Result<()> {
        self.call("delete-left", &spec.source_node, |cluster, held| {
            match held.get(left_id) {
                None => return missing(left_id),
                Some(left) if left.was.as_ref() != Some(&spec.volume_id) => return in_use("it is a volume"),
                Some(left) if left.in_use => return in_use("a pod uses it"),
                Some(_) => {}
            }
            // It may have moved on since.
            let mut others = cluster.nodes.iter().filter(|(node, _)| !cluster.broken.contains(*node));
            let is_elsewhere = others.any(|(_, held)| held.contains_key(&spec.volume_id));
            if !is_elsewhere && !held.contains_key(&spec.volume_id) {
                cluster.wrong.push(
                    "the data of the earlier node were deleted before the volume was elsewhere".to_owned(),
                );
            }
            held.remove(left_id);
            Ok(())
        })
    }

    async fn delete_left_copy(&self, spec: &VolumeReplicaSpec, left_id: &str) -> Result<()> {
        self.call("delete-left-copy", &spec.target_node, |cluster, held| {
            match held.get(left_id) {
                None => return missing(left_id),
                Some(left) if left.was.as_ref() != Some(&spec.volume_id) => return in_use("it is a volume"),
                Some(_) => {}
            }
            let source = cluster.nodes.get(&spec.source_node);
            if !source.is_some_and(|source| source.contains_key(&spec.volume_id)) {
                cluster.wrong.push("later data were deleted without the volume".to_owned());
            }
            held.remove(left_id);
            Ok(())
        })
    }
}
