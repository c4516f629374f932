//! SealVolume of the protocol between the processes of a cluster.

use crate::driver::Driver;
use crate::driver::request::check;
use crate::error::{Busy, Error, Result};
use crate::model::Volume;

impl Driver {
    /// Seals a volume because its data move to another node, or to another pool of this node, so that it cannot be staged or published
    /// here; or takes the seal back. If its data stay on this node and no pod has the volume, it is unstaged as well: kubelet keeps a volume
    /// staged for a pod that waits for it here. `generation` is the number of moves of the volume. `unsealed` is the number of seals that were taken back, as FindVolume
    /// answers it: a request with an earlier number comes late. Succeeds if that has been done and nothing uses the volume.
    ///
    /// # Errors
    /// NOT_FOUND; ABORTED while another operation on it runs, and for another number of seals; FAILED_PRECONDITION for a copy and for
    /// another generation; the same while the volume is in use. It is sealed nevertheless: its pods go on, and no other pod gets it.
    pub fn seal_volume(
        &self,
        volume_id: &str,
        (generation, unsealed): (u64, u64),
        moved_to: Option<String>,
    ) -> Result<()> {
        let (_guard, volume) = self.take_volume(volume_id)?;
        check::is_no_copy(&volume)?;
        if let Some(retired) = &volume.retired {
            return Err(Error::InUse(format!(
                "volume {} is what is left of volume {}, which is on node {:?} now",
                volume.id, retired.was, retired.node_id
            )));
        }
        check::has_generation(&volume, generation, &self.settings.node_id)?;
        if volume.unsealed != unsealed {
            let why = format!("its seal was taken back {} times, and not {unsealed} times", volume.unsealed);
            return Err(Busy::on(&volume.id).because(why).into());
        }
        // One that is not sealed counts as well: a request to seal it may come late.
        let unsealed = if moved_to.is_none() { unsealed.saturating_add(1) } else { unsealed };
        let volume = match volume.moved_to == moved_to && volume.unsealed == unsealed {
            true => volume,
            false => {
                tracing::info!(volume.id = %volume.id, moved_to, "fence changed");
                self.record(Volume { moved_to, unsealed, ..(*volume).clone() })?
            }
        };
        if volume.moved_to.is_none() {
            return Ok(());
        }
        match volume.moved_to.as_deref() == Some(self.node_id()) {
            // Kubernetes keeps it published to this node (`--attach`) for a pod that waits for it here.
            true => self.unstage_for_move(&volume)?,
            false => self.expect_unpublished(&volume)?,
        }
        self.expect_unused(&volume)
    }
}
