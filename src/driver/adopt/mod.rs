//! AdoptVolume: a volume is made of an image file or a directory of this node that another driver, or a person, has made.
//!
//! The source is renamed into the volume if that can be done in one step; otherwise it is copied and compared, and gets another name
//! as soon as the volume is recorded as `ready`. So there are never two volumes of one source, and at each moment all data are in
//! one place at least. A volume has its name of the path and the inode number of its source, by which a repeated request finds it.
//!
//! A rename cannot be undone by removing what was made: from the rename on, everything goes forward. The record of such a volume says
//! that it is made of something, so a start keeps it if its data are there (`recovery/settle`), and removes an empty place.

mod contents;
mod make;
mod pools;
mod source;

use std::path::PathBuf;
use std::sync::Arc;

use self::source::{Around, Source};
use super::Driver;
use super::create_volume::Wanted;
use super::locks::Guard;
use crate::error::{Error, OsContext, Result};
use crate::kernel::FileKind;
use crate::model::{AdoptVolume, Adopted, Capability, SizeRange, Taken, Volume, VolumeId};

/// What became of a request.
#[derive(Debug, Clone)]
pub struct AdoptedVolume {
    /// The volume, or what it would be.
    pub volume: Option<Arc<Volume>>,
    pub way: Option<Taken>,
    /// Where the source is now; `None` if it is in the volume or was removed, and in an answer to a look also if that cannot be seen.
    pub left: Option<PathBuf>,
    /// There is a volume. Otherwise nothing was taken away from where the source was.
    pub made: bool,
}

impl Driver {
    /// Makes a volume of an image file or a directory, or finds the one that an earlier request has made of it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a path outside of the administrator's directories and for what no volume can be made of; NOT_FOUND if
    /// there is neither a source nor a volume of it; FAILED_PRECONDITION if it is in use, damaged, or nothing may be adopted, and if
    /// the volume is for another claim, something else is at the path now, or it was written to after the copy;
    /// RESOURCE_EXHAUSTED without room; UNAVAILABLE if it changed meanwhile. After an error the source has all data, or the
    /// volume has them and a repeated request finishes.
    pub fn adopt_volume(&self, request: &AdoptVolume) -> Result<AdoptedVolume> {
        // One call for a path at a time: no other call changes what `look` answers.
        let _turn = self.lock(&turn_of(&self.node_key, request))?;
        let made = self.made_of(request)?;
        if request.look {
            return Ok(match made {
                Some((volume, _guard)) => {
                    let left = self.whereabouts(&volume, request);
                    answer(volume, left)
                }
                None => {
                    // What cannot be seen is not known to be there.
                    let is_there = self.find_source(request).is_ok_and(|source| source.is_some());
                    let left = is_there.then(|| request.path.clone());
                    AdoptedVolume { volume: None, way: None, left, made: false }
                }
            });
        }
        let source = self.find_source(request)?;
        if let Some((volume, _guard)) = made {
            return self.repeated(&volume, source.as_ref(), request);
        }
        let source = source.ok_or_else(|| {
            Error::NotFound(format!(
                "{} does not exist, and no volume was made of it",
                request.path.display()
            ))
        })?;
        let wanted = wanted(&self.node_key, request, &source);
        let _guard = self.lock(&wanted.id)?;
        if let Some(volume) = self.existing(&wanted)? {
            return self.finish_again(&volume, &source, request);
        }
        // What was found before the lock may be another call's by now.
        let found = self.find_source(request)?.filter(|found| found.stat.id == source.stat.id);
        let source = found.ok_or_else(|| changed(request))?;
        self.expect_adoptable(&source)?;
        let wanted = self.fitted(wanted, request, &source)?;
        if request.dry_run {
            let (volume, way) = self.try_adopt(wanted, request, &source)?;
            let volume = Some(Arc::new(volume));
            return Ok(AdoptedVolume { volume, way: Some(way), left: None, made: false });
        }
        let volume = self.adopt(wanted, request, &source)?;
        let is_left = volume.adopted.as_ref().is_some_and(|adopted| !adopted.settled);
        self.finish(&volume, &source.around, Some(&source).filter(|_| is_left), request)
    }

    /// Finds the volume that was made of what was at the path, and holds it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if there are several, or if it is for another claim.
    fn made_of(&self, request: &AdoptVolume) -> Result<Option<(Arc<Volume>, Guard)>> {
        let path = request.path.display().to_string();
        let of_it = |volume: &Arc<Volume>| {
            !volume.is_removed() && volume.adopted.as_ref().is_some_and(|adopted| adopted.path == path)
        };
        let volumes = self.store.volumes();
        let volumes: Vec<VolumeId> =
            volumes.iter().filter(|volume| of_it(volume)).map(|volume| volume.id.clone()).collect();
        let id = match volumes.as_slice() {
            [] => return Ok(None),
            [id] => id,
            several => {
                let several: Vec<&str> = several.iter().map(VolumeId::as_str).collect();
                return Err(Error::InUse(format!(
                    "several volumes were made of what was at {path}: {}",
                    several.join(", ")
                )));
            }
        };
        let guard = self.lock(id)?;
        let volume = match self.store.get(id) {
            Some(volume) if volume.is_ready() => Some(volume),
            Some(volume) => self.settle_volume(&volume)?,
            None => None,
        };
        let Some(volume) = volume else { return Ok(None) };
        if let (Some(made), Some(asked)) = (&volume.claim, &request.volume.claim)
            && made != asked
        {
            return Err(Error::InUse(format!(
                "volume {id} was made of {path} for claim {made} (PersistentVolume {}), not for {asked}",
                made.persistent_volume
            )));
        }
        Ok(Some((self.acknowledge_volume(volume)?, guard)))
    }

    /// Returns where the source of a copy is now, as far as it can be seen. In its place, it has the path of the request.
    fn whereabouts(&self, volume: &Volume, request: &AdoptVolume) -> Option<PathBuf> {
        let adopted = volume.adopted.as_ref().filter(|adopted| adopted.way != Taken::Renamed)?;
        let around = self.around(request).ok().flatten()?;
        if self.os.files.stat(&around.at()).ok()?.is_some_and(|found| found.id.ino == adopted.inode) {
            return Some(request.path.clone());
        }
        let is_marked = self.os.files.stat(&around.marked(&volume.id)).ok()?.is_some();
        is_marked.then(|| around.shown_marked(&volume.id))
    }

    /// Answers for a path that a volume was made of before.
    fn repeated(
        &self,
        volume: &Arc<Volume>,
        source: Option<&Source>,
        request: &AdoptVolume,
    ) -> Result<AdoptedVolume> {
        let inode = volume.adopted.as_ref().map(|adopted| adopted.inode);
        match (source, self.around(request)?) {
            (Some(source), _) if inode != Some(source.stat.id.ino) => Err(Error::InUse(format!(
                "volume {} was made of what was at {}, and something else is there now; rename that to make another volume of it",
                volume.id,
                source.shown()
            ))),
            (Some(source), _) => self.finish_again(volume, source, request),
            (None, Some(around)) => self.finish(volume, &around, None, request),
            (None, None) => Ok(answer(Arc::clone(volume), None)),
        }
    }

    /// Takes the source out of the way that an earlier request has left. It may have been written to since it was compared, so that it is
    /// kept in any case.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it is in use, or was written to since it was copied.
    fn finish_again(
        &self,
        volume: &Arc<Volume>,
        source: &Source,
        request: &AdoptVolume,
    ) -> Result<AdoptedVolume> {
        self.expect_adoptable(source)?;
        let request = AdoptVolume { remove_source: false, ..request.clone() };
        self.finish(volume, &source.around, Some(source), &request)
    }

    /// Takes the source of a volume that is whole out of the way.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it was written to since it was copied: it stays in its place.
    fn finish(
        &self,
        volume: &Arc<Volume>,
        around: &Around,
        source: Option<&Source>,
        request: &AdoptVolume,
    ) -> Result<AdoptedVolume> {
        let Some(adopted) = &volume.adopted else { return Ok(answer(Arc::clone(volume), None)) };
        // A dry run as well: after it, a claim is given to the volume.
        if let Some(source) = source {
            self.expect_its_source(source, volume, adopted)?;
        }
        if request.dry_run || request.look {
            return Ok(answer(Arc::clone(volume), None));
        }
        let (id, marked) = (&volume.id, around.marked(&volume.id));
        let renaming = || format!("rename {} to {}", request.path.display(), marked.display());
        let is_left = match (source, adopted.settled) {
            // A power cut between the two syncs of the rename can leave both names.
            (Some(source), true) => {
                self.os.files.remove_file(&source.at()).doing(renaming)?;
                self.os.files.sync_directory(around.parent()).doing(renaming)?;
                false
            }
            (Some(source), false) => {
                self.os.files.rename(&source.at(), &marked).doing(renaming)?;
                self.os.files.sync_directory(around.parent()).doing(renaming)?;
                true
            }
            (None, _) => self.os.files.stat(&marked).doing(renaming)?.is_some(),
        };
        let volume = match adopted.settled {
            true => Arc::clone(volume),
            false => {
                let adopted = Some(Adopted { settled: true, ..adopted.clone() });
                self.record(Volume { adopted, ..(**volume).clone() })?
            }
        };
        // A program that has it open may have gone on writing.
        if is_left && request.remove_source && self.is_as_copied(&marked, &volume)? {
            let removing = || format!("remove {}", around.shown_marked(id).display());
            self.os.trees.remove(&marked).doing(removing)?;
            self.os.files.sync_directory(around.parent()).doing(removing)?;
            return Ok(answer(volume, None));
        }
        let left = is_left.then(|| around.shown_marked(id));
        Ok(answer(volume, left))
    }

    /// Makes sure that what is at the path is what the volume was made of.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    fn expect_its_source(&self, source: &Source, volume: &Volume, adopted: &Adopted) -> Result<()> {
        match adopted.settled {
            false => self.expect_unwritten(source, volume),
            true if self.is_second_name(volume, source)? => Ok(()),
            // Its inode number was given to another file.
            true => Err(Error::InUse(format!(
                "volume {} was made of what was at {}, and what is there now has the same inode number; rename it",
                volume.id,
                source.shown()
            ))),
        }
    }

    /// Whether the image of the volume is the very file of the source.
    fn is_second_name(&self, volume: &Volume, source: &Source) -> Result<bool> {
        let data = self.paths(volume)?.data();
        let found = self.os.files.stat(&data).doing(|| format!("look at {}", data.display()))?;
        Ok(source.stat.kind == FileKind::File && found.is_some_and(|found| found.id == source.stat.id))
    }
}

fn answer(volume: Arc<Volume>, left: Option<PathBuf>) -> AdoptedVolume {
    let way = volume.adopted.as_ref().map(|adopted| adopted.way);
    AdoptedVolume { volume: Some(volume), way, left, made: true }
}

/// What the request asks for, as a new volume.
fn wanted(node_key: &crate::model::NodeKey, request: &AdoptVolume, source: &Source) -> Wanted {
    let (name, asked) = (source.volume_name(request), request.volume.clone());
    Wanted {
        id: VolumeId::of_name(node_key, &name),
        name,
        size: SizeRange { limit: 0, ..asked.size },
        capabilities: asked.capabilities,
        parameters: asked.parameters,
        source: None,
        consistency: asked.consistency,
        way: None,
        as_copy: false,
        convert: false,
        generation: None,
        inline_target: None,
        claim: asked.claim,
    }
}

/// What calls for one path take turns by.
fn turn_of(node_key: &crate::model::NodeKey, request: &AdoptVolume) -> VolumeId {
    VolumeId::of_name(node_key, &format!("adopting {}", request.path.display()))
}

fn changed(request: &AdoptVolume) -> Error {
    Error::Unavailable(format!("{} changed while it was looked at; try again", request.path.display()))
}

/// Whether a volume is wanted as a raw block device.
fn is_block(capabilities: &[Capability]) -> bool {
    capabilities.iter().any(Capability::is_block)
}
