//! Bind mounts of what is staged.

use std::path::Path;

use nix::errno::Errno;

use super::uses::{hidden, not_at};
use super::{Place, Publish, Uses, target};
use crate::error::{OsContext, Result};
use crate::kernel::{Pinned, Space, is_errno};
use crate::model::MountFlags;

/// The volume's mount that is seen at a path, held.
fn pin_at(place: Place<'_>, path: &Path, uses: &Uses) -> Result<Pinned> {
    let top = uses.top_at(place.os, path)?.ok_or_else(|| not_at(place.volume, path))?;
    match place.os.mounts.pin(top) {
        Err(error) if is_errno(&error, Errno::ESTALE) => Err(hidden(place.os, path)),
        pinned => pinned.doing(|| format!("open {}", path.display())),
    }
}

/// statvfs(3) of the volume's filesystem, mounted at a path.
pub(super) fn space_at(place: Place<'_>, path: &Path, uses: &Uses) -> Result<Space> {
    let pinned = pin_at(place, path, uses)?;
    place.os.files.space(pinned.path()).doing(|| format!("statvfs {}", path.display()))
}

/// Binds what is staged to a published target.
pub(super) fn bind_staged(place: Place<'_>, publish: &Publish<'_>, uses: &Uses) -> Result<()> {
    let pinned = pin_at(place, publish.staging, uses)?;
    bind(place, pinned.path(), publish)
}

/// Binds what is at `source` to a published target.
pub(super) fn bind(place: Place<'_>, source: &Path, publish: &Publish<'_>) -> Result<()> {
    let made = target::make_directory(place.os, publish.target)?;
    target::or_remove(place.os, publish.target, made, || {
        let flags =
            MountFlags { read_only: publish.read_only, vfs: publish.flags.vfs.clone(), data: Vec::new() };
        let binding = || format!("publish {}", place.volume.id);
        place.os.mounts.bind(source, publish.target.path(), &flags).doing(binding)
    })
}
