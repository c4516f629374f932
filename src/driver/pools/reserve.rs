//! What volumes leave free in a pool, so that promises which are kept do not harm the node.
//!
//! kubelet evicts pods if less than 10 % of its filesystem is available (`nodefs.available`), or less than 15 % of that
//! with the container images (`imagefs.available`), and both are the same on most nodes. It counts as statfs(2) does:
//! `f_bavail` of `f_blocks`.

use std::path::Path;

use crate::error::{OsContext, Result};
use crate::kernel::{Os, holder};
use crate::model::{PoolKind, PoolSettings, Reserve, Settings, format_bytes};

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
                pool = %pool.name, image = %file.display(), available = %format_bytes(disk.available),
                size = %format_bytes(disk.total),
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
            pool = %pool.name, path = %path.display(), reserve = %format_bytes(reserve.bytes(disk.total)),
            size = %format_bytes(disk.total),
            "the pool is on kubelet's filesystem, and full volumes leave less than {EVICTION_PERCENT} % of it: then kubelet evicts pods. Use --reserve auto, or at least {EVICTION_PERCENT}%"
        );
    }
    Ok(reserve)
}

fn percent(total: u64, percent: f64) -> u64 {
    Reserve::Percent(percent).bytes(total)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::model::{FsType, InlineSettings};
    use hostloop_fake_kernel::FakeKernel;

    const GIB: u64 = 1 << 30;
    const DISK: u64 = 50 * GIB;
    const ALONE: &str = "/pools/alone";
    const SHARED: &str = "/pools/shared";

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pool(path: &str, kind: PoolKind, reserve: Reserve) -> PoolSettings {
        let (name, path) = ("fast".parse().unwrap(), PathBuf::from(path));
        PoolSettings { name, path, kind, reserve, overcommit: 1.0, directories: false }
    }

    /// A pool on a disk of its own and one with kubelet's directory, `free` bytes each.
    fn machine(free: u64) -> FakeKernel {
        let kernel = FakeKernel::new();
        for disk in [ALONE, SHARED] {
            kernel.add_disk(disk, FsType::Ext4, DISK);
            kernel.set_space_at(disk, DISK, free);
        }
        kernel.create_directories("/pools/shared/kubelet");
        kernel
    }

    /// The pool's reserve, and whether anything is warned of.
    fn settled(
        kernel: &FakeKernel,
        kubelet: Option<&str>,
        pool: &PoolSettings,
        path: &str,
    ) -> (Reserve, bool) {
        let settings = Settings {
            driver_name: String::new(),
            node_id: String::new(),
            data_dir: PathBuf::from(path),
            pools: vec![pool.clone()],
            anchor_dir: None,
            attach: false,
            max_volumes_per_node: 0,
            max_volume_bytes: u64::MAX,
            inline: InlineSettings::default(),
            kubelet_dir: kubelet.map(PathBuf::from),
            quota_ids: Default::default(),
            adopt_from: Vec::new(),
        };
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let reserve = tracing::subscriber::with_default(subscriber, || {
            settle(&kernel.spawn(), &settings, pool, Path::new(path)).unwrap()
        });
        let said = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(said.is_empty() || said.contains("evicts pods"), "{said}");
        (reserve, !said.is_empty())
    }

    /// The same of a pool in a directory, with the directory of kubelet beside one of them.
    fn directory(path: &str, reserve: Reserve) -> (Reserve, bool) {
        let pool = pool(path, PoolKind::Directory, reserve);
        settled(&machine(DISK), Some("/pools/shared/kubelet"), &pool, path)
    }

    #[test]
    fn a_fifth_of_kubelets_filesystem_stays_free() {
        assert_eq!(directory(SHARED, Reserve::Auto), (Reserve::Percent(20.0), false));
        assert_eq!(directory(ALONE, Reserve::Auto), (Reserve::Bytes(DISK / 100), false));
        let kernel = machine(DISK);
        kernel.set_space_at(ALONE, 1000 * GIB, 1000 * GIB);
        let pool = pool(ALONE, PoolKind::Directory, Reserve::Auto);
        let without = ["/pools/shared/kubelet", "/pools/none"].map(Some).into_iter().chain([None]);
        for kubelet in without {
            assert_eq!(settled(&kernel, kubelet, &pool, ALONE), (Reserve::Bytes(GIB), false), "{kubelet:?}");
        }
    }

    #[test]
    fn a_reserve_too_small_for_kubelet_is_warned_of() {
        for (percent, warned) in [(14.0, true), (15.0, false), (16.0, false)] {
            let reserve = Reserve::Percent(percent);
            assert_eq!(directory(SHARED, reserve), (reserve, warned), "{percent} %");
            assert_eq!(directory(ALONE, reserve), (reserve, false), "{percent} %, not kubelet's");
        }
    }

    #[test]
    fn an_image_too_large_for_kubelet_is_warned_of() {
        for (disk, percent, warned) in
            [(SHARED, 14, true), (SHARED, 15, false), (SHARED, 16, false), (ALONE, 14, false)]
        {
            let kernel = machine(DISK * percent / 100);
            let file = PathBuf::from(format!("{disk}/pool.img"));
            let kind = PoolKind::Image { file, bytes: GIB, fs_type: FsType::Xfs };
            let pool = pool(ALONE, kind, Reserve::Auto);
            let found = settled(&kernel, Some("/pools/shared/kubelet"), &pool, ALONE);
            assert_eq!(found, (Reserve::Bytes(0), warned), "{disk}: {percent} %");
        }
    }

    #[test]
    fn an_explicit_reserve_of_an_own_filesystem_stays() {
        let device = PoolKind::Device { device: PathBuf::from("/dev/disk"), fs_type: FsType::Xfs };
        let settled = |reserve| {
            let pool = pool(SHARED, device.clone(), reserve);
            settled(&machine(DISK), Some("/pools/shared/kubelet"), &pool, SHARED)
        };
        assert_eq!(settled(Reserve::Auto), (Reserve::Bytes(0), false));
        assert_eq!(settled(Reserve::Percent(5.0)), (Reserve::Percent(5.0), false));
    }
}
