//! CSI DeleteVolume.

use super::{Driver, settled};
use crate::backend::{presence_of, why_attached};
use crate::error::{Error, Result};
use crate::model::{Phase, Volume};

impl Driver {
    /// Deletes a volume; succeeds if it does not exist. If a pull from another node holds the volume's lock,
    /// this call ends the pull, and a retry finds the lock free.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while the volume is published to a node, mounted or attached, if its data move to another node, or have moved,
    /// and if it has a directory, and a record neither in the state file nor there; UNAVAILABLE if it has no record, and a pool cannot be used that may have it.
    pub fn delete_volume(&self, volume_id: &str) -> Result<()> {
        let Some(id) = self.controller_id(volume_id) else { return Ok(()) };
        let _guard = self.lock(&id).inspect_err(|_| self.pulls.stop(&id))?;
        self.pulls.forget(&id);
        let there = match self.store.get(&id) {
            Some(volume) => Some(volume),
            None => match self.moved(&id) {
                Some(moved) => return Err(moved),
                // The state file has lost it, and the record beside the data says that they are of this volume.
                None => self.volume_beside(&id)?,
            },
        };
        match there {
            Some(volume) => {
                if let Some(node) = volume.moved_to.as_ref().filter(|_| volume.retired.is_none()) {
                    // Its copy may have taken over the id by now.
                    return Err(Error::InUse(format!(
                        "the data of volume {id} move to node {node:?}; delete it when that has ended"
                    )));
                }
                self.delete(&volume)
            }
            None => self.expect_no_files_of_volume(&id),
        }
    }

    /// # Errors
    /// FAILED_PRECONDITION while it is published to a node.
    pub(super) fn expect_unpublished(&self, volume: &Volume) -> Result<()> {
        // What a move has left has the attachments of its volume, and no caller ends these.
        let attachment = volume.attachments.first().filter(|_| volume.retired.is_none());
        let Some(attachment) = attachment else { return Ok(()) };
        let (id, node) = (&volume.id, &attachment.node_id);
        Err(Error::InUse(format!("volume {id} is published to node {node:?}; unpublish it first")))
    }

    /// Deletes a volume whose lock the caller holds. From the record `deleting` on it is gone for callers,
    /// and a crash or an error is followed by a retry or by start-up, which finish it.
    pub(super) fn delete(&self, volume: &Volume) -> Result<()> {
        self.expect_unpublished(volume)?;
        let paths = self.paths(volume)?;
        let uses = settled(|| presence_of(&volume.content).uses(self.place(volume, &paths)))?;
        if uses.any() {
            let why = why_attached(&self.os, &uses, volume.fs_type().is_some());
            return Err(Error::InUse(format!("volume {} is in use: {}{why}", volume.id, uses.describe())));
        }
        self.usage.forget(&volume.id);
        self.health.forget(&volume.id);
        let volume = match volume.phase {
            Phase::Ready => self.record(Volume { phase: Phase::Deleting, ..volume.clone() })?,
            Phase::Creating | Phase::Deleting => std::sync::Arc::new(volume.clone()),
        };
        self.remove_volume(&volume)
    }
}
