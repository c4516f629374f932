//! CSI DeleteVolumeGroupSnapshot.

use std::collections::BTreeSet;

use super::Driver;
use super::locks::Mode;
use crate::error::{Error, Result};
use crate::model::request::VolumeGroupSnapshot;
use crate::model::{GroupSnapshot, GroupSnapshotId, Handover, Phase, SnapshotId};

impl Driver {
    /// Deletes a group with its members; fine if there is none.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the members are not those that the caller names; ABORTED while one of them is copied; FAILED_PRECONDITION if
    /// neither the group nor a member that the caller names has a record, and the member has a directory, or if it is deleted here and another node
    /// may have it as well; UNAVAILABLE if a pool cannot be
    /// used that may have it.
    pub fn delete_volume_group_snapshot(&self, request: VolumeGroupSnapshot) -> Result<()> {
        let Ok(id) = request.group_snapshot_id.parse::<GroupSnapshotId>() else { return Ok(()) };
        let Some(group) = self.store.group(&id) else {
            return self.expect_no_files_of_members(&request.snapshot_ids);
        };
        let members = group.snapshots.iter().map(|member| (member.into(), Mode::Exclusive));
        let guard = self.lock_all([((&id).into(), Mode::Exclusive)].into_iter().chain(members));
        // If it is being copied from another node, a retry finds that ended.
        let _guard = guard.inspect_err(|_| self.stop_taking(&group.snapshots))?;
        // Read again: until the lock was held another call could change it.
        let Some(group) = self.store.group(&id) else { return Ok(()) };
        if group.phase == Phase::Ready {
            check_members(&group, &request.snapshot_ids)?;
        }
        self.remove_group(&group)?;
        match &group.handover {
            Some(Handover { node_id, .. }) => {
                Err(Error::AlsoOn { id: (&id).into(), node_id: node_id.clone() })
            }
            None => Ok(()),
        }
    }
}

/// Whether the caller means the members that the group has (spec.md, Delete- and GetVolumeGroupSnapshot).
///
/// # Errors
/// INVALID_ARGUMENT.
pub(super) fn check_members(group: &GroupSnapshot, named: &[String]) -> Result<()> {
    let (named, there): (BTreeSet<&str>, BTreeSet<&str>) = (
        named.iter().map(String::as_str).collect(),
        group.snapshots.iter().map(SnapshotId::as_str).collect(),
    );
    if named.is_empty() || named == there {
        return Ok(());
    }
    let there: Vec<&str> = there.into_iter().collect();
    Err(Error::Invalid(format!(
        "snapshot_ids are not the members of {}, which are {}",
        group.id,
        there.join(", ")
    )))
}
