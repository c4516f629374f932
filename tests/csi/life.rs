//! The requests of a volume's life, with paths as kubelet makes them.

use std::ops::Deref;

use hostloop::kernel::FileStat;
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::AccessType;
use hostloop::wire::csi::volume_capability::access_mode::Mode;

use crate::client::{self, Volume};
use crate::harness::{DIRECTORIES, DIRECTORIES_DIR};
use crate::support::{DATA, KUBELET, MIB, Rig, map};

/// The size of a volume where a test does not care.
pub const SIZE: i64 = 64 * MIB;

pub const ALL_MODES: [Mode; 7] = [
    Mode::SingleNodeWriter,
    Mode::SingleNodeReaderOnly,
    Mode::MultiNodeReaderOnly,
    Mode::MultiNodeSingleWriter,
    Mode::MultiNodeMultiWriter,
    Mode::SingleNodeSingleWriter,
    Mode::SingleNodeMultiWriter,
];

pub fn mount_with(fs_type: &str, flags: &[&str], mode: Mode) -> csi::VolumeCapability {
    client::with_options(client::capability(Some(fs_type), mode), flags)
}

pub fn mount() -> csi::VolumeCapability {
    mount_with("", &[], Mode::SingleNodeWriter)
}

pub fn fs(fs_type: &str) -> csi::VolumeCapability {
    mount_with(fs_type, &[], Mode::SingleNodeWriter)
}

pub fn mode(mode: Mode) -> csi::VolumeCapability {
    mount_with("", &[], mode)
}

pub fn block() -> csi::VolumeCapability {
    block_mode(Mode::SingleNodeWriter)
}

pub fn block_mode(mode: Mode) -> csi::VolumeCapability {
    client::capability(None, mode)
}

pub fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange { required_bytes, limit_bytes })
}

/// CreateVolume with a small size.
pub fn create(name: &str, capability: csi::VolumeCapability) -> csi::CreateVolumeRequest {
    client::create(name, SIZE, capability)
}

pub fn create_with(name: &str, parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest { parameters: map(parameters), ..create(name, mount()) }
}

/// A volume, how it is used, and where kubelet wants it.
#[derive(Clone)]
pub struct Vol {
    volume: Volume,
}

impl Deref for Vol {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

impl Rig {
    /// Makes a volume for this use.
    #[track_caller]
    pub fn volume(&self, name: &str, capability: csi::VolumeCapability) -> Vol {
        self.made(create(name, capability))
    }

    #[track_caller]
    pub fn made(&self, request: csi::CreateVolumeRequest) -> Vol {
        let capability = request.volume_capabilities[0].clone();
        Vol::new(self.ok(request).volume.expect("a volume"), capability)
    }

    /// Makes the directories that kubelet makes before it calls.
    pub fn stage_request(&self, vol: &Vol) -> csi::NodeStageVolumeRequest {
        self.kernel.create_directories(&vol.staging);
        vol.volume.stage_request()
    }

    pub fn publish_request(&self, vol: &Vol, pod: &str) -> csi::NodePublishVolumeRequest {
        let target = vol.target(pod);
        self.kernel.create_directories(target.rsplit_once('/').expect("a path").0);
        vol.volume.publish_request(target)
    }

    #[track_caller]
    pub fn stage(&self, vol: &Vol) {
        self.ok(self.stage_request(vol));
    }

    /// Publishes for a pod and gives the target path.
    #[track_caller]
    pub fn publish(&self, vol: &Vol, pod: &str) -> String {
        self.ok(self.publish_request(vol, pod));
        vol.target(pod)
    }

    #[track_caller]
    pub fn unpublish(&self, vol: &Vol, pod: &str) {
        self.ok(vol.unpublish_request(pod));
    }

    #[track_caller]
    pub fn unstage(&self, vol: &Vol) {
        self.ok(vol.unstage_request());
    }

    /// A volume staged and published for the pod `pod-1`, and its target path.
    #[track_caller]
    pub fn published(&self, name: &str, capability: csi::VolumeCapability) -> (Vol, String) {
        let vol = self.volume(name, capability);
        self.stage(&vol);
        let target = self.publish(&vol, "pod-1");
        (vol, target)
    }

    pub fn image(&self, vol: &Vol) -> FileStat {
        self.kernel.stat(vol.image()).expect("an image")
    }

    /// How many mounts are at this path.
    pub fn mounts_at(&self, path: &str) -> usize {
        self.kernel.mounts().iter().filter(|mount| mount.target.as_os_str() == path).count()
    }

    /// Nothing of any volume is left: no mount, no loop device, no file.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!(self.kernel.mounts(), []);
        assert_eq!(self.kernel.loops(), []);
        assert_eq!(self.kernel.tree(format!("{DATA}/volumes")), Vec::<String>::new());
        assert_eq!(self.kernel.hazards(), Vec::<String>::new());
        assert!(self.ok(csi::ListVolumesRequest::default()).entries.is_empty());
    }
}

impl Vol {
    pub fn new(info: csi::Volume, capability: csi::VolumeCapability) -> Vol {
        let (csi, id) = (format!("{KUBELET}/plugins/kubernetes.io/csi"), &info.volume_id);
        let staging = match capability.access_type {
            Some(AccessType::Block(_)) => format!("{csi}/volumeDevices/staging/pv-{id}"),
            _ => format!("{csi}/hostloop.csi.dev/{id}/globalmount"),
        };
        Vol { volume: Volume::new(info, capability, staging) }
    }

    pub fn is_block(&self) -> bool {
        matches!(self.capability.access_type, Some(AccessType::Block(_)))
    }

    /// The same volume, used in another way.
    pub fn used(&self, capability: csi::VolumeCapability) -> Vol {
        Vol::new(self.info.clone(), capability)
    }

    /// The same volume by another id.
    pub fn with_id(&self, id: impl Into<String>) -> Vol {
        Vol::new(csi::Volume { volume_id: id.into(), ..self.info.clone() }, self.capability.clone())
    }

    pub fn staging(&self) -> String {
        self.staging.display().to_string()
    }

    pub fn target(&self, pod: &str) -> String {
        match self.is_block() {
            true => format!("{KUBELET}/plugins/kubernetes.io/csi/volumeDevices/publish/pv-{}/{pod}", self.id),
            false => format!("{KUBELET}/pods/{pod}/volumes/kubernetes.io~csi/pv-{}/mount", self.id),
        }
    }

    /// The volume's directory.
    pub fn directory(&self) -> String {
        let pool = match self.info.volume_context.get("pool").map(String::as_str) {
            Some(DIRECTORIES) => DIRECTORIES_DIR,
            _ => DATA,
        };
        format!("{pool}/volumes/{}", self.id)
    }

    pub fn image(&self) -> String {
        format!("{}/disk.img", self.directory())
    }

    pub fn unpublish_request(&self, pod: &str) -> csi::NodeUnpublishVolumeRequest {
        self.volume.unpublish_request(self.target(pod))
    }

    pub fn expand_request(&self, required: i64, limit: i64) -> csi::ControllerExpandVolumeRequest {
        let capacity_range = range(required, limit);
        csi::ControllerExpandVolumeRequest { capacity_range, ..self.volume.expand_request(required) }
    }

    pub fn node_expand_request(&self, path: &str) -> csi::NodeExpandVolumeRequest {
        self.volume.node_expand_request(path, None::<i64>)
    }

    pub fn validate_request(
        &self,
        capabilities: Vec<csi::VolumeCapability>,
    ) -> csi::ValidateVolumeCapabilitiesRequest {
        csi::ValidateVolumeCapabilitiesRequest {
            volume_id: self.id.clone(),
            volume_context: self.info.volume_context.clone(),
            volume_capabilities: capabilities,
            ..Default::default()
        }
    }
}

/// CSI GetCapacity for a StorageClass with these parameters.
pub fn capacity(parameters: &[(&str, &str)]) -> csi::GetCapacityRequest {
    csi::GetCapacityRequest { parameters: map(parameters), ..Default::default() }
}
