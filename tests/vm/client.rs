//! A volume's life as kubelet and the sidecars lead it.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hostloop::selftest::volume::Volume as Known;
use hostloop::selftest::{client, requests};
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use hostloop::wire::csi::*;
use hostloop::wire::rpc::Unary;
use tokio::runtime::Runtime;

/// What a file of a volume holds, and a slot of a block volume.
const FILE_BYTES: usize = 64 << 10;
/// On a disk, as kubelet's directory is.
const PODS: &str = "/var/pods";

/// Name, filesystem as a capability has it, size in MiB, parameters.
type Kind = (&'static str, Option<&'static str>, u64, &'static [(&'static str, &'static str)]);

/// The kinds of volumes; `limited` is a directory whose size its filesystem enforces.
pub const KINDS: [Kind; 7] = [
    ("ext4", Some("ext4"), 32, &[]),
    ("thick", Some(""), 32, &[("provisioning", "thick")]),
    ("block", None, 32, &[]),
    ("directory", Some(""), 32, &[("backend", "directory"), ("pool", "directories")]),
    ("limited", Some(""), 32, &[("backend", "directory"), ("pool", "limited")]),
    ("xfs", Some("xfs"), 300, &[]),
    ("btrfs", Some("btrfs"), 256, &[]),
];

pub struct Client {
    runtime: Runtime,
    client: client::Client,
}

impl Client {
    /// Connects, and waits until the driver has recovered.
    pub fn connect(socket: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let client = runtime.block_on(async { client::Client::new(Path::new(socket)) }).expect("endpoint");
        let until = Instant::now() + Duration::from_secs(60);
        while !runtime.block_on(client.is_ready()) {
            assert!(Instant::now() < until, "the driver is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        Client { runtime, client }
    }

    /// Makes a call and gives its answer; any refusal ends the test.
    fn call<Q: Unary>(&self, request: Q) -> Q::Reply {
        match self.runtime.block_on(self.client.call(request)) {
            Ok(answer) => answer,
            Err(status) => panic!("{}: {:?}: {}", Q::PATH, status.code(), status.message()),
        }
    }

    /// Ids and sizes of all volumes.
    pub fn list(&self) -> HashMap<String, u64> {
        let answer = self.call(ListVolumesRequest::default());
        let volumes = answer.entries.into_iter().map(|entry| entry.volume.expect("volume"));
        volumes.map(|volume| (volume.volume_id, volume.capacity_bytes as u64)).collect()
    }

    /// CreateVolume; gives the id.
    pub fn create(&self, name: &str, kind: &str, bytes: u64) -> String {
        let (.., parameters) = of_kind(kind);
        let parameters = requests::parameters(parameters);
        let request = CreateVolumeRequest { parameters, ..requests::create(name, bytes, capability(kind)) };
        self.call(request).volume.expect("volume").volume_id
    }

    /// DeleteVolume.
    pub fn delete(&self, id: &str) {
        self.call(requests::delete(id));
    }

    /// NodeStageVolume and NodePublishVolume.
    pub fn publish(&self, id: &str, kind: &str) {
        let (volume, target) = found(id, kind);
        fs::create_dir_all(&volume.staging).expect("staging path");
        self.call(volume.stage_request());
        self.call(volume.publish_request(&target));
    }

    /// NodeUnpublishVolume and NodeUnstageVolume.
    pub fn unpublish(&self, id: &str) {
        let (staging, target) = paths(id);
        self.call(requests::unpublish(id, &target));
        self.call(requests::unstage(id, &staging));
    }

    /// ControllerExpandVolume.
    pub fn expand(&self, id: &str, kind: &str, bytes: u64) {
        let answer = self.call(found(id, kind).0.expand_request(bytes));
        assert!(answer.capacity_bytes as u64 >= bytes, "{answer:?}");
    }

    /// NodeExpandVolume.
    pub fn node_expand(&self, id: &str, kind: &str, bytes: u64) {
        let (volume, target) = found(id, kind);
        self.call(volume.node_expand_request(&target, Some(bytes)));
    }
}

fn of_kind(kind: &str) -> Kind {
    KINDS.into_iter().find(|(name, ..)| *name == kind).expect("kind")
}

fn capability(kind: &str) -> VolumeCapability {
    let (_, fs_type, ..) = of_kind(kind);
    requests::capability(fs_type, Mode::SingleNodeWriter)
}

fn paths(id: &str) -> (PathBuf, PathBuf) {
    let pod = Path::new(PODS).join(id);
    (pod.join("staging"), pod.join("target"))
}

/// A volume that exists, and the path at which its pod has it.
fn found(id: &str, kind: &str) -> (Known, PathBuf) {
    let (staging, target) = paths(id);
    let info = Volume { volume_id: id.to_owned(), ..Default::default() };
    (Known::new(info, capability(kind), staging), target)
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
    // A filesystem keeps some for itself, less than it was grown by. One that limits a directory shows the limit.
    let least = if matches!(kind, "block" | "limited") { bytes } else { bytes / 4 * 3 };
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
