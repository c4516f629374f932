//! A fake machine and the driver on it, without a socket.

use std::path::PathBuf;
use std::sync::Arc;

use hostloop::app;
use hostloop::driver::Driver;
use hostloop::kernel::Os;
use hostloop::model::{FsType, InlineSettings, PoolKind, PoolName, PoolSettings, Reserve, Settings};
use hostloop_fake_kernel::FakeKernel;

/// The data directory, in the fake kernel's tree.
pub const DATA_DIR: &str = "/var/lib/hostloop";
/// kubelet's directory, there too.
pub const KUBELET: &str = "/var/lib/kubelet";
/// The pool of directory volumes, on a disk whose files can share blocks.
pub const DIRECTORIES: &str = "/pools/directories";

/// A machine with the directories that an administrator and kubelet make.
pub fn machine() -> FakeKernel {
    let kernel = FakeKernel::new();
    for directory in [DATA_DIR, "/var/lib/kubelet/stage", "/var/lib/kubelet/pods"] {
        kernel.create_directories(directory);
    }
    kernel.add_disk(DIRECTORIES, FsType::Xfs, 100 << 30);
    kernel
}

/// Two pools, attaching, and kubelet's directory.
pub fn settings(node_id: &str) -> Settings {
    Settings {
        driver_name: "hostloop.csi.dev".to_owned(),
        node_id: node_id.to_owned(),
        data_dir: PathBuf::from(DATA_DIR),
        pools: vec![pool(PoolName::DEFAULT, DATA_DIR, false), pool("directories", DIRECTORIES, true)],
        anchor_dir: None,
        attach: true,
        max_volumes_per_node: 0,
        max_volume_bytes: 16 << 40,
        inline: InlineSettings::default(),
        kubelet_dir: Some(PathBuf::from(KUBELET)),
        quota_ids: Default::default(),
        adopt_from: Vec::new(),
    }
}

fn pool(name: &str, path: &str, directories: bool) -> PoolSettings {
    let (name, path) = (name.parse().expect("a name of a pool"), PathBuf::from(path));
    let (kind, reserve) = (PoolKind::Directory, Reserve::Bytes(0));
    PoolSettings { name, path, kind, reserve, overcommit: 1.0, directories }
}

/// The driver on what an earlier one left, recovered; and how many objects need an administrator.
///
/// # Errors
/// Why it does not start.
pub fn start(os: Os, node_id: &str) -> Result<(Arc<Driver>, usize), app::StartError> {
    let driver = app::driver(settings(node_id), os)?;
    let damaged = driver.recover().damaged;
    Ok((Arc::new(driver), damaged))
}
