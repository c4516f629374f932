//! CSI CreateVolume.

use std::sync::Arc;

use super::{Driver, after_undo, check};
use crate::backend::backend_of;
use crate::error::{Error, OsContext, Result};
use crate::model::request::CreateVolume;
use crate::model::{
    AccessType, Capability, Content, MountFlags, Phase, SizeRange, Volume, VolumeId, VolumeParameters,
};
use crate::store::Durability;

/// What a new volume is made from; also for an inline volume.
pub(super) struct Wanted {
    pub(super) id: VolumeId,
    pub(super) name: String,
    pub(super) size: SizeRange,
    pub(super) capabilities: Vec<Capability>,
    pub(super) parameters: VolumeParameters,
}

impl Driver {
    /// Makes a volume, or finds the one that an earlier call with the same name made.
    ///
    /// # Errors
    /// ALREADY_EXISTS where the name is taken by a volume that does not fit; INVALID_ARGUMENT for capabilities
    /// or parameters that no volume can have; OUT_OF_RANGE for the size; RESOURCE_EXHAUSTED without room, or
    /// where the requirement names other nodes only. After any error nothing of the volume is left.
    pub fn create_volume(&self, request: CreateVolume) -> Result<Arc<Volume>> {
        let id = VolumeId::of_name(&self.node_key, &request.name);
        let _guard = self.lock(&id)?;
        let CreateVolume { name, size, capabilities, parameters, topology } = request;
        let wanted = Wanted { id, name, size, capabilities, parameters };
        let node = &self.settings.node_id;
        let elsewhere = topology.is_some_and(|topology| !topology.allows(node));
        match self.existing(&wanted)? {
            Some(_) if elsewhere => Err(Error::AlreadyExists(format!(
                "volume {:?} exists on node {node:?}, which accessibility_requirements leave out",
                wanted.name
            ))),
            Some(volume) => fits(&volume, &wanted).map(|()| volume),
            None if elsewhere => Err(Error::Exhausted(format!(
                "accessibility_requirements leave out node {node:?}, the only one here"
            ))),
            None => self.make_volume(wanted),
        }
    }

    /// The volume that is there already; what a failed call could not undo is removed first.
    pub(super) fn existing(&self, wanted: &Wanted) -> Result<Option<Arc<Volume>>> {
        match self.store.get(&wanted.id) {
            Some(volume) if volume.is_ready() => Ok(Some(volume)),
            Some(volume) => self.remove_volume(&volume).map(|()| None),
            None => Ok(None),
        }
    }

    /// Makes a volume. Its record says `creating` before the first file is made and `ready` after the last is
    /// durable, so a crash anywhere leaves something that start-up removes, or the whole volume.
    pub(super) fn make_volume(&self, wanted: Wanted) -> Result<Arc<Volume>> {
        let volume = self.design(wanted)?;
        let pool = self.pools.require(volume.pool())?;
        self.nothing_on_disk(&volume)?;
        let reservation = self.reserve(pool, &volume, volume.capacity_bytes)?;
        let volume = self.store.put(volume)?;
        drop(reservation);
        let paths = self.paths(&volume)?;
        let made = backend_of(&volume.content)
            .create(self.place(&volume, &paths))
            .and_then(|()| Ok(self.store.put(Volume { phase: Phase::Ready, ..(*volume).clone() })?));
        made.map_err(|cause| after_undo(cause, self.remove_volume(&volume)))
    }

    /// Makes sure that no files are where the volume's are to be. Without a record they are not ours to remove:
    /// perhaps an old state file was restored.
    fn nothing_on_disk(&self, volume: &Volume) -> Result<()> {
        let directory = self.paths(volume)?.directory;
        let looking = || format!("look at {}", directory.display());
        match self.os.disks.stat(&directory).doing(looking)? {
            None => Ok(()),
            Some(_) => Err(Error::InUse(format!(
                "{} is there, and no record tells of it: move it away if its data are not needed",
                directory.display()
            ))),
        }
    }

    /// The record of a new volume, with everything decided.
    fn design(&self, wanted: Wanted) -> Result<Volume> {
        let Wanted { id, name, size, capabilities, parameters } = wanted;
        let content = check::content_for(&parameters, &capabilities)?;
        if let Some(reason) = capabilities.iter().find_map(|c| check::unsupported(&content, &parameters, c)) {
            return Err(Error::Invalid(reason));
        }
        let pool = self.pools.require(&parameters.pool)?;
        if let Content::Filesystem { fs_type, .. } = content {
            let tools = self.os.filesystems.check_tools(fs_type);
            tools
                .map_err(|e| Error::InUse(format!("{fs_type} volumes are not possible on this node: {e}")))?;
        }
        let capacity_bytes = size.choose(Volume::minimum_bytes(&content), self.settings.max_volume_bytes)?;
        let block_size = pool.block_size(parameters.direct_io);
        let capabilities = capabilities.into_iter().map(without_flags).collect();
        let (phase, attachments) = (Phase::Creating, Vec::new());
        Ok(Volume {
            id,
            name,
            phase,
            capacity_bytes,
            content,
            parameters,
            capabilities,
            block_size,
            attachments,
        })
    }

    /// Removes a volume's files and its record, in this order: a crash in between is finished by start-up.
    pub(super) fn remove_volume(&self, volume: &Volume) -> Result<()> {
        let paths = self.paths(volume)?;
        backend_of(&volume.content).remove(self.place(volume, &paths))?;
        // The record need not be gone durably before the answer: where it comes back, start-up removes it again.
        Ok(self.store.delete(&volume.id, Durability::Lazy)?)
    }
}

/// Mount flags may be sensitive and say nothing about the volume: a record has none.
pub(super) fn without_flags(capability: Capability) -> Capability {
    match capability.access {
        AccessType::Mount { fs_type, .. } => Capability {
            access: AccessType::Mount { fs_type, flags: MountFlags::default() },
            mode: capability.mode,
        },
        AccessType::Block => capability,
    }
}

/// Whether an existing volume is what a repeated call asks for (csi.proto: compatible).
///
/// # Errors
/// ALREADY_EXISTS with what differs.
pub(super) fn fits(volume: &Volume, wanted: &Wanted) -> Result<()> {
    let differs =
        |what: String| Err(Error::AlreadyExists(format!("volume {:?} exists with {what}", wanted.name)));
    if !wanted.size.contains(volume.capacity_bytes) {
        return differs(format!("{} bytes", volume.capacity_bytes));
    }
    if volume.parameters != wanted.parameters {
        return differs("other parameters".to_owned());
    }
    match wanted.capabilities.iter().find_map(|c| check::unsupported(&volume.content, &volume.parameters, c))
    {
        Some(reason) => differs(format!("other capabilities: {reason}")),
        None => Ok(()),
    }
}
