//! Whether files are as long as their record says. An image is lengthened before its record is, so that no crash leaves
//! one that is shorter: somebody else has cut it off, and what was behind is lost. It is never lengthened again, which
//! would only hide that.

use std::fmt::Display;

use super::VolumePaths;
use crate::error::{Error, OsContext, Result};
use crate::model::BackendKind;
use crate::os::Os;

/// Refuses an image that is shorter than `bytes`; one that is gone is left to who needs it.
///
/// # Errors
/// FAILED_PRECONDITION with what to do.
pub fn expect_whole(
    os: &Os,
    paths: &VolumePaths,
    kind: BackendKind,
    bytes: u64,
    what: impl Display,
) -> Result<()> {
    if kind == BackendKind::Directory {
        return Ok(());
    }
    let image = paths.image();
    match os.disks.stat(&image).doing(|| format!("look at {}", image.display()))? {
        Some(stat) if stat.size < bytes => Err(Error::InUse(format!(
            "the image {} has {} bytes and {what} {bytes}: somebody has cut it off, restore it from a backup",
            image.display(),
            stat.size
        ))),
        _ => Ok(()),
    }
}
