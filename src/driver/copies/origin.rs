//! What a volume is made from: a snapshot or another volume, here or on another node.

use std::sync::Arc;

use super::cut::Member;
use crate::backend::{Copy, Mark, Share, VolumePaths, content_converted, content_of_copy, too_small};
use crate::driver::capacity::{Reservation, Want};
use crate::driver::create_volume::Wanted;
use crate::driver::pull::{Remote, not_followed};
use crate::driver::records::Makes;
use crate::driver::request::check;
use crate::driver::{Driver, Pool, not_found};
use crate::error::{Error, OsContext, Result};
use crate::model::request::Source;
use crate::model::{
    Capability, Consistency, Content, CopyOf, Filled, Format, Provisioning, SizeRange, Snapshot, Timestamp,
    Volume, VolumeParameters, VolumeSource, format_exactly, most_bytes, rounded,
};

/// The source, found; the caller holds its lock.
pub(crate) struct Origin {
    pub(crate) source: VolumeSource,
    content: Content,
    bytes: u64,
    /// What its size was asked for as, if that is less.
    requested: Option<u64>,
    pub(crate) block_size: u32,
    data: Data,
}

/// What has the source's data.
enum Data {
    Snapshot(Arc<Snapshot>),
    Volume(Arc<Volume>),
    Remote(Remote),
}

impl Origin {
    fn of_snapshot(snapshot: Arc<Snapshot>) -> Self {
        let (source, content) = (VolumeSource::Snapshot(snapshot.id.clone()), snapshot.content.clone());
        let (bytes, requested, block_size) =
            (snapshot.size_bytes, snapshot.requested_bytes, snapshot.block_size);
        Origin { source, content, bytes, requested, block_size, data: Data::Snapshot(snapshot) }
    }

    fn of_volume(volume: Arc<Volume>) -> Self {
        let (source, content) = (VolumeSource::Volume(volume.id.clone()), volume.content.clone());
        let (bytes, requested, block_size) =
            (volume.capacity_bytes, volume.requested_bytes, volume.block_size);
        Origin { source, content, bytes, requested, block_size, data: Data::Volume(volume) }
    }

    fn of_remote(remote: Remote) -> Self {
        let (source, is) = (remote.source.clone(), remote.description());
        let (content, block_size) = (is.content.clone(), is.block_size);
        let (bytes, requested) = (is.size_bytes, is.requested_bytes);
        Origin { source, content, bytes, requested, block_size, data: Data::Remote(remote) }
    }

    /// Returns when the volume was made that it is of, if it is on another node, or in another pool, and that one knows.
    pub(crate) fn volume_created(&self) -> Option<Timestamp> {
        match &self.data {
            Data::Remote(remote) => remote.description().volume_created,
            Data::Snapshot(_) | Data::Volume(_) => None,
        }
    }

    /// What a copy that is brought up to date with it has of it at first.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for what does not change, or is on this node; FAILED_PRECONDITION for another generation.
    pub(crate) fn as_copy(&self, generation: Option<u64>, content: &Content) -> Result<CopyOf> {
        let Origin { source, data, .. } = self;
        let (Data::Remote(remote), VolumeSource::Volume(_)) = (data, source) else {
            return Err(not_followed(source));
        };
        remote.expect_generation(generation)?;
        let filled = (self.converts_to(content) && content.fs_type().is_some()).then_some(Filled::Apart);
        Ok(CopyOf::at(remote.cut_for(content), filled))
    }

    /// Leaves its cut at its node.
    pub(crate) fn keep(&self) {
        if let Data::Remote(remote) = &self.data {
            remote.keep();
        }
    }

    /// What a volume made from it holds, if that is what is asked for.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for another backend, access type or filesystem, unless it is to be converted.
    pub(crate) fn content_for(
        &self,
        parameters: &VolumeParameters,
        capabilities: &[Capability],
        convert: bool,
    ) -> Result<Content> {
        let content_for = if convert { content_converted } else { content_of_copy };
        content_for(&self.content, &self.source.to_string(), parameters, capabilities)
    }

    /// Reports whether a volume with this content is made from it file by file.
    pub(crate) fn converts_to(&self, content: &Content) -> bool {
        !self.content.is_kind_of(content)
    }

    /// Returns the range of sizes for a volume made from it: what is asked for, at least its own size. A request counts as
    /// what a new volume of at least `minimum` bytes would get for it, so that the request of the source is enough. Another
    /// node says what that was, and is believed only as far as nodes round sizes up.
    ///
    /// # Errors
    /// OUT_OF_RANGE for less than it has.
    pub(crate) fn size_for(&self, size: SizeRange, minimum: u64) -> Result<SizeRange> {
        let Origin { source, bytes, .. } = self;
        let SizeRange { required, limit } = size;
        let too_small = |what: &str, wanted: u64| {
            let (wanted, bytes) = (format_exactly(wanted), format_exactly(*bytes));
            Err(Error::OutOfRange(format!("{what} {wanted} is less than the {bytes} of {source}")))
        };
        let is_remote = matches!(self.data, Data::Remote(_));
        let is_rounded = !is_remote || *bytes <= most_bytes(required.max(minimum));
        let is_enough = required == 0
            || rounded(required, minimum) >= *bytes
            || self.requested.is_some_and(|requested| required >= requested && is_rounded);
        match limit != 0 && limit < *bytes {
            _ if !is_enough => too_small("required_bytes", required),
            true => too_small("limit_bytes", limit),
            false => Ok(SizeRange { required: required.max(*bytes), limit }),
        }
    }

    /// Returns the request that the record of a volume made from it has. Without a request for another size it is that of
    /// the source: a move asks for the size that the source has.
    pub(crate) fn requested_for(&self, size: SizeRange, bytes: u64) -> Option<u64> {
        match bytes == self.bytes && (size.required == 0 || size.required == bytes) {
            true => self.requested,
            false => size.requested(bytes),
        }
    }
}

/// The source that a request names, if its id is one of ours.
pub(crate) fn named(driver: &Driver, source: &Source) -> Option<VolumeSource> {
    match source {
        Source::Snapshot(id) => id.parse().ok().map(VolumeSource::Snapshot),
        Source::Volume(id) => driver.controller_id(id).map(VolumeSource::Volume),
    }
}

impl Driver {
    /// Finds what a request names as its source; the caller holds its lock. One of another node is opened there.
    ///
    /// # Errors
    /// NOT_FOUND; those of OpenSource at another node.
    pub(crate) fn origin(&self, source: &Source, wanted: &Wanted) -> Result<Origin> {
        // The controller sends a way to what is on another node. An id does not name the node: a volume keeps it when it moves.
        if let Some(source) = named(self, source)
            && let Some(remote) = self.open_remote(source, wanted)?
        {
            return Ok(Origin::of_remote(remote));
        }
        match source {
            Source::Snapshot(id) => self.ready_snapshot(id).map(Origin::of_snapshot),
            Source::Volume(volume_id) => {
                let id = self.controller_id(volume_id).ok_or_else(|| not_found(volume_id))?;
                let volume = self.ready_volume(&id, volume_id)?;
                check::is_no_copy(&volume)?;
                Ok(Origin::of_volume(volume))
            }
        }
    }

    /// Whether a copy may share blocks with what it is made from. A thick volume has been promised that writing to
    /// it takes no new block; where blocks are shared it does. Only in a pool whose space is hostloop's alone and
    /// not promised twice is it sure that there are some.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the disk is too full to find out whether it can.
    pub(crate) fn may_share(&self, from: &Pool, to: &Pool, thick: bool) -> Result<bool> {
        let allowed = from.name == to.name && (!thick || (to.managed && to.overcommit <= 1.0));
        Ok(allowed && to.reflink(&self.os)?)
    }

    /// What a copy of a directory with an enforced size, or one that becomes it, shares with what it is made from: all, where
    /// the quotas tell what nobody else has, so that both still find what they were promised; else nothing. A snapshot of a
    /// subvolume lacks the subvolumes in that.
    pub(crate) fn share_of_limited(&self, from: &Pool, to: &Pool, paths: &VolumePaths) -> Result<Share> {
        let looking = || format!("look at {}", paths.directory.display());
        let subvolume = match from.name == to.name {
            true => self.os.quotas.subvolume(&paths.directory, false).doing(looking)?,
            false => None,
        };
        Ok(match subvolume {
            Some(subvolume) if !subvolume.has_others => Share::Whole,
            _ => Share::Nothing,
        })
    }

    /// How the volume's bytes get there: whether blocks are shared, and how many bytes have to be copied.
    pub(crate) fn plan(&self, origin: &Origin, volume: &Volume) -> Result<(Share, u64)> {
        let limited = |of: &VolumeParameters| of.is_limited_directory();
        let (pool, provisioning, from_limited, paths) = match &origin.data {
            // Nothing is written to a snapshot, so that its blocks are never taken anew.
            Data::Snapshot(snapshot) => {
                (&snapshot.pool, Provisioning::Thin, false, self.snapshot_paths(snapshot)?)
            }
            Data::Volume(source) => {
                let is = &source.parameters;
                (source.pool(), is.provisioning, limited(is), self.paths(source)?)
            }
            Data::Remote(remote) => {
                let bytes = remote.description().data_bytes;
                return expect_room(volume, bytes).map(|()| (Share::Nothing, bytes));
            }
        };
        let data = paths.bytes();
        data.expect_whole(&self.os, &paths, origin.bytes, &origin.source)?;
        let from = self.pools.get(pool)?;
        let to = self.pools.require(volume.pool())?;
        let thick = [provisioning, volume.parameters.provisioning].contains(&Provisioning::Thick);
        let share = match (from_limited, limited(&volume.parameters)) {
            (_, true) => self.share_of_limited(&from, &to, &paths)?,
            (true, false) => Share::Nothing,
            _ if !self.may_share(&from, &to, thick)? => Share::Nothing,
            _ if data.shares_whole() => Share::Whole,
            _ => Share::Files,
        };
        match share {
            Share::Whole => Ok((share, 0)),
            Share::Files | Share::Nothing => {
                let bytes = data.to_copy(&self.os, &paths)?;
                expect_room(volume, bytes).map(|()| (share, bytes))
            }
        }
    }

    /// Holds room for what a clone shares with its source, until both have been measured: where extents stay whole,
    /// both can come to own every block, while a few that are left keep all of what they shared. What a snapshot
    /// shares it keeps anyhow.
    pub(crate) fn reserve_shared(
        &self,
        pool: &Pool,
        origin: &Origin,
        share: Share,
    ) -> Result<Option<Reservation>> {
        let Data::Volume(source) = &origin.data else { return Ok(None) };
        if share == Share::Whole && source.parameters.is_limited_directory() {
            return self.reserve_subvolume(pool, source).map(Some);
        }
        let is_image = source.parameters.backend.has_image();
        if share == Share::Nothing || !is_image || !self.keeps_whole_extents(pool)? {
            return Ok(None);
        }
        let paths = self.paths(source)?;
        let bytes = paths.bytes().allocated(&self.os, &paths)?;
        self.reserve(pool, Want::Shared(bytes), 0).map(Some)
    }

    /// Holds room for what a directory with an enforced size comes to share with a copy that is made in one step, until both
    /// have been measured: from then on it is not its own, and it needs as much again to be rewritten.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub(crate) fn reserve_subvolume(&self, pool: &Pool, source: &Volume) -> Result<Reservation> {
        // It has no more than that. To know what it has, all that was written to the disk has to be placed first, which is
        // worth its time only where it decides.
        match self.reserve(pool, Want::Shared(source.capacity_bytes), 0) {
            Err(Error::Exhausted(_)) => {
                let directory = self.paths(source)?.directory;
                let looking = || format!("look at {}", directory.display());
                let subvolume = self.os.quotas.subvolume(&directory, true).doing(looking)?;
                let own = subvolume.map_or(source.capacity_bytes, |subvolume| subvolume.own_bytes);
                self.measure_again(&pool.name);
                self.reserve(pool, Want::Shared(own), 0)
            }
            reserved => reserved,
        }
    }

    /// Whether what is copied is what a mkfs has left that was cut off.
    fn is_half_formatted(&self, origin: &Origin) -> Result<bool> {
        match &origin.data {
            // Of a volume the record alone does not tell.
            Data::Volume(volume) => self.is_volume_half_formatted(volume),
            Data::Snapshot(_) | Data::Remote(_) => Ok(origin.content.format() == Some(Format::Formatting)),
        }
    }

    /// The same of a volume.
    pub(crate) fn is_volume_half_formatted(&self, volume: &Volume) -> Result<bool> {
        match volume.content.format() {
            Some(Format::Blank) => Mark::Formatting.is_set(&self.os, &self.paths(volume)?),
            _ => Ok(false),
        }
    }

    /// Makes the files of a new volume from its source; durable on return. After an error the caller removes them.
    pub(crate) fn copy_origin(
        &self,
        origin: &Origin,
        volume: &Volume,
        (share, bytes): (Share, u64),
        consistency: Consistency,
    ) -> Result<()> {
        let to = self.paths(volume)?;
        let half_formatted = !origin.converts_to(&volume.content) && self.is_half_formatted(origin)?;
        match &origin.data {
            Data::Volume(source) => {
                let makes = Makes::Volume(volume);
                let member =
                    Member { volume: source, to: to.clone(), makes, id: volume.id.as_str(), share, bytes };
                self.cut(&[member], consistency)?;
            }
            Data::Remote(remote) => self.pull(remote, volume, &to)?,
            Data::Snapshot(snapshot) => {
                let from = self.snapshot_paths(snapshot)?;
                let copy = Copy { os: &self.os, from: &from, to: &to, share };
                copy.prepare()?;
                let mut progress = self.copies.begin(volume.id.as_str(), bytes);
                copy.run(&mut |done| {
                    progress.report(done);
                    Ok(())
                })?;
                copy.sync(&self.record_of_volume(volume)?)?;
            }
        }
        if half_formatted {
            Mark::Formatting.set(&self.os, &to)?;
            let syncing = || format!("sync {}", to.directory.display());
            self.os.files.sync_directory(&to.directory).doing(syncing)?;
        }
        to.bytes().stretch(self.place(volume, &to), origin.bytes)
    }

    /// What a new volume needs of its pool.
    pub(crate) fn want(volume: &Volume) -> Want {
        let parameters = &volume.parameters;
        Want::Volume(parameters.is_sized(), parameters.provisioning, volume.capacity_bytes)
    }
}

/// Refuses a directory with an enforced size that is smaller than the data it is to be made of: those of one without can be
/// larger than its size says.
///
/// # Errors
/// OUT_OF_RANGE with the size that would do.
pub(crate) fn expect_room(volume: &Volume, bytes: u64) -> Result<()> {
    match volume.parameters.is_limited_directory() && bytes > volume.capacity_bytes {
        true => Err(too_small(volume, bytes)),
        false => Ok(()),
    }
}
