//! How a source becomes a volume.

use std::sync::Arc;

use nix::errno::Errno;

use super::contents::BLOCK_SIZE;
use super::source::Source;
use super::{AdoptVolume, changed};
use crate::backend::{copy_in, expect_same, prepare_files, prepare_place, prepare_renamed, sync_files};
use crate::driver::capacity::{Reservation, Want};
use crate::driver::copies::origin::expect_room;
use crate::driver::create_volume::Wanted;
use crate::driver::pools::enforce::Chosen;
use crate::driver::{Driver, Pool};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{FileKind, is_errno};
use crate::model::{
    Adopted, Content, Format, Phase, Provisioning, Taken, Volume, VolumeParameters, format_exactly,
};

/// What a source has, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holds {
    /// What a copy of it takes.
    pub(super) to_copy: u64,
    pub(super) allocated: u64,
}

/// Why a source was not renamed into its volume.
enum Refused {
    /// It is to be copied: its filesystem does not rename it there.
    Elsewhere,
    Failed(Error),
}

impl Driver {
    /// Returns what a source would become, and how. Nothing is changed.
    pub(super) fn try_adopt(
        &self,
        wanted: Wanted,
        request: &AdoptVolume,
        source: &Source,
    ) -> Result<(Volume, Taken)> {
        let volume = self.design_adopted(wanted, request, source)?;
        let pool = self.pools.require(volume.pool())?;
        let holds = self.holds(request, source)?;
        expect_room(&volume, holds.to_copy)?;
        let way = self.way_of(&pool, &volume, source)?;
        self.reserve_adopted(&pool, &volume, way, holds).map(|_| (volume, way))
    }

    /// Makes the volume.
    pub(super) fn adopt(
        &self,
        wanted: Wanted,
        request: &AdoptVolume,
        source: &Source,
    ) -> Result<Arc<Volume>> {
        let volume = self.design_adopted(wanted, request, source)?;
        let pool = self.pools.require(volume.pool())?;
        let holds = self.holds(request, source)?;
        expect_room(&volume, holds.to_copy)?;
        let way = self.way_of(&pool, &volume, source)?;
        let copied = |way| self.copy_source(&pool, volume.clone(), source, (way, holds), request);
        let made = match way {
            Taken::Renamed => match self.take_over(&pool, volume.clone(), source, holds, request) {
                Err(Refused::Elsewhere) => copied(Taken::Copied)?,
                Err(Refused::Failed(error)) => return Err(error),
                Ok(made) => made,
            },
            Taken::Shared => match copied(Taken::Shared) {
                // Earlier kernels than 5.18 share no blocks between two mounts of one filesystem.
                Err(error) if is_unshared(&error) => copied(Taken::Copied)?,
                made => made?,
            },
            Taken::Copied => copied(Taken::Copied)?,
        };
        self.measure_again(&pool.name);
        let Adopted { way, path, .. } = made.adopted.clone().unwrap_or_else(|| adopted(request, source, way));
        let (size, claim) =
            (format_exactly(made.capacity_bytes), made.claim.as_ref().map(ToString::to_string));
        tracing::info!(volume.id = %made.id, path, way = way.as_str(), size, claim, "made a volume of what was at this path");
        Ok(made)
    }

    fn design_adopted(&self, wanted: Wanted, request: &AdoptVolume, source: &Source) -> Result<Volume> {
        let pool = self.pools.require(&wanted.parameters.pool)?;
        let VolumeParameters { direct_io, backend, .. } = wanted.parameters;
        if backend.has_image() && pool.block_size(&self.os, direct_io)? > BLOCK_SIZE {
            return Err(Error::Invalid(format!(
                "{} may have been made for blocks of {BLOCK_SIZE} bytes, and directIO needs larger ones in pool {}; use a class \
                 with directIO: \"false\"",
                source.shown(),
                pool.name
            )));
        }
        let volume = self.design(wanted, None)?;
        let content = match volume.content {
            Content::Filesystem { fs_type, .. } => Content::Filesystem { fs_type, format: Format::Formatted },
            content => content,
        };
        let adopted = Some(adopted(request, source, Taken::Copied));
        Ok(Volume { content, block_size: BLOCK_SIZE, adopted, ..volume })
    }

    /// Returns how the data get to the volume: in one step if that can be done.
    fn way_of(&self, pool: &Pool, volume: &Volume, source: &Source) -> Result<Taken> {
        let looking = || format!("look at {}", source.shown());
        let paths = self.paths(volume)?;
        let is_image = volume.parameters.backend.has_image();
        let [there, here] = [source.around.parent(), paths.parent.as_path()]
            .map(|path| self.os.mounts.mount_at(path).doing(looking));
        // What is below a directory with a limit counts there only if it was made there.
        if there? == here? && !volume.parameters.is_limited_directory() {
            // Another name would still lead to the data, and writes that need new blocks would fail in a full pool.
            let is_its_own = !is_image
                || (source.stat.links == 1 && self.os.images.is_in_place(&source.at()).doing(looking)?);
            if is_its_own {
                return Ok(Taken::Renamed);
            }
        }
        let thick = volume.parameters.provisioning == Provisioning::Thick;
        let is_near = !is_image || source.stat.id.dev == pool.id.dev;
        let may_share =
            is_near && !volume.parameters.is_limited_directory() && self.may_share(pool, pool, thick)?;
        let is_alike = !is_image || self.os.images.is_in_place(&source.at()).doing(looking)?;
        Ok(if may_share && is_alike { Taken::Shared } else { Taken::Copied })
    }

    fn reserve_adopted(&self, pool: &Pool, volume: &Volume, way: Taken, holds: Holds) -> Result<Reservation> {
        let parameters = &volume.parameters;
        let want = |bytes| Want::Volume(parameters.is_sized(), parameters.provisioning, bytes);
        match way {
            // Its blocks are on this filesystem already.
            Taken::Renamed => {
                let missing = volume.capacity_bytes.saturating_sub(holds.allocated);
                self.reserve(pool, want(missing), 0)
            }
            Taken::Shared => self.reserve(pool, want(volume.capacity_bytes), 0),
            Taken::Copied => self.reserve(pool, want(volume.capacity_bytes), holds.to_copy),
        }
    }

    /// Records the volume as one that is being made.
    fn record_adopted(
        &self,
        pool: &Pool,
        volume: Volume,
        (way, holds): (Taken, Holds),
    ) -> Result<(Arc<Volume>, Reservation)> {
        self.nothing_on_disk(&self.paths(&volume)?)?;
        let mut reservation = self.reserve_adopted(pool, &volume, way, holds)?.recording(&volume.id);
        let quota = self.choose_quota(pool, &volume)?;
        let adopted =
            volume.adopted.clone().map(|adopted| Adopted { way, settled: way == Taken::Renamed, ..adopted });
        let volume = self.store.put(Volume { adopted, quota: quota.as_ref().map(Chosen::id), ..volume })?;
        reservation.recorded();
        Ok((volume, reservation))
    }

    /// Renames the source into the volume.
    fn take_over(
        &self,
        pool: &Pool,
        volume: Volume,
        source: &Source,
        holds: Holds,
        request: &AdoptVolume,
    ) -> std::result::Result<Arc<Volume>, Refused> {
        let recorded = self.record_adopted(pool, volume, (Taken::Renamed, holds));
        let (volume, _room) = recorded.map_err(Refused::Failed)?;
        let (paths, at) = (self.paths(&volume).map_err(Refused::Failed)?, source.at());
        let place = self.place(&volume, &paths);
        if let Err(cause) = self.expect_unchanged(source, request) {
            return Err(Refused::Failed(cause.after_undo(self.remove_volume(&volume))));
        }
        let prepared = self.record_of_volume(&volume).and_then(|record| prepare_place(place, &at, &record));
        if let Err(cause) = prepared.and_then(|()| self.expect_adoptable(source)) {
            let undone = self.undo_size(source, &volume);
            return Err(Refused::Failed(cause.after_undo(undone.and(self.remove_volume(&volume)))));
        }
        let (data, renaming) = (paths.data(), || format!("rename {} into {}", source.shown(), volume.id));
        if let Err(error) = self.os.files.rename(&at, &data) {
            let elsewhere = is_errno(&error, Errno::EXDEV);
            let cause = Err::<(), _>(error).doing(renaming);
            // Only an empty place is removed.
            let is_empty = matches!(self.os.files.stat(&data), Ok(None));
            let undo = || self.undo_size(source, &volume).and(self.remove_volume(&volume));
            let undone = if is_empty { undo() } else { Ok(()) };
            return Err(match (cause, undone) {
                (_, Ok(())) if elsewhere && is_empty => Refused::Elsewhere,
                (Err(cause), undone) => Refused::Failed(cause.after_undo(undone)),
                (Ok(()), undone) => Refused::Failed(changed(request).after_undo(undone)),
            });
        }
        // From here on it is the volume's, also if a later step fails.
        self.keep_renamed(&volume, source, request).map_err(Refused::Failed)
    }

    /// Makes sure that a source is what was looked at, and that nothing uses it.
    ///
    /// # Errors
    /// UNAVAILABLE if it is another file or has another size; FAILED_PRECONDITION with what uses it.
    fn expect_unchanged(&self, source: &Source, request: &AdoptVolume) -> Result<()> {
        let now = self.find_source(request)?;
        match now.is_some_and(|now| (now.stat.id, now.stat.size) == (source.stat.id, source.stat.size)) {
            true => self.expect_unused_source(source),
            false => Err(changed(request)),
        }
    }

    /// Cuts an image off again that got the size of a volume which it does not become.
    fn undo_size(&self, source: &Source, volume: &Volume) -> Result<()> {
        let (at, undoing) = (source.at(), || format!("give {} its size back", source.shown()));
        let Some(now) = self.os.files.stat(&at).doing(undoing)? else { return Ok(()) };
        let is_enlarged = source.stat.kind == FileKind::File
            && now.id == source.stat.id
            && now.size == volume.capacity_bytes
            && now.size > source.stat.size;
        if is_enlarged {
            self.os.images.set_size(&at, source.stat.size).doing(undoing)?;
            self.os.files.sync_file(&at).doing(undoing)?;
        }
        Ok(())
    }

    fn keep_renamed(
        &self,
        volume: &Arc<Volume>,
        source: &Source,
        request: &AdoptVolume,
    ) -> Result<Arc<Volume>> {
        let paths = self.paths(volume)?;
        let keeping = || format!("keep {} as {}", source.shown(), volume.id);
        let moved = self.os.files.stat(&paths.data()).doing(keeping)?;
        if moved.is_none_or(|moved| moved.id != source.stat.id) {
            // Another file came to the name between the look and the rename. It goes back.
            self.os.files.rename(&paths.data(), &source.at()).doing(keeping)?;
            self.os.files.sync_directory(source.around.parent()).doing(keeping)?;
            return Err(changed(request).after_undo(self.remove_volume(volume)));
        }
        self.os.files.sync_directory(&paths.directory).doing(keeping)?;
        self.os.files.sync_directory(source.around.parent()).doing(keeping)?;
        prepare_renamed(self.place(volume, &paths));
        self.store.put(Volume { phase: Phase::Ready, ..(**volume).clone() }).map_err(Error::from)
    }

    /// Copies the source, or shares its blocks, and compares.
    fn copy_source(
        &self,
        pool: &Pool,
        volume: Volume,
        source: &Source,
        (way, holds): (Taken, Holds),
        request: &AdoptVolume,
    ) -> Result<Arc<Volume>> {
        let _turn = self.copy_turn()?;
        let before = source.fingerprint(&self.os)?;
        let adopted =
            volume.adopted.map(|adopted| Adopted { fingerprint: Some(before.to_string()), ..adopted });
        let (volume, _room) = self.record_adopted(pool, Volume { adopted, ..volume }, (way, holds))?;
        let made = self.fill(&volume, source, way == Taken::Shared, holds.to_copy).and_then(|()| {
            self.expect_unchanged(source, request)?;
            self.expect_no_pool_inside(source)?;
            // What was compared first may have been written to while the rest was.
            if source.fingerprint(&self.os)? != before {
                return Err(changed(request));
            }
            Ok(self.store.put(Volume { phase: Phase::Ready, ..(*volume).clone() })?)
        });
        let made = made.map_err(|cause| cause.after_undo(self.remove_volume(&volume)))?;
        self.acknowledge_volume(made)
    }

    fn fill(&self, volume: &Volume, source: &Source, share: bool, bytes: u64) -> Result<()> {
        let paths = self.paths(volume)?;
        prepare_files(&self.os, &paths)?;
        let mut progress = self.copies.begin(volume.id.as_str(), bytes);
        copy_in(&self.os, &source.at(), &paths, share, &mut |done| {
            progress.report(done);
            Ok(())
        })?;
        expect_same(&self.os, source.hold(&self.os)?.path(), &paths)?;
        sync_files(&self.os, &paths, &self.record_of_volume(volume)?)?;
        paths.bytes().stretch(self.place(volume, &paths), source.stat.size)
    }
}

/// Whether a filesystem does not share the blocks of these files.
fn is_unshared(error: &Error) -> bool {
    matches!(error.errno(), Some(Errno::EXDEV | Errno::EOPNOTSUPP | Errno::EINVAL))
}

fn adopted(request: &AdoptVolume, source: &Source, way: Taken) -> Adopted {
    Adopted {
        path: request.path.display().to_string(),
        inode: source.stat.id.ino,
        way,
        settled: false,
        fingerprint: None,
    }
}
