//! CSI ListSnapshots.

use super::{Driver, request::token};
use crate::error::Result;
use crate::model::answer::SnapshotPage;
use crate::model::request::ListSnapshots;
use crate::model::{Snapshot, SnapshotId};

impl Driver {
    /// Lists snapshots, members of groups among them. All filters count together; one that names nothing there is
    /// gives an empty list. A token names the last snapshot of its page, so that snapshots may come and go between
    /// pages and none that stays is missed or seen twice.
    ///
    /// # Errors
    /// ABORTED for a token that this driver did not give out; UNAVAILABLE if it asks for a snapshot that may have lost its record.
    pub fn list_snapshots(&self, request: ListSnapshots) -> Result<SnapshotPage> {
        request.snapshot_id.as_deref().map_or(Ok(()), |id| self.expect_certain(id))?;
        let after = request.starting_token.as_deref().map(token::parse::<SnapshotId>).transpose()?;
        let matches = |filter: &Option<String>, id: &str| filter.as_deref().is_none_or(|wanted| wanted == id);
        let listed = |snapshot: &Snapshot| {
            matches(&request.snapshot_id, snapshot.id.as_str())
                && matches(&request.source_volume_id, snapshot.source.as_str())
        };
        let (snapshots, more) = self.store.snapshot_page(after.as_ref(), Some(request.max_entries), listed);
        let next_token = snapshots.last().filter(|_| more).map(|last| token::make(last.id.as_str()));
        Ok(SnapshotPage { snapshots, next_token })
    }
}
