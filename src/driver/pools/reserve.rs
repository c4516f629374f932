//! What volumes leave free in a pool, so that promises which are kept do not harm the node.
//!
//! kubelet evicts pods if less than 10 % of its filesystem is available (`nodefs.available`), or less than 15 % of that
//! with the container images (`imagefs.available`), and both are the same on most nodes. It counts as statfs(2) does:
//! `f_bavail` of `f_blocks`.

use std::path::Path;

use crate::error::{OsContext, Result};
use crate::model::{PoolKind, PoolSettings, Reserve, Settings, format_bytes};
use crate::os::{Os, holder};

/// Where kubelet has its directory unless `--kubelet-dir` says otherwise.
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// kubelet's hard threshold for the filesystem with the container images, in percent of it.
const EVICTION_PERCENT: f64 = 15.0;

/// What volumes leave free on kubelet's filesystem: with more than 80 % in use kubelet removes container images
/// (imageGCLowThresholdPercent), and logs and images of the node grow beside the volumes.
const SHARED_PERCENT: f64 = 20.0;

/// On a filesystem of the pools: for the state file, and whatever else there is.
const ALONE_PERCENT: f64 = 1.0;
const ALONE_MOST: u64 = 1 << 30;

/// The reserve of a pool whose directory is `path`; says where it is too little for kubelet.
pub(crate) fn settle(os: &Os, settings: &Settings, pool: &PoolSettings, path: &Path) -> Result<Reserve> {
    let mounts = os.mounts.list().doing(|| "read mountinfo".to_owned())?;
    let kubelet = settings.kubelet_dir.as_deref().unwrap_or(Path::new(KUBELET_DIR));
    let kubelet = match os.files.stat(kubelet) {
        Ok(Some(_)) => os.files.canonicalize(kubelet).ok(),
        Ok(None) | Err(_) => None,
    };
    // The mount's device number is the filesystem's, also where stat(2) gives each subvolume one of its own (btrfs).
    let is_kubelets = |path: &Path| {
        let dev = |path: &Path| holder(&mounts, path).map(|mount| mount.dev);
        kubelet.as_deref().is_some_and(|kubelet| dev(kubelet).is_some() && dev(kubelet) == dev(path))
    };
    let space = |path: &Path| os.files.space(path).doing(|| format!("statvfs {}", path.display()));
    if let PoolKind::Image { file, bytes, .. } = &pool.kind {
        let place = file.parent().unwrap_or(file);
        let disk = space(place)?;
        if is_kubelets(place) && disk.available < percent(disk.total, EVICTION_PERCENT) {
            tracing::warn!(
                pool = %pool.name, image = %file.display(), available = disk.available, size = disk.total,
                "the pool's image of {} leaves less than {EVICTION_PERCENT} % of kubelet's filesystem: kubelet evicts pods. Give it a disk of its own",
                format_bytes(*bytes)
            );
        }
    }
    if pool.kind.medium().is_some() {
        return Ok(if pool.reserve == Reserve::Auto { Reserve::Bytes(0) } else { pool.reserve });
    }
    let (shared, disk) = (is_kubelets(path), space(path)?);
    let reserve = match pool.reserve {
        Reserve::Auto if shared => Reserve::Percent(SHARED_PERCENT),
        Reserve::Auto => Reserve::Bytes(percent(disk.total, ALONE_PERCENT).min(ALONE_MOST)),
        explicit => explicit,
    };
    if shared && reserve.bytes(disk.total) < percent(disk.total, EVICTION_PERCENT) {
        tracing::warn!(
            pool = %pool.name, path = %path.display(), reserve = reserve.bytes(disk.total), size = disk.total,
            "the pool is on kubelet's filesystem, and full volumes leave less than {EVICTION_PERCENT} % of it: then kubelet evicts pods. Use --reserve auto, or at least {EVICTION_PERCENT}%"
        );
    }
    Ok(reserve)
}

fn percent(total: u64, percent: f64) -> u64 {
    Reserve::Percent(percent).bytes(total)
}
