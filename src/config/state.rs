//! What the flags of `hostloop state` mean together.

use std::path::PathBuf;

use super::{DEFAULT_DATA_DIR, node_id, pools};
use crate::cli::{AdoptNodeArgs, ChangeArgs, ConfigError, DisksArgs, StateArgs, StateCommand};
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
        StateCommand::AdoptNode(args) => {
            let task = with_wishes(task(Verb::AdoptNode, &args.change.disks, host_name)?, &args.change)?;
            if args.from == task.identity.node_id {
                let why =
                    format!("{:?} is the name of this node as well; set --node-id to the new one", args.from);
                return Err(ConfigError::of::<AdoptNodeArgs>("from", why));
            }
            Ok(Task { from: Some(args.from.clone()), ..task })
        }
    }
}

fn task(verb: Verb, disks: &DisksArgs, host_name: Option<String>) -> Result<Task, ConfigError> {
    let data_dir = disks.data_dir.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR));
    let node_id = node_id::<DisksArgs>(disks.node_id.clone(), host_name)?;
    let pools = pools::at(&data_dir, disks.pool.iter().flatten())?;
    let identity = Identity { driver: disks.driver_name.clone(), node_id };
    Ok(Task { verb, identity, data_dir, pools, wishes: Wishes::default(), from: None, yes: false })
}

fn with_wishes(task: Task, change: &ChangeArgs) -> Result<Task, ConfigError> {
    if let Some(both) = change.keep.iter().find(|id| change.drop.contains(id)) {
        return Err(ConfigError::of::<ChangeArgs>("drop", format!("{both} is also in --keep")));
    }
    let wishes =
        Wishes { keep: change.keep.iter().cloned().collect(), drop: change.drop.iter().cloned().collect() };
    Ok(Task { wishes, yes: change.yes, ..task })
}
