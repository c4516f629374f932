//! `hostloop state`: looks at a state file, and makes a lost or damaged one from the records beside the data, without a driver.
//!
//! The state file is the truth while it is whole. Where it has lost records, or is older than what lies in the pools, the records
//! beside the data are. What is contradictory is left as it is and named. No file of a volume is ever changed or removed.

mod adopt;
mod believe;
mod plan;
mod relations;
mod subjects;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, OsContext, Result};
use crate::inventory::{self, Entry, KNOWN_POOLS, POOL_MARKER};
use crate::kernel::Os;
use crate::model::PoolName;
use crate::store::{Identity, Salvage, Store, StoreError};
use plan::{Decision, Item, Known, Plan, plan};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Say whether state file and disks agree.
    Check,
    /// Mend a state file that is damaged.
    Repair,
    /// Make the state file from what lies in the pools.
    Rebuild,
    /// Take over the volumes of a node that has another name now, or whose disk is in this machine now.
    AdoptNode,
}

/// What the administrator has decided about contradictions, by ids or the names of directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// What gets the record that lies beside its data.
    pub keep: BTreeSet<String>,
    /// What gets no record; its files stay.
    pub drop: BTreeSet<String>,
}

impl Wishes {
    fn keeps(&self, id: &str, name: &str) -> bool {
        self.keep.contains(id) || self.keep.contains(name)
    }

    fn drops(&self, id: &str, name: &str) -> bool {
        self.drop.contains(id) || self.drop.contains(name)
    }
}

/// What to do, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub verb: Verb,
    pub identity: Identity,
    pub data_dir: PathBuf,
    /// Every pool, with where its volumes are.
    pub pools: Vec<(PoolName, PathBuf)>,
    pub wishes: Wishes,
    /// The node whose volumes are adopted.
    pub from: Option<String>,
    /// Do it, and not only say it.
    pub yes: bool,
}

/// What was found or done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub text: String,
    /// Nothing is left to do.
    pub good: bool,
}

/// Runs the command.
///
/// # Errors
/// FAILED_PRECONDITION if a driver uses the data directory, if a pool is not there, and if the state file is another node's; the
/// kernel's.
pub fn run(os: &Os, task: &Task) -> Result<Report> {
    if let Some(from) = &task.from {
        return adopt::run(os, task, from);
    }
    let changes = task.yes && task.verb != Verb::Check;
    let _lock = changes.then(|| lock(os, &task.data_dir)).transpose()?;
    let entries = entries(os, &task.data_dir, &task.pools)?;
    let (present, unreadable) = present(os, task)?;
    let previous = Store::salvage_previous(os.files.as_ref(), &task.data_dir, &task.identity);
    let pools: Vec<PoolName> = task.pools.iter().map(|(name, _)| name.clone()).collect();
    let known = Known {
        identity: &task.identity,
        present: present.as_ref(),
        previous: previous.as_ref(),
        entries: &entries,
        pools: &pools,
    };
    let plan = plan(&known, &task.wishes);
    let mut text = String::new();
    head(&mut text, task, present.as_ref(), unreadable.as_deref());
    let is_whole = present.as_ref().is_some_and(|present| present.damage.is_none());
    if task.verb == Verb::Repair && is_whole {
        text.push_str("The state file is whole: there is nothing to repair.\n");
        return Ok(Report { text, good: true });
    }
    let left = lines(&mut text, &plan.items);
    let is_same = is_whole && present.is_some_and(|present| present.records == plan.records);
    let is_older = plan.items.iter().any(|item| item.decision == Decision::Mend);
    foot(&mut text, task, &plan, is_same && !is_older, left);
    if changes && !is_same {
        let (files, records) = (Arc::clone(&os.files), &plan.records);
        Store::replace(files, &task.data_dir, task.identity.clone(), plan.first, (records, is_whole))?;
        let kept = if is_whole { "previous" } else { "damaged" };
        let _ = writeln!(
            text,
            "Done: the state file was made anew. An earlier one is kept as state.jsonl.{kept}. Start the driver."
        );
    }
    let good = left == 0 && (changes || (is_same && !is_older));
    Ok(Report { text, good })
}

/// Keeps drivers away.
fn lock(os: &Os, data_dir: &Path) -> Result<Box<dyn Send + Sync>> {
    os.files
        .lock(&data_dir.join("lock"))
        .map_err(|error| Error::InUse(format!("{}: {error}; stop the driver first", data_dir.display())))
}

fn entries(os: &Os, data_dir: &Path, pools: &[(PoolName, PathBuf)]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for (name, path) in pools {
        let volumes = path.join("volumes");
        if os.files.stat(&volumes).doing(|| format!("look at {}", volumes.display()))?.is_none() {
            return Err(Error::InUse(format!(
                "pool {name}: {} is not there; mount its disk, or leave the pool out",
                volumes.display()
            )));
        }
        let marker = path.join(POOL_MARKER);
        let known = data_dir.join(KNOWN_POOLS).join(name.as_str());
        let is_there = |path: &Path| {
            let found = os.files.stat(path).doing(|| format!("look at {}", path.display()))?;
            Ok::<_, Error>(found.is_some())
        };
        if is_there(&known)? && !is_there(&marker)? {
            return Err(Error::InUse(format!(
                "pool {name}: {} is not there; is its disk mounted? Mount it, or leave the pool out",
                marker.display()
            )));
        }
        entries.extend(inventory::read(os, name, path)?);
    }
    Ok(entries)
}

/// The state file as far as it can be read, or why it cannot be.
///
/// # Errors
/// FAILED_PRECONDITION if it is another driver's or node's, or of a later version; the kernel's.
fn present(os: &Os, task: &Task) -> Result<(Option<Salvage>, Option<String>)> {
    match Store::salvage(os.files.as_ref(), &task.data_dir, &task.identity) {
        Ok(present) => Ok((present, None)),
        Err(error @ StoreError::Damaged { .. }) => Ok((None, Some(error.to_string()))),
        Err(error @ StoreError::Io(_)) => Err(error.into()),
        Err(error) => Err(Error::InUse(error.to_string())),
    }
}

fn head(text: &mut String, task: &Task, present: Option<&Salvage>, unreadable: Option<&str>) {
    let file = Store::file(&task.data_dir);
    let file = file.display();
    let line = match (present, unreadable) {
        (Some(Salvage { damage: Some(damage), .. }), _) => format!(
            "{file} is damaged at line {}: {}; {} records are lost at most.",
            damage.line,
            damage.reason,
            damage.lost.max(1)
        ),
        (Some(_), _) => format!("{file} is whole."),
        (None, Some(why)) => format!("{file} cannot be read: {why}."),
        (None, None) => format!("{file} is not there."),
    };
    text.push_str(&line);
    text.push('\n');
}

/// Writes a line for each decision that changes something or is open. Returns how many are open.
fn lines(text: &mut String, items: &[Item]) -> usize {
    let mut left = 0;
    for item in items {
        let Item { kind, id, purpose, directory, decision } = item;
        let what = match decision {
            Decision::Keep => continue,
            Decision::Mend => {
                "stays as the state file says; the next start writes the record beside its data".to_owned()
            }
            Decision::Add => "recorded, as the record beside its data says".to_owned(),
            Decision::AddPrevious => "recorded, as the previous state file says".to_owned(),
            Decision::Replace(why) => format!("recorded anew: {why}"),
            Decision::Finish => "recorded as being deleted, which the next start finishes".to_owned(),
            Decision::Forget(why) => format!("not recorded any longer: {why}"),
            Decision::Leave(why) => {
                left += 1;
                format!("LEFT AS IT IS: {why}")
            }
        };
        let purpose = purpose.as_ref().map(|purpose| format!(" ({purpose})")).unwrap_or_default();
        let place = directory.as_ref().map(|it| format!(" in {}", it.display())).unwrap_or_default();
        let _ = writeln!(text, "{kind} {id}{purpose}{place}: {what}");
    }
    left
}

fn foot(text: &mut String, task: &Task, plan: &Plan, is_same: bool, left: usize) {
    let (volumes, snapshots) = (plan.records.volumes.len(), plan.records.snapshots.len());
    let _ = writeln!(text, "{volumes} volumes and {snapshots} snapshots in all.");
    if left > 0 {
        let _ = writeln!(
            text,
            "{left} are left as they are. Decide with --keep ID (take the record beside the data) or --drop ID (no record; the files stay)."
        );
    }
    match task.verb {
        _ if is_same => text.push_str("State file and disks agree.\n"),
        Verb::Check => text.push_str("State file and disks differ.\n"),
        Verb::Repair | Verb::Rebuild | Verb::AdoptNode if !task.yes => {
            text.push_str("Nothing was changed. Stop the driver, and repeat the command with --yes.\n");
        }
        Verb::Repair | Verb::Rebuild | Verb::AdoptNode => {}
    }
}
