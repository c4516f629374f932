//! A volume made from what another node has: its data are pulled from there.
//!
//! Room is reserved before the first byte is requested. Every piece is checked before it is written, and so is its place,
//! so that nothing is left out. After a broken connection, the pull resumes where it stopped. What is requested again is
//! the same: the handle names a snapshot that does not change, and the time of its cut. After an error nothing of the
//! volume is left, and a retry starts over.

mod allowed;
mod blocks;
mod changes;
mod filled;
mod resume;
mod room;
mod running;
pub(super) mod source;
mod staged;
mod tree;

pub(super) use changes::Counted;
pub(super) use running::Running;
pub(super) use tree::{Earlier, Making};

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Driver;
use super::create_volume::Wanted;
use crate::backend::{Shape, VolumePaths, prepare_files, sync_files};
use crate::error::{Error, Result};
use crate::model::pull::{
    Blocks, Changes, Keep, OpenSource, Piece, Placed, SourceDescription, SourceHandle, Way,
};
use crate::model::tree::{Item, Position};
use crate::model::{
    BackendKind, Consistency, Content, Cut, Format, SnapshotId, Volume, VolumeId, VolumeSource, format_bytes,
};

/// The way to the snapshots and volumes of other nodes.
pub trait RemoteSources: Send + Sync {
    /// Opens a source at the node that has it.
    ///
    /// # Errors
    /// Those of OpenSource at that node; UNAVAILABLE where it does not answer, or where another node does, and where there
    /// is not a permit to read it.
    fn open(&self, way: &Way, request: &OpenSource) -> Result<Arc<dyn RemoteSource>>;

    /// How long a broken connection is tried again while nothing arrives.
    fn patience(&self) -> Duration;

    /// Returns how long one pass over a source of `bytes` may take. A pass holds a lock and a turn.
    fn longest_pass(&self, bytes: u64) -> Duration {
        longest_pass(bytes)
    }
}

/// The time that a pass may take in addition to that of its data.
const BEFORE_DATA: Duration = Duration::from_secs(1800);
/// The least rate of a pass, in bytes per second: about 1 Mbit/s.
const LEAST_RATE: u64 = 128 << 10;

fn longest_pass(bytes: u64) -> Duration {
    BEFORE_DATA + Duration::from_secs(bytes / LEAST_RATE)
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

    /// Reads its tree, likewise; with `base`, an earlier cut of the same volume, only what it does not have of that.
    ///
    /// # Errors
    /// [`Broken`].
    fn tree(
        &self,
        base: Option<&SourceHandle>,
        from: Position,
        take: Take<'_, Position, Item>,
    ) -> Result<(), Broken>;

    /// Reads what differs from an earlier cut, from `offset` on, likewise.
    ///
    /// # Errors
    /// [`Broken`].
    fn changes(&self, base: &SourceHandle, offset: u64, take: Take<'_, u64, Changes>) -> Result<(), Broken>;

    /// The node may listen at another address by now, and there is a newer permit. What is read goes on with these.
    fn show(&self, way: &Way);

    /// How often it has moved.
    fn moves(&self) -> u64;

    /// Ends all streams of this source at once and for good: their readers get [`Broken::Ended`] with
    /// UNAVAILABLE.
    fn end(&self);

    /// Tells the node that this cut is not needed any more. Never fails: what the node is not told it finds out by itself.
    fn close(&self, cut: &SnapshotId);
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

/// Makes sure that a piece arrived intact and in its place: behind `at`, and within `size` bytes. Gives its end.
fn expect_next(piece: &Piece, at: u64, size: u64, of: impl Display) -> Result<u64, Broken> {
    let end = piece.end();
    let damaged = |how| Err(Broken::Damaged(format!("bytes {} to {end}{of} arrived {how}", piece.offset)));
    match () {
        () if !piece.is_intact() => damaged("with a wrong checksum"),
        () if piece.data.len() > Piece::MOST => damaged("in a piece that is too large"),
        () if piece.data.is_empty() || piece.offset < at || end > size => damaged("out of their place"),
        () => Ok(end),
    }
}

/// Makes sure that a stream came to its end.
fn expect_end(ended: bool) -> Result<(), Broken> {
    ended.then_some(()).ok_or_else(|| Broken::Connection("the stream ended early".to_owned()))
}

/// A source on another node; closed when dropped, unless a record says that its cut is needed.
pub(crate) struct Remote {
    pub(super) source: VolumeSource,
    opened: Arc<dyn RemoteSource>,
    patience: Duration,
    began: Instant,
    longest: Duration,
    kept: AtomicBool,
}

impl Remote {
    pub(super) fn description(&self) -> &SourceDescription {
        self.opened.description()
    }

    /// Its cut, for a record.
    pub(super) fn cut(&self) -> Cut {
        let SourceDescription { handle, sealed, content, generation, .. } = self.description();
        let half_formatted = content.format() == Some(Format::Formatting);
        let (sealed, generation) = (*sealed, *generation);
        Cut { id: handle.id.clone(), created: handle.created, sealed, half_formatted, generation }
    }

    /// Its cut, for the record of a copy with this content. What mkfs has left there means nothing for a copy that is made file by file.
    pub(super) fn cut_for(&self, content: &Content) -> Cut {
        let cut = self.cut();
        let half_formatted = cut.half_formatted && self.description().content.is_kind_of(content);
        Cut { half_formatted, ..cut }
    }

    /// Makes sure that the volume has moved as often as it has to have; `None` for any number. The node of the volume may be in wrong
    /// hands. A copy of another generation than its VolumeReplica names could be neither completed nor deleted.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    pub(in crate::driver) fn expect_generation(&self, expected: Option<u64>) -> Result<()> {
        let generation = self.description().generation;
        match expected.filter(|expected| *expected != generation) {
            None => Ok(()),
            Some(expected) => Err(Error::InUse(format!(
                "the node of {} says that it has generation {generation}, and the copy is of generation {expected}; see what that node \
                 has",
                self.source
            ))),
        }
    }

    /// Its cut is left at its node: a record says that it is needed.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }

    /// Tells its node that another cut of it is not needed any more.
    pub(super) fn close(&self, cut: &SnapshotId) {
        self.opened.close(cut);
    }

    /// Checks that the pass has not taken longer than it may.
    ///
    /// # Errors
    /// UNAVAILABLE if it has.
    fn expect_in_time(&self) -> Result<(), Broken> {
        if self.began.elapsed() <= self.longest {
            return Ok(());
        }
        let (seconds, size) = (self.longest.as_secs(), format_bytes(self.description().size_bytes));
        Err(Broken::Ended(Error::Unavailable(format!(
            "the node of {} has not sent it within {seconds} s, the limit for {size}; a retry starts again",
            self.source
        ))))
    }

    /// What it means to the caller that the node does not have the source any more. A cut of a volume goes when nobody
    /// has read it for a while; the volume may still be there.
    fn gone(&self, error: Error) -> Error {
        match (&self.source, error) {
            (VolumeSource::Volume(id), Error::NotFound(why)) if self.kept.load(Ordering::Acquire) => {
                Error::NotFound(format!(
                    "a cut of volume {id} that a copy needs is gone from its node: {why}; delete the copy and make another one"
                ))
            }
            (VolumeSource::Volume(id), Error::NotFound(_)) => Error::Unavailable(format!(
                "the cut of volume {id} is gone from its node; a retry starts again"
            )),
            (_, error) => error,
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // A second panic would end the process.
        if !std::thread::panicking() && !self.kept.load(Ordering::Acquire) {
            self.opened.close(&self.description().handle.id);
        }
    }
}

impl Driver {
    /// Opens a source on another node, if this one may.
    pub(super) fn open_remote(&self, source: VolumeSource, wanted: &Wanted) -> Result<Option<Remote>> {
        let Some((sources, way)) = self.remote_sources.as_ref().zip(wanted.way.as_ref()) else {
            return Ok(None);
        };
        let keep = match (wanted.as_copy, &source) {
            (true, VolumeSource::Volume(_)) => Keep::First,
            (true, VolumeSource::Snapshot(_)) => return Err(not_followed(&source)),
            (false, _) => Keep::Nothing,
        };
        let id = &wanted.id;
        // What a move brings first need not be of one moment: its last round is.
        let by_file = wanted.as_copy && wanted.convert;
        let is_directory = wanted.parameters.backend == BackendKind::Directory;
        let moves_a_tree = wanted.as_copy && is_directory && !by_file;
        let consistency = match moves_a_tree {
            true => Consistency { freeze: false, ..wanted.consistency },
            false => wanted.consistency,
        };
        self.open_for(
            sources.as_ref(),
            way,
            id,
            OpenSource {
                source,
                target: id.clone(),
                consistency,
                began: self.pulls.began(id),
                keep,
                by_file,
            },
        )
        .map(Some)
    }

    /// Opens a source on another node for this volume. Its cut is the same in retries until there was an answer.
    pub(super) fn open_for(
        &self,
        sources: &dyn RemoteSources,
        way: &Way,
        id: &VolumeId,
        request: OpenSource,
    ) -> Result<Remote> {
        let opened = sources.open(way, &request);
        let may_be_made = matches!(opened, Err(Error::Unavailable(_) | Error::Busy(_)));
        if !may_be_made {
            self.pulls.forget(id);
        }
        let (source, opened) = (request.source, opened?);
        let longest = sources.longest_pass(opened.description().size_bytes);
        let (patience, began, kept) = (sources.patience(), Instant::now(), AtomicBool::new(false));
        Ok(Remote { source, opened, patience, began, longest, kept })
    }

    /// Makes the files of a new volume from a source on another node; durable on return. After an error the caller
    /// removes them.
    pub(super) fn pull(&self, remote: &Remote, volume: &Volume, to: &VolumePaths) -> Result<()> {
        self.pulling(remote, volume, |driver| driver.pull_files(remote, volume, to))
    }

    /// Runs what reads from a source on another node, so that a retry of the call finds it.
    pub(super) fn pulling<T>(&self, remote: &Remote, volume: &Volume, work: impl FnOnce(&Self) -> T) -> T {
        self.pulls.begin(&volume.id, remote);
        let pulled = work(self);
        self.pulls.end(&volume.id);
        pulled
    }

    fn pull_files(&self, remote: &Remote, volume: &Volume, to: &VolumePaths) -> Result<()> {
        let description = remote.description();
        prepare_files(&self.os, to)?;
        tracing::info!(volume.id = %volume.id, source = %remote.source, size = %format_bytes(description.data_bytes), "pulling");
        let mut progress = self.copies.begin(volume.id.as_str(), description.data_bytes);
        match to.shape() {
            Shape::Blocks(image) if volume.copy_of.as_ref().is_some_and(|copy| copy.filled.is_some()) => {
                self.fill_filesystem(remote, (volume, to), &image, &mut progress)?;
            }
            Shape::Blocks(image) => self.pull_image(remote, &image, &mut progress)?,
            Shape::Tree(tree) => {
                let (pool, place) = (self.pool_of(volume)?, self.place(volume, to));
                let making = Making { path: &tree, pool: &pool, place, reserved: description.data_bytes };
                self.pull_tree_to(remote, &making, &mut progress)?;
            }
        }
        sync_files(&self.os, to, &self.record_of_volume(volume)?)
    }
}

/// Why no copy can be brought up to date with a source.
pub(super) fn not_followed(source: &VolumeSource) -> Error {
    Error::Invalid(format!(
        "{source} is not a volume of another node: only with one of these can a copy be brought up to date"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_may_take_longer_for_more_data() {
        let seconds = |bytes| longest_pass(bytes).as_secs();
        assert_eq!(
            [seconds(0), seconds(1 << 30), seconds(1 << 40)],
            [1800, 1800 + 8192, 1800 + (8192 << 10)]
        );
    }
}
