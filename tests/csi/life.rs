//! The requests of a volume's life, with paths as kubelet makes them.

use hostloop::kernel::FileStat;
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::AccessType;
use hostloop::wire::csi::volume_capability::access_mode::Mode;

use crate::client;
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
    pub id: String,
    pub info: csi::Volume,
    pub capability: csi::VolumeCapability,
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
        let info = self.ok(request).volume.expect("a volume");
        Vol { id: info.volume_id.clone(), info, capability }
    }

    /// Makes the directories that kubelet makes before it calls.
    pub fn stage_request(&self, vol: &Vol) -> csi::NodeStageVolumeRequest {
        self.kernel.create_directories(vol.staging());
        let volume_context = vol.info.volume_context.clone();
        let request = client::stage(&vol.id, vol.staging(), vol.capability.clone());
        csi::NodeStageVolumeRequest { volume_context, ..request }
    }

    pub fn publish_request(&self, vol: &Vol, pod: &str) -> csi::NodePublishVolumeRequest {
        let target = vol.target(pod);
        self.kernel.create_directories(target.rsplit_once('/').expect("a path").0);
        let volume_context = vol.info.volume_context.clone();
        let request = client::publish(&vol.id, vol.staging(), target, vol.capability.clone());
        csi::NodePublishVolumeRequest { volume_context, ..request }
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
    pub fn is_block(&self) -> bool {
        matches!(self.capability.access_type, Some(AccessType::Block(_)))
    }

    /// The same volume, used in another way.
    pub fn used(&self, capability: csi::VolumeCapability) -> Vol {
        Vol { capability, ..self.clone() }
    }

    pub fn staging(&self) -> String {
        let csi = format!("{KUBELET}/plugins/kubernetes.io/csi");
        match self.is_block() {
            true => format!("{csi}/volumeDevices/staging/pv-{}", self.id),
            false => format!("{csi}/hostloop.csi.dev/{}/globalmount", self.id),
        }
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

    pub fn unstage_request(&self) -> csi::NodeUnstageVolumeRequest {
        client::unstage(&self.id, self.staging())
    }

    pub fn unpublish_request(&self, pod: &str) -> csi::NodeUnpublishVolumeRequest {
        client::unpublish(&self.id, self.target(pod))
    }

    pub fn delete_request(&self) -> csi::DeleteVolumeRequest {
        client::delete(&self.id)
    }

    pub fn stats_request(&self, path: &str) -> csi::NodeGetVolumeStatsRequest {
        client::stats(&self.id, path)
    }

    pub fn expand_request(&self, required: i64, limit: i64) -> csi::ControllerExpandVolumeRequest {
        let capacity_range = range(required, limit);
        csi::ControllerExpandVolumeRequest { capacity_range, ..client::expand(&self.id, required) }
    }

    pub fn node_expand_request(&self, path: &str) -> csi::NodeExpandVolumeRequest {
        client::node_expand(&self.id, path, None::<i64>)
    }

    pub fn attach_request(&self, node: &str, readonly: bool) -> csi::ControllerPublishVolumeRequest {
        let volume_context = self.info.volume_context.clone();
        let request = client::attach(&self.id, node, self.capability.clone());
        csi::ControllerPublishVolumeRequest { readonly, volume_context, ..request }
    }

    pub fn detach_request(&self, node: &str) -> csi::ControllerUnpublishVolumeRequest {
        client::detach(&self.id, node)
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
