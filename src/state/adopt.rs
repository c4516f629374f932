//! `hostloop state adopt-node`: the volumes of a node that has another name now, or whose disk is in this machine now.
//!
//! Each volume gets the next generation, as after a move: if its earlier node has a copy of the disk and comes back, that copy is not
//! the volume (docs/decisions/0021). The state file comes first, then the markers of the pools. The next start writes the records beside
//! the data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use super::plan::{Decision, Item, Known, beside, plan};
use super::subjects::id_of;
use super::{Report, Task, entries, foot, lines, lock};
use crate::error::{Error, OsContext, Result};
use crate::inventory::{Entry, KNOWN_POOLS, POOL_MARKER, Record, pool_owner};
use crate::kernel::{FileKind, Os, write_whole};
use crate::model::{PoolName, Volume};
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
    expect_whole(task, present.as_ref(), if is_earlier { &earlier } else { &task.identity }, &found)?;
    let mut adopted: BTreeSet<String> =
        found.iter().filter_map(|entry| subject_of(entry, &earlier)).map(id_of).collect();
    let first = found.iter().filter_map(beside).map(|beside| beside.seq.saturating_add(1)).max().unwrap_or(0);
    let found: Vec<Entry> =
        found.into_iter().map(|entry| succeeding(entry, &earlier, &task.identity)).collect();
    let present = match present {
        Some(present) if is_earlier => {
            adopted.extend(ids(&present.records));
            Some(Salvage { records: all_succeeding(&present.records, from), ..present })
        }
        present => present,
    };
    if adopted.is_empty() && markers.is_empty() {
        return Err(Error::NotFound(format!(
            "neither the state file nor a record in the pools is of node {from:?}"
        )));
    }
    let pools: Vec<PoolName> = task.pools.iter().map(|(name, _)| name.clone()).collect();
    let (identity, entries) = (&task.identity, &found);
    let known = Known { identity, present: present.as_ref(), previous: None, entries, pools: &pools };
    let plan = plan(&known, &task.wishes);
    let is_same = !is_earlier && present.as_ref().is_some_and(|present| present.records == plan.records);
    let mut text = format!("From node {from:?} to node {:?}:\n", task.identity.node_id);
    say_adopted(&mut text, &plan.items, &plan.records, &adopted);
    let open: Vec<Item> =
        plan.items.iter().filter(|item| !is_adopted(item, &plan.records, &adopted)).cloned().collect();
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

/// Returns the markers of pools that are the earlier node's, each as it is to be.
///
/// # Errors
/// FAILED_PRECONDITION if a pool is neither this node's nor the earlier one's; the kernel's.
fn markers(os: &Os, task: &Task, earlier: &Identity) -> Result<BTreeMap<std::path::PathBuf, String>> {
    let mut markers = BTreeMap::new();
    for (pool, place) in &task.pools {
        let twin = task.data_dir.join(KNOWN_POOLS).join(pool.as_str());
        let of = |identity: &Identity| pool_owner(&identity.driver, &identity.node_id, pool);
        for path in [place.join(POOL_MARKER), twin] {
            let Some(text) = read(os, &path)? else { continue };
            match text.strip_prefix(&of(earlier)) {
                Some(rest) => drop(markers.insert(path, of(&task.identity) + rest)),
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
fn expect_whole(task: &Task, present: Option<&Salvage>, owner: &Identity, found: &[Entry]) -> Result<()> {
    let Some(present) = present else { return Ok(()) };
    let is_newer = |it: &Beside| it.identity == *owner && it.seq > present.last;
    let why = match &present.damage {
        Some(damage) => format!("is damaged at line {}: {}", damage.line, damage.reason),
        None if found.iter().filter_map(beside).any(is_newer) => {
            "is older than a record beside the data".to_owned()
        }
        None => return Ok(()),
    };
    Err(Error::InUse(format!(
        "{} {why}; run \"hostloop state rebuild --node-id {} --yes\" with the other flags first",
        Store::file(&task.data_dir).display(),
        owner.node_id
    )))
}

/// Returns what lies in a directory of the earlier node.
fn subject_of<'a>(entry: &'a Entry, earlier: &Identity) -> Option<&'a Subject> {
    beside(entry).filter(|beside| beside.identity == *earlier).map(|beside| &beside.subject)
}

/// Returns the directory with the record that it gets. The number of the record is of another state file, and shows nothing in this one.
fn succeeding(entry: Entry, earlier: &Identity, identity: &Identity) -> Entry {
    let Some(subject) = subject_of(&entry, earlier) else { return entry };
    let subject = match subject {
        Subject::Volume(volume) => Subject::Volume(successor(volume, &earlier.node_id)),
        Subject::Snapshot(..) => subject.clone(),
    };
    let beside = Beside { identity: identity.clone(), seq: 0, subject };
    Entry { record: Record::Whole(Box::new(beside)), ..entry }
}

fn all_succeeding(records: &Records, from: &str) -> Records {
    let volumes = records.volumes.iter().map(|(id, volume)| (id.clone(), Arc::new(successor(volume, from))));
    Records { volumes: volumes.collect(), ..records.clone() }
}

/// Returns the record of a volume on its next node. Attachments are of the earlier one, and external-attacher asks for new ones.
fn successor(volume: &Volume, from: &str) -> Volume {
    let next = Volume { attachments: Vec::new(), ..volume.clone() };
    match stays(volume).is_none() && volume.is_ready() {
        true => Volume {
            generation: volume.generation.saturating_add(1),
            adopted_from: Some(from.to_owned()),
            ..next
        },
        false => next,
    }
}

/// Returns why a volume is not one that a PersistentVolume of the earlier node names.
fn stays(volume: &Volume) -> Option<String> {
    match volume {
        Volume { copy_of: Some(_), .. } => Some(
            "it is a copy for a move or a standby copy, and stays one; delete its VolumeReplica, which names the earlier node".to_owned(),
        ),
        Volume { retired: Some(retired), .. } => {
            Some(format!("it is what a move to node {:?} has left, and stays that", retired.node_id))
        }
        Volume { moved_to: Some(node), .. } => Some(format!(
            "it is fenced, because it moves to node {node:?}; look there before you make its PersistentVolume again"
        )),
        Volume { id, .. } if id.is_inline() => {
            Some("it is inline; it is deleted when its pod's directory is gone".to_owned())
        }
        _ => None,
    }
}

fn ids(records: &Records) -> impl Iterator<Item = String> {
    let volumes = records.volumes.keys().map(ToString::to_string);
    let snapshots = records.snapshots.keys().map(ToString::to_string);
    volumes.chain(snapshots).chain(records.groups.keys().map(ToString::to_string))
}

/// Reports whether a line is of something that is adopted and recorded.
fn is_adopted(item: &Item, records: &Records, adopted: &BTreeSet<String>) -> bool {
    let is_open = matches!(item.decision, Decision::Leave(_) | Decision::Forget(_) | Decision::Finish);
    !is_open && adopted.contains(&item.id) && ids(records).any(|id| id == item.id)
}

fn say_adopted(text: &mut String, items: &[Item], records: &Records, adopted: &BTreeSet<String>) {
    for item in items.iter().filter(|item| is_adopted(item, records, adopted)) {
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
