//! CSI ControllerExpandVolume.

use std::sync::Arc;

use super::{Driver, pools::directories, request::check};
use crate::backend::{minimum_bytes, presence_of};
use crate::error::{Error, Result};
use crate::model::answer::Expanded;
use crate::model::request::ControllerExpandVolume;
use crate::model::{SizeRange, Volume, format_exactly, rounded};

impl Driver {
    /// Grows a volume's storage; a raw device in use takes on the size at once, a filesystem with
    /// NodeExpandVolume or its next staging. A volume that is large enough stays as it is.
    ///
    /// # Errors
    /// NOT_FOUND; OUT_OF_RANGE for a size that cannot be; INVALID_ARGUMENT for a capability that the volume
    /// does not have, and for a loop volume that is left in a pool of directory volumes; RESOURCE_EXHAUSTED without
    /// room.
    pub fn controller_expand_volume(&self, request: ControllerExpandVolume) -> Result<Expanded> {
        let (_guard, volume) = self.take_volume(&request.volume_id)?;
        check::is_no_copy(&volume)?;
        // If it was expanded before its data began to move, csi-resizer has to hear that: otherwise the PersistentVolume keeps the earlier
        // size, and the node of the copy takes no pass of a volume that is larger.
        let is_large_enough = (1..=volume.capacity_bytes).contains(&request.size.required);
        if !is_large_enough {
            check::may_change(&volume)?;
        }
        if let Some(capability) = &request.capability {
            check::capability(&volume, capability, Error::Invalid)?;
        }
        let volume = self.expand(volume, request.size)?;
        let volume = self.record_request(volume, request.size)?;
        if volume.is_block() {
            let paths = self.paths(&volume)?;
            let place = self.place(&volume, &paths);
            let presence = presence_of(&volume.content);
            self.see_all_devices()?;
            let uses = presence.uses(place)?;
            uses.sound(place)?; // a device that may be its own must not keep the old size
            presence.grow_in_use(place, &uses)?;
        }
        let node_expansion_required = volume.fs_type().is_some();
        Ok(Expanded { capacity_bytes: volume.capacity_bytes, node_expansion_required })
    }

    /// Records a request that the volume's size is enough for, if it is the one that the size was made for: the size of an
    /// expansion that was cut off is found without it.
    fn record_request(&self, volume: Arc<Volume>, size: SizeRange) -> Result<Arc<Volume>> {
        let Some(asked) = size.requested(volume.capacity_bytes) else { return Ok(volume) };
        let is_it = match volume.requested_bytes {
            Some(requested) => asked > requested,
            None => rounded(asked, 0) == volume.capacity_bytes,
        };
        match is_it {
            true => Ok(self.record(Volume { requested_bytes: Some(asked), ..(*volume).clone() })?),
            false => Ok(volume),
        }
    }

    /// Grows the storage of a volume whose lock the caller holds. The image grows first and the record
    /// follows; start-up takes over the size of an image whose record a crash left behind.
    pub(super) fn expand(&self, volume: Arc<Volume>, size: SizeRange) -> Result<Arc<Volume>> {
        if size.limit != 0 && size.limit < volume.capacity_bytes {
            let (limit, bytes) = (format_exactly(size.limit), format_exactly(volume.capacity_bytes));
            return Err(Error::OutOfRange(format!(
                "limit_bytes {limit} is less than the {bytes} that the volume has"
            )));
        }
        if size.required <= volume.capacity_bytes {
            return Ok(volume);
        }
        let pool = self.pool_of(&volume)?;
        let most = self.largest(&pool, &volume.parameters);
        let bytes = size.choose(minimum_bytes(&volume.content, &volume.parameters), most)?;
        if volume.parameters.is_sized() {
            directories::admit(&self.store, &pool, &volume.parameters)?; // more would be promised
        }
        let _reservation = self.reserve_volume(&pool, &volume, bytes - volume.capacity_bytes)?;
        let paths = self.paths(&volume)?;
        let (place, data) = (self.place(&volume, &paths), paths.bytes());
        let before = data.grow(place, bytes)?;
        let requested_bytes = size.requested(bytes);
        let grown = Volume { capacity_bytes: bytes, requested_bytes, ..(*volume).clone() };
        let stored = self.record(grown);
        // The state file may hold the new size all the same: the image is shortened only when that is undone for sure.
        // Where it stays long, the next start takes its size over.
        let undo = || {
            self.record((*volume).clone())?;
            data.ungrow(place, before)
        };
        let grown = stored.map_err(|cause| cause.after_undo(undo()))?;
        // Its total is another one, however long the last count may be kept.
        self.usage.forget(&volume.id);
        Ok(grown)
    }
}
