//! What is on this node, for people who look at a cluster (`hostloop volumes`, the RPC ListDetails). A caller gets figures that
//! are as new as the disks allow, and never waits for a disk that does not answer: then the figures are those of the last
//! measurement, with its time.

mod allocated;
mod known;
mod measure;

use std::str::FromStr;
use std::sync::Arc;

use super::{Driver, request::token};
use crate::error::{Error, Result};
use crate::model::details::{
    DetailedTrouble, DetailsPage, NodeDetails, PoolDetails, SnapshotDetails, VolumeDetails,
};
use crate::model::{ObjectId, Phase, PoolName, Snapshot, SnapshotId, Timestamp, Volume, VolumeId};
pub(crate) use known::Known;

/// Entries of a page at most. A message of gRPC has 4 MiB.
const PAGE: usize = 500;

/// What is measured for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The pools with all that is in them.
    Everything,
    Pools,
}

/// Where a page ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum After {
    Volume(VolumeId),
    Snapshot(SnapshotId),
}

impl FromStr for After {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text.split_once('/') {
            Some(("volume", id)) => id.parse().map(After::Volume).map_err(|_| ()),
            Some(("snapshot", id)) => id.parse().map(After::Snapshot).map_err(|_| ()),
            _ => Err(()),
        }
    }
}

impl Driver {
    /// Makes sure that a request is for this node.
    ///
    /// # Errors
    /// NOT_FOUND if `node_id` is neither empty nor that of this node.
    pub fn expect_named(&self, node_id: &str) -> Result<()> {
        let own = self.node_id();
        match [own, ""].contains(&node_id) {
            true => Ok(()),
            false => {
                Err(Error::NotFound(format!("this is node {own:?}, and node {node_id:?} was asked for")))
            }
        }
    }

    /// Returns a page of what is on this node: with the first one the node and its pools, then volumes and snapshots by their
    /// ids, those too that no caller knows: copies of volumes of other nodes, and what is being deleted.
    ///
    /// # Errors
    /// NOT_FOUND if `node_id` is neither empty nor that of this node, ABORTED for a token that this driver did not give out.
    pub fn list_details(
        self: &Arc<Self>,
        node_id: &str,
        starting_token: Option<&str>,
        extent: Extent,
    ) -> Result<DetailsPage> {
        self.expect_named(node_id)?;
        let after: Option<After> = starting_token.map(token::parse).transpose()?;
        let node = match after {
            Some(_) => None,
            None => {
                self.measure_details(extent);
                Some(self.node_details())
            }
        };
        let mut page = DetailsPage { node, ..DetailsPage::default() };
        let after_snapshot = match after {
            Some(After::Snapshot(id)) => Some(id),
            after => {
                let after = match after {
                    Some(After::Volume(id)) => Some(id),
                    _ => None,
                };
                let (volumes, more) = self.store.page(after.as_ref(), Some(PAGE), |_| true);
                page.volumes = volumes.iter().map(|volume| self.volume_details(volume)).collect();
                if let Some(last) = volumes.last().filter(|_| more) {
                    page.next_token = Some(token::make(&format!("volume/{}", last.id)));
                    return Ok(page);
                }
                None
            }
        };
        let room = PAGE.saturating_sub(page.volumes.len()).max(1);
        let mut snapshots = self.store.snapshots();
        snapshots.retain(|snapshot| after_snapshot.as_ref().is_none_or(|after| snapshot.id > *after));
        snapshots.sort_by(|a, b| a.id.cmp(&b.id));
        let more = snapshots.len() > room;
        snapshots.truncate(room);
        page.snapshots = snapshots.iter().map(|snapshot| self.snapshot_details(snapshot)).collect();
        let last = snapshots.last().filter(|_| more);
        page.next_token = last.map(|last| token::make(&format!("snapshot/{}", last.id)));
        Ok(page)
    }

    fn node_details(&self) -> NodeDetails {
        let states = self.pools.states().into_iter();
        let path = |name: &PoolName| self.pools.place(name).map(|path| path.display().to_string());
        let pool = |(name, unusable): (PoolName, Option<String>)| PoolDetails {
            path: path(&name).unwrap_or_default(),
            figures: self.details.pool(&name),
            name: name.to_string(),
            unusable,
        };
        let end = self.certificate_end.as_ref().map(|end| Timestamp::of(end()));
        NodeDetails {
            node_id: self.settings.node_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            certificate_end: end,
            pools: states.map(pool).collect(),
        }
    }

    fn volume_details(&self, volume: &Volume) -> VolumeDetails {
        let measured = self.details.get(&ObjectId::from(&volume.id));
        let troubles = self.health.examined(&volume.id).filter(|_| volume.is_ready());
        let trouble = |trouble: &crate::model::health::Trouble| DetailedTrouble {
            severity: trouble.severity.as_str().to_owned(),
            reason: trouble.reason.to_owned(),
            message: trouble.message.clone(),
        };
        VolumeDetails {
            id: volume.id.to_string(),
            name: volume.name.clone(),
            pool: volume.pool().to_string(),
            backend: volume.parameters.backend.as_str().to_owned(),
            content: content_of(volume),
            provisioning: volume.parameters.provisioning.as_str().to_owned(),
            phase: volume.phase.as_str().to_owned(),
            kind: kind_of(volume).to_owned(),
            size_bytes: volume.capacity_bytes,
            used_bytes: measured.used_bytes,
            disk: measured.disk,
            pods: measured.pods,
            troubles: troubles.map(|troubles| troubles.iter().map(trouble).collect()),
            claim: volume.claim.clone(),
            generation: volume.generation,
            created: volume.created,
            unmeasured: measured.error,
        }
    }

    fn snapshot_details(&self, snapshot: &Snapshot) -> SnapshotDetails {
        SnapshotDetails {
            id: snapshot.id.to_string(),
            name: snapshot.name.clone(),
            pool: snapshot.pool.to_string(),
            volume_id: snapshot.source.to_string(),
            phase: snapshot.phase.as_str().to_owned(),
            kind: kind_of_snapshot(snapshot).to_owned(),
            size_bytes: snapshot.size_bytes,
            disk: self.details.get(&ObjectId::from(&snapshot.id)).disk,
            created: Some(snapshot.created),
            object: snapshot.object.clone(),
            group_id: snapshot.group.as_ref().map(ToString::to_string),
            handover: self.handover_of(snapshot),
        }
    }
}

fn content_of(volume: &Volume) -> String {
    match volume.fs_type() {
        Some(fs_type) => fs_type.to_string(),
        None if volume.is_block() => "block".to_owned(),
        None => "directory".to_owned(),
    }
}

/// Returns `volume`, `inline`, `copy` or `left`.
pub(crate) fn kind_of(volume: &Volume) -> &'static str {
    match volume {
        Volume { copy_of: Some(_), .. } => "copy",
        Volume { retired: Some(_), .. } => "left",
        Volume { id, .. } if id.is_inline() => "inline",
        Volume { phase: Phase::Deleting, name, .. } if name.is_empty() => "left",
        _ => "volume",
    }
}

/// Returns what a snapshot is to its callers.
pub(in crate::driver) fn kind_of_snapshot(snapshot: &Snapshot) -> &'static str {
    match (&snapshot.pulled_for, &snapshot.group) {
        (Some(_), _) => "cut",
        (None, Some(_)) => "member",
        (None, None) => "snapshot",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeKey;

    #[test]
    fn a_position_is_of_one_list() {
        let volume = VolumeId::of_name(&NodeKey::of("n"), "v");
        assert_eq!(format!("volume/{volume}").parse(), Ok(After::Volume(volume.clone())));
        for text in
            [volume.to_string(), format!("snapshot/{volume}"), format!("pool/{volume}"), String::new()]
        {
            assert_eq!(text.parse::<After>(), Err(()), "{text}");
        }
    }
}
