//! The records of the state file, with who uses what they are of, and what is amiss with them.

use std::path::Path;
use std::sync::Arc;

use super::{Looked, print_of};
use crate::backend::{LIMIT_REASONS, Seen, Uses, VolumePaths, presence_of, troubles};
use crate::driver::Driver;
use crate::driver::details::{kind_of, kind_of_snapshot};
use crate::error::Result;
use crate::kernel::{LoopDevice, MountEntry};
use crate::model::findings::{
    Finding, Fix, HALF_MADE, HeldMount, HeldRecord, LeftBy, SIZE_NOT_ENFORCED, STALE_DEVICE,
};
use crate::model::{GroupSnapshot, ObjectId, Phase, PoolName, Snapshot, Timestamp, Volume, pod_uid_in};

impl Driver {
    pub(super) fn look_at_records(&self, looked: &mut Looked) {
        let seen = Seen::now(&self.os);
        if let Err(error) = &seen {
            looked.unknown.push(error.to_string());
        }
        for volume in self.store.volumes().iter().filter(|volume| !volume.is_removed()) {
            let is_idle = !self.is_at_work(&volume.id);
            let (record, device) = self.held_volume(volume);
            looked.records.push(record);
            if is_idle {
                looked.findings.extend(device);
                looked.findings.extend(self.half_made_volume(volume));
                looked.findings.extend(seen.as_ref().ok().and_then(|seen| self.not_enforced(volume, seen)));
            }
        }
        for snapshot in self.store.snapshots() {
            looked.records.push(self.held_snapshot(&snapshot));
            if !self.is_at_work(&snapshot.id) {
                looked.findings.extend(self.half_made_snapshot(&snapshot));
            }
        }
        for group in self.store.groups().iter().filter(|group| !self.is_at_work(&group.id)) {
            looked.findings.extend(half_made_group(group));
        }
    }

    /// Reports whether the disk of a pool answers. What is not known of another one is not asked.
    fn answers(&self, pool: &PoolName) -> bool {
        self.pools.get(pool).is_ok() && self.pools.is_silent(std::slice::from_ref(pool)).is_none()
    }

    /// Returns when a name in a pool has changed last.
    pub(super) fn changed(&self, path: &Path) -> Option<Timestamp> {
        self.os.files.changed(path).ok().flatten().map(Timestamp::of)
    }

    /// Returns the record of a volume, and its device if that is all that is there of it.
    pub(super) fn held_volume(&self, volume: &Arc<Volume>) -> (HeldRecord, Option<Finding>) {
        let answers = self.answers(volume.pool());
        let paths = self.paths_of_use(volume);
        let directory = paths.as_ref().ok().map(|paths| paths.directory.clone());
        let uses = match (&paths, answers) {
            (Ok(paths), true) => presence_of(&volume.content).uses(self.place(volume, paths)),
            (Ok(_), false) => Err(crate::error::Error::Unavailable("its pool does not answer".to_owned())),
            (Err(error), _) => Err(crate::error::Error::Unavailable(error.to_string())),
        };
        let since = directory.as_deref().filter(|_| answers).and_then(|path| self.changed(path));
        let mut mounts: Vec<HeldMount> = Vec::new();
        for mount in uses.iter().flat_map(Uses::all) {
            mounts.extend(self.held_mount(volume, mount));
        }
        let left_by = volume.retired.as_ref().map(|retired| LeftBy {
            id: retired.was.to_string(),
            generation: retired.by,
            node_id: retired.node_id.clone(),
        });
        let record = HeldRecord {
            id: volume.id.to_string(),
            kind: kind_of(volume).to_owned(),
            name: volume.name.clone(),
            pool: volume.pool().to_string(),
            phase: volume.phase.as_str().to_owned(),
            since,
            bytes: self.details.get(&ObjectId::from(&volume.id)).disk.bytes,
            path: directory.map(|path| path.display().to_string()).unwrap_or_default(),
            mounts,
            uses: self.told_uses(volume, &uses),
            claim: volume.claim.clone(),
            content: None,
            generation: volume.generation,
            left_by,
            seen: print_of(&**volume),
        };
        let device = uses.ok().and_then(|uses| self.idle_device(volume, &uses));
        (record, device)
    }

    fn told_uses(&self, volume: &Volume, uses: &Result<Uses>) -> Option<String> {
        if let Some(attachment) = volume.attachments.first().filter(|_| volume.retired.is_none()) {
            return Some(format!("published to node {:?}", attachment.node_id));
        }
        if let Some(node) = volume.moved_to.as_ref().filter(|_| volume.retired.is_none()) {
            return Some(format!("its data move to node {node:?}"));
        }
        match uses {
            Ok(uses) if uses.any() => Some(uses.describe()),
            Ok(_) => None,
            Err(error) => Some(format!("it is not known whether it is in use: {error}")),
        }
    }

    /// Returns a mount for a pod, or where the volume is staged; `None` for one that is not kubelet's.
    fn held_mount(&self, volume: &Volume, mount: &MountEntry) -> Option<HeldMount> {
        let path = mount.target.to_str()?;
        let pod_uid = pod_uid_in(path).map(str::to_owned);
        if pod_uid.is_none() && !is_staging(path) {
            return None;
        }
        // A container whose pod was deleted by force may have mounts that are not seen here. They keep a device attached, and then
        // nothing is deleted; of a directory there is no such sign.
        let seen = match volume.content.backend().has_image() {
            true => format!("mount {} of {:x} at {path}", mount.id, mount.dev),
            false => String::new(),
        };
        // The kernel does not say since when it is mounted.
        let since = Some(self.first_seen.of(&key_of_mount(path, &seen)));
        Some(HeldMount { path: path.to_owned(), pod_uid, since, seen })
    }

    /// Returns the loop device of a filesystem that is mounted nowhere.
    fn idle_device(&self, volume: &Volume, uses: &Uses) -> Option<Finding> {
        volume.fs_type()?;
        // The node mounts such a copy for itself alone while it copies.
        if volume.copy_of.as_ref().is_some_and(|copy| copy.filled.is_some()) {
            return None;
        }
        let device = uses.loops.first()?;
        if uses.all().next().is_some() || !uses.suspected.is_empty() {
            return None;
        }
        let seen = format!("{} of {:?}", device.path().display(), device.backing);
        Some(Finding {
            class: STALE_DEVICE.to_owned(),
            id: volume.id.to_string(),
            pool: volume.pool().to_string(),
            path: device.path().display().to_string(),
            since: Some(self.first_seen.of(&seen)),
            found: "its image is attached, and mounted nowhere".to_owned(),
            fix: match self.held_open(&uses.loops) {
                None => Fix::Does("detaches it".to_owned()),
                Some(who) => Fix::Kept(who),
            },
            seen,
            name: volume.name.clone(),
            claim: volume.claim.clone(),
            ..Finding::default()
        })
    }

    /// Returns who has one of these devices open.
    pub(super) fn held_open(&self, devices: &[LoopDevice]) -> Option<String> {
        devices.iter().find_map(|device| match self.os.loops.holders(device) {
            Ok(holders) if holders.is_empty() => None,
            Ok(holders) => Some(format!("in use: {}: {}", device.path().display(), holders.join(", "))),
            Err(error) => Some(format!("it is not known who has {} open: {error}", device.path().display())),
        })
    }

    /// Returns what is said of a directory whose limit is not what its record says.
    pub(super) fn not_enforced(&self, volume: &Volume, seen: &Seen) -> Option<Finding> {
        if !volume.is_ready() || !volume.parameters.is_limited_directory() || !self.answers(volume.pool()) {
            return None;
        }
        let paths = self.paths(volume).ok()?;
        let found = troubles(self.place(volume, &paths), seen);
        let trouble = found.into_iter().find(|trouble| LIMIT_REASONS.contains(&trouble.reason))?;
        let path = paths.directory.display().to_string();
        let seen = format!("{} {}", print_of(volume), trouble.message);
        Some(Finding {
            class: SIZE_NOT_ENFORCED.to_owned(),
            id: volume.id.to_string(),
            pool: volume.pool().to_string(),
            path,
            since: Some(self.first_seen.of(&seen)),
            bytes: Some(volume.capacity_bytes),
            found: trouble.message,
            fix: Fix::Does("sets its limit again".to_owned()),
            seen,
            name: volume.name.clone(),
            claim: volume.claim.clone(),
            ..Finding::default()
        })
    }

    /// Returns what is said of a volume that a call has begun to make or to delete. A copy that is not whole is the business of
    /// the move that wants it.
    pub(super) fn half_made_volume(&self, volume: &Volume) -> Option<Finding> {
        if volume.is_ready() || volume.is_removed() || volume.copy_of.is_some() {
            return None;
        }
        let paths = self.paths(volume);
        let (pool, directory) = (volume.pool(), paths.as_ref().ok().map(|paths| paths.directory.clone()));
        let mut finding = half_made(volume.id.to_string(), volume.phase, pool, print_of(volume));
        (finding.name, finding.claim) = (volume.name.clone(), volume.claim.clone());
        finding.since =
            directory.as_deref().filter(|_| self.answers(pool)).and_then(|path| self.changed(path));
        finding.since = finding.since.or_else(|| Some(self.first_seen.of(&finding.seen)));
        finding.path = directory.map(|path| path.display().to_string()).unwrap_or_default();
        finding.bytes = self.details.get(&ObjectId::from(&volume.id)).disk.bytes;
        if !self.answers(pool) {
            finding.fix = Fix::Kept(format!("pool {pool} does not answer"));
        }
        Some(finding)
    }

    /// Returns what is said of a snapshot that is half made or half deleted, and no member of a group.
    pub(super) fn half_made_snapshot(&self, snapshot: &Snapshot) -> Option<Finding> {
        if snapshot.is_ready() || snapshot.group.is_some() || snapshot.pulled_for.is_some() {
            return None;
        }
        let mut finding =
            half_made(snapshot.id.to_string(), snapshot.phase, &snapshot.pool, print_of(snapshot));
        finding.since = Some(snapshot.created);
        finding.path =
            self.snapshot_paths(snapshot).map(|it| it.directory.display().to_string()).unwrap_or_default();
        if !self.answers(&snapshot.pool) {
            finding.fix = Fix::Kept(format!("pool {} does not answer", snapshot.pool));
        }
        Some(finding)
    }

    pub(super) fn held_snapshot(&self, snapshot: &Snapshot) -> HeldRecord {
        let paths: Result<VolumePaths> = self.snapshot_paths(snapshot);
        HeldRecord {
            id: snapshot.id.to_string(),
            kind: kind_of_snapshot(snapshot).to_owned(),
            name: snapshot.name.clone(),
            pool: snapshot.pool.to_string(),
            phase: snapshot.phase.as_str().to_owned(),
            since: Some(snapshot.created),
            bytes: self.details.get(&ObjectId::from(&snapshot.id)).disk.bytes,
            path: paths.map(|paths| paths.directory.display().to_string()).unwrap_or_default(),
            content: snapshot.object.as_ref().map(|object| object.content.clone()),
            seen: print_of(snapshot),
            ..HeldRecord::default()
        }
    }
}

/// Returns what is said of a group that is half made or half deleted, with its members.
pub(super) fn half_made_group(group: &GroupSnapshot) -> Option<Finding> {
    if group.phase == Phase::Ready {
        return None;
    }
    let mut finding = half_made(group.id.to_string(), group.phase, &PoolName::default(), print_of(group));
    finding.since = Some(group.created);
    finding.pool = String::new();
    Some(finding)
}

fn half_made(id: String, phase: Phase, pool: &PoolName, seen: String) -> Finding {
    let (found, fix) = match phase {
        Phase::Creating => ("its creation has begun and not ended", "removes it, or keeps it if it is whole"),
        Phase::Deleting | Phase::Ready => {
            ("its deletion has begun and not ended", "finishes the deletion, or keeps it if it is whole")
        }
    };
    Finding {
        class: HALF_MADE.to_owned(),
        id,
        pool: pool.to_string(),
        found: found.to_owned(),
        fix: Fix::Does(fix.to_owned()),
        seen,
        ..Finding::default()
    }
}

/// Returns the text by which a mount is known to have been seen.
pub(super) fn key_of_mount(path: &str, seen: &str) -> String {
    format!("{path} {seen}")
}

/// Reports whether kubelet stages volumes at this path: `…/plugins/kubernetes.io/csi/DRIVER/HASH/globalmount`, and for a raw block
/// device `…/plugins/kubernetes.io/csi/volumeDevices/staging/PV`.
fn is_staging(path: &str) -> bool {
    let in_plugins = path.contains("/plugins/kubernetes.io/csi/");
    in_plugins && (path.ends_with("/globalmount") || path.contains("/volumeDevices/staging/"))
}
