//! One volume, and the calls that external-provisioner, external-resizer and kubelet make for it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hostloop::wire::csi;
use hostloop::wire::csi::VolumeCapability;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::{Code, Status};

use super::{Csi, Kind, World, text};
use crate::client::{self, MadeFrom};

/// Where a volume is, and what it is.
pub struct Vol<'a> {
    csi: &'a Csi,
    pub kind: Kind,
    pub volume: csi::Volume,
    pub capability: VolumeCapability,
    /// kubelet's directory for this volume.
    base: PathBuf,
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
    pub fn of(world: &'a World, kind: Kind, volume: csi::Volume) -> Vol<'a> {
        let base = world.directory(&volume.volume_id);
        std::fs::create_dir_all(base.join("globalmount")).expect("mkdir");
        let capability = kind.capability(Mode::SingleNodeMultiWriter);
        Vol { csi: &world.csi, kind, volume, capability, base }
    }

    /// With mount flags.
    pub fn with_flags(mut self, flags: &[&str]) -> Self {
        self.capability = client::with_options(self.kind.capability(Mode::SingleNodeMultiWriter), flags);
        self
    }

    pub fn id(&self) -> &str {
        &self.volume.volume_id
    }

    pub fn bytes(&self) -> u64 {
        u64::try_from(self.volume.capacity_bytes).expect("a size")
    }

    pub fn staging(&self) -> PathBuf {
        self.base.join("globalmount")
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
        let volume_context = self.volume.volume_context.clone();
        let request = client::stage(self.id(), self.staging(), self.capability.clone());
        self.csi.call(csi::NodeStageVolumeRequest { volume_context, ..request }).map(drop)
    }

    pub fn stage_read_only(&self) -> Result<(), Status> {
        let mode = csi::volume_capability::access_mode::Mode::SingleNodeReaderOnly.into();
        let access_mode = Some(csi::volume_capability::AccessMode { mode });
        let capability = csi::VolumeCapability { access_mode, ..self.capability.clone() };
        let volume_context = self.volume.volume_context.clone();
        let request = client::stage(self.id(), self.staging(), capability);
        self.csi.call(csi::NodeStageVolumeRequest { volume_context, ..request }).map(drop)
    }

    pub fn publish(&self, pod: &str) -> Result<(), Status> {
        self.publish_as(pod, false)
    }

    pub fn publish_as(&self, pod: &str, readonly: bool) -> Result<(), Status> {
        let volume_context = self.volume.volume_context.clone();
        let request = client::publish(self.id(), self.staging(), self.target(pod), self.capability.clone());
        self.csi.publish(csi::NodePublishVolumeRequest { readonly, volume_context, ..request })
    }

    pub fn unpublish(&self, pod: &str) -> Result<(), Status> {
        self.csi.unpublish(self.id(), &self.target(pod))
    }

    pub fn unstage(&self) -> Result<(), Status> {
        self.csi.call(client::unstage(self.id(), self.staging())).map(drop)
    }

    /// ControllerExpandVolume; the answer's size, and whether the node has to do its part.
    pub fn expand(&self, bytes: u64) -> Result<(u64, bool), Status> {
        let volume_capability = Some(self.capability.clone());
        let request = client::expand(self.id(), bytes);
        let answer = self.csi.call(csi::ControllerExpandVolumeRequest { volume_capability, ..request })?;
        Ok((answer.capacity_bytes.try_into().expect("a size"), answer.node_expansion_required))
    }

    /// NodeExpandVolume; the answer's size.
    pub fn node_expand(&self, pod: &str, bytes: u64) -> Result<u64, Status> {
        let answer = self.csi.call(csi::NodeExpandVolumeRequest {
            staging_target_path: text(&self.staging()).to_owned(),
            volume_capability: Some(self.capability.clone()),
            ..client::node_expand(self.id(), self.target(pod), Some(bytes))
        })?;
        Ok(answer.capacity_bytes.try_into().expect("a size"))
    }

    /// NodeGetVolumeStats: for each unit total, used and available.
    pub fn stats(&self, pod: &str) -> Result<Vec<(i32, [i64; 3])>, Status> {
        let answer = self.csi.stats(self.id(), &self.target(pod))?;
        Ok(answer.usage.iter().map(|u| (u.unit, [u.total, u.used, u.available])).collect())
    }

    pub fn delete(&self) -> Result<(), Status> {
        self.csi.delete(self.id())
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
