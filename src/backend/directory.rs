//! A directory on the pool's filesystem, bind-mounted: the classic hostpath. Its filesystem may limit what it takes.

use std::path::Path;

use nix::errno::Errno;

use super::target::take_away;
use super::uses::{Bound, bound, is_inside, may_be_bound, mounts_where, ways_to};
use super::{
    Place, Presence, Publish, Seen, Stage, Stats, Target, Uses, Writers, bind, health, limit, writers,
};
use crate::error::{Error, OsContext, Result};
use crate::kernel::MountEntry;
use crate::model::health::Trouble;

/// See the module.
pub(super) struct Directory;

impl Presence for Directory {
    fn uses(&self, place: Place<'_>) -> Result<Uses> {
        let (paths, mut uses) = (place.paths, Uses::default());
        let (may_be_bound, is_inside) = (may_be_bound(paths), is_inside(paths));
        let mounts = mounts_where(place.os, |mount| may_be_bound(mount) || is_inside(mount))?;
        if mounts.is_empty() {
            return Ok(uses);
        }
        let ways = ways_to(place.os, &mounts, paths)?;
        for mount in &mounts {
            match bound(mount, &ways, paths) {
                Bound::Whole => uses.mounts.push(mount.clone()),
                Bound::Part => uses.partial.push(mount.clone()),
                // A mount that someone made inside, where removing must not go.
                Bound::Other if is_inside(mount) => uses.partial.push(mount.clone()),
                Bound::Other => {}
            }
        }
        uses.astray = uses.mounts.first().and_then(|mount| astray(place, mount));
        Ok(uses)
    }

    fn stage(&self, place: Place<'_>, stage: &Stage<'_>, _uses: &Uses) -> Result<()> {
        let source = place.paths.data();
        if place.os.files.stat(&source).doing(|| format!("look at {}", source.display()))?.is_none() {
            let context =
                format!("volume {} has lost its directory; restore it or delete the volume", place.volume.id);
            let source = crate::kernel::errno_error(Errno::ENOENT, source.display());
            return Err(Error::Os { context, source });
        }
        if let Some(limit) = place.paths.limit {
            limit::ensure(place, limit)?;
        }
        let publish = Publish {
            staging: &source,
            target: stage.target,
            flags: stage.flags,
            read_only: stage.read_only,
        };
        bind::bind(place, &source, &publish)
    }

    fn finish_stage(&self, _place: Place<'_>, _stage: &Stage<'_>, _uses: &Uses) -> Result<()> {
        Ok(()) // the bind is all
    }

    fn unstage(&self, place: Place<'_>, staging: &Target, uses: &Uses) -> Result<()> {
        take_away(place.os, staging.path(), uses)
    }

    fn is_staged(&self, uses: &Uses, staging: &Path) -> bool {
        uses.at(staging).next().is_some()
    }

    fn publish(&self, place: Place<'_>, publish: &Publish<'_>, uses: &Uses) -> Result<()> {
        bind::bind_staged(place, publish, uses)
    }

    fn is_read_only(&self, _place: Place<'_>, mount: &MountEntry, _uses: &Uses) -> Result<bool> {
        Ok(mount.read_only || mount.superblock_read_only)
    }

    fn after_unpublish(&self, _place: Place<'_>) -> Result<()> {
        Ok(())
    }

    fn grow_in_use(&self, _place: Place<'_>, _uses: &Uses) -> Result<()> {
        Ok(())
    }

    fn stats(&self, place: Place<'_>, path: &Path, uses: &Uses) -> Result<Stats> {
        if let Some(limit) = place.paths.limit {
            match limit::quota(place, limit) {
                // Quotas are off: what is there is counted, as it is without a limit.
                Err(error) if error.errno() == Some(Errno::EOPNOTSUPP) => {}
                quota => return Ok(Stats::Limited(quota?, bind::space_at(place, path, uses)?)),
            }
        }
        let data = place.paths.data();
        let usage = place.os.trees.usage(&data).doing(|| format!("measure {}", data.display()))?;
        let space = bind::space_at(place, path, uses)?;
        Ok(Stats::Directory(usage, space))
    }

    fn has_slow_stats(&self) -> bool {
        true
    }

    fn is_staged_by_bind(&self) -> bool {
        true
    }

    fn troubles(&self, place: Place<'_>, _seen: &Seen) -> Vec<Trouble> {
        match health::directory(place) {
            Ok(()) => place.paths.limit.and_then(|limit| health::limit(place, limit)).into_iter().collect(),
            Err(trouble) => vec![trouble],
        }
    }

    fn writers(&self, place: Place<'_>, uses: &Uses) -> Result<Writers> {
        Ok(match writers::mount(place, uses)? {
            Some(mount) => {
                let why = if has_others(place)? {
                    ", with subvolumes in it that a copy in one step would leave out"
                } else {
                    ""
                };
                Writers::Directory(format!("is a directory in use at {}{why}", mount.target.display()))
            }
            None => Writers::None,
        })
    }
}

/// Whether subvolumes lie in one that could be copied in one step otherwise.
fn has_others(place: Place<'_>) -> Result<bool> {
    let directory = &place.paths.directory;
    let looking = || format!("look at {}", directory.display());
    let subvolume = place.os.quotas.subvolume(directory, false).doing(looking)?;
    Ok(subvolume.is_some_and(|subvolume| subvolume.has_others))
}

/// Why a mount of the volume does not show the directory that lies in the pool now.
fn astray(place: Place<'_>, mount: &MountEntry) -> Option<String> {
    let data = place.paths.data();
    let there = match place.os.files.stat(&data) {
        Err(error) => return Some(format!("the disk does not let {} be read ({error})", data.display())),
        Ok(None) => return Some(format!("{} is gone", data.display())),
        Ok(Some(stat)) => stat.id,
    };
    // One that is hidden, or does not answer, tells nothing.
    let pinned = place.os.mounts.pin(mount).ok()?;
    let shown = place.os.files.stat(pinned.path()).ok().flatten()?;
    (shown.id != there).then(|| format!("{} is another directory than the one in use", data.display()))
}
