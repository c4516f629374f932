//! CSI GetVolumeGroupSnapshot.

use super::Driver;
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
        let group = self.store.group(&id).filter(|group| group.phase == Phase::Ready).ok_or_else(missing)?;
        check_members(&group, &request.snapshot_ids)?;
        self.group_of(group)
    }
}
