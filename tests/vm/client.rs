//! A volume's life as kubelet and the sidecars lead it, with the generated clients.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hostloop::wire::csi::controller_client::ControllerClient;
use hostloop::wire::csi::identity_client::IdentityClient;
use hostloop::wire::csi::node_client::NodeClient;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use hostloop::wire::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use hostloop::wire::csi::*;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

/// What a file of a volume holds, and a slot of a block volume.
const FILE_BYTES: usize = 64 << 10;
/// On a disk, as kubelet's directory is.
const PODS: &str = "/var/pods";

/// Name, size in MiB, parameters.
type Kind = (&'static str, u64, &'static [(&'static str, &'static str)]);

/// The kinds of volumes.
pub const KINDS: [Kind; 6] = [
    ("ext4", 32, &[]),
    ("thick", 32, &[("provisioning", "thick")]),
    ("block", 32, &[]),
    ("directory", 32, &[("backend", "directory"), ("pool", "directories")]),
    ("xfs", 300, &[]),
    ("btrfs", 256, &[]),
];

pub struct Client {
    runtime: Runtime,
    channel: Channel,
}

/// Calls an RPC and gives its answer; any refusal ends the test.
macro_rules! call {
    ($self:ident, $client:ident, $method:ident, $request:expr) => {{
        let mut client = $client::new($self.channel.clone());
        match $self.runtime.block_on(client.$method($request)) {
            Ok(answer) => answer.into_inner(),
            Err(status) => panic!("{}: {:?}: {}", stringify!($method), status.code(), status.message()),
        }
    }};
}

impl Client {
    /// Connects, and waits until the driver has recovered.
    pub fn connect(socket: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < until, "the driver is not ready");
            let endpoint = Endpoint::try_from(format!("unix://{socket}")).expect("endpoint");
            if let Ok(channel) = runtime.block_on(endpoint.connect()) {
                let probe =
                    runtime.block_on(IdentityClient::new(channel.clone()).probe(ProbeRequest::default()));
                if probe.is_ok_and(|probe| probe.into_inner().ready == Some(true)) {
                    return Client { runtime, channel };
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ids and sizes of all volumes.
    pub fn list(&self) -> HashMap<String, u64> {
        let answer = call!(self, ControllerClient, list_volumes, ListVolumesRequest::default());
        let volumes = answer.entries.into_iter().map(|entry| entry.volume.expect("volume"));
        volumes.map(|volume| (volume.volume_id, volume.capacity_bytes as u64)).collect()
    }

    /// CreateVolume; gives the id.
    pub fn create(&self, name: &str, kind: &str, bytes: u64) -> String {
        let (_, _, parameters) = KINDS.into_iter().find(|(name, ..)| *name == kind).expect("kind");
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: size(bytes),
            volume_capabilities: vec![capability(kind)],
            parameters: parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..CreateVolumeRequest::default()
        };
        call!(self, ControllerClient, create_volume, request).volume.expect("volume").volume_id
    }

    /// DeleteVolume.
    pub fn delete(&self, id: &str) {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
        call!(self, ControllerClient, delete_volume, request);
    }

    /// NodeStageVolume and NodePublishVolume.
    pub fn publish(&self, id: &str, kind: &str) {
        let (staging, target) = paths(id);
        fs::create_dir_all(&staging).expect("staging path");
        let stage = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&staging),
            volume_capability: Some(capability(kind)),
            ..NodeStageVolumeRequest::default()
        };
        call!(self, NodeClient, node_stage_volume, stage);
        let publish = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&staging),
            target_path: text(&target),
            volume_capability: Some(capability(kind)),
            ..NodePublishVolumeRequest::default()
        };
        call!(self, NodeClient, node_publish_volume, publish);
    }

    /// NodeUnpublishVolume and NodeUnstageVolume.
    pub fn unpublish(&self, id: &str) {
        let (staging, target) = paths(id);
        let unpublish = NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: text(&target) };
        call!(self, NodeClient, node_unpublish_volume, unpublish);
        let unstage =
            NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: text(&staging) };
        call!(self, NodeClient, node_unstage_volume, unstage);
    }

    /// ControllerExpandVolume.
    pub fn expand(&self, id: &str, kind: &str, bytes: u64) {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: size(bytes),
            volume_capability: Some(capability(kind)),
            ..ControllerExpandVolumeRequest::default()
        };
        let answer = call!(self, ControllerClient, controller_expand_volume, request);
        assert!(answer.capacity_bytes as u64 >= bytes, "{answer:?}");
    }

    /// NodeExpandVolume.
    pub fn node_expand(&self, id: &str, kind: &str, bytes: u64) {
        let (staging, target) = paths(id);
        let request = NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: text(&target),
            staging_target_path: text(&staging),
            capacity_range: size(bytes),
            volume_capability: Some(capability(kind)),
            ..NodeExpandVolumeRequest::default()
        };
        call!(self, NodeClient, node_expand_volume, request);
    }
}

fn size(bytes: u64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 })
}

fn capability(kind: &str) -> VolumeCapability {
    let access = match kind {
        "block" => AccessType::Block(BlockVolume {}),
        kind => {
            let fs_type = match kind {
                "xfs" | "btrfs" | "ext4" => kind.to_owned(),
                _ => String::new(),
            };
            AccessType::Mount(MountVolume { fs_type, ..MountVolume::default() })
        }
    };
    let mode = AccessMode { mode: Mode::SingleNodeWriter.into() };
    VolumeCapability { access_type: Some(access), access_mode: Some(mode) }
}

fn paths(id: &str) -> (PathBuf, PathBuf) {
    let pod = Path::new(PODS).join(id);
    (pod.join("staging"), pod.join("target"))
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// The bytes that follow from a seed.
fn content(seed: u64) -> Vec<u8> {
    let mut random = super::Random(seed);
    std::iter::repeat_with(|| random.draw().to_le_bytes()).flatten().take(FILE_BYTES).collect()
}

/// Writes the file or slot with this number of a published volume; durable on return.
pub fn write(id: &str, kind: &str, number: usize, seed: u64) {
    let (_, target) = paths(id);
    if kind == "block" {
        let device = OpenOptions::new().write(true).open(&target).expect("open the device");
        device.write_all_at(&content(seed), (number * FILE_BYTES) as u64).expect("write to the device");
        device.sync_all().expect("sync the device");
    } else {
        let mut file = File::create(target.join(format!("f{number}"))).expect("create");
        file.write_all(&content(seed)).expect("write");
        file.sync_all().expect("sync");
        File::open(&target).and_then(|directory| directory.sync_all()).expect("sync the directory");
    }
}

/// Whether a published volume has its acknowledged data and size; says what is wrong.
pub fn check(id: &str, kind: &str, bytes: u64, files: &[u64]) -> Result<(), String> {
    let (_, target) = paths(id);
    for (number, seed) in files.iter().enumerate() {
        let found = read(&target, kind, number).map_err(|error| format!("file {number}: {error}"))?;
        if found != content(*seed) {
            return Err(format!("file {number} has other data, of {} bytes", found.len()));
        }
    }
    let size = match kind {
        "directory" => return Ok(()),
        "block" => File::open(&target).and_then(|mut device| device.seek(SeekFrom::End(0))),
        _ => nix::sys::statvfs::statvfs(&target)
            .map(|shown| shown.blocks() * shown.fragment_size())
            .map_err(std::io::Error::from),
    };
    let size = size.map_err(|error| format!("size: {error}"))?;
    // A filesystem keeps some for itself, less than it was grown by.
    let least = if kind == "block" { bytes } else { bytes / 4 * 3 };
    if size < least { Err(format!("it has {size} bytes, not {bytes}")) } else { Ok(()) }
}

fn read(target: &Path, kind: &str, number: usize) -> std::io::Result<Vec<u8>> {
    let mut found = Vec::new();
    if kind == "block" {
        found.resize(FILE_BYTES, 0);
        File::open(target)?.read_exact_at(&mut found, (number * FILE_BYTES) as u64)?;
    } else {
        File::open(target.join(format!("f{number}")))?.read_to_end(&mut found)?;
    }
    Ok(found)
}
