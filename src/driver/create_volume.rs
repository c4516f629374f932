//! CSI CreateVolume.

use std::sync::Arc;

use super::copies::origin::{self, Origin};
use super::locks::Mode;
use super::locks::turns::Urgency;
use super::pools::enforce::Chosen;
use super::pools::{directories, enforce};
use super::{Driver, request::check};
use crate::backend::{Mark, content_for, minimum_bytes, refused_option, unsupported};
use crate::error::{Error, Result};
use crate::model::pull::Way;
use crate::model::request::{CreateVolume, Source};
use crate::model::{
    Capability, Claim, Consistency, Content, CopyOf, ObjectId, Phase, SizeRange, Timestamp, Volume, VolumeId,
    VolumeParameters, VolumeSource, format_exactly,
};

/// What a new volume is to be; also for an inline volume.
pub(crate) struct Wanted {
    pub(super) id: VolumeId,
    pub(super) name: String,
    pub(super) size: SizeRange,
    pub(super) capabilities: Vec<Capability>,
    pub(super) parameters: VolumeParameters,
    pub(super) source: Option<Source>,
    pub(super) consistency: Consistency,
    /// The way to a source on another node.
    pub(super) way: Option<Way>,
    /// It becomes a copy that is brought up to date with its source.
    pub(super) as_copy: bool,
    /// How often the source of that copy has moved; `None` for any number.
    pub(super) generation: Option<u64>,
    /// The copy gets the backend and the filesystem that are asked for, whatever its source has.
    pub(super) convert: bool,
    /// Where an inline volume is published.
    pub(super) inline_target: Option<String>,
    /// The claim that it is for.
    pub(super) claim: Option<Claim>,
}

impl Driver {
    /// Makes a volume, or finds the one that an earlier call with the same name made. A copy goes on when its caller
    /// gives up: a retry is answered ABORTED, with the progress, until the copy has ended, and then gets the volume.
    ///
    /// # Errors
    /// ALREADY_EXISTS where the name is taken by a volume that does not fit; INVALID_ARGUMENT for capabilities
    /// or parameters that no volume can have, or that the source cannot become; NOT_FOUND for the source;
    /// OUT_OF_RANGE for the size; RESOURCE_EXHAUSTED without room, or where the requirement names other nodes only;
    /// UNAVAILABLE where the source is on another node that cannot be reached; ABORTED where the reservation is over.
    /// After any error nothing of the volume is left.
    pub fn create_volume(&self, request: CreateVolume) -> Result<Arc<Volume>> {
        let id = VolumeId::of_name(&self.node_key, &request.name);
        let CreateVolume {
            name,
            size,
            capabilities,
            parameters,
            source,
            consistency,
            topology,
            way,
            reservation,
            as_copy,
            generation,
            convert,
            claim,
        } = request;
        let named = source.as_ref().and_then(|source| origin::named(self, source));
        // The node that a volume is pulled from locks the source. That may be this node: a volume that moves to another pool can be used meanwhile.
        let is_pulled = way.is_some() && self.remote_sources.is_some();
        let local =
            named.as_ref().filter(|_| !is_pulled).map(|source| (ObjectId::from(source).into(), Mode::Shared));
        let keys = local.into_iter().chain([((&id).into(), Mode::Exclusive)]);
        let guard = self.lock_all(keys);
        if let (Err(_), Some(source), Some(way)) = (&guard, &named, &way) {
            // Perhaps it is pulled at this moment, from a node that has moved meanwhile, with a permit that ends.
            self.pulls.show(&id, source, way);
        }
        let _guard = guard?;
        let wanted = Wanted {
            id: id.clone(),
            name,
            size,
            capabilities,
            parameters,
            source,
            consistency,
            way,
            as_copy,
            generation,
            convert,
            inline_target: None,
            claim,
        };
        let (node, elsewhere) = (self.node_id(), topology.is_some_and(|is| !is.allows(self.node_id())));
        match self.existing(&wanted)? {
            Some(_) if elsewhere => Err(Error::AlreadyExists(format!(
                "volume {:?} exists on node {node:?}, which accessibility_requirements leave out",
                wanted.name
            ))),
            Some(volume) => fits(&volume, &wanted, named.as_ref()).map(|()| volume),
            None if elsewhere => Err(Error::Exhausted(format!(
                "accessibility_requirements leave out node {node:?}, the only one here"
            ))),
            None => {
                let _turn = match (&named, &wanted.way) {
                    (Some(_), Some(way)) => Some(self.copy_turn_for(way.node_key.as_str(), Urgency::Usual)?),
                    _ => wanted.source.is_some().then(|| self.copy_turn()).transpose()?,
                };
                reservation.as_ref().map_or(Ok(()), |token| self.redeem(&wanted.id, token))?;
                self.make_volume(wanted)
            }
        }
    }

    /// The volume that is there already; what a failed call could not undo is removed first.
    pub(super) fn existing(&self, wanted: &Wanted) -> Result<Option<Arc<Volume>>> {
        let there = match self.store.get(&wanted.id) {
            Some(volume) if volume.is_ready() => Some(volume),
            Some(volume) => self.settle_volume(&volume)?,
            None => None,
        };
        if there.is_none() {
            self.expect_free(&wanted.id)?;
        }
        there.map(|volume| self.acknowledge_volume(volume)).transpose()
    }

    /// Checks that no volume with another id has the directory of a new volume, or had its id.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    fn expect_free(&self, id: &VolumeId) -> Result<()> {
        if let Some(moved) = self.moved(id) {
            return Err(moved);
        }
        match self.store.volumes().iter().find(|volume| volume.directory() == id) {
            Some(other) => Err(Error::InUse(format!(
                "volume {} was made as {id} and keeps its directory; choose another name",
                other.id
            ))),
            None => Ok(()),
        }
    }

    /// Takes the marks away from a volume that is recorded as `ready`: nobody is told of it before.
    pub(super) fn acknowledge_volume(&self, volume: Arc<Volume>) -> Result<Arc<Volume>> {
        // Where the pool is away, they go when it is back.
        let Ok(paths) = self.paths(&volume) else { return Ok(volume) };
        if volume.is_made_of_something() {
            Mark::Making.clear(&self.os, &paths)?;
        }
        if Mark::Deleting.is_set(&self.os, &paths)? {
            tracing::warn!(volume.id = %volume.id, "its deletion had begun when an older state file was restored: check that its data are complete");
            Mark::Deleting.clear(&self.os, &paths)?;
        }
        Ok(volume)
    }

    /// Makes a volume. Its record says `creating` before the first file is made and `ready` after the last is
    /// durable, so a crash anywhere leaves something that start-up removes, or the whole volume.
    pub(super) fn make_volume(&self, wanted: Wanted) -> Result<Arc<Volume>> {
        let consistency = wanted.consistency;
        let origin = wanted.source.as_ref().map(|source| self.origin(source, &wanted)).transpose()?;
        let volume = self.design(wanted, origin.as_ref())?;
        let pool = self.pools.require(volume.pool())?;
        self.nothing_on_disk(&self.paths(&volume)?)?;
        let plan = origin.as_ref().map(|origin| self.plan(origin, &volume)).transpose()?;
        let copied = plan.map_or(0, |(_, bytes)| bytes);
        let mut reservation = self.reserve(&pool, Self::want(&volume), copied)?.recording(&volume.id);
        let shared =
            origin.as_ref().zip(plan).map(|(origin, (share, _))| self.reserve_shared(&pool, origin, share));
        let shared = shared.transpose()?.flatten();
        // Until its record says so, nobody else is given it.
        let quota = self.choose_quota(&pool, &volume)?;
        if let Some(origin) = origin.as_ref().filter(|_| volume.copy_of.is_some()) {
            // A record whose write failed may be there all the same.
            origin.keep();
        }
        let volume = self.store.put(Volume { quota: quota.as_ref().map(Chosen::id), ..volume })?;
        reservation.recorded();
        drop(quota);
        let paths = self.paths(&volume)?;
        let made = match origin.as_ref().zip(plan) {
            Some((origin, plan)) => self.copy_origin(origin, &volume, plan, consistency),
            None => self
                .record_of_volume(&volume)
                .and_then(|record| paths.bytes().create(self.place(&volume, &paths), &record)),
        };
        if shared.is_some() {
            self.measure_again(&pool.name);
        }
        let made =
            made.and_then(|()| Ok(self.store.put(Volume { phase: Phase::Ready, ..(*volume).clone() })?));
        let made = made.map_err(|cause| cause.after_undo(self.remove_volume(&volume)))?;
        let acknowledged = self.acknowledge_volume(Arc::clone(&made));
        acknowledged.map_err(|cause| cause.after_undo(self.delete(&made)))
    }

    /// The record of a new volume, with everything decided.
    pub(super) fn design(&self, wanted: Wanted, origin: Option<&Origin>) -> Result<Volume> {
        let Wanted { id, name, size, capabilities, parameters, as_copy, generation, convert, .. } = wanted;
        let (inline_target, claim, converted) = (wanted.inline_target, wanted.claim, as_copy && convert);
        let content = match origin {
            Some(origin) => origin.content_for(&parameters, &capabilities, converted)?,
            None => content_for(&parameters, &capabilities)?,
        };
        let copy_of = as_copy.then(|| first_cut(origin, generation, &content)).transpose()?;
        let refused =
            |c| unsupported(&content, &parameters, c).or_else(|| refused_option(&self.os, &content, c));
        if let Some(reason) = capabilities.iter().find_map(refused) {
            return Err(Error::Invalid(reason));
        }
        let pool = self.pools.require(&parameters.pool)?;
        let parameters = enforce::settle(&pool, parameters);
        directories::admit(&self.store, &pool, &parameters)?;
        enforce::expect_possible(&self.os, &pool, &parameters)?;
        enforce::switch_on(&self.os, &pool, &parameters)?;
        if let Some(fs_type) = content.fs_type() {
            let tools = self.os.filesystems.check_tools(fs_type);
            tools
                .map_err(|e| Error::InUse(format!("{fs_type} volumes are not possible on this node: {e}")))?;
        }
        let minimum = minimum_bytes(&content, &parameters);
        let range = origin.map_or(Ok(size), |origin| origin.size_for(size, minimum))?;
        let capacity_bytes = range.choose(minimum, self.largest(&pool, &parameters))?;
        let requested_bytes = match origin {
            Some(origin) => origin.requested_for(size, capacity_bytes),
            None => size.requested(capacity_bytes),
        };
        let block_size = match origin {
            Some(origin) if !origin.converts_to(&content) => origin.block_size,
            _ => pool.block_size(&self.os, parameters.direct_io)?,
        };
        let capabilities = capabilities.into_iter().map(check::without_flags).collect();
        Ok(Volume {
            name,
            created: created(as_copy, origin),
            capacity_bytes,
            requested_bytes,
            capabilities,
            block_size,
            source: origin.map(|origin| origin.source.clone()),
            copy_of,
            inline_target,
            claim,
            converted,
            ..Volume::new(id, Phase::Creating, content, parameters)
        })
    }
}

/// Returns when a volume is made: now, or for a copy that may become its source when that was made.
fn created(as_copy: bool, origin: Option<&Origin>) -> Option<Timestamp> {
    match origin.filter(|_| as_copy) {
        Some(origin) => origin.volume_created(),
        None => Some(Timestamp::now()),
    }
}

/// Returns the first cut of a copy that is brought up to date.
///
/// # Errors
/// INVALID_ARGUMENT without a source, and for one that is no volume of another node; FAILED_PRECONDITION for another generation.
fn first_cut(origin: Option<&Origin>, generation: Option<u64>, content: &Content) -> Result<CopyOf> {
    let missing = "a copy that is brought up to date needs a volume as its content source";
    origin.ok_or_else(|| Error::Invalid(missing.to_owned()))?.as_copy(generation, content)
}

/// Whether an existing volume is what a repeated call asks for (csi.proto: compatible).
///
/// # Errors
/// ALREADY_EXISTS with what differs.
pub(super) fn fits(volume: &Volume, wanted: &Wanted, source: Option<&VolumeSource>) -> Result<()> {
    let differs =
        |what: String| Err(Error::AlreadyExists(format!("volume {:?} exists with {what}", wanted.name)));
    if !wanted.size.contains(volume.capacity_bytes) {
        return differs(format_exactly(volume.capacity_bytes));
    }
    if !check::are_asked_for(&volume.parameters, &wanted.parameters) {
        return differs("other parameters".to_owned());
    }
    if wanted.as_copy && volume.copy_of.is_none() {
        return differs("the same source, and is complete: it is brought up to date no more".to_owned());
    }
    // A source whose id is none of ours is not a volume's.
    if volume.source.as_ref() != source || wanted.source.is_some() != source.is_some() {
        return differs(match &volume.source {
            Some(VolumeSource::Snapshot(id)) => format!("the content of snapshot {id}"),
            Some(VolumeSource::Volume(id)) => format!("the content of volume {id}"),
            None => "no content source".to_owned(),
        });
    }
    match wanted
        .capabilities
        .iter()
        .find_map(|c| unsupported(&volume.content, &volume.parameters, &check::as_converted(volume, c)))
    {
        Some(reason) => differs(format!("other capabilities: {reason}")),
        None => Ok(()),
    }
}
