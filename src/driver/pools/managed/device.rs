//! The block device of a managed pool.

use std::path::Path;
use std::time::Instant;

use super::{Managed, Medium};
use crate::backend::{Signature, inspect_device};
use crate::error::{Error, OsContext, Result};
use crate::model::format_bytes;

impl Managed<'_> {
    /// The device with its filesystem, which is made where the device is blank and nobody's.
    pub(super) fn take_device(&self, device: &Path) -> Result<Medium> {
        let looking = || self.doing(&format!("look at {}", device.display()));
        let state = self.os.files.block_device(device).doing(looking)?;
        if state.partitioned {
            return Err(self.refuse(format!("{} has partitions and is left as it is", device.display())));
        }
        let medium = |filesystem_bytes, made| Medium {
            known_as: device.to_owned(),
            path: device.to_owned(),
            rdev: state.rdev,
            filesystem_bytes,
            made,
            device: None,
        };
        match inspect_device(self.os.images.as_ref(), device, state.bytes)? {
            Signature::Blank => {
                self.refuse_if_in_use(device, "is blank")?;
                self.refuse_if_covered()?;
                if state.held {
                    let device = device.display();
                    return Err(self.refuse(format!(
                        "{device} is in use by another program (see lsblk) and is left as it is"
                    )));
                }
                self.make_on(device, state.bytes)?;
                Ok(medium(state.bytes, true))
            }
            Signature::Other(what) => Err(self.not_blank(device, what)),
            found => Ok(medium(self.expect_filesystem(device, found)?, false)),
        }
    }

    fn make_on(&self, device: &Path, bytes: u64) -> Result<()> {
        let least = self.fs_type.minimum_bytes();
        if bytes < least {
            let (device, least) = (device.display(), format_bytes(least));
            return Err(
                self.refuse(format!("{device} is too small for {}, which needs {least}", self.fs_type))
            );
        }
        let started = Instant::now();
        self.make_filesystem(device, false)?;
        tracing::info!(
            pool = %self.name, device = %device.display(), size = %format_bytes(bytes), fs_type = %self.fs_type,
            ms = started.elapsed().as_millis() as u64, "made the pool's filesystem"
        );
        Ok(())
    }

    /// A mkfs that was cut off leaves data without a label, which nobody can tell from somebody's.
    fn not_blank(&self, device: &Path, what: &str) -> Error {
        let device = device.display();
        self.refuse(format!(
            "{device} holds {what} and is left as it is; if an interrupted first start of this pool left it, or it is not needed, empty it with: blkdiscard -z {device}"
        ))
    }
}
