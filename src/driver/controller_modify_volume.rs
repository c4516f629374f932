//! CSI ControllerModifyVolume.

use std::sync::Arc;

use super::capacity::Want;
use super::{Driver, Pool, pools::directories};
use crate::backend::{VolumePaths, presence_of};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{LoopDevice, is_errno};
use crate::model::request::ControllerModifyVolume;
use crate::model::{Modification, Provisioning, Volume, VolumeParameters};
use nix::errno::Errno;

/// A directory is thin, and has no image of which anything else could be true; the size of an image is always enforced.
fn expect_fitting(volume: &Volume, modification: Modification) -> Result<()> {
    let Modification { provisioning, direct_io, discard, enforcement } = modification;
    match volume.parameters.backend.has_image() {
        true if enforcement.is_some() => Err(Error::Invalid(format!(
            "volume {} is an image, whose size is always enforced; leave enforcement out",
            volume.id
        ))),
        false if provisioning == Some(Provisioning::Thick) || direct_io.is_some() || discard.is_some() => {
            Err(Error::Invalid(format!(
                "volume {} is a directory; of provisioning, directIO and discard it can only have provisioning=thin",
                volume.id
            )))
        }
        _ => Ok(()),
    }
}

impl Driver {
    /// Changes what a VolumeAttributesClass may change, all of it or nothing; what it does not name stays, and a repeat
    /// is fine.
    ///
    /// - `provisioning` thin to thick: every block is allocated before the answer, and none is given back from then on.
    ///   Thick to thin: the promise ends, the blocks stay until the volume's user discards them.
    /// - `directIO`: a device in use is switched at once.
    /// - `discard`: off takes effect at once; on, with the next attachment, since the kernel has no way back for a
    ///   device in use.
    /// - `enforcement` none to required: everything in the directory counts from then on, and its size is promised.
    ///
    /// # Errors
    /// NOT_FOUND; INVALID_ARGUMENT for what no volume of this kind has; RESOURCE_EXHAUSTED without room for a thick
    /// volume; FAILED_PRECONDITION where its blocks are shared and cannot be made its own. Nothing has changed then.
    pub fn controller_modify_volume(&self, request: ControllerModifyVolume) -> Result<()> {
        let (_guard, volume) = self.take_volume(&request.volume_id)?;
        let modification = request.modification.map_err(Error::Invalid)?;
        super::request::check::may_change(&volume)?;
        let parameters = modification.apply(&volume.parameters);
        expect_fitting(&volume, modification)?;
        if !parameters.backend.has_image() {
            return self.limit_directory(&volume, parameters);
        }
        if modification.discard == Some(true) && parameters.provisioning == Provisioning::Thick {
            return Err(Error::Invalid(format!(
                "discard=true does not work with provisioning=thick: volume {} would give its blocks back",
                volume.id
            )));
        }
        let paths = self.paths(&volume)?;
        let place = self.place(&volume, &paths);
        self.see_all_devices()?;
        let uses = presence_of(&volume.content).uses(place)?;
        uses.sound(place)?; // a device that may be its own must not stay as it is
        self.modify(&volume, parameters, &paths, &uses.loops)
    }

    /// The order: what can be taken back (direct I/O), then the space, which a failure may leave allocated, then the end
    /// of discards, and with all of it in force the record.
    fn modify(
        &self,
        volume: &Arc<Volume>,
        parameters: VolumeParameters,
        paths: &VolumePaths,
        devices: &[LoopDevice],
    ) -> Result<()> {
        let what = format_args!("volume {}", volume.id);
        paths.bytes().expect_whole(&self.os, paths, volume.capacity_bytes, &what)?;
        let before = &volume.parameters;
        let pool = self.pool_of(volume)?;
        let switched: Vec<&LoopDevice> = devices
            .iter()
            .filter(|device| {
                parameters.direct_io != before.direct_io && device.direct_io != parameters.direct_io
            })
            .collect();
        self.switch_direct_io(&pool, &switched, parameters.direct_io)?;
        let modified = self.become_thick(&pool, volume, &parameters, paths).and_then(|reservation| {
            let stops = devices.iter().filter(|device| !device.read_only && !parameters.discards());
            for device in stops {
                self.os.loops.stop_discard(device).doing(|| format!("stop discards of {}", volume.id))?;
            }
            if reservation.is_some() {
                self.allocate(volume, paths)?; // what was discarded until now
            }
            self.record(Volume { parameters: parameters.clone(), ..(**volume).clone() })?;
            Ok(())
        });
        self.measure_again(&pool.name);
        modified.map_err(|cause| cause.after_undo(self.switch_direct_io(&pool, &switched, before.direct_io)))
    }

    /// Switches devices in use, all or none.
    fn switch_direct_io(&self, pool: &Pool, devices: &[&LoopDevice], on: bool) -> Result<()> {
        for (done, device) in devices.iter().enumerate() {
            let Err(error) = self.os.loops.set_direct_io(device, on) else { continue };
            let refused = is_errno(&error, Errno::EINVAL);
            let context = || format!("set direct I/O of {} to {on}", device.path().display());
            let cause = match refused {
                true => Error::Invalid(format!(
                    "directIO={on} is not possible: the disk of pool {} cannot do it for this volume",
                    pool.name
                )),
                false => Error::Os { context: context(), source: error },
            };
            let undo = devices
                .iter()
                .take(done)
                .try_for_each(|device| self.os.loops.set_direct_io(device, !on).doing(context));
            return Err(cause.after_undo(undo));
        }
        Ok(())
    }

    /// Allocates the whole image of a volume that is to be thick. What is allocated when the call fails stays: the
    /// volume is thin, and nobody sees a difference.
    fn become_thick(
        &self,
        pool: &Pool,
        volume: &Volume,
        parameters: &VolumeParameters,
        paths: &VolumePaths,
    ) -> Result<Option<super::capacity::Reservation>> {
        let (before, after) = (volume.parameters.provisioning, parameters.provisioning);
        if (before, after) != (Provisioning::Thin, Provisioning::Thick) {
            return Ok(None);
        }
        directories::admit(&self.store, pool, parameters)?;
        let image = paths.data();
        let shared = pool.probe.may_reflink() && self.has_shared_extents(&image)?;
        let unshares = shared && !self.may_share(pool, pool, true)?;
        let allocated = paths.bytes().allocated(&self.os, paths)?;
        let missing = volume.capacity_bytes.saturating_sub(if unshares { 0 } else { allocated });
        // Its thin promise counts as well until the record changes: the sum of both is held for a moment only.
        let want = Want::Volume(parameters.is_sized(), Provisioning::Thick, volume.capacity_bytes);
        let reservation = self.reserve_instead(pool, want, missing, volume)?;
        if unshares {
            self.os.images.unshare(&image).map_err(|error| match is_errno(&error, Errno::EOPNOTSUPP) {
                true => Error::InUse(format!(
                    "volume {} shares blocks with a snapshot or a clone, and the filesystem of pool {} cannot give it blocks of its own: delete the copies, or make a new thick volume",
                    volume.id, pool.name
                )),
                false => Error::Os { context: format!("unshare {}", volume.id), source: error },
            })?;
        }
        self.allocate(volume, paths)?;
        Ok(Some(reservation))
    }

    fn allocate(&self, volume: &Volume, paths: &VolumePaths) -> Result<()> {
        let (image, allocating) = (paths.data(), || format!("allocate {}", volume.id));
        self.os.images.allocate(&image, volume.capacity_bytes).doing(allocating)?;
        self.os.files.sync_file(&image).doing(allocating)
    }
}
