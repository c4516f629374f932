//! What the flags of `hostloop state` mean together.

use std::path::PathBuf;

use super::{DEFAULT_DATA_DIR, node_id, pools};
use crate::cli::{ChangeArgs, ConfigError, DisksArgs, StateArgs, StateCommand};
use crate::state::{Task, Verb, Wishes};
use crate::store::Identity;

/// What to do with a state file.
///
/// # Errors
/// [`ConfigError`] for a flag that does not go with the others.
pub fn state_task(args: &StateArgs, host_name: Option<String>) -> Result<Task, ConfigError> {
    match &args.command {
        StateCommand::Check(disks) => task(Verb::Check, disks, host_name),
        StateCommand::Repair(change) => with_wishes(task(Verb::Repair, &change.disks, host_name)?, change),
        StateCommand::Rebuild(change) => with_wishes(task(Verb::Rebuild, &change.disks, host_name)?, change),
    }
}

fn task(verb: Verb, disks: &DisksArgs, host_name: Option<String>) -> Result<Task, ConfigError> {
    let data_dir = disks.data_dir.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR));
    let node_id = node_id::<DisksArgs>(disks.node_id.clone(), host_name)?;
    let pools = pools::at(&data_dir, disks.pool.iter().flatten())?;
    let identity = Identity { driver: disks.driver_name.clone(), node_id };
    Ok(Task { verb, identity, data_dir, pools, wishes: Wishes::default(), yes: false })
}

fn with_wishes(task: Task, change: &ChangeArgs) -> Result<Task, ConfigError> {
    if let Some(both) = change.keep.iter().find(|id| change.drop.contains(id)) {
        return Err(ConfigError::of::<ChangeArgs>("drop", format!("{both} is also in --keep")));
    }
    let wishes =
        Wishes { keep: change.keep.iter().cloned().collect(), drop: change.drop.iter().cloned().collect() };
    Ok(Task { wishes, yes: change.yes, ..task })
}
