//! Inline volumes whose pod is gone.
//!
//! Only NodeUnpublishVolume deletes an inline volume, and kubelet calls it for what it finds below the directory of the pod. If
//! that was removed while the node was down, the call never comes. The record of the volume says where it was published
//! ([`Volume::inline_target`]), and so which directory that is.
//!
//! A directory that is not found may only be hidden, because kubelet's disk is not mounted. So the directory of another pod must
//! be there, as kubelet has one for the pod of the driver, and `pods` must be the same directory in each look. What the kernel
//! shows in use is never deleted. A target is only looked at.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::presence_of;
use crate::driver::Driver;
use crate::driver::locks::guarded::Guarded;
use crate::error::Result;
use crate::kernel::{FileId, FileKind, MountEntry};
use crate::model::health::Trouble;
use crate::model::{PoolName, Volume, VolumeId, format_bytes};

/// What the last looks have found.
#[derive(Default)]
pub(crate) struct Orphans(Guarded<HashMap<VolumeId, Orphan>>);

/// A volume that nothing uses.
struct Orphan {
    volume: Arc<Volume>,
    pod: Pod,
    since: Instant,
    /// Metrics and health show it, and the log has it.
    told: bool,
}

/// The pod of an inline volume that nothing uses.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pod {
    /// Its directory is not among those of other pods.
    Gone {
        uid: String,
        /// The directory of all pods.
        pods: FileId,
    },
    /// It is there, or it cannot be said whether it is, with the reason.
    Unknown(String),
}

impl Orphans {
    /// Keeps what was found, and returns for how long it has been so. Only a repeated look returns more than nothing.
    fn seen(&self, volume: &Arc<Volume>, pod: &Pod) -> Option<Duration> {
        let mut known = self.0.lock();
        if let Some(orphan) = known.get(&volume.id)
            && orphan.volume == *volume
            && orphan.pod == *pod
        {
            return Some(orphan.since.elapsed());
        }
        let (volume, pod) = (Arc::clone(volume), pod.clone());
        known.insert(volume.id.clone(), Orphan { volume, pod, since: Instant::now(), told: false });
        None
    }

    /// Shows it in metrics and health from here on, and returns whether that is new.
    fn tell(&self, id: &VolumeId) -> bool {
        let mut known = self.0.lock();
        known.get_mut(id).is_some_and(|orphan| !std::mem::replace(&mut orphan.told, true))
    }

    /// Begins the time again, after which it is tried once more.
    fn put_off(&self, id: &VolumeId) {
        if let Some(orphan) = self.0.lock().get_mut(id) {
            orphan.since = Instant::now();
        }
    }

    fn forget(&self, id: &VolumeId) {
        self.0.lock().remove(id);
    }
}

impl Driver {
    /// Deletes the inline volumes that nothing uses and whose pod's directory was not there in each look for `grace`, two looks
    /// at least. Reports those whose pod is unknown after that time, and leaves them.
    pub fn delete_orphaned_inline_volumes(&self, grace: Duration) {
        let mut volumes = self.store.volumes();
        volumes.retain(|volume| volume.id.is_inline() && !volume.is_removed());
        self.orphans.0.lock().retain(|id, _| volumes.iter().any(|volume| volume.id == *id));
        let Some(mounted) = self.mounted_targets(&volumes) else { return };
        for volume in volumes {
            let is_mounted = volume.inline_target.as_ref().is_some_and(|target| mounted.contains(target));
            // A look at a disk that does not answer would keep the other volumes waiting.
            let is_silent = self.pools.is_silent(std::slice::from_ref(volume.pool())).is_some();
            let Some(pod) = (!is_mounted && !is_silent).then(|| self.orphaned(&volume)).flatten() else {
                self.orphans.forget(&volume.id);
                continue;
            };
            let waited = self.orphans.seen(&volume, &pod).filter(|waited| *waited >= grace);
            match &pod {
                Pod::Gone { uid, .. } => {
                    if self.orphans.tell(&volume.id) {
                        tracing::warn!(
                            volume.id = %volume.id, name = volume.name, pod.uid = uid, size = %format_bytes(volume.capacity_bytes),
                            "the pod of this inline volume is gone: it is deleted if that stays so for {grace:?}"
                        );
                    }
                    if waited.is_some() {
                        self.delete_orphan(&volume, uid);
                    }
                }
                Pod::Unknown(why) => {
                    if waited.is_some() && self.orphans.tell(&volume.id) {
                        tracing::warn!(
                            volume.id = %volume.id, name = volume.name, size = %format_bytes(volume.capacity_bytes),
                            "nothing uses this inline volume and it is not deleted: {why}"
                        );
                    }
                }
            }
        }
    }

    /// What is wrong with them, by pool.
    pub(crate) fn troubles_of_orphans(&self) -> Vec<Trouble> {
        let known = self.orphans.0.lock();
        let trouble = |name: &PoolName| {
            let orphans = || known.values().filter(|orphan| orphan.told && orphan.volume.pool() == name);
            let (count, bytes) = orphans().fold((0, 0_u64), |(count, bytes), o| {
                (count + 1, bytes.saturating_add(o.volume.capacity_bytes))
            });
            let first = orphans().min_by_key(|orphan| &orphan.volume.id)?;
            let (id, csi_id, total) = (&first.volume.id, &first.volume.name, format_bytes(bytes));
            let what = match &first.pod {
                Pod::Gone { uid, .. } => {
                    format!("pod {uid} is gone, and the volume is deleted in a few minutes")
                }
                Pod::Unknown(why) => format!(
                    "it is not deleted: {why}; call NodeUnpublishVolume with volume_id {csi_id:?} if its pod is gone"
                ),
            };
            let message = format!(
                "inline volumes of pool {name} that nothing uses and that keep their space: {count} ({total}); of {id}, {what}"
            );
            Some(Trouble::degraded("InlineVolumeOrphaned", message))
        };
        self.pools.names().iter().filter_map(trouble).collect()
    }

    /// How many there are in each pool.
    pub(crate) fn orphans_by_pool(&self) -> Vec<(PoolName, usize)> {
        let known = self.orphans.0.lock();
        let told = |name: &PoolName| known.values().filter(|o| o.told && o.volume.pool() == name).count();
        self.pools.names().into_iter().map(|name| (name.clone(), told(&name))).collect()
    }

    /// Returns the targets of volumes that are mount points: these need no further look. None if the kernel does not tell.
    fn mounted_targets(&self, volumes: &[Arc<Volume>]) -> Option<HashSet<String>> {
        let targets: HashSet<&str> =
            volumes.iter().filter_map(|volume| volume.inline_target.as_deref()).collect();
        if targets.is_empty() {
            return Some(HashSet::new());
        }
        let is_target = |mount: &MountEntry| mount.target.to_str().is_some_and(|path| targets.contains(path));
        match self.os.mounts.matching(&is_target) {
            Ok(mounts) => {
                Some(mounts.iter().filter_map(|mount| mount.target.to_str().map(str::to_owned)).collect())
            }
            Err(error) => {
                tracing::debug!(%error, "it is not known which inline volumes are in use");
                None
            }
        }
    }

    /// The pod of a volume, if nothing uses the volume.
    fn orphaned(&self, volume: &Volume) -> Option<Pod> {
        match self.is_used(volume) {
            Ok(used) => (!used).then(|| self.pod_of(volume)),
            Err(error) => {
                tracing::debug!(volume.id = %volume.id, %error, "it is not known whether the inline volume is in use");
                None
            }
        }
    }

    fn is_used(&self, volume: &Volume) -> Result<bool> {
        let paths = self.paths_of_use(volume)?;
        Ok(presence_of(&volume.content).uses(self.place(volume, &paths))?.any())
    }

    fn pod_of(&self, volume: &Volume) -> Pod {
        let unknown = |why: &str| Pod::Unknown(why.to_owned());
        let Some(target) = &volume.inline_target else {
            return unknown("the path that it was published at is not text");
        };
        let Some(kubelet) = self.pools.kubelet_dir() else {
            return unknown("the driver runs without --kubelet-dir");
        };
        let Some(uid) = pod_uid(Path::new(target), kubelet) else {
            return unknown(&format!("{target} is not the path of a pod below {}", kubelet.display()));
        };
        let directory = kubelet.join("pods");
        let path = directory.display();
        let pods = match self.os.files.stat(&directory) {
            Ok(Some(stat)) if stat.kind == FileKind::Directory => stat.id,
            Ok(_) => return unknown(&format!("{path} is not a directory")),
            Err(error) => return unknown(&format!("{path} cannot be read: {error}")),
        };
        match self.os.files.list(&directory) {
            Ok(names) if names.iter().any(|name| name == uid) => unknown(&format!(
                "{path}/{uid} is there, and kubelet has neither published nor unpublished it"
            )),
            // kubelet has a directory for the pod of the driver.
            Ok(names) if names.is_empty() => unknown(&format!("{path} is empty: is kubelet's disk mounted?")),
            Ok(_) => Pod::Gone { uid: uid.to_owned(), pods },
            Err(error) => unknown(&format!("{path} cannot be read: {error}")),
        }
    }

    /// Deletes a volume whose pod is gone, unless it has changed meanwhile, a call is at work on it, or its pool is away.
    fn delete_orphan(&self, volume: &Arc<Volume>, uid: &str) {
        if self.pools.get(volume.pool()).is_err() {
            return;
        }
        let Ok(_guard) = self.lock(&volume.id) else { return };
        let unchanged = self.store.get(&volume.id).is_some_and(|now| now == *volume);
        if !unchanged || !matches!(self.orphaned(volume), Some(Pod::Gone { .. })) {
            return;
        }
        let (id, name, size) = (&volume.id, &volume.name, format_bytes(volume.capacity_bytes));
        match self.delete(volume) {
            Ok(()) => {
                self.inline.remember(id);
                self.orphans.forget(id);
                tracing::info!(volume.id = %id, name, pod.uid = uid, size, "deleted the inline volume of a pod that is gone");
            }
            Err(error) => {
                self.orphans.put_off(id);
                tracing::error!(volume.id = %id, name, pod.uid = uid, %error, "the inline volume of a pod that is gone cannot be deleted; it is tried again");
            }
        }
    }
}

/// The UID of the pod that a target belongs to, if it has the form of kubelet's targets:
/// `<kubelet>/pods/<UID>/volumes/kubernetes.io~csi/<name>/mount`.
fn pod_uid<'a>(target: &'a Path, kubelet: &Path) -> Option<&'a str> {
    let below: Vec<&str> = target
        .strip_prefix(kubelet)
        .ok()?
        .components()
        .map(|component| match component {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect::<Option<_>>()?;
    match below.as_slice() {
        ["pods", uid, "volumes", "kubernetes.io~csi", _, "mount"] => Some(uid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_a_pod_if_it_has_kubelets_form() {
        let kubelet = Path::new("/var/lib/kubelet");
        let uid = |target| pod_uid(Path::new(target), kubelet);
        assert_eq!(uid("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/scratch/mount"), Some("u-1"));
        for other in [
            "/var/lib/other/pods/u-1/volumes/kubernetes.io~csi/scratch/mount",
            "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/scratch",
            "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/scratch/mount/x",
            "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~nfs/scratch/mount",
            "/var/lib/kubelet/pods/../volumes/kubernetes.io~csi/scratch/mount",
            "/var/lib/kubelet/plugins/u-1/volumes/kubernetes.io~csi/scratch/mount",
            "/var/lib/kubelet/mount",
            "mount",
        ] {
            assert_eq!(uid(other), None, "{other}");
        }
    }
}
