//! CSI NodeGetVolumeStats.

use super::Driver;
use crate::backend::{Stats, Uses, not_at, presence_of, resolve};
use crate::error::{Error, Result};
use crate::kernel::Quota;
use crate::model::answer::{StatsRow, VolumeStats};
use crate::model::request::NodeGetVolumeStats;

impl Driver {
    /// Sizes of the volume itself. Takes no lock: kubelet polls it, and it must not disturb or wait.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown volume, or one that is not at the path.
    pub fn node_get_volume_stats(&self, request: NodeGetVolumeStats) -> Result<VolumeStats> {
        let id = self.node_id_of(&request.volume_id);
        let volume = self.ready_volume(&id, &request.volume_id)?;
        let not_there = || not_at(&volume, &request.volume_path);
        if !request.volume_path.is_absolute() {
            return Err(not_there());
        }
        let target = resolve(&self.os, &request.volume_path).map_err(|error| match error {
            Error::Invalid(_) => not_there(),
            other => other,
        })?;
        let paths = self.paths_of_use(&volume)?;
        let (place, presence) = (self.place(&volume, &paths), presence_of(&volume.content));
        let mut uses = presence.uses(place)?;
        let path = target.path();
        let stats = loop {
            let measure = || {
                uses.top_at(&self.os, path)?.ok_or_else(not_there)?;
                presence.stats(place, path, &uses)
            };
            let measured = match presence.has_slow_stats() {
                true => self.usage.get_or(&volume.id, measure),
                false => measure(),
            };
            let error = match measured {
                Ok(stats) => break stats,
                Err(error) => error,
            };
            // Without a lock a mount may come and go between two looks. What is wrong is so at the next ones too.
            let ids = |uses: &Uses| uses.at(path).map(|mount| mount.id).collect::<Vec<_>>();
            let before = ids(&uses);
            uses = presence.uses(place)?;
            if ids(&uses) == before {
                return Err(error);
            }
        };
        let (bytes, inodes) = rows(stats);
        Ok(VolumeStats { bytes, inodes, troubles: self.known_troubles(&volume.id) })
    }
}

/// Bytes and inodes.
fn rows(stats: Stats) -> (Option<StatsRow>, Option<StatsRow>) {
    match stats {
        Stats::Device(total) => (Some(StatsRow { total, used: 0, available: 0 }), None),
        Stats::Filesystem(space) => (
            Some(StatsRow { total: space.total, used: space.used, available: space.available }),
            inodes(space.inodes, space.inodes.saturating_sub(space.inodes_free), space.inodes_free),
        ),
        Stats::Limited(quota, space) => {
            let left = |limit: u64, used: u64, free: u64| limit.saturating_sub(used).min(free);
            let Quota { bytes, inodes: files, limits, .. } = quota;
            let available = left(limits.bytes, bytes, space.available);
            // Where the filesystem has no fixed number of inodes, the limit alone counts.
            let free = if space.inodes == 0 { u64::MAX } else { space.inodes_free };
            (
                Some(StatsRow { total: limits.bytes, used: bytes, available }),
                inodes(limits.inodes, files, left(limits.inodes, files, free)),
            )
        }
        Stats::Directory(usage, space) => (
            // Shared with others: what the volume could have is what it takes and what is free.
            Some(StatsRow {
                total: usage.bytes + space.available,
                used: usage.bytes,
                available: space.available,
            }),
            inodes(usage.inodes + space.inodes_free, usage.inodes, space.inodes_free),
        ),
    }
}

/// btrfs has no fixed number of inodes and reports none.
fn inodes(total: u64, used: u64, available: u64) -> Option<StatsRow> {
    (total > 0).then_some(StatsRow { total, used, available })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Space, Usage};

    #[test]
    fn a_directory_could_have_its_use_and_what_is_free() {
        let space = Space { total: 100, used: 80, available: 15, given: 0, inodes: 10, inodes_free: 4 };
        let (bytes, inodes) = rows(Stats::Directory(Usage { bytes: 3, inodes: 2 }, space));
        assert_eq!(bytes, Some(StatsRow { total: 18, used: 3, available: 15 }));
        assert_eq!(inodes, Some(StatsRow { total: 6, used: 2, available: 4 }));
    }

    #[test]
    fn a_filesystem_has_its_own() {
        let space = Space { total: 100, used: 80, available: 15, given: 0, inodes: 10, inodes_free: 4 };
        let (bytes, inodes) = rows(Stats::Filesystem(space));
        assert_eq!(bytes, Some(StatsRow { total: 100, used: 80, available: 15 }));
        assert_eq!(inodes, Some(StatsRow { total: 10, used: 6, available: 4 }));
        let btrfs = Space { inodes: 0, inodes_free: 0, ..space };
        assert_eq!(rows(Stats::Filesystem(btrfs)).1, None);
    }
}
