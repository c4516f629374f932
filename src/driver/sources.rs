//! What other nodes read here: snapshots, and cuts that are made of volumes for them (docs/decisions/0009).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Driver;
use super::lock::{Guard, Mode};
use crate::backend::expect_whole;
use crate::error::{Error, Result};
use crate::model::pull::{SourceDescription, SourceHandle};
use crate::model::{Snapshot, SnapshotId};

/// When each cut was last read from.
#[derive(Default)]
pub(super) struct LastReads(Mutex<HashMap<SnapshotId, Instant>>);

impl LastReads {
    /// It is read now.
    pub(super) fn touch(&self, id: &SnapshotId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), Instant::now());
    }

    pub(super) fn forget(&self, id: &SnapshotId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// How long nobody has read it.
    fn idle(&self, id: &SnapshotId) -> Duration {
        let mut reads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reads.entry(id.clone()).or_insert_with(Instant::now).elapsed()
    }
}

impl Driver {
    /// Takes what was opened for reading.
    ///
    /// # Errors
    /// NOT_FOUND where it is gone or another one has its id; ABORTED while it is being removed.
    pub(super) fn opened(&self, handle: &SourceHandle) -> Result<(Guard, Arc<Snapshot>)> {
        let guard = self.lock_all([(handle.id.as_str(), Mode::Shared)])?;
        let readable = |snapshot: &Arc<Snapshot>| {
            let cut = snapshot.pulled_for.is_some() && snapshot.is_ready();
            snapshot.created == handle.created && (cut || self.is_visible(snapshot))
        };
        let snapshot = self.store.snapshot(&handle.id).filter(readable);
        let gone = || Error::NotFound(format!("source {} is gone, open it again", handle.id));
        let snapshot = snapshot.ok_or_else(gone)?;
        self.last_reads.touch(&snapshot.id);
        Ok((guard, snapshot))
    }

    /// What a node that opens it is told.
    pub(super) fn describe_source(&self, snapshot: &Snapshot) -> Result<SourceDescription> {
        let paths = self.snapshot_paths(snapshot)?;
        let (kind, what) = (snapshot.content.backend(), format_args!("snapshot {}", snapshot.id));
        expect_whole(&self.os, &paths, kind, snapshot.size_bytes, what)?;
        Ok(SourceDescription {
            handle: SourceHandle { id: snapshot.id.clone(), created: snapshot.created },
            content: snapshot.content.clone(),
            size_bytes: snapshot.size_bytes,
            block_size: snapshot.block_size,
            data_bytes: self.bytes_to_copy(&paths, snapshot.content.backend())?,
        })
    }

    /// Removes the cuts of volumes from which nobody has read for so long: the node that they were made for is gone, or
    /// has given up and could not say so. To be called now and then. Returns how many were removed.
    pub fn remove_idle_sources(&self, limit: Duration) -> usize {
        let cuts = self.store.snapshots().into_iter().filter(|snapshot| snapshot.pulled_for.is_some());
        let idle: Vec<Arc<Snapshot>> = cuts.filter(|cut| self.last_reads.idle(&cut.id) >= limit).collect();
        idle.iter().filter(|cut| self.remove_idle_source(cut)).count()
    }

    fn remove_idle_source(&self, cut: &Snapshot) -> bool {
        match self.close_source(&cut.id) {
            Ok(()) => {
                tracing::warn!(source = %cut.id, volume = %cut.source, "removed a cut that no node reads any more");
                true
            }
            Err(Error::Busy(_)) => false,
            Err(error) => {
                tracing::error!(source = %cut.id, %error, "a cut that no node reads any more could not be removed");
                false
            }
        }
    }
}
