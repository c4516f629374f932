//! What must be right on the machine before the driver serves. Each finding is one line that names the flag or path to
//! correct.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::kernel::{FileId, FileKind, FileStat, Os, errno_of, holder};
use crate::model::{FsType, PoolKind, PoolName, PoolSettings, Settings};

use super::StartError;

/// Mode of the data directory: whatever else runs on the node must not read volumes.
const DATA_DIR_MODE: u32 = 0o700;
const LOOP_CONTROL: &str = "/dev/loop-control";
/// Where kubelet has volumes staged and published, below its directory (kubelet, pkg/volume/csi). A pod of the driver
/// may mount these only.
const KUBELET_PLACES: [&str; 2] = ["plugins/kubernetes.io/csi", "pods"];

/// Held as long as the process uses the data directory.
pub struct DataDir {
    _lock: Box<dyn Send + Sync>,
}

/// Makes the data directory if it is missing and takes it for this process alone.
pub fn take_data_dir(os: &Os, path: &Path) -> Result<DataDir, StartError> {
    let wrong = |source| StartError::DataDir { path: path.to_owned(), source };
    let flag = || "--data-dir".to_owned();
    if os.files.stat(path).map_err(wrong)?.is_none() {
        // Only the last one is made: a path with more missing is a typing error or a disk that is not mounted.
        if let Some(parent) = path.parent()
            && directory(os, parent).map_err(wrong)?.is_none()
        {
            return Err(StartError::NoDirectory { what: flag(), path: parent.to_owned() });
        }
        os.files.create_directory(path, DATA_DIR_MODE).map_err(wrong)?;
        if let Some(parent) = path.parent() {
            os.files.sync_directory(parent).map_err(wrong)?;
        }
        tracing::info!(path = %path.display(), "made the data directory");
    }
    if directory(os, path).map_err(wrong)?.is_none() {
        return Err(StartError::NoDirectory { what: flag(), path: path.to_owned() });
    }
    // The lock is a file in the directory: taking it shows that the directory can be written to as well.
    match os.files.lock(&path.join("lock")) {
        Ok(lock) => Ok(DataDir { _lock: lock }),
        Err(error) if errno_of(&error) == Some(Errno::EWOULDBLOCK) => {
            Err(StartError::DataDirTaken { path: path.to_owned(), source: error })
        }
        Err(error) => Err(wrong(error)),
    }
}

/// Everything else that can be seen beforehand.
pub fn check_machine(os: &Os, settings: &Settings) -> Result<(), StartError> {
    if os.files.stat(Path::new(LOOP_CONTROL)).ok().flatten().is_none() {
        return Err(StartError::NoLoopDevices(LOOP_CONTROL));
    }
    check_pools(os, &settings.pools)?;
    check_kubelet_dir(os, settings)?;
    for fs_type in FsType::ALL {
        match os.filesystems.check_tools(fs_type) {
            Ok(()) => tracing::debug!(%fs_type, "tools found"),
            Err(error) => tracing::warn!(%fs_type, %error, "volumes with this filesystem cannot be made"),
        }
    }
    Ok(())
}

/// No two pools are the same directory under different names (a link, a bind mount). One that is not there, or that
/// cannot be looked at, costs its own volumes only, and is tried again.
fn check_pools(os: &Os, pools: &[PoolSettings]) -> Result<(), StartError> {
    let mut seen: Vec<(FileId, &PoolName)> = Vec::new();
    for PoolSettings { name, path, kind, .. } in pools {
        let flag = match name.as_str() {
            PoolName::DEFAULT => "--data-dir".to_owned(),
            name => format!("--pool {name}"),
        };
        if *kind != PoolKind::Directory {
            continue;
        }
        let Ok(Some(id)) = directory(os, path) else { continue };
        if let Some((_, other)) = seen.iter().find(|(known, _)| *known == id) {
            return Err(StartError::SamePool { flag, path: path.clone(), other: other.to_string() });
        }
        seen.push((id, name));
    }
    Ok(())
}

/// kubelet's directory is there; a mount from which pods would not see volumes is worth a warning.
fn check_kubelet_dir(os: &Os, settings: &Settings) -> Result<(), StartError> {
    let Some(path) = &settings.kubelet_dir else {
        return Ok(());
    };
    let what = || "--kubelet-dir".to_owned();
    let look = |source| StartError::Look { what: what(), path: path.clone(), source };
    if directory(os, path).map_err(look)?.is_none() {
        return Err(StartError::NoDirectory { what: what(), path: path.clone() });
    }
    for Private { place, mount } in private_mounts(os, path).map_err(look)? {
        tracing::warn!(
            path = %place.display(), mount = %mount.display(),
            "--kubelet-dir: the mount with this path is not shared, so that pods will not see the volumes: in a pod \
             mount it with mountPropagation: Bidirectional, elsewhere run mount --make-rshared"
        );
    }
    Ok(())
}

/// A place for volumes from which nobody outside of this mount namespace sees them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Private {
    /// Below kubelet's directory.
    pub place: PathBuf,
    /// The mount that holds it.
    pub mount: PathBuf,
}

/// The mounts that volumes would be mounted in and that are not shared, each once. Only [`KUBELET_PLACES`] count: what
/// else lies below kubelet's directory may well be the container's own.
pub(super) fn private_mounts(os: &Os, kubelet_dir: &Path) -> io::Result<Vec<Private>> {
    let mounts = os.mounts.list()?;
    let mut found: Vec<Private> = Vec::new();
    for place in KUBELET_PLACES.map(|place| kubelet_dir.join(place)) {
        let real = nearest(os, &place, kubelet_dir)?;
        let Some(mount) = holder(&mounts, &real) else { continue };
        if !mount.is_shared() && found.iter().all(|known| known.mount != mount.target) {
            found.push(Private { place, mount: mount.target.clone() });
        }
    }
    Ok(found)
}

/// The path, or what is there of it from `least` on, links resolved: kubelet makes the rest when it is needed.
fn nearest(os: &Os, path: &Path, least: &Path) -> io::Result<PathBuf> {
    for path in path.ancestors().take_while(|path| *path != least) {
        match os.files.canonicalize(path) {
            Err(error) if errno_of(&error) == Some(Errno::ENOENT) => {}
            found => return found,
        }
    }
    os.files.canonicalize(least)
}

/// The identity of a directory, links resolved; `None` where something else or nothing is there.
pub(super) fn directory(os: &Os, path: &Path) -> io::Result<Option<FileId>> {
    Ok(resolved(os, path)?.filter(|found| found.kind == FileKind::Directory).map(|found| found.id))
}

/// What is at a path, links resolved; `None` for nothing.
fn resolved(os: &Os, path: &Path) -> io::Result<Option<FileStat>> {
    match os.files.canonicalize(path) {
        Ok(real) => os.files.stat(&real),
        Err(error) if matches!(errno_of(&error), Some(Errno::ENOENT | Errno::ENOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}
