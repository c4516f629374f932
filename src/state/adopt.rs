//! `hostloop state adopt-node`: the volumes of a node that has another name now, or whose disk is in this machine now.
//!
//! Each volume gets a higher generation, as after a move: if its earlier node has a copy of the disk and comes back, that copy is not
//! the volume (docs/decisions/0021). The state file comes first, then the markers of the pools. The next start writes the records beside
//! the data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use super::plan::{Decision, Item, Known, beside, plan};
use super::subjects::id_of;
use super::{Report, Task, Wishes, entries, foot, lines, lock};
use crate::error::{Error, OsContext, Result};
use crate::inventory::{Entry, KNOWN_POOLS, POOL_MARKER, Place, Record, pool_owner};
use crate::kernel::{FileKind, Os, write_whole};
use crate::model::{NodeKey, PoolName, Volume, VolumeId};
use crate::store::{Beside, Identity, Records, Salvage, Store, StoreError, Subject};

/// A marker is never larger.
const MAX_BYTES: u64 = 4096;

/// Runs the command.
///
/// # Errors
/// FAILED_PRECONDITION if a driver uses the data directory, if a pool is not there or is not the earlier node's, and if the state file
/// is damaged, older than the disks, or a third node's; NOT_FOUND if nothing is of the earlier node; the kernel's.
pub(super) fn run(os: &Os, task: &Task, from: &str) -> Result<Report> {
    let _lock = task.yes.then(|| lock(os, &task.data_dir)).transpose()?;
    let earlier = Identity { node_id: from.to_owned(), ..task.identity.clone() };
    let markers = markers(os, task, &earlier)?;
    let found = entries(os, &task.data_dir, &task.pools)?;
    let (present, is_earlier) = present(os, task, &earlier)?;
    expect_whole(os, task, present.as_ref(), if is_earlier { &earlier } else { &task.identity }, &found)?;
    let heir = Heir { earlier: &earlier, identity: &task.identity, wishes: &task.wishes };
    let first = found.iter().filter_map(beside).map(|beside| beside.seq.saturating_add(1)).max().unwrap_or(0);
    let is_of_earlier = |entry: &Entry| beside(entry).is_some_and(|beside| beside.identity == earlier);
    let (its, others): (Vec<Entry>, Vec<Entry>) = found.into_iter().partition(is_of_earlier);
    let its: Vec<Entry> = its.into_iter().map(|entry| heir.entry(entry)).collect();
    let mut adopted: BTreeSet<String> =
        its.iter().filter_map(beside).map(|beside| id_of(&beside.subject)).collect();
    let mut present = present;
    if let Some(present) = present.as_mut() {
        if is_earlier {
            present.records = heir.records(&present.records);
            adopted.extend(ids(&present.records));
        } else {
            expect_same_disk(task, &markers, present, its.iter().chain(&others))?;
            forget_earlier(&mut present.records, &its);
        }
    }
    if adopted.is_empty() && markers.is_empty() {
        return Err(Error::NotFound(format!(
            "neither the state file nor a record in the pools is of node {from:?}"
        )));
    }
    let found: Vec<Entry> = its.into_iter().chain(others).collect();
    let pools: Vec<PoolName> = task.pools.iter().map(|(name, _)| name.clone()).collect();
    let (identity, entries) = (&task.identity, &found);
    let known = Known { identity, present: present.as_ref(), previous: None, entries, pools: &pools };
    let plan = plan(&known, &task.wishes);
    let is_same = !is_earlier && present.as_ref().is_some_and(|present| present.records == plan.records);
    let mut text = format!("From node {from:?} to node {:?}:\n", task.identity.node_id);
    let is_its = |item: &Item| is_adopted(item, &plan.records, &adopted, is_earlier);
    say_adopted(&mut text, plan.items.iter().filter(|item| is_its(item)), &plan.records);
    let open: Vec<Item> = plan.items.iter().filter(|item| !is_its(item)).cloned().collect();
    let left = lines(&mut text, &open);
    say_what_follows(&mut text, &plan.records, &adopted, (from, &task.identity.node_id));
    foot(&mut text, task, &plan, false, left);
    if task.yes {
        if !is_same {
            let first = plan.first.max(first);
            let files = Arc::clone(&os.files);
            Store::replace(files, &task.data_dir, task.identity.clone(), first, (&plan.records, true))?;
        }
        for (path, text) in &markers {
            let writing = || format!("write {}", path.display());
            write_whole(os.files.as_ref(), path, text.as_bytes()).doing(writing)?;
        }
        text.push_str("Done: the state file is this node's. Start the driver.\n");
    }
    Ok(Report { text, good: task.yes && left == 0 })
}

/// Returns the new texts of the markers of pools that are the earlier node's.
///
/// # Errors
/// FAILED_PRECONDITION if a pool is neither this node's nor the earlier one's; the kernel's.
fn markers(os: &Os, task: &Task, earlier: &Identity) -> Result<BTreeMap<std::path::PathBuf, String>> {
    let mut markers = BTreeMap::new();
    for (pool, place) in &task.pools {
        let twin = task.data_dir.join(KNOWN_POOLS).join(pool.as_str());
        let of = |identity: &Identity| pool_owner(&identity.driver, &identity.node_id, pool);
        for path in [place.join(POOL_MARKER), twin.clone()] {
            let Some(text) = read(os, &path)? else { continue };
            match text.strip_prefix(&of(earlier)) {
                Some(rest) => {
                    let text = of(&task.identity) + rest;
                    // The other one of the two is this node's, and of another disk.
                    if read(os, &twin)?
                        .is_some_and(|known| known.starts_with(&of(&task.identity)) && known != text)
                    {
                        return Err(Error::InUse(format!(
                            "pool {pool}: {} is the disk of another node, and node {:?} has a pool of this name on another disk; adopt the \
                             disk on a node that has no pool {pool}",
                            place.display(),
                            task.identity.node_id
                        )));
                    }
                    markers.insert(path, text);
                }
                None if text.starts_with(&of(&task.identity)) => {}
                None => {
                    return Err(Error::InUse(format!(
                        "pool {pool}: {} says \"{}\"; give --pool the name that the pool had on node {:?}, which the \
                         PersistentVolumes have as well",
                        path.display(),
                        text.lines().collect::<Vec<_>>().join(" "),
                        earlier.node_id
                    )));
                }
            }
        }
    }
    Ok(markers)
}

fn read(os: &Os, path: &Path) -> Result<Option<String>> {
    let doing = || format!("read {}", path.display());
    let Some(stat) = os.files.stat(path).doing(doing)? else { return Ok(None) };
    let readable = stat.kind == FileKind::File && stat.size <= MAX_BYTES;
    let bytes = if readable { os.files.read(path).doing(doing)? } else { Vec::new() };
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns the state file, if there is one, and whether it is the earlier node's.
fn present(os: &Os, task: &Task, earlier: &Identity) -> Result<(Option<Salvage>, bool)> {
    let read = |identity| Store::salvage(os.files.as_ref(), &task.data_dir, identity);
    let refused = |error| match error {
        StoreError::Io(_) => Error::from(error),
        error => Error::InUse(error.to_string()),
    };
    match read(&task.identity) {
        Ok(present) => Ok((present, false)),
        Err(StoreError::Foreign { .. }) => read(earlier).map(|present| (present, true)).map_err(refused),
        Err(error) => Err(refused(error)),
    }
}

/// Makes sure that the state file has all that its node knew: what is adopted is not guessed.
fn expect_whole(
    os: &Os,
    task: &Task,
    present: Option<&Salvage>,
    owner: &Identity,
    found: &[Entry],
) -> Result<()> {
    let is_its = |it: &&Beside| it.identity == *owner;
    let mut its = found.iter().filter_map(beside).filter(is_its);
    let why = match present {
        Some(Salvage { damage: Some(damage), .. }) => {
            format!("is damaged at line {}: {}", damage.line, damage.reason)
        }
        Some(present) if its.any(|it| it.seq > present.last) => {
            "is older than a record beside the data".to_owned()
        }
        Some(_) => return Ok(()),
        None if its.next().is_some() || has_had_state(os, &task.data_dir)? => "is lost".to_owned(),
        None => return Ok(()),
    };
    Err(Error::InUse(format!(
        "{} {why}; first run \"hostloop state rebuild --yes\" with the other flags and the --node-id that the data directory is of",
        Store::file(&task.data_dir).display()
    )))
}

/// Reports whether a driver has used the data directory.
fn has_had_state(os: &Os, data_dir: &Path) -> Result<bool> {
    for name in ["state.jsonl.previous", "hostloop-installation"] {
        let path = data_dir.join(name);
        if os.files.stat(&path).doing(|| format!("look at {}", path.display()))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes sure that a disk of the earlier node is not taken for a pool that this node has: its volumes would seem to be gone.
fn expect_same_disk<'a>(
    task: &Task,
    markers: &BTreeMap<std::path::PathBuf, String>,
    present: &Salvage,
    found: impl Iterator<Item = &'a Entry> + Clone,
) -> Result<()> {
    for (pool, place) in &task.pools {
        let is_there = |volume: &Volume| {
            let name = volume.directory().as_str();
            found.clone().any(|it| it.place == Place::Volume && it.pool == *pool && it.name == name)
        };
        let mut own = present.records.volumes.values().filter(|it| it.pool() == pool && it.is_ready());
        if markers.contains_key(&place.join(POOL_MARKER)) && own.any(|volume| !is_there(volume)) {
            return Err(Error::InUse(format!(
                "pool {pool}: {} is the disk of another node, and the pool {pool} of node {:?} has volumes that are not there; adopt the \
                 disk on a node that has no volumes in a pool of this name",
                place.display(),
                task.identity.node_id
            )));
        }
    }
    Ok(())
}

/// Takes out what this node still has recorded of volumes that have been on the earlier node since.
fn forget_earlier(records: &mut Records, its: &[Entry]) {
    for entry in its {
        if let Some(Subject::Volume(volume)) = beside(entry).map(|beside| &beside.subject) {
            let is_older = records.volumes.get(&volume.id).is_some_and(|recorded| {
                recorded.generation < volume.generation
                    && (recorded.directory(), recorded.pool()) == (volume.directory(), volume.pool())
            });
            if is_older {
                records.volumes.remove(&volume.id);
            }
        }
    }
}

/// What becomes of the records of the earlier node.
struct Heir<'a> {
    earlier: &'a Identity,
    identity: &'a Identity,
    wishes: &'a Wishes,
}

impl Heir<'_> {
    /// Returns the directory with the record that it gets. The number of the record is of another state file, and shows nothing in this
    /// one.
    fn entry(&self, entry: Entry) -> Entry {
        let Some(found) = beside(&entry) else { return entry };
        let subject = match &found.subject {
            Subject::Volume(volume) => Subject::Volume(self.volume(volume)),
            Subject::Snapshot(..) => found.subject.clone(),
        };
        let beside = Beside { identity: self.identity.clone(), seq: 0, subject };
        Entry { record: Record::Whole(Box::new(beside)), ..entry }
    }

    fn records(&self, records: &Records) -> Records {
        let volumes = records.volumes.values().map(|volume| self.volume(volume));
        let volumes = volumes.map(|volume| (volume.id.clone(), Arc::new(volume)));
        Records { volumes: volumes.collect(), ..records.clone() }
    }

    /// Returns the record of a volume on its next node. Attachments are of the earlier one, and external-attacher asks for new ones.
    /// The generation is higher than any that a copy of the volume can have meanwhile, as after ReclaimVolume.
    fn volume(&self, volume: &Volume) -> Volume {
        let next = Volume { attachments: Vec::new(), ..volume.clone() };
        if volume.id.is_inline() {
            // kubelet names it by its own id, from which the node makes this one.
            let id = VolumeId::of_inline(&NodeKey::of(&self.identity.node_id), &volume.name);
            return Volume { id, directory: Some(volume.directory().clone()), ..next };
        }
        let is_kept = self.wishes.keep.contains(volume.id.as_str());
        let next = Volume { moved_to: next.moved_to.filter(|_| !is_kept), ..next };
        if stays(&next).is_some() || !next.is_ready() {
            return next;
        }
        let mut adopted_from = next.adopted_from.clone();
        if !adopted_from.contains(&self.earlier.node_id) {
            adopted_from.push(self.earlier.node_id.clone());
        }
        Volume { generation: next.generation.saturating_add(2), adopted_from, ..next }
    }
}

/// Returns why a volume is not one that a PersistentVolume of the earlier node names.
fn stays(volume: &Volume) -> Option<String> {
    match volume {
        Volume { copy_of: Some(_), .. } => Some(
            "it is a copy for a move or a standby copy, and of no use here; delete its VolumeReplica, which names the earlier node, and \
             then its directory, after --drop with its id"
                .to_owned(),
        ),
        Volume { retired: Some(retired), .. } => {
            Some(format!("it is what a move to node {:?} has left, and stays that", retired.node_id))
        }
        Volume { moved_to: Some(node), .. } => Some(format!(
            "it is fenced, because it moves to node {node:?}; if that node does not have it, give --keep with its id"
        )),
        Volume { id, .. } if id.is_inline() => Some("it is inline, and goes with its pod".to_owned()),
        _ => None,
    }
}

fn ids(records: &Records) -> impl Iterator<Item = String> {
    let volumes = records.volumes.keys().map(ToString::to_string);
    let snapshots = records.snapshots.keys().map(ToString::to_string);
    volumes.chain(snapshots).chain(records.groups.keys().map(ToString::to_string))
}

/// Reports whether a line is of something that is adopted and recorded.
fn is_adopted(item: &Item, records: &Records, adopted: &BTreeSet<String>, is_earlier: bool) -> bool {
    let is_taken = match item.decision {
        Decision::Keep | Decision::Add | Decision::Replace(_) => true,
        // The state file is that of the earlier node.
        Decision::Mend => is_earlier,
        _ => false,
    };
    is_taken && adopted.contains(&item.id) && ids(records).any(|id| id == item.id)
}

fn say_adopted<'a>(text: &mut String, items: impl Iterator<Item = &'a Item>, records: &Records) {
    for item in items {
        let Item { kind, id, purpose, directory, .. } = item;
        let purpose = purpose.as_ref().map(|purpose| format!(" ({purpose})")).unwrap_or_default();
        let place = directory.as_ref().map(|it| format!(" in {}", it.display())).unwrap_or_default();
        let volume = id.parse().ok().and_then(|id| records.volumes.get(&id));
        let what = volume.and_then(|volume| stays(volume)).unwrap_or_else(|| "adopted".to_owned());
        let _ = writeln!(text, "{kind} {id}{purpose}{place}: {what}");
    }
}

/// Names the PersistentVolumes that name the earlier node.
fn say_what_follows(
    text: &mut String,
    records: &Records,
    adopted: &BTreeSet<String>,
    (from, to): (&str, &str),
) {
    let volumes = records.volumes.values().filter(|volume| adopted.contains(volume.id.as_str()));
    let volumes: Vec<_> = volumes.filter(|volume| volume.is_ready() && stays(volume).is_none()).collect();
    if volumes.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "PersistentVolumes with the node affinity of {from:?}, which have to be made again with {to:?}:"
    );
    for volume in volumes {
        let name = match &volume.claim {
            Some(claim) => format!("{} ({claim})", claim.persistent_volume),
            None => "(name not known)".to_owned(),
        };
        let _ = writeln!(text, "  {name} volumeHandle {}", volume.id);
    }
    let _ = writeln!(text, "When the driver runs: hostloop evacuate {from} --to {to} --now");
}
