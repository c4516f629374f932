//! CompleteCopy of the protocol between the processes of a cluster.

use std::sync::Arc;

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::{Content, CopyOf, Volume};

impl Driver {
    /// Makes a volume like any other of a copy; fine where it is one. With `stale` also where something may have been written
    /// to its source that it lacks. If an update is
    /// running, this call ends it, and a retry finds the copy's lock free.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs; FAILED_PRECONDITION where it has two cuts by halves, or lacks
    /// something.
    pub fn complete_copy(&self, volume_id: &str, stale: bool) -> Result<()> {
        let taken = self.take_volume(volume_id).inspect_err(|error| {
            // A source that sends slowly, or nothing, must not delay the use of its copy.
            if let (Error::Busy(_), Some(id)) = (error, self.controller_id(volume_id)) {
                self.pulls.stop(&id);
            }
        });
        let (_guard, volume) = taken?;
        let volume = match volume.copy_of.as_ref().is_some_and(|copy| copy.staged_bytes.is_some()) {
            true => match self.end_staged(&volume) {
                // What is there is one cut whole, whatever the record says, and its source is given up.
                Err(Error::NotFound(why)) if stale && volume.content == Content::Directory => {
                    tracing::warn!(volume.id = %volume.id, why, "the copy is completed as it is");
                    let copy_of = volume.copy_of.clone();
                    let copy_of = copy_of.map(|copy| CopyOf { next: None, staged_bytes: None, ..copy });
                    Arc::new(Volume { copy_of, ..(*volume).clone() })
                }
                ended => ended?,
            },
            false => volume,
        };
        let Some(copy_of) = &volume.copy_of else { return Ok(()) };
        if let Some(next) = &copy_of.next {
            return Err(Error::InUse(format!(
                "copy {} has not all of cut {}, which it is being given; update it first",
                volume.id, next.id
            )));
        }
        if !copy_of.cut.sealed && !stale {
            return Err(Error::InUse(format!(
                "copy {} is of a cut after which its source may have been written to; seal the source and update the copy",
                volume.id
            )));
        }
        self.remove_staged(&volume)?;
        self.store.put(Volume { copy_of: None, ..(*volume).clone() })?;
        tracing::info!(volume.id = %volume.id, stale, "the copy is a volume like any other");
        Ok(())
    }
}
