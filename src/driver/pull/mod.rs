//! A volume made from what another node has: its data are pulled from there.
//!
//! Room is reserved before the first byte is asked for, every piece is checked before it is written, its place as well,
//! so that nothing is left out; and a connection that breaks is taken up again where it broke. What is asked for again is the same: the handle names a snapshot that
//! does not change, and the time of its cut. After an error nothing of the volume is left, and a retry begins anew.

mod blocks;
mod resume;
mod tree;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Driver;
use crate::backend::{VolumePaths, prepare_files, sync_files};
use crate::error::{Error, Result};
use crate::model::pull::{Blocks, OpenSource, Placed, SourceDescription, Way};
use crate::model::tree::{Item, Position};
use crate::model::{BackendKind, Volume, VolumeId, VolumeSource};

/// The way to the snapshots and volumes of other nodes.
pub trait RemoteSources: Send + Sync {
    /// Opens a source at the node that has it.
    ///
    /// # Errors
    /// Those of OpenSource at that node; UNAVAILABLE where it does not answer, or where another node does, and where there
    /// is no permit to read it.
    fn open(&self, way: &Way, request: &OpenSource) -> Result<Arc<dyn RemoteSource>>;

    /// How long a broken connection is tried again while nothing arrives.
    fn patience(&self) -> Duration;
}

/// Takes a message of a stream.
pub type Take<'a, P, M> = &'a mut dyn FnMut(Placed<P, M>) -> Result<(), Broken>;

/// An opened source of another node.
pub trait RemoteSource: Send + Sync {
    /// What it is.
    fn description(&self) -> &SourceDescription;

    /// Reads its blocks from `offset` on over a connection of its own; ends with the first error of `take`.
    ///
    /// # Errors
    /// [`Broken`].
    fn blocks(&self, offset: u64, take: Take<'_, u64, Blocks>) -> Result<(), Broken>;

    /// Reads its tree, likewise.
    ///
    /// # Errors
    /// [`Broken`].
    fn tree(&self, from: Position, take: Take<'_, Position, Item>) -> Result<(), Broken>;

    /// The node may listen at another address by now, and there is a newer permit. What is read goes on with these.
    fn show(&self, way: &Way);

    /// How often it has moved.
    fn moves(&self) -> u64;

    /// Tells the node that it is not needed any more. Never fails: what the node is not told it finds out by itself.
    fn close(&self);
}

/// Why a stream ended before its end.
#[derive(Debug)]
pub enum Broken {
    /// The connection did, or the node was restarted: it is worth another try.
    Connection(String),
    /// What arrived is not what was sent: worth one more try.
    Damaged(String),
    /// For good.
    Ended(Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Broken::Ended(error)
    }
}

/// A source on another node; closed when dropped.
pub(super) struct Remote {
    pub(super) source: VolumeSource,
    opened: Arc<dyn RemoteSource>,
    patience: Duration,
}

/// The sources of the pulls that run, by the volume that is made: a retry of a call finds its pull here, and tells it
/// where the source is now.
#[derive(Default)]
pub(super) struct Running(Mutex<Pulls>);

/// By the volume that is made: what it is made from, and the way to that.
type Pulls = HashMap<VolumeId, (VolumeSource, Arc<dyn RemoteSource>)>;

impl Running {
    /// The way to this source is this by now, where the volume is made from it.
    pub(super) fn show(&self, volume: &VolumeId, source: &VolumeSource, way: &Way) {
        // The lock of the map is not held while the source is told.
        let pulled = self.all().get(volume).cloned();
        if let Some((_, opened)) = pulled.filter(|(pulled, _)| pulled == source) {
            opened.show(way);
        }
    }

    fn begin(&self, volume: &VolumeId, remote: &Remote) {
        self.all().insert(volume.clone(), (remote.source.clone(), Arc::clone(&remote.opened)));
    }

    fn end(&self, volume: &VolumeId) {
        self.all().remove(volume);
    }

    // Nothing that runs under the mutex can panic half-way, so a poisoned one is as good as any.
    fn all(&self) -> MutexGuard<'_, Pulls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remote {
    pub(super) fn description(&self) -> &SourceDescription {
        self.opened.description()
    }

    /// Where it is for people.
    pub(super) fn describe(&self) -> String {
        self.source.to_string()
    }

    /// What it means to the caller that the node does not have the source any more. A cut of a volume goes when nobody
    /// has read it for a while; the volume may still be there.
    fn gone(&self, error: Error) -> Error {
        match (&self.source, error) {
            (VolumeSource::Volume(id), Error::NotFound(_)) => Error::Unavailable(format!(
                "the cut of volume {id} is gone from its node; a retry begins anew"
            )),
            (_, error) => error,
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // A second panic would end the process.
        if !std::thread::panicking() {
            self.opened.close();
        }
    }
}

impl Driver {
    /// Opens a source on another node, if this one may.
    pub(super) fn open_remote(&self, way: Option<&Way>, request: &OpenSource) -> Result<Option<Remote>> {
        let Some((sources, way)) = self.remote_sources.as_ref().zip(way) else {
            return Ok(None);
        };
        let opened = sources.open(way, request)?;
        let patience = sources.patience();
        Ok(Some(Remote { source: request.source.clone(), opened, patience }))
    }

    /// Makes the files of a new volume from a source on another node; durable on return. After an error the caller
    /// removes them.
    pub(super) fn pull(&self, remote: &Remote, volume: &Volume, to: &VolumePaths) -> Result<()> {
        self.pulls.begin(&volume.id, remote);
        let pulled = self.pull_files(remote, volume, to);
        self.pulls.end(&volume.id);
        pulled
    }

    fn pull_files(&self, remote: &Remote, volume: &Volume, to: &VolumePaths) -> Result<()> {
        let (kind, description) = (volume.parameters.backend, remote.description());
        prepare_files(&self.os, to, kind)?;
        tracing::info!(volume.id = %volume.id, source = remote.describe(), bytes = description.data_bytes, "pulling");
        let mut progress = self.copies.begin(volume.id.as_str(), description.data_bytes);
        match kind {
            BackendKind::Loop => self.pull_image(remote, &to.image(), &mut progress)?,
            BackendKind::Directory => self.pull_tree_to(remote, &to.data(), &mut progress)?,
        }
        sync_files(&self.os, to, kind)
    }
}
