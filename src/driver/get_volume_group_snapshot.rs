//! CSI GetVolumeGroupSnapshot.

use super::Driver;
use super::create_volume_group_snapshot::with_members;
use super::delete_volume_group_snapshot::check_members;
use crate::error::{Error, Result};
use crate::model::answer::Group;
use crate::model::request::VolumeGroupSnapshot;
use crate::model::{GroupSnapshotId, Phase};

impl Driver {
    /// One group.
    ///
    /// # Errors
    /// NOT_FOUND; INVALID_ARGUMENT where the members are not those that the caller names.
    pub fn get_volume_group_snapshot(&self, request: VolumeGroupSnapshot) -> Result<Group> {
        let missing =
            || Error::NotFound(format!("group snapshot {:?} does not exist", request.group_snapshot_id));
        let id = request.group_snapshot_id.parse::<GroupSnapshotId>().map_err(|_| missing())?;
        // No lock is held: the group may be deleted meanwhile.
        let found = self.store.group_with_members(&id).filter(|(group, _)| group.phase == Phase::Ready);
        let (group, members) = found.ok_or_else(missing)?;
        check_members(&group, &request.snapshot_ids)?;
        with_members(group, members)
    }
}
