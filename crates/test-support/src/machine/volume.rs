//! One volume, and the calls that external-provisioner, external-resizer and kubelet make for it.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::{Code, Status};

use super::{Csi, Kind, World};
use crate::client::{self, MadeFrom, Volume};

/// Where a volume is, and what it is.
pub struct Vol<'a> {
    csi: &'a Csi,
    pub kind: Kind,
    volume: Volume,
    /// kubelet's directory for this volume.
    base: PathBuf,
}

impl Deref for Vol<'_> {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

impl DerefMut for Vol<'_> {
    fn deref_mut(&mut self) -> &mut Volume {
        &mut self.volume
    }
}

/// A CreateVolume request as external-provisioner makes it.
pub fn create_request(
    kind: Kind,
    name: &str,
    bytes: u64,
    class: &[(&str, &str)],
) -> csi::CreateVolumeRequest {
    let parameters = client::parameters(&[class, kind.backend()].concat());
    let capability = kind.capability(Mode::SingleNodeMultiWriter);
    csi::CreateVolumeRequest { parameters, ..client::create(name, bytes, capability) }
}

/// A CreateVolume request for a restore.
pub fn restore_request(
    kind: Kind,
    name: &str,
    bytes: u64,
    snapshot_id: &str,
    class: &[(&str, &str)],
) -> csi::CreateVolumeRequest {
    MadeFrom::Snapshot(snapshot_id.to_owned()).source_of(create_request(kind, name, bytes, class))
}

/// A CreateVolume request for a clone.
pub fn clone_request(
    kind: Kind,
    name: &str,
    bytes: u64,
    volume_id: &str,
    class: &[(&str, &str)],
) -> csi::CreateVolumeRequest {
    MadeFrom::Volume(volume_id.to_owned()).source_of(create_request(kind, name, bytes, class))
}

impl<'a> Vol<'a> {
    /// CreateVolume, and kubelet's directories.
    pub fn create(
        world: &'a World,
        kind: Kind,
        name: &str,
        bytes: u64,
        parameters: &[(&str, &str)],
    ) -> Vol<'a> {
        let volume = world.csi.create(create_request(kind, name, bytes, parameters)).expect("CreateVolume");
        Vol::of(world, kind, volume)
    }

    /// A volume made from a snapshot.
    pub fn restore(
        world: &'a World,
        kind: Kind,
        name: &str,
        bytes: u64,
        snapshot: &csi::Snapshot,
        parameters: &[(&str, &str)],
    ) -> Vol<'a> {
        let request = restore_request(kind, name, bytes, &snapshot.snapshot_id, parameters);
        Vol::of(world, kind, world.csi.create(request).expect("CreateVolume from a snapshot"))
    }

    /// A copy of this volume.
    pub fn copy(&self, world: &'a World, name: &str, parameters: &[(&str, &str)]) -> Vol<'a> {
        let request = clone_request(self.kind, name, self.bytes(), self.id(), parameters);
        Vol::of(world, self.kind, world.csi.create(request).expect("CreateVolume from a volume"))
    }

    /// A volume that exists.
    pub fn of(world: &'a World, kind: Kind, info: csi::Volume) -> Vol<'a> {
        let base = world.directory(&info.volume_id);
        let staging = base.join("globalmount");
        std::fs::create_dir_all(&staging).expect("mkdir");
        let volume = Volume::new(info, kind.capability(Mode::SingleNodeMultiWriter), staging);
        Vol { csi: &world.csi, kind, volume, base }
    }

    /// With mount flags.
    pub fn with_flags(mut self, flags: &[&str]) -> Self {
        self.capability = client::with_options(self.kind.capability(Mode::SingleNodeMultiWriter), flags);
        self
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn staging(&self) -> PathBuf {
        self.staging.clone()
    }

    /// The target path of a pod.
    pub fn target(&self, pod: &str) -> PathBuf {
        self.base.join(pod)
    }

    /// A place to write to: a file in the volume, or the device itself.
    pub fn file(&self, pod: &str) -> PathBuf {
        if self.kind == Kind::Block { self.target(pod) } else { self.target(pod).join("file") }
    }

    pub fn stage(&self) -> Result<(), Status> {
        self.csi.call(self.stage_request()).map(drop)
    }

    pub fn stage_read_only(&self) -> Result<(), Status> {
        let volume_capability = Some(self.kind.capability(Mode::SingleNodeReaderOnly));
        self.csi.call(csi::NodeStageVolumeRequest { volume_capability, ..self.stage_request() }).map(drop)
    }

    pub fn publish(&self, pod: &str) -> Result<(), Status> {
        self.publish_as(pod, false)
    }

    pub fn publish_as(&self, pod: &str, readonly: bool) -> Result<(), Status> {
        let request = self.publish_request(self.target(pod));
        self.csi.publish(csi::NodePublishVolumeRequest { readonly, ..request })
    }

    pub fn unpublish(&self, pod: &str) -> Result<(), Status> {
        self.csi.unpublish(&self.id, &self.target(pod))
    }

    pub fn unstage(&self) -> Result<(), Status> {
        self.csi.call(self.unstage_request()).map(drop)
    }

    /// ControllerExpandVolume; the answer's size, and whether the node has to do its part.
    pub fn expand(&self, bytes: u64) -> Result<(u64, bool), Status> {
        let answer = self.csi.call(self.expand_request(bytes))?;
        Ok((answer.capacity_bytes.try_into().expect("a size"), answer.node_expansion_required))
    }

    /// NodeExpandVolume; the answer's size.
    pub fn node_expand(&self, pod: &str, bytes: u64) -> Result<u64, Status> {
        let answer = self.csi.call(self.node_expand_request(self.target(pod), Some(bytes)))?;
        Ok(answer.capacity_bytes.try_into().expect("a size"))
    }

    /// NodeGetVolumeStats: for each unit total, used and available.
    pub fn stats(&self, pod: &str) -> Result<Vec<(i32, [i64; 3])>, Status> {
        let answer = self.csi.call(self.stats_request(self.target(pod)))?;
        Ok(answer.usage.iter().map(|u| (u.unit, [u.total, u.used, u.available])).collect())
    }

    pub fn delete(&self) -> Result<(), Status> {
        self.csi.call(self.delete_request()).map(drop)
    }

    /// Stages and publishes to the pod `a`.
    pub fn up(&self) {
        self.stage().expect("NodeStageVolume");
        self.publish("a").expect("NodePublishVolume");
    }

    /// Undoes [`up`](Vol::up).
    pub fn down(&self) {
        self.unpublish("a").expect("NodeUnpublishVolume");
        self.unstage().expect("NodeUnstageVolume");
    }

    /// Undoes [`up`](Vol::up), and deletes it.
    ///
    /// Retries DeleteVolume, as external-provisioner does, if the disk takes longer than the driver waits for it.
    pub fn remove(self) {
        self.down();
        let started = Instant::now();
        while let Err(refused) = self.delete() {
            let is_slow =
                refused.code() == Code::Unavailable && refused.message().contains("has not answered");
            assert!(is_slow && started.elapsed() < Duration::from_secs(180), "DeleteVolume: {refused}");
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}
